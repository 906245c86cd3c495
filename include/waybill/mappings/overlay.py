"""What is in force after a deploy: the new declaration, laid over what was learned from events.

Declared columns stand first, in declared order, with the names, the sources and the key that the
declaration gives them, each with the wider of its declared and its kept type. What was learned
stays behind them. Of columns that an earlier declaration had and this one has not, those whose
field would only be learned again (policy ``evolve``) stay as well, and take null; under ``strict``
and ``ignore`` they leave the mapping, and the table keeps them. A field that is declared under
another name than it was learned by goes to the declared column from now on; the learned one leaves
the mapping, and the table keeps what it holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from waybill.errors import InputError
from waybill.mappings.evolution import with_table
from waybill.mappings.flattening import decode_path, encode_path
from waybill.pipelines import ChildTable, Column, EventDeclaration, widened


def over(
    declared: EventDeclaration,
    kept: EventDeclaration,
    before: EventDeclaration | None = None,
) -> EventDeclaration:
    """Return a deployed declaration with what was learned.

    Args:
        declared: what is deployed now.
        kept: what is in force.
        before: what was deployed before; its columns were not learned. None: all of ``kept`` was.

    Raises:
        InputError: no type holds what is declared and what is kept, or a key column has the name of
            a column of a child table; says what to do.
    """
    kept = _translated(kept, declared.nested)
    table = declared.table
    laid = _Laid(declared, before)
    columns = laid.columns(table.name, table.columns, kept.table.columns, _columns_of(before))
    return with_table(declared, columns, _children(laid, kept, columns))


@dataclass(frozen=True, slots=True)
class _Laid:
    """A declaration that is laid over another."""

    declared: EventDeclaration
    before: EventDeclaration | None

    def columns(
        self,
        table: str,
        new: Sequence[Column],
        kept: Sequence[Column],
        before: Sequence[Column],
    ) -> tuple[Column, ...]:
        """Return the columns of a table: those declared, then those that stay."""
        names = {column.name.casefold() for column in new}
        sources = {column.source for column in new}
        dropped = set() if self.declared.policy == "evolve" else {one.name for one in before}
        return (
            *(self._joined(table, column, kept) for column in new),
            *(
                column.model_copy(update={"nullable": True})
                for column in kept
                if column.name.casefold() not in names
                and column.source not in sources
                and column.name not in dropped
            ),
        )

    def _joined(self, table: str, column: Column, kept: Sequence[Column]) -> Column:
        """Return a declared column with the wider type of it and the kept one of its name."""
        name = column.name.casefold()
        there = next((one for one in kept if one.name.casefold() == name), None)
        if there is None or there.type == column.type:
            return column
        kind = widened(column.type, there.type)
        if kind is None:
            raise InputError(
                f"event {self.declared.name!r}, column {column.name!r}: expected {there.type}, "
                f"which {table!r} has already, or a type that holds all its values; found "
                f"{column.type}. Declare {there.type}, or a new column with another name and "
                f"`from: {column.source}`"
            )
        return column.model_copy(update={"type": kind})


def _columns_of(before: EventDeclaration | None, child: str | None = None) -> tuple[Column, ...]:
    """Return the columns that an earlier declaration had, or one of its child tables."""
    if before is None or child is None:
        return () if before is None else before.table.columns
    return next((one.columns for one in before.table.children if one.name == child), ())


def _children(
    laid: _Laid, kept: EventDeclaration, columns: Sequence[Column]
) -> tuple[ChildTable, ...]:
    """Return declared child tables, then kept ones of fields that have no column of their own."""
    declared = laid.declared
    there = {child.name: child for child in kept.table.children}
    children = [
        child.model_copy(
            update={
                "columns": laid.columns(
                    child.name,
                    child.columns,
                    there[child.name].columns,
                    _columns_of(laid.before, child.name),
                )
            }
        )
        if child.name in there
        else child
        for child in declared.table.children
    ]
    if declared.arrays == "child":
        taken = {column.source for column in columns} | {child.source for child in children}
        names = {child.name for child in children}
        children += [
            child
            for child in kept.table.children
            if child.source not in taken and child.name not in names
        ]
    _refuse_twins(declared, children)
    return tuple(children)


def _refuse_twins(declared: EventDeclaration, children: Iterable[ChildTable]) -> None:
    keys = {name.casefold() for name in declared.table.key}
    for child in children:
        twins = [column.name for column in child.columns if column.name.casefold() in keys]
        if twins:
            raise InputError(
                f"event {declared.name!r}: the key column {twins[0]!r} would stand twice in child "
                f"table {child.name!r}, which has a column of that name; give the key column "
                "another name, with `from:`"
            )


def _translated(kept: EventDeclaration, nested: str) -> EventDeclaration:
    """Return what is kept with sources as the new declaration reads them: fields, or paths."""
    if kept.nested == nested:
        return kept
    columns = _columns(kept.table.columns, kept.nested, nested)
    return kept.model_copy(
        update={
            "nested": nested,
            "table": kept.table.model_copy(
                update={"columns": columns, "children": _read_anew(kept, nested)}
            ),
        }
    )


def _columns(columns: Iterable[Column], was: str, nested: str) -> tuple[Column, ...]:
    pairs = ((column, translated_source(column.source, was, nested)) for column in columns)
    return tuple(
        column.model_copy(update={"source": source})
        for column, source in pairs
        if source is not None
    )


def _read_anew(kept: EventDeclaration, nested: str) -> tuple[ChildTable, ...]:
    children = []
    for child in kept.table.children:
        source = translated_source(child.source, kept.nested, nested)
        columns = _columns(child.columns, kept.nested, nested)
        if source is not None and columns:
            children.append(child.model_copy(update={"source": source, "columns": columns}))
    return tuple(children)


def translated_source(source: str, was: str, nested: str) -> str | None:
    """Return a field as a path, or a path as a field; None: it lies inside another field.

    Args:
        source: of a column.
        was: ``nested`` of the declaration that it is of.
        nested: of the one that it is wanted for.
    """
    if was == nested:
        return source
    if nested == "flatten":
        return encode_path((source,))
    parts = decode_path(source)
    return parts[0] if len(parts) == 1 else None
