"""Tables compared with their declarations.

What Waybill changes by itself: a missing schema, table or column is created; a column takes null
when the declaration says so, or no longer has the column; a column's type becomes wider where the
declaration's is, by ``widened``. One that is wider than the declaration stays as it is, and rows
are cast to it. Everything else that differs is the user's to decide, and an InputError says what.

A table that users made is taken over when its types fit and its key is one; rows that were there
before have no versions, and any event is newer than they are.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from waybill.destinations.batch import Place
from waybill.destinations.merging import DELETED_AT, KEPT_COLUMNS, RESERVED_PREFIX, quoted
from waybill.destinations.specs import ITEM, child_spec, with_children
from waybill.destinations.transactional.session import Session, SqlError
from waybill.errors import InputError
from waybill.mappings import NameRules
from waybill.pipelines import ChildTable, Column, TableSpec, widened

_LOG = logging.getLogger(__name__)
ORDINARY = "table"


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it is, once it was brought to its declaration."""

    spec: TableSpec
    """Types as the table has them: where they differ from the declaration, they are wider."""
    marked: bool = False
    """It has ``_waybill_deleted_at``."""


@dataclass(frozen=True, slots=True)
class FoundColumn:
    """A column as the catalogue has it."""

    type: str
    not_null: bool
    has_default: bool


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A relation as the catalogue has it."""

    kind: str
    """``ORDINARY``, or in words what it is."""
    columns: dict[str, FoundColumn]
    unique: list[frozenset[str]] = field(default_factory=list)
    """Columns of each unique index that is whole, valid and checked at once."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """How an engine spells tables."""

    title: str
    """Its name for people."""
    names: NameRules
    types: Mapping[str, str]
    """Column type to the engine's, as its catalogue says it; without decimals."""
    decimal: str
    """The name before ``(p,s)``."""
    keyed: bool
    """Tables have a primary key, and one without is refused."""
    adds_required: bool
    """A column may be added with NOT NULL."""
    rekey: Callable[[TableSpec, Sequence[str]], list[str]]
    """Statements that spell the keys in a table's tombstones as its new key columns do, which have
    these types."""

    def sql_type(self, name: str) -> str:
        """Return the engine's type of a column type."""
        if name.startswith("decimal("):
            return self.decimal + name.removeprefix("decimal")
        return self.types[name]

    def column_type(self, found: str) -> str | None:
        """Return the column type of one of the engine's; None: it has none."""
        match = re.fullmatch(rf"{re.escape(self.decimal)}\((\d+),\s*(\d+)\)", found)
        if match is not None:
            return f"decimal({match[1]},{match[2]})"
        return next((name for name, own in self.types.items() if own == found), None)


@dataclass(slots=True)
class TablePlan:
    """What brings a table to its declaration."""

    statements: list[str]
    table: Table
    """As it is then."""


def plans(
    spelling: Spelling, specs: Sequence[TableSpec], found: Mapping[Place, FoundTable]
) -> dict[Place, TablePlan]:
    """Return a plan for each table and each child's.

    Raises:
        InputError: a conflict; names table, column, found, expected.
    """
    planned: dict[Place, TablePlan] = {}
    for spec in specs:
        for table in with_children(spec):
            place = (table.schema_name, table.name)
            planned[place] = plan(spelling, table, found.get(place))
    return planned


def tables_of(specs: Sequence[TableSpec], planned: Mapping[Place, TablePlan]) -> dict[Place, Table]:
    """Return the tables as they are, with their children."""
    tables = {}
    for spec in specs:
        table = planned[spec.schema_name, spec.name].table
        children = tuple(
            _as_it_is(child, planned[spec.schema_name, child.name].table.spec)
            for child in spec.children
        )
        whole = _with(table.spec, table.spec.columns, children)
        tables[spec.schema_name, spec.name] = replace(table, spec=whole)
    return tables


def _as_it_is(child: ChildTable, table: TableSpec) -> ChildTable:
    names = {column.name for column in child.columns}
    columns = tuple(column for column in table.columns if column.name in names)
    return ChildTable(name=child.name, source=child.source, columns=columns)


