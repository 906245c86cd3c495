"""How many rows a table has, and must have; COUNT(*) costs these engines next to nothing."""

from __future__ import annotations

from datetime import UTC, datetime

from waybill.destinations.merging import quoted
from waybill.destinations.model import CountLook, RowCount
from waybill.destinations.sql.books import TABLES, is_of
from waybill.destinations.warehouses.session import Session


def count_rows(session: Session, look: CountLook) -> RowCount | None:
    """Look at one table; None: no load has written to it.

    Both numbers are read by one statement. One that is not due is as it was counted last, but for
    what loads did since.
    """
    spec = look.spec
    rows = session.ask(
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
    return _counted(session, look, anew=anew)


def _counted(session: Session, look: CountLook, *, anew: bool) -> RowCount:
    spec = look.spec
    table = f"{quoted(spec.schema_name)}.{quoted(spec.name)}"
    [row] = session.ask(
        f"SELECT (SELECT COUNT(*) FROM {table}) AS counted, rows, baseline "
        f"FROM {TABLES} WHERE {is_of(spec)}"
    ).to_pylist()
    counted, put = int(row["counted"]), int(row["rows"])
    baseline = counted - put if anew else int(row["baseline"])
    expected = put + baseline
    session.perform(
        f"UPDATE {TABLES} SET baseline = {baseline}, gap = {expected - counted}, "
        f"looked_at = CURRENT_TIMESTAMP WHERE {is_of(spec)}"
    )
    return RowCount(spec, counted, expected, baseline)
