"""Looking at what is parked: partitions, their events, samples. Nothing here changes anything."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Double,
    Select,
    all_,
    cast,
    func,
    or_,
    select,
    tuple_,
)

from waybill.errors import InputError
from waybill.events import CATALOGUE, STAGES, instant, window_edge
from waybill.parking.damage import Damage
from waybill.parking.event import ParkedEvent
from waybill.parking.fingerprints import require_fingerprint
from waybill.parking.model import FingerprintGroup, Partition, PartitionFilter, Segment
from waybill.parking.names import storable
from waybill.parking.packed import CorruptSegmentError, read_segment
from waybill.parking.selection import (
    IS_HELD,
    REPLAY_ORDER,
    in_window,
    matches,
    overlaps,
    select_segments,
    to_segment,
)
from waybill.parking.states import IS_UNMARKED_ALONE, STATE_NOW, no_partition, now_in
from waybill.storage import ObjectMissingError, ObjectShorterError, ObjectStore, TrackerStore
from waybill.storage.tracker import parked_partitions as partitions
from waybill.storage.tracker import pipelines, segments

_PAGE = 500
_MOST_NAMES = 5_000
_PIPELINE_NAME = func.coalesce(pipelines.c.name, partitions.c.pipeline_id)
_COMPUTED = {
    "pipeline": _PIPELINE_NAME,
    "team": func.coalesce(pipelines.c.team, ""),
}
FIELDS = tuple(
    (_COMPUTED[name] if name in _COMPUTED else partitions.c[name]).label(name)
    for name in Partition.__slots__
)
JOINED = partitions.outerjoin(pipelines, pipelines.c.id == partitions.c.pipeline_id)


def _select(*conditions: ColumnElement[bool]) -> Select[Any]:
    return select(*FIELDS).select_from(JOINED).where(*conditions)


def read_partitions(
    tracker: TrackerStore, wanted: PartitionFilter, *, limit: int | None
) -> list[Partition]:
    """Return the partitions that match, by name."""
    if wanted.kept and not _any(tracker, [*matches(wanted), partitions.c.quarantined > 0]):
        wanted = replace(wanted, kept=False, held=True)  # which indexes serve
    query = _select(*matches(wanted), *in_window(wanted)).order_by(
        _PIPELINE_NAME, partitions.c.event_name, partitions.c.stage, partitions.c.error_type
    )
    with tracker.transaction() as connection:
        return [Partition(*row) for row in connection.execute(query.limit(limit))]


def read_partition(tracker: TrackerStore, partition_id: int) -> Partition:
    """Return one partition."""
    with tracker.transaction() as connection:
        row = connection.execute(_select(partitions.c.id == partition_id)).first()
    if row is None:
        raise no_partition(partition_id)
    return Partition(*row)


def find_partition(
    tracker: TrackerStore, pipeline: str, *, event_name: str, stage: str, error_type: str
) -> Partition:
    """Return the partition with these names; see ``Parking.find``."""
    names = {"event_name": event_name, "stage": stage, "error_type": error_type}
    found = find_exactly(tracker, pipeline, **names)
    if found is not None:
        return found
    conditions: list[ColumnElement[bool]] = []
    columns = partitions.c
    asked = (
        ("pipeline", _is_pipeline(pipeline), _PIPELINE_NAME, pipeline),
        ("event name", None, columns.event_name, event_name),
        ("stage", None, columns.stage, stage),
        ("error type", None, columns.error_type, error_type),
    )
    within = ""
    for what, special, column, value in asked:
        known = _names(tracker, column, conditions)
        conditions.append(_is(column, value) if special is None else special)
        if not _any(tracker, conditions):
            raise _nothing(what, value, known, within)
        within += f"{' / ' if within else ' of '}{value}"
    with tracker.transaction() as connection:  # parked since the first look
        return Partition(*connection.execute(_select(*conditions)).one())


def find_exactly(
    tracker: TrackerStore, pipeline: str, *, event_name: str, stage: str, error_type: str
) -> Partition | None:
    """Return the partition with these names; see ``Parking.find_exactly``."""
    columns = partitions.c
    given = select(pipelines.c.id).where(
        or_(pipelines.c.name == storable(pipeline), pipelines.c.id == storable(pipeline))
    )
    with tracker.transaction() as connection:
        ids = {str(row[0]) for row in connection.execute(given)} | {storable(pipeline)}
        query = _select(
            columns.pipeline_id.in_(sorted(ids)),
            _is(columns.event_name, event_name),
            _is(columns.stage, stage),
            _is(columns.error_type, error_type),
        ).order_by(_PIPELINE_NAME == storable(pipeline), columns.id)
        rows = connection.execute(query).all()
    return Partition(*rows[-1]) if rows else None


def resolve_pipeline(tracker: TrackerStore, name: str) -> str:
    """Return the id of a pipeline given by name or id; see ``Parking.pipeline_id``."""
    query = select(pipelines.c.id).where(or_(pipelines.c.name == name, pipelines.c.id == name))
    parked = select(partitions.c.pipeline_id).where(_is(partitions.c.pipeline_id, name)).limit(1)
    with tracker.transaction() as connection:
        found = connection.execute(query).scalar() or connection.execute(parked).scalar()
        if found is not None:
            return str(found)
        known = [str(row[0]) for row in connection.execute(select(pipelines.c.name))]
    raise InputError(f"there is no pipeline {name!r}; {_nearest(name, known) or 'none is there'}")


def require_names(tracker: TrackerStore, stage: str | None, error_type: str | None) -> None:
    """Refuse names that nothing parks under; see ``Parking.require_names``."""
    asked = (
        ("stage", stage, STAGES, partitions.c.stage),
        ("error type", error_type, CATALOGUE, partitions.c.error_type),
    )
    for what, name, catalogued, column in asked:
        if name is None or name in catalogued or _any(tracker, [_is(column, name)]):
            continue
        known = sorted({*catalogued, *_names(tracker, column, [])})
        raise InputError(f"there is no {what} {name!r}; {_nearest(name, known)}")


def _is_pipeline(name: str) -> ColumnElement[bool]:
    return or_(pipelines.c.name == storable(name), _is(partitions.c.pipeline_id, name))


def _is(column: ColumnElement[Any], value: str) -> ColumnElement[bool]:
    return column == storable(value)


def _any(tracker: TrackerStore, conditions: Sequence[ColumnElement[bool]]) -> bool:
    with tracker.transaction() as connection:
        return connection.execute(_select(*conditions).limit(1)).first() is not None


def _names(
    tracker: TrackerStore, column: ColumnElement[Any], conditions: Sequence[ColumnElement[bool]]
) -> list[str]:
    query = select(column).select_from(JOINED).where(*conditions).distinct().limit(_MOST_NAMES)
    with tracker.transaction() as connection:
        return [str(row[0]) for row in connection.execute(query)]


def _nothing(what: str, value: str, known: Sequence[str], within: str) -> InputError:
    hint = _nearest(value, known) or "nothing is parked there"
    return InputError(f"nothing is parked{within} for {what} {value!r}; {hint}")


def _nearest(value: str, known: Sequence[str]) -> str:
    """Return the nearest name as a question, else the first ten; empty: none is known."""
    near = difflib.get_close_matches(value, known, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    some = ", ".join(repr(name) for name in sorted(known)[:10])
    return f"there are: {some}" if some else ""


def segments_in_order(tracker: TrackerStore, *conditions: ColumnElement[bool]) -> Iterator[Segment]:
    """Yield segments in replay order, a page at a time; no transaction is open meanwhile.

    What was put in the place of a segment of the page before, while that was read, is left out.
    """
    after: list[ColumnElement[bool]] = []
    while True:
        query = select_segments(*conditions, *after).limit(_PAGE)
        with tracker.transaction() as connection:
            page = [to_segment(row) for row in connection.execute(query)]
        yield from page
        if len(page) < _PAGE:
            return
        last = page[-1]
        values = [getattr(last, column.name) for column in REPLAY_ORDER]
        given = cast([segment.id for segment in page], ARRAY(BigInteger))
        after = [
            tuple_(*REPLAY_ORDER) > tuple_(*values),
            func.coalesce(segments.c.source_id, 0) != all_(given),
        ]


def read_object_keys(tracker: TrackerStore, partition_id: int, *, limit: int) -> list[str]:
    """Return objects that hold a partition's events; see ``Parking.object_keys``."""
    held = now_in(("parked", "replaying", "quarantined"))
    query = (
        select(segments.c.object_key)
        .where(segments.c.partition_id == partition_id, *held)
        .group_by(segments.c.object_key)
        .order_by(func.max(segments.c.id).desc())
        .limit(limit)
    )
    with tracker.transaction() as connection:
        return [str(row[0]) for row in connection.execute(query)]


