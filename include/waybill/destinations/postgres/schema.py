"""Tables brought to their declarations.

What Waybill changes by itself: a missing schema, table or column is created; a column takes null
when the declaration says so, or no longer has the column. Everything else that differs is the
user's to decide, and an InputError says what. Changes are made in a short transaction of their own
under an advisory lock, so that two loaders do not race, and no load holds a table's exclusive lock.

A table that users made is taken over when its types fit and a unique index covers the key; rows
that were there before have no versions, and any event is newer than they are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from waybill.destinations.merging import KEPT_COLUMNS, RESERVED_PREFIX, literal, quoted
from waybill.destinations.postgres.connection import Session
from waybill.destinations.postgres.errors import SqlError
from waybill.errors import InputError
from waybill.pipelines import Column, TableSpec

_LOG = logging.getLogger(__name__)
MAX_NAME_BYTES = 63
_TYPES = {
    "bool": "boolean",
    "int32": "integer",
    "int64": "bigint",
    "float64": "double precision",
    "string": "text",
    "timestamp": "timestamp with time zone",
    "date": "date",
    "bytes": "bytea",
    "json": "jsonb",
}
_SYSTEM_COLUMNS = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})
_ORDINARY, _PARTITIONED = "r", "p"
_LOCK = "pg_advisory_xact_lock(hashtextextended('waybill tables', 0))"
_BAD_DEFINITION_CLASSES = ("42", "54", "22", "0A")

Place = tuple[str, str]
"""(schema, table)."""


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
    columns: dict[str, FoundColumn]
    unique: list[frozenset[str]] = field(default_factory=list)
    """Columns of each unique index that is whole, valid and checked at once."""


def sql_type(name: str) -> str:
    """Return PostgreSQL's type of a column type, spelt as its catalogue does."""
    if name.startswith("decimal("):
        return "numeric" + name.removeprefix("decimal")
    return _TYPES[name]


def ensure_tables(session: Session, specs: Sequence[TableSpec]) -> None:
    """Bring tables to their declarations. Cost: one query when nothing is to be done.

    Raises:
        InputError: a conflict; names table, column, found, expected.
        RetryError: the server is away, or the table is locked for too long.
    """
    for spec in specs:
        check_names(spec)
    with session.transaction():
        if not any(_changes(session, specs)):
            return
    with session.transaction():
        session.query(f"SELECT {_LOCK}::text")
        for spec, statements in zip(specs, _changes(session, specs), strict=True):
            for statement in statements:
                _LOG.info("%s", statement)
                _change(session, spec, statement)


def _change(session: Session, spec: TableSpec, statement: str) -> None:
    try:
        session.execute(statement)
    except SqlError as error:
        state = error.sqlstate or ""
        if state == "23502":
            raise InputError(
                f"table {_shown(spec)} has rows, and a new column of it is declared NOT NULL: "
                f"{error.words}; declare the column nullable, or add it to the table with a default"
            ) from error
        if state[:2] in _BAD_DEFINITION_CLASSES and state != "42501":
            raise InputError(
                f"table {_shown(spec)} cannot be made as it is declared: {error.words} ({state})"
            ) from error
        raise


def _changes(session: Session, specs: Sequence[TableSpec]) -> list[list[str]]:
    found = inspect(session, [(spec.schema_name, spec.name) for spec in specs])
    return [plan(spec, found.get((spec.schema_name, spec.name))) for spec in specs]


def check_names(spec: TableSpec) -> None:
    """Refuse names that PostgreSQL, or Waybill's own columns, do not allow.

    Raises:
        InputError: names table and column, and what is wrong.
    """
    if spec.schema_name == "waybill" and spec.name.startswith(RESERVED_PREFIX):
        raise InputError(f"table {_shown(spec)} is Waybill's own; choose another name")
    for name in (spec.schema_name, spec.name, *(c.name for c in spec.columns)):
        where = f"table {_shown(spec)}: name {name!r}"
        if not name or "\0" in name:
            raise InputError(f"{where} is empty or holds a NUL, which no PostgreSQL name may")
        size = len(name.encode())
        if size > MAX_NAME_BYTES:
            raise InputError(
                f"{where} has {size} bytes, PostgreSQL allows {MAX_NAME_BYTES}; choose a shorter "
                "one"
            )
    for column in spec.columns:
        if column.name.startswith(RESERVED_PREFIX) or column.name in _SYSTEM_COLUMNS:
            raise InputError(
                f"table {_shown(spec)}: column name {column.name!r} is reserved; choose another"
            )


