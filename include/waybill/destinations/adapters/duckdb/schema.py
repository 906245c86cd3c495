"""Tables brought to their declarations, while the file is held."""

from __future__ import annotations

from collections.abc import Sequence

from waybill.destinations.adapters.duckdb.books import rekeyed
from waybill.destinations.adapters.duckdb.session import DuckSession
from waybill.destinations.batch import Place
from waybill.destinations.merging import literal, quoted
from waybill.destinations.specs import with_children
from waybill.destinations.transactional.books import TABLES, is_of
from waybill.destinations.transactional.session import SqlError
from waybill.destinations.transactional.tables import (
    ORDINARY,
    FoundColumn,
    FoundTable,
    Spelling,
    Table,
    carry_out,
    check_names,
    plans,
    shown,
    tables_of,
)
from waybill.errors import InputError
from waybill.mappings import rules_of
from waybill.pipelines import TableSpec

SPELLING = Spelling(
    title="DuckDB",
    names=rules_of("duckdb"),
    types={
        "bool": "BOOLEAN",
        "int32": "INTEGER",
        "int64": "BIGINT",
        "float64": "DOUBLE",
        "string": "VARCHAR",
        "timestamp": "TIMESTAMP WITH TIME ZONE",
        "date": "DATE",
        "bytes": "BLOB",
        "json": "JSON",
    },
    decimal="DECIMAL",
    keyed=False,
    adds_required=False,
    rekey=rekeyed,
)


def ensure_tables(session: DuckSession, specs: Sequence[TableSpec]) -> dict[Place, Table]:
    """Bring tables to their declarations, in one transaction.

    Raises:
        InputError: a conflict; names table, column, found, expected.
    """
    for spec in specs:
        check_names(SPELLING, spec)
    with session.transaction():
        found = find_tables(session, specs)
        planned = plans(SPELLING, specs, found)
        for place, plan in planned.items():
            if place in found:
                _check_keys(session, plan.table.spec)
            carry_out(session, plan, _definition_error)
    return tables_of(specs, planned)


def look_at_tables(session: DuckSession, specs: Sequence[TableSpec]) -> dict[Place, Table] | None:
    """Return tables as they are; None: they have to be brought to their declarations.

    Raises:
        InputError: a conflict; names table, column, found, expected.
    """
    planned = plans(SPELLING, specs, find_tables(session, specs))
    if any(plan.statements for plan in planned.values()):
        return None
    return tables_of(specs, planned)


def _definition_error(error: SqlError) -> str | None:
    return "" if error.message.startswith(("Dependency", "Catalog", "Binder", "Parser")) else None


def find_tables(session: DuckSession, specs: Sequence[TableSpec]) -> dict[Place, FoundTable]:
    """Return what the catalogue has of these tables and their children's.

    Columns are by their declared spelling.
    """
    declared = {
        (one.schema_name.lower(), one.name.lower()): one
        for spec in specs
        for one in with_children(spec)
    }
    wanted = ", ".join(f"({literal(schema)}, {literal(name)})" for schema, name in declared)
    rows = session.query(
        "SELECT lower(c.schema_name) AS schema, lower(c.table_name) AS name, c.column_name, "
        "c.data_type, NOT c.is_nullable AS not_null, c.column_default IS NOT NULL AS has_default, "
        "EXISTS (SELECT 1 FROM duckdb_views() AS v WHERE v.view_oid = c.table_oid) AS is_view "
        "FROM duckdb_columns() AS c WHERE c.database_name = current_database() "
        f"AND (lower(c.schema_name), lower(c.table_name)) IN ({wanted})"
    )
    tables: dict[Place, FoundTable] = {}
    for row in rows.to_pylist():
        spec = declared[row["schema"], row["name"]]
        names = {column.name.lower(): column.name for column in spec.columns}
        kind = "a view" if row["is_view"] else ORDINARY
        table = tables.setdefault((spec.schema_name, spec.name), FoundTable(kind, {}))
        name = names.get(row["column_name"].lower(), row["column_name"])
        table.columns[name] = FoundColumn(row["data_type"], row["not_null"], row["has_default"])
    return tables


def _check_keys(session: DuckSession, spec: TableSpec) -> None:
    """Refuse a table of the user's in which a key has two rows; ours have none.

    Raises:
        InputError: says which key.
    """
    ours = session.query(f"SELECT EXISTS (SELECT 1 FROM {TABLES} WHERE {is_of(spec)}) AS ours")
    if ours["ours"][0].as_py():
        return
    key = ", ".join(quoted(name) for name in spec.key)
    twice = session.query(
        f"SELECT {key} FROM {quoted(spec.schema_name)}.{quoted(spec.name)} "
        f"GROUP BY {key} HAVING count(*) > 1 LIMIT 1"
    )
    if twice.num_rows:
        raise InputError(
            f"table {shown(spec)}: found two rows with key {twice.to_pylist()[0]}, expected one "
            "per key; delete one, or declare another table"
        )
