"""The trail of one event: its traces in order, without those of batches that never committed."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from waybill.ledger import committed_batches
from waybill.storage import TrackerStore
from waybill.tracing import Trace, TraceQuery

_HEX_ID = re.compile(r"[0-9a-fA-F]{32}(/\d+)*")


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
    """Return an event's trail; no stops when nothing is known of it.

    An id with blanks around it or in capital hex digits is found too; a producer's own id may have
    either, so it is looked for as it is first.
    """
    for written in _spellings(event_id):
        if found := traces.trail(written):
            event_id = written
            break
    batches = {stop.batch for stop in found if _is_uuid(stop.batch)}
    committed = committed_batches(tracker, batches) if batches else set()
    kept = [stop for stop in found if not _is_uuid(stop.batch) or stop.batch in committed]
    return Trail(event_id, kept, len(found) - len(kept))


def _spellings(event_id: str) -> list[str]:
    """Return the ways in which the id may be written in the traces, each once."""
    bare = event_id.strip()
    ways = [event_id, bare, bare.lower()] if _HEX_ID.fullmatch(bare) else [event_id, bare]
    return list(dict.fromkeys(ways))


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
