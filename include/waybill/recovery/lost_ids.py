"""The ids of events that were lost with a parked or staged object, from their traces.

The trace of parking, and that of mapping, name the object that an event went into. So ids can be
found as long as traces are kept, whatever became of the object. An object whose segments were cut
or made again has another key than the traces: they name the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from waybill.events import STAGES
from waybill.loading import LostObject
from waybill.parking import storable
from waybill.recovery.parked_objects import LostParked
from waybill.storage import TrackerStore
from waybill.tracing import TraceQuery

_BEFORE, _AFTER = timedelta(hours=6), timedelta(hours=1)
"""Around an object's commit: a trace is written before it, and clocks differ."""
_KEYS = 200
"""Of one query."""
_FIRST_KEYS = text("""
WITH RECURSIVE line (key, id, object_key, source_id, parked_at) AS (
  SELECT object_key, id, object_key, source_id, parked_at FROM segments
  WHERE object_key = ANY(:keys) AND state = 'quarantined'
  UNION SELECT line.key, s.id, s.object_key, s.source_id, s.parked_at
  FROM line JOIN segments s ON s.id = line.source_id)
SELECT DISTINCT key, object_key, min(parked_at) FROM line WHERE source_id IS NULL GROUP BY 1, 2
""")
_Trace = dict[str, Any]


@dataclass(slots=True)
class LostIds:
    """Who the events of one lost object and partition are."""

    events: int
    """As many as were lost."""
    ids: list[str] = field(default_factory=list)
    """Sorted; twice where two copies were in the object."""

    @property
    def exact(self) -> bool:
        """Tell whether these are all of them, and no others.

        Fewer: traces were off, lost, not shipped yet, or are expired; or events have no ids. More:
        others of the object were replayed, discarded or found to be copies before it was lost.
        """
        return len(self.ids) == self.events

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"ids": self.ids, "ids_exact": self.exact}


def parked_ids(
    tracker: TrackerStore, traces: TraceQuery, found: Sequence[LostParked]
) -> list[LostIds]:
    """Return the ids of lost parked events, one answer for each that is given.

    Cost: the traces of some hours around each object's commit are scanned.

    Raises:
        RetryError: the tracker or the trace store is away.
    """
    with tracker.transaction() as connection:
        asked = {"keys": sorted({one.object_key for one in found})}
        rows = connection.execute(_FIRST_KEYS, asked).all()
    first: dict[str, list[str]] = {}
    for key, origin, _ in rows:
        first.setdefault(key, []).append(origin)
    by_key = _by_key(_traces(traces, {origin: at for _, origin, at in rows}))
    return [
        LostIds(
            one.events,
            _ids(
                trace
                for origin in first.get(one.object_key, [])
                for trace in by_key.get(origin, [])
                if _is_parked_in(trace, one)
            ),
        )
        for one in found
    ]


def staged_ids(traces: TraceQuery, found: Sequence[LostObject]) -> list[LostIds]:
    """Return the ids of lost staged rows; as ``parked_ids``."""
    by_key = _by_key(_traces(traces, {one.key: one.committed_at for one in found}))
    return [
        LostIds(
            one.rows,
            _ids(trace for trace in by_key.get(one.key, []) if trace["outcome"] == "passed"),
        )
        for one in found
    ]


def _is_parked_in(trace: _Trace, lost: LostParked) -> bool:
    """Tell whether a trace is of a parked event of this partition."""
    partition = trace["kafka_partition"]
    return (
        trace["outcome"] == "parked"
        and storable(trace["pipeline_id"] or "") == lost.pipeline_id
        and storable(trace["event_name"] or "") == lost.event_name
        and storable(trace["error_type"] or "") == lost.error_type
        and (trace["phase"] == lost.stage or lost.stage not in STAGES)
        and (partition is None or partition == lost.kafka_partition)
    )


def _ids(found: Iterable[_Trace]) -> list[str]:
    """Return each event's id once for each of its copies, not for each try of a task."""
    places = {(one["event_id"], one["kafka_partition"], one["kafka_offset"]) for one in found}
    return sorted(event_id for event_id, *_ in places)


def _by_key(found: Iterable[_Trace]) -> dict[str, list[_Trace]]:
    by_key: dict[str, list[_Trace]] = {}
    for trace in found:
        by_key.setdefault(trace["object_key"], []).append(trace)
    return by_key


def _traces(traces: TraceQuery, committed_at: Mapping[str, datetime]) -> Iterator[_Trace]:
    """Yield the traces that name objects; those of about one time are asked for at once."""
    for keys, since, until in _windows(committed_at):
        for batch in traces.object_traces(keys, since=since, until=until):
            yield from batch.to_pylist()


def _windows(
    committed_at: Mapping[str, datetime],
) -> Iterator[tuple[list[str], datetime, datetime]]:
    keys: list[str] = []
    since = until = None
    for key, at in sorted(committed_at.items(), key=lambda item: item[1]):
        if since is not None and until is not None and (at - _BEFORE > until or len(keys) == _KEYS):
            yield keys, since, until
            keys, since = [], None
        since = at - _BEFORE if since is None else since
        until = at + _AFTER
        keys.append(key)
    if since is not None and until is not None:
        yield keys, since, until
