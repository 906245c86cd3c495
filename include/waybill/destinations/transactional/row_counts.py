"""How many rows a table must have: what loads added and took away, kept beside the commits.

Each load notes the net change of its rows in its own transaction, in ``_waybill_row_counts``. So a
table's rows, less what all loads changed, are always the same number: the rows that were there
before Waybill (the baseline, taken when it is first looked). Where they are not, somebody else
wrote or deleted. Both are read by one statement, in one snapshot, while loads go on.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from waybill.destinations.merging import literal, quoted
from waybill.destinations.model import CountLook, RowCount
from waybill.destinations.transactional.books import TABLES, is_of
from waybill.destinations.transactional.engine import Engine
from waybill.destinations.transactional.session import Session
from waybill.pipelines import TableSpec

_FAR = 0.2
"""Of the rows: an estimate that is so far off is followed by an exact count."""


def count_rows(engine: Engine, look: CountLook) -> RowCount | None:
    """Look at one table, in the session's transaction; None: no load has written to it.

    One that is not due is as it was when it was counted last, but for what loads did since: so what
    a count found is told even if the process that counted died before it told.

    Cost: a count of the whole table when it is small or its exact count is due.
    """
    rows = engine.session.query(_state(look)).to_pylist()
    if not rows:
        return None
    [row] = rows
    estimate = engine.count(look.spec)
    known = RowCount(
        look.spec, (row["expected"] or 0) - row["gap"], row["expected"], row["baseline"]
    )
    if row["looked_s"] < look.every_s and not row["accepted"]:
        return known
    if estimate is not None and not _due(look, row, estimate):
        engine.session.execute(f"UPDATE {TABLES} SET looked_at = now() WHERE {is_of(look.spec)}")
        return known
    anew = row["first"] or row["accepted"]
    return _counted(engine.session, look.spec, there=estimate is not None, anew=anew)


def _state(look: CountLook) -> str:
    return (
        "SELECT rows + baseline AS expected, baseline IS NULL AS first, baseline, gap, "
        "CAST(coalesce(extract(epoch FROM now() - looked_at), 1e9) AS float8) AS looked_s, "
        "CAST(coalesce(extract(epoch FROM now() - counted_at), 1e9) AS float8) AS counted_s, "
        f"{_accepted(look)} AS accepted FROM {TABLES} WHERE {is_of(look.spec)}"
    )


def _due(look: CountLook, row: dict[str, Any], estimate: int) -> bool:
    """Tell whether the table is to be counted exactly."""
    expected = row["expected"] or 0
    far = abs(estimate - expected) > _FAR * max(expected, 1)
    forced = row["first"] or row["accepted"] or far
    return bool(forced or estimate <= look.small_rows or row["counted_s"] >= look.exact_every_s)


def _counted(session: Session, spec: TableSpec, *, there: bool, anew: bool) -> RowCount:
    table = f"{quoted(spec.schema_name)}.{quoted(spec.name)}"
    counted = f"(SELECT count(*) FROM {table})" if there else "CAST(0 AS bigint)"
    [row] = session.query(
        f"SELECT {counted} AS counted, rows, baseline FROM {TABLES} WHERE {is_of(spec)}"
    ).to_pylist()
    baseline = row["counted"] - row["rows"] if anew else row["baseline"]
    expected = row["rows"] + baseline
    session.execute(
        f"UPDATE {TABLES} SET baseline = {baseline}, gap = {expected - row['counted']}, "
        f"looked_at = now(), counted_at = now() WHERE {is_of(spec)}"
    )
    return RowCount(spec, row["counted"], expected, baseline)


def _accepted(look: CountLook) -> str:
    if look.accepted_at is None:
        return "false"
    at = literal(look.accepted_at.isoformat())
    return f"coalesce(counted_at < CAST({at} AS timestamptz), false)"


def count_warehouse_rows(session: Session, look: CountLook) -> RowCount | None:
    """Look at one table of a warehouse, where COUNT(*) costs next to nothing; see ``count_rows``.

    Both numbers are read by one statement. One that is not due is as it was counted last, but for
    what loads did since.
    """
    spec = look.spec
    rows = session.query(
        f"SELECT rows, baseline, gap, looked_at FROM {TABLES} WHERE {is_of(spec)}"
    ).to_pylist()
    if not rows:
        return None
    [state] = rows
    looked = state["looked_at"]
    accepted = look.accepted_at is not None and (looked is None or looked < look.accepted_at)
    if looked is not None and not accepted:
        since_s = (datetime.now(UTC) - looked).total_seconds()
        if since_s < look.every_s:
            expected = state["rows"] + state["baseline"]
            return RowCount(spec, expected - state["gap"], expected, state["baseline"])
    anew = state["baseline"] is None or accepted
    return _warehouse_count(session, look, anew=anew)


def _warehouse_count(session: Session, look: CountLook, *, anew: bool) -> RowCount:
    spec = look.spec
    table = f"{quoted(spec.schema_name)}.{quoted(spec.name)}"
    [row] = session.query(
        f"SELECT (SELECT COUNT(*) FROM {table}) AS counted, rows, baseline "
        f"FROM {TABLES} WHERE {is_of(spec)}"
    ).to_pylist()
    counted, put = int(row["counted"]), int(row["rows"])
    baseline = counted - put if anew else int(row["baseline"])
    expected = put + baseline
    session.execute(
        f"UPDATE {TABLES} SET baseline = {baseline}, gap = {expected - counted}, "
        f"looked_at = CURRENT_TIMESTAMP WHERE {is_of(spec)}"
    )
    return RowCount(spec, counted, expected, baseline)
