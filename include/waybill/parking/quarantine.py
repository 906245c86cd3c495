"""Quarantine: segments whose frames are damaged, or whose objects are gone, set apart and told.

A quarantined segment is kept, counted, and left out of replays. ``recheck`` looks at it again: once
its bytes are those that were parked, as after the object was restored, it is parked again; so it is
once its events were made again from Kafka (``waybill.recovery.parked_objects``).

For an object that is gone an alarm is raised, once: a notice for each pipeline that has events in
it, and one line in the audit log, both in the transaction that finds that neither was written
before. The rows stay as they are: the object may be restored, and a replay that comes to it says
so.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, and_, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from waybill.access import Decision, write_audit
from waybill.errors import NotFoundError, StopError
from waybill.notices import Kind, write_notice
from waybill.parking.model import ObjectState, RecheckReport, Segment
from waybill.parking.names import storable
from waybill.parking.object_keys import new_cut_key
from waybill.parking.packed import CorruptSegmentError, PackedObject
from waybill.parking.reading import read_segment_events, segments_in_order
from waybill.parking.selection import select_segments, to_segment
from waybill.parking.splits import swap
from waybill.parking.states import IS_UNMARKED, lock_group, lock_groups, move, now_in
from waybill.storage import AdvisoryLock, ObjectStore, TrackerStore
from waybill.storage.tracker import audit_log, notices, replays, segments
from waybill.storage.tracker import parked_partitions as partitions

_LOG = logging.getLogger(__name__)
KIND = "missing"
_ACTION = "object_missing"


def quarantine_all(
    tracker: TrackerStore, replay_id: UUID, damaged: Sequence[tuple[Segment, CorruptSegmentError]]
) -> int:
    """Set a running replay's damaged segments apart; returns their events. Again: nothing more."""
    number = 0
    for segment, error in damaged:
        with tracker.transaction() as connection:
            lock_group(connection, segment.partition_id)
            query = select(replays.c.requested_by).where(replays.c.id == replay_id)
            who = str(connection.execute(query).scalar_one())
            number += quarantine(
                connection, replay_id, segment.id, error, source="replaying", who=who
            )
    return number


def quarantine(
    connection: Connection,
    replay_id: UUID,
    segment_id: int,
    error: CorruptSegmentError,
    *,
    source: str,
    who: str,
) -> int:
    """Set one segment apart, count it in its replay, and have its owner told.

    The caller holds the partition's row. Returns the segment's events; 0: it was not in ``source``.
    """
    segment = to_segment(connection.execute(select_segments(segments.c.id == segment_id)).one())
    moved = move(
        connection, source, "quarantined", segments.c.id == segment_id, replay_id=replay_id
    )
    if not moved.segments:
        return 0
    connection.execute(
        update(replays)
        .where(replays.c.id == replay_id)
        .values(quarantined=replays.c.quarantined + moved.events)
    )
    _tell(connection, segment, error, who=who, replay_id=str(replay_id))
    return moved.events


def _tell(
    connection: Connection, segment: Segment, error: CorruptSegmentError, *, who: str, **more: str
) -> None:
    """Write into the audit log that a segment was set apart, and have its owner told."""
    kind: Kind = "missing" if error.missing else "damage"
    detail: dict[str, Any] = {
        "segment": segment.id,
        "events": segment.count,
        "object_key": segment.object_key,
        "position": segment.position,
        "reason": error.reason,
        **more,
    }
    target = f"partition {segment.partition_id}"
    write_audit(connection, who=who, action="quarantine", target=target, kind=kind, **detail)
    pipeline = select(partitions.c.pipeline_id).where(partitions.c.id == segment.partition_id)
    write_notice(
        connection,
        kind=kind,
        pipeline_id=str(connection.execute(pipeline).scalar_one()),
        partition_id=segment.partition_id,
        **detail,
    )
    _LOG.error(
        "%s: %d parked events of partition %d are quarantined: %s",
        kind,
        segment.count,
        segment.partition_id,
        error,
    )


