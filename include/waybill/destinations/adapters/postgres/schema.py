"""Tables brought to their declarations, in a short transaction of their own under an advisory lock.

So two loaders do not race, and no load holds a table's exclusive lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waybill.destinations.adapters.postgres.books import rekeyed
from waybill.destinations.adapters.postgres.session import PostgresError, PostgresSession
from waybill.destinations.batch import Place
from waybill.destinations.merging import literal, quoted
from waybill.destinations.specs import with_children
from waybill.destinations.transactional.session import SqlError
from waybill.destinations.transactional.tables import (
    ORDINARY,
    FoundColumn,
    FoundTable,
    Spelling,
    Table,
    TablePlan,
    carry_out,
    check_names,
    plans,
    tables_of,
)
from waybill.mappings import rules_of
from waybill.pipelines import TableSpec
from waybill.storage import AdvisoryLock

_BAD_DEFINITION_CLASSES = ("42", "54", "22", "0A", "2B")
_KINDS = {"r": ORDINARY, "p": ORDINARY}
_OTHER_KIND = "a view or foreign table"


SPELLING = Spelling(
    title="PostgreSQL",
    names=rules_of("postgres"),
    types={
        "bool": "boolean",
        "int32": "integer",
        "int64": "bigint",
        "float64": "double precision",
        "string": "text",
        "timestamp": "timestamp with time zone",
        "date": "date",
        "bytes": "bytea",
        "json": "jsonb",
    },
    decimal="numeric",
    keyed=True,
    adds_required=True,
    rekey=rekeyed,
)


def sql_type(name: str) -> str:
    """Return PostgreSQL's type of a column type, spelt as its catalogue does."""
    return SPELLING.sql_type(name)


def ensure_tables(session: PostgresSession, specs: Sequence[TableSpec]) -> dict[Place, Table]:
    """Bring tables to their declarations. Cost: one query when nothing is to be done.

    Raises:
        InputError: a conflict; names table, column, found, expected.
        RetryError: the server is away, or the table is locked for too long.
    """
    for spec in specs:
        check_names(SPELLING, spec)
    with session.transaction():
        planned = _planned(session, specs)
    if not any(plan.statements for plan in planned.values()):
        return tables_of(specs, planned)
    with session.transaction():
        session.query(AdvisoryLock.DESTINATION_TABLES.sql())
        planned = _planned(session, specs)
        for plan in planned.values():
            carry_out(session, plan, _definition_error)
    return tables_of(specs, planned)


def look_at_tables(
    session: PostgresSession, specs: Sequence[TableSpec]
) -> dict[Place, Table] | None:
    """Return tables as they are until the transaction ends; None: they are to be changed.

    Cost: two queries.

    Raises:
        InputError: a conflict; names table, column, found, expected.
    """
    tables = [table for spec in specs for table in with_children(spec)]
    names = ", ".join(f"{quoted(table.schema_name)}.{quoted(table.name)}" for table in tables)
    session.execute(f"LOCK TABLE {names} IN ROW EXCLUSIVE MODE")  # as the merge will
    planned = _planned(session, specs)
    if any(plan.statements for plan in planned.values()):
        return None
    return tables_of(specs, planned)


def _definition_error(error: SqlError) -> str | None:
    state = (error.sqlstate if isinstance(error, PostgresError) else None) or ""
    return state if state[:2] in _BAD_DEFINITION_CLASSES and state != "42501" else None


def _planned(session: PostgresSession, specs: Sequence[TableSpec]) -> dict[Place, TablePlan]:
    return plans(SPELLING, specs, find_tables(session, specs))


def find_tables(session: PostgresSession, specs: Sequence[TableSpec]) -> dict[Place, FoundTable]:
    """Return what the catalogue has of these tables and their children's."""
    places = [(table.schema_name, table.name) for spec in specs for table in with_children(spec)]
    return inspect(session, places)


def inspect(session: PostgresSession, places: Sequence[Place]) -> dict[Place, FoundTable]:
    """Return what the catalogue has of these tables."""
    wanted = ", ".join(f"({literal(schema)}, {literal(name)})" for schema, name in places)
    columns = session.query(
        "SELECT n.nspname AS schema, c.relname AS name, c.relkind::text AS kind, "
        "a.attname AS column, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type, "
        "a.attnotnull AS not_null, (a.atthasdef OR a.attidentity <> '') AS has_default "
        "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 "
        "AND NOT a.attisdropped "
        f"WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND (n.nspname, c.relname) IN ({wanted})"
    )
    tables: dict[Place, FoundTable] = {}
    for row in columns.to_pylist():
        table = tables.setdefault(
            (row["schema"], row["name"]), FoundTable(_KINDS.get(row["kind"], _OTHER_KIND), {})
        )
        table.columns[row["column"]] = FoundColumn(row["type"], row["not_null"], row["has_default"])
    if tables:
        _add_unique(session, wanted, tables)
    return tables


def _add_unique(session: PostgresSession, wanted: str, found: Mapping[Place, FoundTable]) -> None:
    indexes = session.query(
        "SELECT n.nspname AS schema, c.relname AS name, i.indexrelid::bigint AS index, "
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