def carry_out(
    session: Session, plan: TablePlan, definition_error: Callable[[SqlError], str | None]
) -> None:
    """Bring a table to its declaration.

    Args:
        session: with an open transaction.
        plan: for the table.
        definition_error: gives the engine's code of an error that the declaration is to blame for,
            "" where there are no codes; None for other errors.

    Raises:
        InputError: the table cannot be as it is declared.
        SqlError: all other errors.
    """
    for statement in plan.statements:
        _LOG.info("%s", statement)
        try:
            session.execute(statement)
        except SqlError as error:
            table = f"table {shown(plan.table.spec)}"
            if error.refused_code == "destination_not_null_violation":
                raise InputError(
                    f"{table} has rows, and a new column of it is declared NOT NULL: "
                    f"{error.words}; declare the column nullable, or add it to the table with a "
                    "default"
                ) from error
            code = definition_error(error)
            if code is None:
                raise
            message = f"{error.words} ({code})" if code else error.words
            raise InputError(f"{table} cannot be made as it is declared: {message}") from error


def check_names(spelling: Spelling, spec: TableSpec) -> None:
    """Refuse names that the engine, or Waybill's own columns, do not allow.

    Raises:
        InputError: names table and column, and what is wrong.
    """
    for child in spec.children:
        own = child_spec(spec, child)
        kept = tuple(column for column in own.columns if column.name != ITEM)
        check_names(spelling, _with(_without_item(own), kept, ()))
    rules, title = spelling.names, spelling.title
    if spec.schema_name == "waybill" and spec.name.startswith(RESERVED_PREFIX):
        raise InputError(f"table {shown(spec)} is Waybill's own; choose another name")
    for name in (spec.schema_name, spec.name, *(c.name for c in spec.columns)):
        where = f"table {shown(spec)}: name {name!r}"
        if not name or "\0" in name:
            raise InputError(f"{where} is empty or holds a NUL, which no {title} name may")
        size = len(name.encode())
        if size > rules.longest:
            raise InputError(
                f"{where} has {size} bytes, {title} allows {rules.longest}; choose a shorter one"
            )
    _check_columns(spelling, spec)


def _without_item(spec: TableSpec) -> TableSpec:
    key = tuple(name for name in spec.key if name != ITEM)
    columns = tuple(column for column in spec.columns if column.name != ITEM)
    return TableSpec(schema_name=spec.schema_name, name=spec.name, columns=columns, key=key)


def _check_columns(spelling: Spelling, spec: TableSpec) -> None:
    seen: dict[str, str] = {}
    for column in spec.columns:
        name = column.name
        if name.startswith(RESERVED_PREFIX) or name.lower() in spelling.names.reserved:
            raise InputError(
                f"table {shown(spec)}: column name {name!r} is reserved; choose another"
            )
        folded = name.lower() if spelling.names.folds else name
        if folded in seen:
            raise InputError(
                f"table {shown(spec)}: column names {seen[folded]!r} and {name!r} are one name in "
                f"{spelling.title}; choose another"
            )
        seen[folded] = name


def plan(spelling: Spelling, spec: TableSpec, found: FoundTable | None) -> TablePlan:
    """Return the statements that bring a table to its declaration, and what it is then.

    Raises:
        InputError: a conflict; names table, column, found, expected.
    """
    if found is None:
        return TablePlan(_creation(spelling, spec), Table(spec, spec.soft_delete))
    _check_kind(spelling, spec, found)
    table = f"{quoted(spec.schema_name)}.{quoted(spec.name)}"
    statements, columns = [], []
    for column in spec.columns:
        kept = _column_as_found(spelling, spec, column, found.columns.get(column.name))
        columns.append(kept)
        statements += _column_changes(spelling, spec, table, kept, found.columns.get(column.name))
    own = _with(spec, tuple(columns), spec.children)
    statements += _key_changes(spelling, own, found)
    statements += [_relaxation(table, name) for name in _undeclared(spec, found)]
    marked = spec.soft_delete or DELETED_AT in found.columns
    statements += [
        _addition(table, name, spelling.sql_type(kind))
        for name, kind in kept_columns(marked=marked)
        if name not in found.columns
    ]
    return TablePlan(statements, Table(own, marked))


def kept_columns(*, marked: bool) -> list[tuple[str, str]]:
    """Return the system columns of a table, with their types."""
    return [*KEPT_COLUMNS, *([(DELETED_AT, "timestamp")] if marked else [])]


def shown(spec: TableSpec) -> str:
    """Return a table's name for people."""
    return f"{spec.schema_name}.{spec.name}"


def _check_kind(spelling: Spelling, spec: TableSpec, found: FoundTable) -> None:
    if found.kind != ORDINARY:
        raise InputError(f"{shown(spec)}: found {found.kind}, expected a table")
    if spelling.keyed and frozenset(spec.key) not in found.unique:
        known = ", ".join(str(sorted(names)) for names in found.unique) or "none"
        raise InputError(
            f"table {shown(spec)}: found unique keys {known}, expected {sorted(spec.key)}; give "
            "the table a primary key of these columns, or declare another table"
        )