def count_segments(tracker: TrackerStore, *conditions: ColumnElement[bool]) -> int:
    """Return how many segments match."""
    query = select(func.count()).select_from(segments).where(*conditions)
    with tracker.transaction() as connection:
        return int(connection.execute(query).scalar_one())


def read_segment_events(
    tracker: TrackerStore, objects: ObjectStore, segment: Segment, damage: Damage | None = None
) -> Iterator[ParkedEvent]:
    """Yield one segment's events; see ``Parking.read``. ``damage`` takes what is damaged.

    Those of a segment that was cut or rewritten, and whose object is gone, come from the segments
    in its place, merged by offset; what was decided of them and cleaned up since is left out.
    """
    if damage is None:
        return _read(tracker, objects, segment, None)
    return damage.readable(segment, lambda: _read(tracker, objects, segment, damage))


def _read(
    tracker: TrackerStore, objects: ObjectStore, segment: Segment, damage: Damage | None
) -> Iterator[ParkedEvent]:
    frame = read_frame(tracker, objects, segment)
    if frame is not None:
        return events_of(segment, frame)
    query = select_segments(segments.c.source_id == segment.id)
    with tracker.transaction() as connection:
        successors = [to_segment(row) for row in connection.execute(query)]
    parts = [read_segment_events(tracker, objects, successor, damage) for successor in successors]
    return heapq.merge(*parts, key=lambda event: event.kafka_offset)


