"""Declarations of a table: several in one load, the table's own, and those of its children."""

from __future__ import annotations

from collections.abc import Sequence

from waybill.errors import InputError
from waybill.pipelines import ChildTable, Column, TableSpec, widened

ITEM = "_waybill_item"
"""Column of a child table: the item's place in its array."""


def union(specs: Sequence[TableSpec]) -> TableSpec:
    """Return one declaration that takes the rows of all.

    The newest (last) gives order and key, and says what a delete leaves. A column has the widest
    type that any of them gives it. One that only older ones have is kept and takes null, for the
    newer rows do not have it; one that any of them lets take null takes null.

    Raises:
        InputError: they have different keys, or a column has types that have no common one.
    """
    newest = specs[-1]
    distinct = list({id(spec): spec for spec in specs}.values())
    if all(spec == newest for spec in distinct):
        return newest
    for spec in distinct:
        if set(spec.key) != set(newest.key):
            raise InputError(
                f"table {newest.schema_name}.{newest.name}: found key {list(spec.key)} in waiting "
                f"rows, expected {list(newest.key)}; a table keeps its key: declare another table"
            )
    where = f"table {newest.schema_name}.{newest.name}"
    return TableSpec(
        schema_name=newest.schema_name,
        name=newest.name,
        columns=_columns(where, [spec.columns for spec in reversed(distinct)]),
        key=newest.key,
        children=_children(where, [spec.children for spec in reversed(distinct)]),
        soft_delete=newest.soft_delete,
    )


def child_spec(spec: TableSpec, child: ChildTable) -> TableSpec:
    """Return the declaration of a child's table: the parent's key, the place, its own columns.

    Raises:
        InputError: one of its columns has the name of one of the parent's key.
    """
    key = [column for column in spec.columns if column.name in spec.key]
    clash = {column.name for column in key} & {column.name for column in child.columns}
    if clash:
        raise InputError(
            f"table {spec.schema_name}.{child.name}: found columns {sorted(clash)}, which are the "
            f"key of {spec.name!r}, whose items it holds; name them otherwise"
        )
    place = Column(name=ITEM, type="int64", nullable=False)
    return TableSpec(
        schema_name=spec.schema_name,
        name=child.name,
        columns=(*key, place, *child.columns),
        key=(*spec.key, ITEM),
    )


def with_children(spec: TableSpec) -> list[TableSpec]:
    """Return a declaration and those of its children's tables."""
    return [spec, *(child_spec(spec, child) for child in spec.children)]


def _columns(where: str, newest_first: Sequence[Sequence[Column]]) -> tuple[Column, ...]:
    columns = {column.name: column for column in newest_first[0]}
    for others in newest_first:
        for column in others:
            columns[column.name] = _joined(where, columns.get(column.name), column)
    return tuple(columns.values())


def _joined(where: str, kept: Column | None, column: Column) -> Column:
    if kept is None:
        return column.model_copy(update={"nullable": True})
    kind = widened(kept.type, column.type)
    if kind is None:
        raise InputError(
            f"{where}, column {column.name!r}: found {column.type} in waiting rows, expected "
            f"{kept.type} or what widens to it; declare the column under another name"
        )
    return kept.model_copy(update={"type": kind, "nullable": kept.nullable or column.nullable})


def _children(where: str, newest_first: Sequence[Sequence[ChildTable]]) -> tuple[ChildTable, ...]:
    children: dict[str, ChildTable] = {}
    for others in newest_first:
        for child in others:
            kept = children.get(child.name)
            if kept is None:
                children[child.name] = child
            else:
                columns = _columns(f"{where}, {child.name!r}", [kept.columns, child.columns])
                children[child.name] = kept.model_copy(update={"columns": columns})
    return tuple(children.values())
