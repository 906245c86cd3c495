"""How many rows a table must have: what loads added and took away, kept beside the commits.

Each load notes the net change of its rows in its own transaction, in ``_waybill_row_counts``. So a
table's rows, less what all loads changed, are always the same number: the rows that were there
before Waybill (the baseline, taken when it is first looked). Where they are not, somebody else
wrote or deleted. Both are read by one statement, in one snapshot, while loads go on.

From PostgreSQL 17 on MERGE tells what it did. Before, and where rows are refused, the rows whose
keys are in the stage are counted before and after: an index look-up a key.
"""

from __future__ import annotations

from waybill.destinations.merging import MergeStatements, literal, quoted
from waybill.destinations.model import CountLook, RowCount
from waybill.destinations.postgres.books import TABLES
from waybill.destinations.postgres.connection import Session
from waybill.pipelines import TableSpec

_MERGE_TELLS = 170_000
_LONGEST_COUNT = "5min"
_FAR = 0.2
"""Of the rows: an estimate that is so far off is followed by an exact count."""


def merge_tells(session: Session) -> bool:
    """Tell whether the server's MERGE says what it did."""
    rows = session.query("SELECT current_setting('server_version_num')::int AS version")
    return bool(rows["version"][0].as_py() >= _MERGE_TELLS)


def merge_counted(session: Session, merge: str) -> int:
    """Run a MERGE; return the rows added less the rows taken away."""
    rows = session.query(
        f"WITH done AS ({merge} RETURNING merge_action() AS did) "  # noqa: S608
        "SELECT count(*) FILTER (WHERE did = 'INSERT') - count(*) FILTER (WHERE did = 'DELETE') "
        "AS change FROM done"
    )
    return int(rows["change"][0].as_py())


def rows_of_stage(session: Session, statements: MergeStatements) -> int:
    """Return how many of the target's rows have a key that is in the stage."""
    rows = session.query(statements.count_met())
    return int(rows["rows"][0].as_py())


def note_change(session: Session, spec: TableSpec, change: int) -> None:
    """Note, in a load's transaction, by how much it changed a table's number of rows."""
    session.execute(
        f"INSERT INTO {TABLES} AS t (table_schema, table_name, rows) "  # noqa: S608
        f"VALUES ({literal(spec.schema_name)}, {literal(spec.name)}, {int(change)}) "
        "ON CONFLICT (table_schema, table_name) DO UPDATE SET rows = t.rows + EXCLUDED.rows"
    )


def count_rows(session: Session, look: CountLook) -> RowCount | None:
    """Look at one table, in the session's transaction; None: no load has written to it.

    One that is not due is as it was when it was counted last, but for what loads did since: so what
    a count found is told even if the process that counted died before it told.

    Cost: a count of the whole table when it is small or its exact count is due.
    """
    state = session.query(
        "SELECT coalesce(c.reltuples, 0)::bigint AS estimate, c.oid IS NOT NULL AS there, "  # noqa: S608
        "t.rows + t.baseline AS expected, t.baseline IS NULL AS first, t.baseline, t.gap, "
        "coalesce(extract(epoch FROM now() - t.looked_at), 1e9)::float8 AS looked_s, "
        "coalesce(extract(epoch FROM now() - t.counted_at), 1e9)::float8 AS counted_s, "
        f"{_accepted(look)} AS accepted "
        f"FROM {TABLES} AS t LEFT JOIN (pg_catalog.pg_class c "
        "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace) "
        "ON n.nspname = t.table_schema AND c.relname = t.table_name "
        f"WHERE {_is(look.spec)}"
    ).to_pylist()
    if not state:
        return None
    [row] = state
    known = RowCount(
        look.spec, (row["expected"] or 0) - row["gap"], row["expected"], row["baseline"]
    )
    if row["looked_s"] < look.every_s and not row["accepted"]:
        return known
    far = abs(row["estimate"] - (row["expected"] or 0)) > _FAR * max(row["expected"] or 0, 1)
    small = row["estimate"] <= look.small_rows
    exact = (
        small or row["first"] or row["accepted"] or far or row["counted_s"] >= look.exact_every_s
    )
    if row["there"] and not exact:
        session.execute(f"UPDATE {TABLES} SET looked_at = now() WHERE {_is(look.spec)}")  # noqa: S608
        return known
    return _counted(session, look.spec, there=row["there"], anew=row["first"] or row["accepted"])


def _counted(session: Session, spec: TableSpec, *, there: bool, anew: bool) -> RowCount:
    table = f"{quoted(spec.schema_name)}.{quoted(spec.name)}"
    session.execute(f"SET LOCAL statement_timeout = '{_LONGEST_COUNT}'")
    [row] = session.query(
        f"SELECT {f'(SELECT count(*) FROM {table})' if there else '0::bigint'} AS counted, "  # noqa: S608
        f"rows, baseline FROM {TABLES} WHERE {_is(spec)}"
    ).to_pylist()
    baseline = row["counted"] - row["rows"] if anew else row["baseline"]
    expected = row["rows"] + baseline
    session.execute(
        f"UPDATE {TABLES} SET baseline = {baseline}, gap = {expected - row['counted']}, "  # noqa: S608
        f"looked_at = now(), counted_at = now() WHERE {_is(spec)}"
    )
    return RowCount(spec, row["counted"], expected, baseline)


def _accepted(look: CountLook) -> str:
    if look.accepted_at is None:
        return "false"
    at = literal(look.accepted_at.isoformat())
    return f"coalesce(t.counted_at < {at}::timestamptz, false)"


def _is(spec: TableSpec) -> str:
    return f"table_schema = {literal(spec.schema_name)} AND table_name = {literal(spec.name)}"
