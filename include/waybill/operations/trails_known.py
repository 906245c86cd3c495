"""What the tracker knows beside the traces: a parked segment's state now, replays, loads, batches.

A trace says what happened at its time. Whether what parked then is parked still, is in the rows of
its segment; whether what was staged is loaded, in those of its destination. One read for all stops
of an answer: a statement for each kind.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, select, tuple_

from waybill.parking.instants import rfc3339
from waybill.parking.marks import STATE_NOW
from waybill.parking.names import storable
from waybill.storage import TrackerStore
from waybill.storage.tracker.tables import (
    audit_log,
    batches,
    pipelines,
    replays,
    segments,
    staged_objects,
)
from waybill.storage.tracker.tables import parked_partitions as partitions
from waybill.tracing import Trace

_COMMIT = timedelta(minutes=1)
"""A discard's entry is written after its rows, in the same transaction."""
_MOST_ENTRIES = 2000
_DEEPEST = 64
"""Times that a segment can have been cut or rewritten, one after the other."""
Place = tuple[str, str, str, str, str]
"""(object key, pipeline id, event name, stage, error type)."""


@dataclass(frozen=True, slots=True)
class ParkedNow:
    """What became of what one parked object holds of one partition."""

    partition_id: int
    states: dict[str, int]
    """Events by state now; several states where one cannot tell which of them the event is in."""
    replay_id: str = ""
    by: str = ""
    """Who discarded it."""
    why: str = ""
    at: datetime | None = None
    """When it came into its state."""

    @property
    def state(self) -> str:
        """The one state, else ``in part``."""
        return next(iter(self.states)) if len(self.states) == 1 else "in part"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "partition_id": self.partition_id,
            "state": self.state,
            "states": self.states,
            "replay_id": self.replay_id,
            "by": self.by,
            "why": self.why,
            "at": None if self.at is None else rfc3339(self.at),
        }


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """A replay."""

    id: str
    run_id: str
    state: str
    requested_by: str


@dataclass(frozen=True, slots=True)
class StagedRow:
    """A staged object."""

    destination: str
    commit_number: int
    state: str
    loaded_at: datetime | None


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A micro-batch that committed."""

    consumer: str
    destination: str
    commit_number: int
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """A pipeline."""

    name: str
    team: str


@dataclass(slots=True)
class Known:
    """What the tracker knows of some stops."""

    pipelines: dict[str, PipelineRow] = field(default_factory=dict)
    parked: dict[tuple[Any, ...], ParkedNow] = field(default_factory=dict)
    replays: dict[str, ReplayRow] = field(default_factory=dict)
    staged: dict[str, StagedRow] = field(default_factory=dict)
    batches: dict[str, BatchRow] = field(default_factory=dict)

    def parked_now(self, stop: Trace) -> ParkedNow | None:
        """Return what became of what parked at a stop; None: no row tells."""
        return self.parked.get(_spot(stop))


def place_of(stop: Trace) -> Place:
    """Return where an event parked, as its segment's rows name it."""
    return (stop.object_key, stop.pipeline_id, stop.event_name, stop.phase, stop.error_type)


def _spot(stop: Trace) -> tuple[Any, ...]:
    return (*place_of(stop), stop.kafka_partition, stop.kafka_offset)


def read_known(tracker: TrackerStore, stops: Sequence[Trace]) -> Known:
    """Return what the tracker knows of stops. Cost: six statements at most."""
    known = Known()
    with tracker.transaction() as connection:
        known.pipelines = _pipelines(connection, {stop.pipeline_id for stop in stops})
        known.parked = _parked(connection, [stop for stop in stops if stop.outcome == "parked"])
        ids = {stop.replay_id for stop in stops if stop.replay_id}
        ids |= {now.replay_id for now in known.parked.values() if now.replay_id}
        known.replays = _replays(connection, ids)
        known.staged = _staged(connection, {s.object_key for s in stops if s.phase == "mapping"})
        known.batches = _batches(connection, {stop.batch for stop in stops})
    return known


def _pipelines(connection: Connection, ids: set[str]) -> dict[str, PipelineRow]:
    query = select(pipelines).where(pipelines.c.id.in_(map(storable, ids)))
    return {row.id: PipelineRow(row.name, row.team) for row in connection.execute(query)}


def _replays(connection: Connection, ids: Iterable[str]) -> dict[str, ReplayRow]:
    columns = [replays.c[name] for name in ("id", "run_id", "state", "requested_by")]
    query = select(*columns).where(replays.c.id.in_(uuids(ids)))
    rows = connection.execute(query)
    return {str(r.id): ReplayRow(str(r.id), r.run_id, r.state, r.requested_by) for r in rows}


def _staged(connection: Connection, keys: set[str]) -> dict[str, StagedRow]:
    columns = [staged_objects.c[n] for n in ("destination", "commit_number", "state", "loaded_at")]
    query = select(staged_objects.c.key, *columns).where(staged_objects.c.key.in_(keys - {""}))
    return {row[0]: StagedRow(*row[1:]) for row in connection.execute(query)}


def _batches(connection: Connection, ids: Iterable[str]) -> dict[str, BatchRow]:
    names = ("consumer", "destination", "commit_number", "committed_at")
    columns = [batches.c[name] for name in names]
    query = select(batches.c.id, *columns).where(batches.c.id.in_(uuids(ids)))
    return {str(row[0]): BatchRow(*row[1:]) for row in connection.execute(query)}