def read_frame(tracker: TrackerStore, objects: ObjectStore, segment: Segment) -> bytes | None:
    """Return one segment's frame, unchecked; None: a clean-up took it, and was right to.

    Whether its events are elsewhere now, its successors say: ``source_id`` names it.
    """
    try:
        return objects.get(segment.object_key, position=segment.position, length=segment.length)
    except ObjectShorterError:
        return b""
    except ObjectMissingError as error:
        if _was_deleted(tracker, segment):
            return None
        raise CorruptSegmentError(
            segment.object_key, segment.position, "the object is gone from the store", missing=True
        ) from error


def events_of(segment: Segment, frame: bytes) -> Iterator[ParkedEvent]:
    """Yield the events of a segment's frame, checked by its SHA-256 before the first."""
    return read_segment(
        frame,
        sha256=segment.sha256,
        key=segment.object_key,
        position=segment.position,
        copies=segment.copies,
    )


def _was_deleted(tracker: TrackerStore, segment: Segment) -> bool:
    """Tell whether a clean-up took the segment, after someone replayed, discarded or cut it."""
    query = select(STATE_NOW).where(segments.c.id == segment.id)
    with tracker.transaction() as connection:
        state = connection.execute(query).scalar()
    return state in ("replayed", "discarded", "replaced", "deleted")


class Wanted(NamedTuple):
    """Which events of a partition: by state, own time, number and cause."""

    states: Sequence[str]
    since: datetime | None = None
    until: datetime | None = None
    limit: int | None = None
    fingerprint: str | None = None


def read_events(
    tracker: TrackerStore,
    objects: ObjectStore,
    partition_id: int,
    wanted: Wanted,
    damage: Damage | None,
) -> Iterator[ParkedEvent]:
    """Yield a partition's events in replay order; see ``Parking.events``."""
    edges = wanted.since, wanted.until
    own = _own(partition_id, wanted.states, wanted.fingerprint)
    given = 0
    for segment in segments_in_order(tracker, *own, *overlaps(*edges)):
        for event in read_segment_events(tracker, objects, segment, damage):
            if wanted.limit is not None and given >= wanted.limit:
                return
            if _in_window(event, *edges):
                given += 1
                yield event


def _own(
    partition_id: int, states: Sequence[str], fingerprint: str | None
) -> list[ColumnElement[bool]]:
    """Return the conditions on a partition's segments."""
    wanted = [segments.c.partition_id == partition_id, *now_in(states)]
    if fingerprint is not None:
        wanted.append(segments.c.fingerprint == require_fingerprint(fingerprint))
    return wanted


def _in_window(event: ParkedEvent, since: datetime | None, until: datetime | None) -> bool:
    if since is None and until is None:
        return True
    at = instant(event.event_at) or instant(event.parked_at)
    if at is None:
        return True
    return (since is None or at >= since) and (until is None or at < until)