def recheck(
    tracker: TrackerStore,
    objects: ObjectStore,
    pipeline_id: str | None,
    decision: Decision,
    *,
    object_key: str | None,
) -> RecheckReport:
    """Park quarantined segments again whose bytes are right; see ``Parking.recheck``."""
    mended = events = left = left_events = 0
    reasons: dict[str, int] = {}
    own = _of(pipeline_id, object_key)
    for segment in segments_in_order(tracker, segments.c.state == "quarantined", *own):
        number = park_mended(tracker, objects, segment, decision, reasons)
        if number is None:
            left, left_events = left + 1, left_events + segment.count
            continue
        mended, events = mended + (number > 0), events + number
    states = ["parked", "replaying"]
    if object_key is not None:
        states.append("quarantined")
    held = [*now_in(states), *own]
    keys = _gone(tracker, objects, held) if object_key is None else [storable(object_key)]
    found = [_state(tracker, objects, key, held) for key in keys]
    if object_key is not None and not found[0].events:
        raise NotFoundError(
            f"no parked event is in object {object_key!r}; `waybill parked show --json` names the "
            "objects of a partition"
        )
    asked = object_key is not None
    looked = tuple(one for one in found if one.events and (asked or one.reason))
    return RecheckReport(mended, events, left, left_events, reasons, looked)


def park_mended(
    tracker: TrackerStore,
    objects: ObjectStore,
    segment: Segment,
    decision: Decision,
    reasons: dict[str, int] | None = None,
) -> int | None:
    """Park one quarantined segment again if its bytes are right; return its events.

    Returns 0 where somebody else was faster, None where they are not right: ``reasons`` counts why.
    """
    try:
        _read_whole(tracker, objects, segment)
    except CorruptSegmentError as error:
        if reasons is not None:
            reasons[error.reason] = reasons.get(error.reason, 0) + 1
        return None
    return _mend(tracker, segment, decision)


def quarantine_missing(tracker: TrackerStore, keys: Sequence[str], *, who: str) -> int:
    """Set apart what is parked in objects that are gone; returns the events. Again: nothing more.

    Their owners are told by ``raise_alarm``.
    """
    events = 0
    for key in keys:
        own = segments.c.object_key == key
        with tracker.transaction() as connection:
            inside = select(segments.c.partition_id).where(own, segments.c.state == "parked")
            lock_groups(connection, [partitions.c.id.in_(inside)])
            moved = move(connection, "parked", "quarantined", own)
            if moved.segments:
                write_audit(
                    connection,
                    who=who,
                    action="quarantine",
                    target=key,
                    kind="missing",
                    segments=moved.segments,
                    events=moved.events,
                )
        events += moved.events
    return events


def quarantine_damaged(
    tracker: TrackerStore, objects: ObjectStore, keys: Sequence[str], *, who: str
) -> int:
    """Set apart what is parked in these objects and damaged; see ``Parking.quarantine_damaged``."""
    events, gone = 0, list[str]()
    for key in keys:
        inside = segments.c.object_key == key, segments.c.state == "parked"
        for segment in segments_in_order(tracker, *inside):
            try:
                _read_whole(tracker, objects, segment)
            except CorruptSegmentError as error:
                if error.missing:
                    gone.append(key)
                    break
                events += _set_apart(tracker, segment, error, who=who)
    raise_alarm(tracker, gone)
    return events + quarantine_missing(tracker, gone, who=who)


def _set_apart(
    tracker: TrackerStore, segment: Segment, error: CorruptSegmentError, *, who: str
) -> int:
    with tracker.transaction() as connection:
        lock_group(connection, segment.partition_id)
        moved = move(connection, "parked", "quarantined", segments.c.id == segment.id)
        if moved.segments:
            _tell(connection, segment, error, who=who)
    return moved.events


def park_made_again(
    tracker: TrackerStore, objects: ObjectStore, segment: Segment, packed: PackedObject, *, who: str
) -> int:
    """Park a quarantined segment's events in a new object; returns them, 0: another was faster.

    Raises:
        StopError: they are not as many.
    """
    number = sum(one.count for one in packed.segments)
    if number != segment.count:
        raise StopError(f"segment {segment.id} has {segment.count} events, not {number}")
    key = new_cut_key(segment.id)
    objects.put(key, packed.body)
    with tracker.transaction() as connection:
        lock_group(connection, segment.partition_id)
        own = segments.c.id == segment.id
        if not move(connection, "quarantined", "parked", own, replay_id=None).segments:
            return 0
        swap(connection, replace(segment, state="parked"), key, packed)
        write_audit(
            connection,
            who=who,
            action="parked_object_recovered",
            target=f"partition {segment.partition_id}",
            segment=segment.id,
            events=segment.count,
            object_key=segment.object_key,
            new_key=key,
        )
    return segment.count


