"""The trail of one event: its traces in order, without those of batches that never committed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from waybill.ledger import committed_batches
from waybill.storage import TrackerStore
from waybill.tracing import Trace, TraceQuery


@dataclass(frozen=True, slots=True)
class Trail:
    """Where an event was, step by step."""

    event_id: str
    stops: list[Trace]
    uncommitted: int
    """Traces left out: their batch ran but was never committed (it ran again)."""

    def to_json(self) -> dict[str, Any]:
        """Return the trail as JSON."""
        return {
            "event_id": self.event_id,
            "stops": [asdict(stop) for stop in self.stops],
            "uncommitted": self.uncommitted,
        }


def trail(traces: TraceQuery, tracker: TrackerStore, event_id: str) -> Trail:
    """Return an event's trail; no stops when nothing is known of it."""
    found = traces.trail(event_id)
    batches = {stop.batch for stop in found if _is_uuid(stop.batch)}
    committed = committed_batches(tracker, batches) if batches else set()
    kept = [stop for stop in found if not _is_uuid(stop.batch) or stop.batch in committed]
    return Trail(event_id, kept, len(found) - len(kept))


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
