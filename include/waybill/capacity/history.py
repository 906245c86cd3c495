"""What capacity was like over the last hours, in equal steps of time, for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Connection, text

from waybill.capacity.model import KINDS
from waybill.capacity.records import now_s
from waybill.events import rfc3339
from waybill.storage import TrackerStore

HistorySpan = Literal["1h", "6h", "24h"]
_STEPS: dict[HistorySpan, tuple[int, int]] = {"1h": (60, 60), "6h": (72, 300), "24h": (96, 900)}
"""How many steps of how many seconds."""
_WAITS = text("""
SELECT 'waits' AS name, floor(extract(epoch FROM at) / :step_s)::bigint AS step,
  max((report->>'p95_s')::float) AS p95_s, max((report->>'oldest_s')::float) AS oldest_s,
  max((report->>'waiting')::float + (report->>'unseen')::float) AS waiting,
  avg((report->>'busy')::float) AS running
FROM task_waits WHERE at >= to_timestamp(:since_s) GROUP BY 2
""")
_NODES = text("""
SELECT kind AS name, floor(extract(epoch FROM at) / :step_s)::bigint AS step,
  max((observation->>'ready')::float) AS ready,
  max((decision->>'wanted')::float) AS wanted, max((observation->>'units')::float) AS units,
  avg((observation->>'busy')::float) AS busy,
  avg((observation->>'utilisation')::float) AS utilisation
FROM capacity_rounds WHERE at >= to_timestamp(:since_s) GROUP BY 1, 2
""")
_OF_WAITS = ("p95_s", "oldest_s", "waiting", "running")
_OF_NODES = ("ready", "wanted", "units", "busy", "utilisation")
Series = dict[str, list[float | None]]
"""Numbers by what they are, one for each step; None: nobody looked then."""


@dataclass(frozen=True, slots=True)
class CapacityHistory:
    """Numbers over time."""

    since: datetime
    """Where the first step begins."""
    step_s: int
    steps: int
    waits: Series
    nodes: dict[str, Series]
    """By kind, of those that there is something of."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "since": rfc3339(self.since),
            "step_s": self.step_s,
            "steps": self.steps,
            "waits": self.waits,
            "nodes": self.nodes,
        }


def capacity_history(tracker: TrackerStore, span: HistorySpan) -> CapacityHistory:
    """Return waits, tasks, nodes and workers in equal steps.

    Raises:
        RetryError: the tracker does not answer.

    Cost: a row for each minute of the span, and one for each kind of node.
    """
    steps, step_s = _STEPS[span]
    with tracker.transaction() as connection:
        first = int(now_s(connection) // step_s) - steps + 1
        waits = _series(connection, _WAITS, _OF_WAITS, (first, step_s, steps))
        nodes = _series(connection, _NODES, _OF_NODES, (first, step_s, steps))
    return CapacityHistory(
        datetime.fromtimestamp(first * step_s, UTC),
        step_s,
        steps,
        waits.get("waits", {name: [None] * steps for name in _OF_WAITS}),
        {kind: nodes[kind] for kind in KINDS if kind in nodes},
    )


def _series(
    connection: Connection, query: Any, columns: Sequence[str], grid: tuple[int, int, int]
) -> dict[str, Series]:
    first, step_s, steps = grid
    found: dict[str, Series] = {}
    for row in connection.execute(query, {"step_s": step_s, "since_s": first * step_s}):
        place = int(row.step) - first
        if 0 <= place < steps:  # else written after the clock was read
            series = found.setdefault(row.name, {name: [None] * steps for name in columns})
            for name in columns:
                value = getattr(row, name)
                series[name][place] = None if value is None else round(float(value), 4)
    return found
