"""What a MERGE did to a table's number of rows, and what the server estimates.

From PostgreSQL 17 on MERGE tells what it did. Before, and where rows are refused, the rows whose
keys are in the stage are counted before and after: an index look-up a key.
"""

from __future__ import annotations

from waybill.destinations.merging import MergeStatements, literal
from waybill.destinations.sql.session import Session
from waybill.pipelines import TableSpec

_MERGE_TELLS = 170_000
_LONGEST_COUNT = "5min"


def merge_tells(session: Session) -> bool:
    """Tell whether the server's MERGE says what it did."""
    rows = session.query("SELECT current_setting('server_version_num')::int AS version")
    return bool(rows["version"][0].as_py() >= _MERGE_TELLS)


def merge_counted(session: Session, merge: str) -> tuple[int, int]:
    """Run a MERGE; return the rows that it changed, and the rows added less those taken away."""
    rows = session.query(
        f"WITH done AS ({merge} RETURNING merge_action() AS did) "
        "SELECT count(*) AS changed, "
        "count(*) FILTER (WHERE did = 'INSERT') - count(*) FILTER (WHERE did = 'DELETE') "
        "AS change FROM done"
    )
    return int(rows["changed"][0].as_py()), int(rows["change"][0].as_py())


def rows_of_stage(session: Session, statements: MergeStatements) -> int:
    """Return how many of the target's rows have a key that is in the stage."""
    rows = session.query(statements.count_met())
    return int(rows["rows"][0].as_py())


def estimate(session: Session, spec: TableSpec) -> int | None:
    """Return about how many rows a table has; None: there is none. A count after it is limited."""
    rows = session.query(
        "SELECT c.reltuples::bigint AS rows FROM pg_catalog.pg_class c "
        "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        f"WHERE n.nspname = {literal(spec.schema_name)} AND c.relname = {literal(spec.name)}"
    )
    session.execute(f"SET LOCAL statement_timeout = '{_LONGEST_COUNT}'")
    return int(rows["rows"][0].as_py()) if rows.num_rows else None
