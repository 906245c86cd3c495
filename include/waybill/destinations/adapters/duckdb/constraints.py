"""Rows that a table's NOT NULL and CHECK do not take.

The catalogue is asked for the constraints, then the stage for rows that do not meet them: such a
row costs no failed transaction. Checks over columns that the stage does not have, and unique and
foreign keys, are left to the merge itself.
"""

from __future__ import annotations

from collections.abc import Collection

from waybill.destinations.adapters.duckdb.connection import DuckSession
from waybill.destinations.adapters.duckdb.errors import DuckError
from waybill.destinations.batch import TableBatch
from waybill.destinations.merging import MergeStatements, literal, quoted
from waybill.destinations.transactional.session import Refused, SqlError
from waybill.pipelines import TableSpec


def screen(session: DuckSession, statements: MergeStatements, batch: TableBatch) -> Refused:
    """Return the rows of a stage, of those without a verdict, that the table does not take.

    Cost: a pass over the stage for each CHECK, and each NOT NULL of a column with a null.
    """
    refused: Refused = {}
    filled = {
        column.name.lower()
        for column in batch.spec.columns
        if batch.columns.column(column.name).null_count == 0
    }
    for condition, error in _conditions(session, statements.spec, filled):
        rows = session.query(
            f"SELECT s._waybill_n AS n FROM {quoted(statements.stage)} AS s "
            f"WHERE s._waybill_op = 'upsert' AND {statements.unjudged} AND {condition}"
        )
        refused |= dict.fromkeys(rows["n"].to_pylist(), error)
    return refused


def _conditions(
    session: DuckSession, spec: TableSpec, filled: Collection[str]
) -> list[tuple[str, SqlError]]:
    """Return what must not be true of a row, with what is said of one of which it is."""
    declared = {column.name.lower() for column in spec.columns}
    rows = session.query(
        "SELECT constraint_type AS kind, expression, constraint_column_names AS columns, "
        "constraint_text AS said FROM duckdb_constraints() "
        "WHERE database_name = current_database() AND constraint_type IN ('CHECK', 'NOT NULL') "
        f"AND lower(schema_name) = lower({literal(spec.schema_name)}) "
        f"AND lower(table_name) = lower({literal(spec.name)})"
    )
    found: list[tuple[str, SqlError]] = []
    for row in rows.to_pylist():
        if not {name.lower() for name in row["columns"]} <= declared:
            continue
        if row["kind"] == "CHECK":
            error = f"CHECK constraint failed on table {spec.name}: {row['said']}"
            condition = f"NOT ({row['expression']})"
        elif (name := row["columns"][0]).lower() in filled:
            continue
        else:
            error = f"NOT NULL constraint failed: {spec.name}.{name}"
            condition = f"s.{quoted(name)} IS NULL"
        found.append((condition, DuckError(error, "ConstraintException")))
    return found