def read_sample(  # noqa: PLR0913 - conditions of one partition's events
    tracker: TrackerStore,
    objects: ObjectStore,
    partition_id: int,
    n: int,
    *,
    states: Sequence[str],
    damage: Damage | None = None,
    fingerprint: str | None = None,
) -> list[ParkedEvent]:
    """Return up to ``n`` events spread over a partition; see ``Parking.sample``."""
    wanted = _own(partition_id, states, fingerprint)
    listing = select(segments.c.id, segments.c.count).where(*wanted).order_by(*REPLAY_ORDER)
    with tracker.transaction() as connection:
        found = [(int(row[0]), int(row[1])) for row in connection.execute(listing)]
        chosen = _spread(found, min(n, len(found)))
        quotas = _quotas(chosen, n)
        query = select_segments(segments.c.id.in_(list(quotas)))
        picked = [to_segment(row) for row in connection.execute(query)]
    events: list[ParkedEvent] = []
    for segment in picked:
        quota = quotas[segment.id]
        wanted_lines = {index * segment.count // quota for index in range(quota)}
        lines = enumerate(read_segment_events(tracker, objects, segment, damage))
        events.extend(event for index, event in lines if index in wanted_lines)
    return events


def _spread(found: list[tuple[int, int]], number: int) -> list[tuple[int, int]]:
    """Pick ``number`` items, evenly apart."""
    return [found[index * len(found) // number] for index in range(number)]


def _quotas(chosen: list[tuple[int, int]], n: int) -> dict[int, int]:
    """Share ``n`` events out over segments (id, count), as evenly as their counts allow."""
    quotas: dict[int, int] = {}
    left = n
    for done, (segment_id, count) in enumerate(sorted(chosen, key=lambda item: item[1])):
        share = -(-left // (len(chosen) - done))
        quotas[segment_id] = min(share, count)
        left -= quotas[segment_id]
    return {segment_id: quota for segment_id, quota in quotas.items() if quota}


_MOST_BUCKETS = 1000
_MOST_GROUPS = 500


def read_groups(tracker: TrackerStore, partition_id: int) -> list[FingerprintGroup]:
    """Return a partition's largest groups, the largest first; see ``Parking.groups``."""
    own = segments.c
    each = (
        select(
            own.fingerprint,
            func.max(own.id).label("newest"),
            func.sum(own.count).label("events"),
            func.count().label("segments"),
            func.min(own.parked_at).label("first_at"),
            func.max(own.parked_at).label("last_at"),
        )
        .where(own.partition_id == partition_id, IS_HELD, IS_UNMARKED_ALONE)
        .group_by(own.fingerprint)
        .subquery()
    )
    found = each.c
    query = (
        select(
            found.fingerprint,
            own.last_message,
            found.events,
            found.segments,
            found.first_at,
            found.last_at,
        )
        .select_from(each.join(segments, own.id == found.newest))
        .order_by(found.events.desc(), found.fingerprint)
        .limit(_MOST_GROUPS)
    )
    with tracker.transaction() as connection:
        rows = connection.execute(query).all()
    return [FingerprintGroup(row[0], row[1], int(row[2]), *row[3:]) for row in rows]


def read_timelines(
    tracker: TrackerStore,
    ids: Sequence[int],
    *,
    since: datetime | str,
    until: datetime | str,
    buckets: int,
) -> dict[int, list[int]]:
    """Return the numbers of events parked, in equal steps of time; see ``Parking.timelines``."""
    start, end = window_edge(since, "since"), window_edge(until, "until")
    if start is None or end is None or end <= start:
        raise InputError("a timeline needs a window: `since` before `until`")
    if not 1 <= buckets <= _MOST_BUCKETS:
        raise InputError(f"buckets: {buckets} is not from 1 to {_MOST_BUCKETS}")
    own = segments.c
    age_s = cast(func.extract("epoch", own.parked_at - start), Double)
    step = func.floor(age_s / ((end - start).total_seconds() / buckets))
    query = (
        select(own.partition_id, step, func.sum(own.count))
        .where(
            own.partition_id.in_(list(ids)),
            own.parked_at >= start,
            own.parked_at < end,
            own.state != "replaced",
        )
        .group_by(own.partition_id, step)
    )
    counts = {partition_id: [0] * buckets for partition_id in ids}
    with tracker.transaction() as connection:
        for partition_id, index, number in connection.execute(query):
            counts[partition_id][min(int(index), buckets - 1)] += int(number)
    return counts
