"""What statements read: each is explained beside its run, in a savepoint that is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import event

from waybill.storage import TrackerStore

_EXPLAINED = ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")
_EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "


@dataclass(frozen=True, slots=True)
class Scan:
    """One node of a plan that reads a table."""

    statement: str
    table: str
    node: str
    """As PostgreSQL names it: ``Seq Scan``, ``Index Scan`` and so on."""
    rows: int
    """That it read, over all its loops: those it gave on and those it threw away."""
    buffers: int
    """Pages of 8 KiB that it touched, with its index."""


@contextmanager
def explained(tracker: TrackerStore) -> Iterator[list[Scan]]:
    """Yield the scans of all statements that run meanwhile; filled as they run."""
    scans: list[Scan] = []

    def explain(
        _connection: Any, cursor: Any, statement: str, parameters: Any, _context: Any, many: bool
    ) -> None:
        if not statement.lstrip().upper().startswith(_EXPLAINED):
            return
        given = (parameters[0] if parameters else None) if many else parameters
        with cursor.connection.cursor() as beside:
            beside.execute("SAVEPOINT explained")
            beside.execute(_EXPLAIN + statement, given)
            [[[plan]]] = beside.fetchall()
            beside.execute("ROLLBACK TO SAVEPOINT explained")
        scans.extend(_scans(statement, plan["Plan"]))

    event.listen(tracker.engine, "before_cursor_execute", explain)
    try:
        yield scans
    finally:
        event.remove(tracker.engine, "before_cursor_execute", explain)


def _scans(statement: str, node: dict[str, Any]) -> Iterator[Scan]:
    if "Relation Name" in node and "Scan" in node["Node Type"]:
        thrown = sum(v for k, v in node.items() if k.startswith("Rows Removed by"))
        rows = (node["Actual Rows"] + thrown) * node["Actual Loops"]
        buffers = node["Shared Hit Blocks"] + node["Shared Read Blocks"]
        yield Scan(statement, node["Relation Name"], node["Node Type"], round(rows), buffers)
    for child in node.get("Plans", ()):
        yield from _scans(statement, child)