def _undeclared(spec: TableSpec, found: FoundTable) -> list[str]:
    """Return columns that would refuse every new row, for nothing gives them a value."""
    declared = {column.name for column in spec.columns}
    return [
        name
        for name, column in found.columns.items()
        if column.not_null
        and not column.has_default
        and name not in declared
        and not name.startswith(RESERVED_PREFIX)
    ]


def _creation(spelling: Spelling, spec: TableSpec) -> list[str]:
    schema, table = quoted(spec.schema_name), quoted(spec.name)
    columns = [
        f"{quoted(c.name)} {spelling.sql_type(c.type)}{' NOT NULL' if _not_null(spec, c) else ''}"
        for c in spec.columns
    ]
    for name, kind in kept_columns(marked=spec.soft_delete):
        required = "" if name == DELETED_AT else " NOT NULL"
        columns.append(f"{quoted(name)} {spelling.sql_type(kind)}{required}")
    key = ", ".join(quoted(name) for name in spec.key)
    if spelling.keyed:
        columns.append(f"PRIMARY KEY ({key})")
    return [
        f"CREATE SCHEMA IF NOT EXISTS {schema}",
        f"CREATE TABLE {schema}.{table} ({', '.join(columns)})",
    ]


def _column_as_found(
    spelling: Spelling, spec: TableSpec, column: Column, found: FoundColumn | None
) -> Column:
    """Return the column with the type that it will have: the wider of the two."""
    if found is None:
        return column
    known = spelling.column_type(found.type)
    kind = None if known is None else widened(known, column.type)
    if kind is None:
        raise InputError(
            f"table {shown(spec)}, column {column.name!r}: found {found.type}, expected "
            f"{spelling.sql_type(column.type)}; change the column's type there, or declare the "
            "column under another name"
        )
    return Column(name=column.name, type=kind, nullable=column.nullable, source=column.source)


def _column_changes(
    spelling: Spelling, spec: TableSpec, table: str, column: Column, found: FoundColumn | None
) -> list[str]:
    kind, required = spelling.sql_type(column.type), _not_null(spec, column)
    if found is None:
        return _new_column(spelling, table, column.name, kind, required=required)
    if not found.not_null and (not column.nullable or (required and spelling.keyed)):
        raise InputError(
            f"table {shown(spec)}, column {column.name!r}: found nullable, expected NOT NULL; "
            f"declare it nullable, or fill its nulls and run ALTER TABLE {table} "
            f"ALTER COLUMN {quoted(column.name)} SET NOT NULL"
        )
    changes = []
    if found.type != kind:
        changes.append(f"ALTER TABLE {table} ALTER COLUMN {quoted(column.name)} TYPE {kind}")
    if found.not_null and not required:
        changes.append(_relaxation(table, column.name))
    return changes


def _new_column(
    spelling: Spelling, table: str, name: str, kind: str, *, required: bool
) -> list[str]:
    if not required:
        return [_addition(table, name, kind)]
    if spelling.adds_required:
        return [_addition(table, name, f"{kind} NOT NULL")]
    return [
        _addition(table, name, kind),
        f"ALTER TABLE {table} ALTER COLUMN {quoted(name)} SET NOT NULL",
    ]


def _key_changes(spelling: Spelling, table: TableSpec, found: FoundTable) -> list[str]:
    wider = any(
        column.name in table.key
        and column.name in found.columns
        and found.columns[column.name].type != spelling.sql_type(column.type)
        for column in table.columns
    )
    if not wider:
        return []
    kinds = {column.name: spelling.sql_type(column.type) for column in table.columns}
    return spelling.rekey(table, [kinds[name] for name in table.key])


def _with(
    spec: TableSpec, columns: tuple[Column, ...], children: tuple[ChildTable, ...]
) -> TableSpec:
    return TableSpec(
        schema_name=spec.schema_name,
        name=spec.name,
        columns=columns,
        key=spec.key,
        children=children,
        soft_delete=spec.soft_delete,
    )


def _relaxation(table: str, name: str) -> str:
    return f"ALTER TABLE {table} ALTER COLUMN {quoted(name)} DROP NOT NULL"


def _addition(table: str, name: str, kind: str) -> str:
    return f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {quoted(name)} {kind}"


def _not_null(spec: TableSpec, column: Column) -> bool:
    return not column.nullable or column.name in spec.key
