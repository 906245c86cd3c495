"""Rows put in the place of older ones: those are deleted by their place in the table, all inserted.

DuckDB's MERGE joins the batch with whole rows of the target, and updates each column on its own; to
delete and insert takes a fraction of its time and memory. It is done where it comes to the same:
the table has no columns but the declared ones and Waybill's, which it would empty, and no keys or
indexes, which would be asked before the old row is gone. Nobody else writes while the file is held.
"""

from __future__ import annotations

from waybill.destinations.adapters.duckdb.connection import DuckSession
from waybill.destinations.merging import DELETED_AT, KEPT_COLUMNS, MergeStatements, literal, quoted
from waybill.pipelines import TableSpec

_VERSIONS = tuple(name for name, _ in KEPT_COLUMNS if name != "_waybill_loaded_at")


def can_replace(session: DuckSession, spec: TableSpec) -> bool:
    """Tell whether rows of a table may be replaced. Cost: one look at the catalogue."""
    known = {column.name.lower() for column in spec.columns}
    known |= {name for name, _ in KEPT_COLUMNS} | {DELETED_AT}
    of_table = (
        "database_name = current_database() "
        f"AND lower(schema_name) = lower({literal(spec.schema_name)}) "
        f"AND lower(table_name) = lower({literal(spec.name)})"
    )
    rows = session.query(
        f"SELECT lower(column_name) AS found FROM duckdb_columns() WHERE {of_table} "
        f"UNION ALL SELECT ' key' FROM duckdb_constraints() WHERE {of_table} "
        "AND constraint_type NOT IN ('CHECK', 'NOT NULL') "
        f"UNION ALL SELECT ' index' FROM duckdb_indexes() WHERE {of_table}"
    )
    return set(rows["found"].to_pylist()) <= known


def replace_rows(session: DuckSession, statements: MergeStatements, *, judged: bool) -> int:
    """Apply what has no verdict, and the versions of touched rows; return the rows added."""
    spec = statements.spec
    table = f"{quoted(spec.schema_name)}.{quoted(spec.name)}"
    met = quoted(f"{statements.stage}places")
    stage = quoted(statements.stage)
    touch, verdicts, taken = "FALSE", "", ""
    if judged:
        touch = "COALESCE(v.touch, FALSE)"
        verdicts = f"LEFT JOIN {quoted(statements.verdict)} AS v ON v.n = s._waybill_n"
        taken = "WHERE v.n IS NULL OR v.touch"
    on_key = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in spec.key)
    session.execute(
        f"CREATE OR REPLACE TEMPORARY TABLE {met} AS SELECT s._waybill_n AS n, t.rowid AS place, "
        f"s._waybill_op = 'delete' AS gone, {touch} AS touch "
        f"FROM {table} AS t JOIN {stage} AS s ON {on_key} {verdicts} {taken}"
    )
    _update(session, table, met, stage, where="m.touch", also="")
    if spec.soft_delete:
        marked = f", {DELETED_AT} = CURRENT_TIMESTAMP"
        _update(session, table, met, stage, where="m.gone AND NOT m.touch", also=marked)
    kept = " AND NOT gone" if spec.soft_delete else ""
    deleted = session.execute(
        f"DELETE FROM {table} WHERE rowid IN (SELECT place FROM {met} WHERE NOT touch{kept})"
    )
    names = [*(column.name for column in spec.columns), *_VERSIONS]
    columns = ", ".join(quoted(name) for name in names)
    inserted = session.execute(
        f"INSERT INTO {table} ({columns}, _waybill_loaded_at) "
        f"SELECT {columns}, CURRENT_TIMESTAMP FROM {stage} AS s WHERE s._waybill_op = 'upsert'"
        f"{f' AND {statements.unjudged}' if judged else ''}"
    )
    return inserted - deleted


def _update(
    session: DuckSession, table: str, met: str, stage: str, *, where: str, also: str
) -> None:
    versions = ", ".join(f"{name} = s.{name}" for name in _VERSIONS)
    session.execute(
        f"UPDATE {table} AS t SET {versions}{also} FROM {met} AS m "
        f"JOIN {stage} AS s ON s._waybill_n = m.n WHERE t.rowid = m.place AND {where}"
    )