def _of(pipeline_id: str | None, object_key: str | None) -> list[ColumnElement[bool]]:
    """Return the conditions on segments of one pipeline, or one object, or both."""
    conditions = list[ColumnElement[bool]]()
    if pipeline_id is not None:
        own = select(partitions.c.id).where(partitions.c.pipeline_id == pipeline_id)
        conditions.append(segments.c.partition_id.in_(own))
    if object_key is not None:
        conditions.append(segments.c.object_key == storable(object_key))
    return conditions


def _gone(
    tracker: TrackerStore, objects: ObjectStore, held: Sequence[ColumnElement[bool]]
) -> list[str]:
    """Return the objects of segments that the store does not list."""
    with tracker.transaction() as connection:
        query = select(segments.c.object_key).where(*held).distinct()
        keys = {str(row[0]) for row in connection.execute(query)}
    folders = sorted({key[: key.rindex("/") + 1] for key in keys if "/" in key})
    listed = {one.key for folder in folders for one in objects.list(folder)}
    return sorted(keys - listed)


def _state(
    tracker: TrackerStore, objects: ObjectStore, key: str, held: Sequence[ColumnElement[bool]]
) -> ObjectState:
    """Read what is held in one object, and say how that went."""
    events, problem = 0, None
    for segment in segments_in_order(tracker, *held, segments.c.object_key == key):
        events += segment.count
        try:
            _read_whole(tracker, objects, segment)
        except CorruptSegmentError as error:
            problem = problem or error
    if problem is None:
        return ObjectState(key, "present", events, "")
    state = "missing" if problem.missing else "damaged"
    return ObjectState(key, state, events, problem.reason)


def _read_whole(tracker: TrackerStore, objects: ObjectStore, segment: Segment) -> None:
    number = sum(1 for _ in read_segment_events(tracker, objects, segment))
    if number != segment.count:
        raise CorruptSegmentError(
            segment.object_key, segment.position, f"it holds {number} events, not {segment.count}"
        )


def _mend(tracker: TrackerStore, segment: Segment, decision: Decision) -> int:
    with tracker.transaction() as connection:
        lock_group(connection, segment.partition_id)
        own = segments.c.id == segment.id
        moved = move(connection, "quarantined", "parked", own, replay_id=None, problem="")
        if moved.segments:
            write_audit(
                connection,
                who=decision.who,
                action="recheck",
                target=f"partition {segment.partition_id}",
                **decision.beside_who(),
                segment=segment.id,
                events=moved.events,
            )
    return moved.events


def raise_alarm(tracker: TrackerStore, keys: Sequence[str]) -> None:
    """Tell of objects that rows name and the store does not have; again changes nothing."""
    if not keys:
        return
    with tracker.transaction() as connection:
        # two refreshes at once would both find nothing written
        AdvisoryLock.MISSING_OBJECTS.take(connection)
        _write_notices(connection, keys)
        alarms = select(audit_log.c.target).where(
            audit_log.c.action == _ACTION, audit_log.c.target.in_(list(keys))
        )
        known = {str(row[0]) for row in connection.execute(alarms)}
        for key in keys:
            if key not in known:
                write_audit(connection, who="refresh_tracker", action=_ACTION, target=key)


def _write_notices(connection: Connection, keys: Sequence[str]) -> None:
    own = segments.c
    there = or_(
        own.state == "quarantined", and_(own.state.in_(("parked", "replaying")), IS_UNMARKED)
    )
    held: Any = func.coalesce(func.sum(own.count).filter(there), 0)
    detail = func.jsonb_build_object(
        "object_key", own.object_key, "segments", func.count(), "events_held", held
    )
    each = (
        select(literal(KIND), partitions.c.pipeline_id, detail)
        .join_from(segments, partitions, partitions.c.id == own.partition_id)
        .where(own.object_key.in_(list(keys)), own.state.not_in(("replaced", "deleted")))
        .group_by(own.object_key, partitions.c.pipeline_id)
    )
    statement = insert(notices).from_select(["kind", "pipeline_id", "detail"], each)
    connection.execute(statement.on_conflict_do_nothing())
