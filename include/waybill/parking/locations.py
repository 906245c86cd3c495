"""What became of a parked event since it was parked, by the tracker: no trace says it.

A discard names events by the million and reads none of them; nor do undo, quarantine and clean-up.
So they leave no traces: the trace of parking names the object, the tracker knows the object's
segments and what they were cut into, and the audit log who decided what about them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, select, text

from waybill.errors import ParkError
from waybill.events import decode, instant
from waybill.parking.model import Segment
from waybill.parking.names import storable
from waybill.parking.packed import NAMES, CorruptSegmentError
from waybill.parking.reading import events_of, read_frame
from waybill.parking.selection import select_segments, to_segment
from waybill.storage import ObjectStore, TrackerStore
from waybill.storage.tracker import audit_log, segments

COPY = "copy"
"""State of an event that was parked already: it is a line of its file, and is never sent back."""
_DECIDE = {"discard": True, "undo_discard": False}
_LEAVES = text("""
WITH RECURSIVE held (id) AS (
  SELECT s.id FROM segments s JOIN parked_partitions p ON p.id = s.partition_id
  WHERE s.object_key = :key AND p.pipeline_id = :pipeline_id AND p.event_name = :event_name
    AND p.stage = :stage AND p.error_type = :error_type
  UNION SELECT s.id FROM held JOIN segments s ON s.source_id = held.id)
SELECT s.id, s.partition_id, s.object_key, s.replay_id::text AS replay_id, s.parked_at,
  s.first_event_at, s.last_event_at, s.fingerprint, s.copies IS NOT NULL AS has_copies,
  CASE WHEN s.state = 'parked' AND s.id <= p.discarded_to THEN 'discarded' ELSE s.state END
    AS state,
  CASE WHEN s.state = 'parked' AND s.id <= p.discarded_to THEN p.marked_at ELSE s.changed_at END
    AS since, r.started_at AS taken_at
FROM held JOIN segments s USING (id) JOIN parked_partitions p ON p.id = s.partition_id
LEFT JOIN replays r ON r.id = s.replay_id
WHERE s.state <> 'replaced' ORDER BY s.id
""")
_ONLY_COPIES = text("""
SELECT p.id, o.committed_at FROM parked_objects o, parked_partitions p
WHERE o.key = :key AND p.pipeline_id = :pipeline_id AND p.event_name = :event_name
  AND p.stage = :stage AND p.error_type = :error_type
""")
"""Of the object and partition of a trace, where no segment is known: all of it were copies."""


@dataclass(frozen=True, slots=True)
class ParkedPlace:
    """What the trace of parking says."""

    event_id: str
    pipeline_id: str
    event_name: str
    stage: str
    error_type: str
    object_key: str


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision about a parked event."""

    at: datetime
    action: str
    """``discard`` or ``undo_discard``."""
    who: str
    why: str


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a parked event is now, and what was decided about it."""

    state: str
    """Of its segment: parked, replaying, replayed, discarded, quarantined, deleted; or ``copy``.

    Deleted: the clean-up took the file; it had been replayed if there is a replay id, else
    discarded.
    """
    since: datetime
    partition_id: int
    object_key: str
    """Of the file that holds it now, or did last."""
    replay_id: str | None
    decisions: tuple[Decided, ...]
    """Discards and their undoing, the oldest first."""


def whereabouts(
    tracker: TrackerStore, objects: ObjectStore, place: ParkedPlace
) -> Whereabouts | None:
    """Return what became of an event that a trace says was parked; None: the books do not know it.

    Cost: two statements, of which one reads the discards in the audit log since it was parked;
    where its file's segments of this partition are in several states, the frames of these.

    Raises:
        RetryError: the tracker or the object store is away.
    """
    values = {name: storable(getattr(place, name)) for name in NAMES} | {"key": place.object_key}
    with tracker.transaction() as connection:
        leaves = connection.execute(_LEAVES, values).mappings().all()
        copies = None if leaves else connection.execute(_ONLY_COPIES, values).first()
    if copies is not None:
        return Whereabouts(COPY, copies[1], int(copies[0]), place.object_key, None, ())
    if not leaves:
        return None
    own, is_copy = _own(tracker, objects, leaves, place.event_id)
    state = COPY if is_copy else own["state"]
    decisions = () if is_copy else tuple(_decisions(tracker, own, values))
    return Whereabouts(
        state, own["since"], own["partition_id"], own["object_key"], own["replay_id"], decisions
    )


def _own(
    tracker: TrackerStore, objects: ObjectStore, leaves: Sequence[RowMapping], event_id: str
) -> tuple[RowMapping, bool]:
    """Return the segment that holds the event; and whether it does so only as a copy."""
    alike = len({(row["state"], row["object_key"], row["fingerprint"]) for row in leaves}) == 1
    if alike and not any(row["has_copies"] for row in leaves):
        return leaves[0], False
    unread = None
    for row in leaves:
        found = _reads(tracker, objects, row["id"], event_id)
        if found:
            return row, False
        if found is None:
            unread = row
    return (leaves[0], True) if unread is None else (unread, False)


def _reads(
    tracker: TrackerStore, objects: ObjectStore, segment_id: int, event_id: str
) -> bool | None:
    """Tell whether a segment holds an event; None: it cannot be read any more."""
    with tracker.transaction() as connection:
        query = select_segments(segments.c.id == segment_id)
        segment = to_segment(connection.execute(query).one())
    try:
        frame = read_frame(tracker, objects, segment)
        return None if frame is None else event_id in _ids(segment, frame)
    except CorruptSegmentError:
        return None


def _ids(segment: Segment, frame: bytes) -> Iterator[str]:
    for event in events_of(segment, frame):
        try:
            yield decode(event.value).id
        except ParkError:
            continue  # never was an event: it has no id


def _decisions(
    tracker: TrackerStore, own: RowMapping, names: Mapping[str, str]
) -> Iterator[Decided]:
    """Yield the decisions that changed what was to become of a segment, in order."""
    log = audit_log.c
    query = select(log.at, log.action, log.who, log.detail).where(
        log.action.in_(_DECIDE), log.at >= own["parked_at"]
    )
    if own["taken_at"] is not None:
        query = query.where(log.at < own["taken_at"])
    with tracker.transaction() as connection:
        rows = connection.execute(query.order_by(log.id)).all()
    discarded = False
    for at, action, who, detail in rows:
        if _DECIDE[action] is not discarded and _names(detail.get("filter", {}), own, names):
            discarded = _DECIDE[action]
            yield Decided(at, action, who, str(detail.get("why", "")))


def _names(wanted: Mapping[str, str], own: RowMapping, names: Mapping[str, str]) -> bool:
    """Tell whether a decision's filter, as the audit log has it, names all of a segment."""
    given = [wanted.get(name) in (None, value) for name, value in names.items()]
    given.append(wanted.get("fingerprint") in (None, own["fingerprint"]))
    return all((*given, *_in_windows(wanted, own)))


def _in_windows(wanted: Mapping[str, str], own: RowMapping) -> Iterable[bool]:
    for name, first, last in (
        ("", own["first_event_at"], own["last_event_at"]),
        ("parked_", own["parked_at"], own["parked_at"]),
    ):
        since, until = _edge(wanted, f"{name}since"), _edge(wanted, f"{name}until")
        yield since is None or first >= since
        yield until is None or last < until


def _edge(wanted: Mapping[str, str], name: str) -> Any:
    return None if name not in wanted else instant(wanted[name])