def inspect(session: Session, places: Sequence[Place]) -> dict[Place, FoundTable]:
    """Return what the catalogue has of these tables."""
    wanted = ", ".join(f"({literal(schema)}, {literal(name)})" for schema, name in places)
    columns = session.query(
        "SELECT n.nspname AS schema, c.relname AS name, c.relkind::text AS kind, "  # noqa: S608
        "a.attname AS column, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type, "
        "a.attnotnull AS not_null, (a.atthasdef OR a.attidentity <> '') AS has_default "
        "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 "
        "AND NOT a.attisdropped "
        f"WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND (n.nspname, c.relname) IN ({wanted})"
    )
    found: dict[Place, FoundTable] = {}
    for row in columns.to_pylist():
        table = found.setdefault((row["schema"], row["name"]), FoundTable(row["kind"], {}))
        table.columns[row["column"]] = FoundColumn(row["type"], row["not_null"], row["has_default"])
    if found:
        _add_unique(session, wanted, found)
    return found


def _add_unique(session: Session, wanted: str, found: Mapping[Place, FoundTable]) -> None:
    indexes = session.query(
        "SELECT n.nspname AS schema, c.relname AS name, i.indexrelid::bigint AS index, "  # noqa: S608
        "a.attname AS column FROM pg_catalog.pg_index i "
        "JOIN pg_catalog.pg_class c ON c.oid = i.indrelid "
        "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "JOIN unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (number, place) "
        "ON k.place <= i.indnkeyatts "
        "JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number "
        "WHERE i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL "
        f"AND i.indexprs IS NULL AND (n.nspname, c.relname) IN ({wanted})"
    )
    columns: dict[tuple[Place, int], set[str]] = {}
    for row in indexes.to_pylist():
        place = (row["schema"], row["name"])
        columns.setdefault((place, row["index"]), set()).add(row["column"])
    for (place, _), names in columns.items():
        found[place].unique.append(frozenset(names))


def plan(spec: TableSpec, found: FoundTable | None) -> list[str]:
    """Return the statements that bring a table to its declaration.

    Raises:
        InputError: a conflict; names table, column, found, expected.
    """
    if found is None:
        return _creation(spec)
    if found.kind not in (_ORDINARY, _PARTITIONED):
        raise InputError(f"{_shown(spec)}: found a view or foreign table, expected a table")
    if frozenset(spec.key) not in found.unique:
        known = ", ".join(str(sorted(names)) for names in found.unique) or "none"
        raise InputError(
            f"table {_shown(spec)}: found unique keys {known}, expected {sorted(spec.key)}; give "
            "the table a primary key of these columns, or declare another table"
        )
    table = f"{quoted(spec.schema_name)}.{quoted(spec.name)}"
    statements = []
    for column in spec.columns:
        statements += _column_changes(spec, table, column, found.columns.get(column.name))
    statements += [_relaxation(table, name) for name in _undeclared(spec, found)]
    statements += [
        _addition(table, name, sql_type(kind))
        for name, kind in KEPT_COLUMNS
        if name not in found.columns
    ]
    return statements


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


def _creation(spec: TableSpec) -> list[str]:
    schema, table = quoted(spec.schema_name), quoted(spec.name)
    columns = [
        f"{quoted(c.name)} {sql_type(c.type)}{' NOT NULL' if _not_null(spec, c) else ''}"
        for c in spec.columns
    ]
    columns += [f"{quoted(name)} {sql_type(kind)} NOT NULL" for name, kind in KEPT_COLUMNS]
    key = ", ".join(quoted(name) for name in spec.key)
    return [
        f"CREATE SCHEMA IF NOT EXISTS {schema}",
        f"CREATE TABLE {schema}.{table} ({', '.join(columns)}, PRIMARY KEY ({key}))",
    ]


def _column_changes(
    spec: TableSpec, table: str, column: Column, found: FoundColumn | None
) -> list[str]:
    kind = sql_type(column.type)
    required = _not_null(spec, column)
    if found is None:
        return [_addition(table, column.name, kind + (" NOT NULL" if required else ""))]
    where = f"table {_shown(spec)}, column {column.name!r}"
    if found.type != kind:
        raise InputError(
            f"{where}: found {found.type}, expected {kind}; change the column's type there, or "
            "declare the column under another name"
        )
    if required and not found.not_null:
        raise InputError(
            f"{where}: found nullable, expected NOT NULL; declare it nullable, or fill its nulls "
            f"and run ALTER TABLE {table} ALTER COLUMN {quoted(column.name)} SET NOT NULL"
        )
    if found.not_null and not required:
        return [_relaxation(table, column.name)]
    return []


def _relaxation(table: str, name: str) -> str:
    return f"ALTER TABLE {table} ALTER COLUMN {quoted(name)} DROP NOT NULL"


def _addition(table: str, name: str, kind: str) -> str:
    return f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {quoted(name)} {kind}"


def _not_null(spec: TableSpec, column: Column) -> bool:
    return not column.nullable or column.name in spec.key


def _shown(spec: TableSpec) -> str:
    return f"{spec.schema_name}.{spec.name}"