def _parked(connection: Connection, stops: Sequence[Trace]) -> dict[tuple[Any, ...], ParkedNow]:
    places = {_stored(place_of(stop)) for stop in stops if stop.object_key}
    found: dict[Place, list[_Segment]] = defaultdict(list)
    for place, segment in _segments(connection, places) if places else ():
        found[place].append(segment)
    entries = _Discards(connection)
    now: dict[tuple[Place, frozenset[int]], ParkedNow] = {}
    answers = {}
    for stop in stops:
        place = _stored(place_of(stop))
        near = _nearest(found.get(place, []), stop)
        which = (place, frozenset(one.id for one in near))
        if near and which not in now:
            now[which] = _now(connection, near, entries, place)
        if near:
            answers[_spot(stop)] = now[which]
    return answers


@dataclass(frozen=True, slots=True)
class _Segment:
    id: int
    partition_id: int
    state: str
    events: int
    replay_id: str
    kafka_partition: int
    first_offset: int
    changed_at: datetime
    marked_at: datetime | None


_COLUMNS = (
    segments.c.id,
    segments.c.partition_id,
    STATE_NOW,
    segments.c.count,
    segments.c.replay_id,
    segments.c.kafka_partition,
    segments.c.first_offset,
    segments.c.changed_at,
    partitions.c.marked_at,
)
_NAMED = tuple(partitions.c[name] for name in ("pipeline_id", "event_name", "stage", "error_type"))
_JOINED = segments.join(partitions, segments.c.partition_id == partitions.c.id)


def _segments(connection: Connection, wanted: Iterable[Place]) -> list[tuple[Place, _Segment]]:
    place = (segments.c.object_key, *_NAMED)
    query = select(*place, *_COLUMNS).select_from(_JOINED)
    rows = connection.execute(query.where(tuple_(*place).in_(list(wanted)))).all()
    return [((row[0], row[1], row[2], row[3], row[4]), _segment(row[5:])) for row in rows]


def _segment(row: Sequence[Any]) -> _Segment:
    values = list(row)
    values[4] = "" if values[4] is None else str(values[4])
    return _Segment(*values)


def _nearest(found: list[_Segment], stop: Trace) -> list[_Segment]:
    """Return the segments of an object that the event may be in, by its place in the log."""
    own = [one for one in found if one.kafka_partition == stop.kafka_partition]
    before = [one for one in own if one.first_offset <= (stop.kafka_offset or 0)]
    if not before:
        return own or found
    last = max(one.first_offset for one in before)
    return [one for one in before if one.first_offset == last]


def _now(
    connection: Connection, found: list[_Segment], entries: _Discards, place: Place
) -> ParkedNow:
    """Return the state of segments, or of what they were cut into or rewritten as."""
    for _ in range(_DEEPEST):
        replaced = [one.id for one in found if one.state == "replaced"]
        if not replaced:
            break
        kept = [one for one in found if one.state != "replaced"]
        parts = _parts(connection, replaced)
        if not parts:
            break
        found = kept + parts
    states: Counter[str] = Counter()
    for one in found:
        states[_ended(one)] += one.events
    last = max(found, key=lambda one: (one.changed_at, one.id))
    at = last.changed_at
    by = why = ""
    if set(states) & {"discarded", "deleted after a discard"}:
        marked = last.marked_at if _ended(last) == "discarded" else None
        at = max(at, marked) if marked is not None else at
        by, why, at = entries.newest(place[1:], at)
    replay_id = last.replay_id if set(states) - {"parked", "discarded"} else ""
    return ParkedNow(last.partition_id, dict(states), replay_id, by, why, at)


def _ended(one: _Segment) -> str:
    """Return the state of a segment; what was deleted, with why it could be."""
    if one.state != "deleted":
        return one.state
    return "deleted after a replay" if one.replay_id else "deleted after a discard"


def _parts(connection: Connection, ids: list[int]) -> list[_Segment]:
    query = select(*_COLUMNS).select_from(_JOINED).where(segments.c.source_id.in_(ids))
    return [_segment(row) for row in connection.execute(query)]


class _Discards:
    """The entries of the audit log about discards; read when the first is asked for."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._entries: list[tuple[datetime, str, dict[str, Any]]] | None = None

    def newest(self, names: Sequence[str], until: datetime) -> tuple[str, str, datetime]:
        """Return who discarded a partition, why and when, by the last entry until a time."""
        for at, who, detail in self._read():
            if at <= until + _COMMIT and _covers(detail.get("filter", {}), names):
                return who, str(detail.get("why", "")), at
        return "", "", until

    def _read(self) -> list[tuple[datetime, str, dict[str, Any]]]:
        if self._entries is None:
            columns = [audit_log.c[name] for name in ("at", "who", "detail")]
            query = select(*columns).where(audit_log.c.action == "discard")
            query = query.order_by(audit_log.c.id.desc()).limit(_MOST_ENTRIES)
            self._entries = [(r[0], r[1], r[2]) for r in self._connection.execute(query)]
        return self._entries


def _covers(chosen: dict[str, Any], names: Sequence[str]) -> bool:
    """Tell whether a discard's filter matches a partition."""
    pairs = zip(("pipeline_id", "event_name", "stage", "error_type"), names, strict=True)
    return all(chosen.get(name, value) in (value, storable(value)) for name, value in pairs)


def _stored(place: Place) -> Place:
    return (place[0], *map(storable, place[1:]))  # type: ignore[return-value]


def uuids(texts: Iterable[str]) -> list[UUID]:
    """Return those of the texts that are UUIDs."""
    found = []
    for text in texts:
        try:
            found.append(UUID(text))
        except ValueError:
            continue
    return found


__all__ = ["BatchRow", "Known", "ParkedNow", "PipelineRow", "ReplayRow", "StagedRow", "read_known"]
