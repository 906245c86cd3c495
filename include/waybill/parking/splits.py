"""Cutting a segment: its events in two or more others, so that a condition takes whole segments.

Steps
  1  read    the frame, checked
  2  store   the parts, as frames of one new object, whose key names the segment
  3  swap    parked -> replaced by compare-and-set, the parts parked in its place  (one transaction)
A discarded segment is cut alike, before a part of it is brought back: its parts are discarded.
A kill after 2 leaves an object that no row names; so does a segment that somebody took, discarded
or cut meanwhile. Such an object is garbage once its segment can be cut no more, see ``refreshing``.
The parts keep the commit number, the place in Kafka and the time of parking, so that they stand in
the order of replay where the segment stood; and the cancelled replay that may have sent them, whose
last mark may be settled later (``replays``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, func, select, update

from waybill.parking.event import ParkedEvent
from waybill.parking.identities import NO_ID, Identity, split_ids, unpack_ids
from waybill.parking.model import Segment
from waybill.parking.object_keys import new_cut_key
from waybill.parking.packed import (
    CorruptSegmentError,
    PackedObject,
    Packer,
    SegmentDescriptor,
    directory,
)
from waybill.parking.reading import events_of, read_frame
from waybill.parking.states import HELD, lock_group
from waybill.storage import ObjectStore, TrackerStore
from waybill.storage.tracker import parked_objects, segments
from waybill.storage.tracker import parked_partitions as partitions

_GIVEN = [field.name for field in fields(SegmentDescriptor) if field.name in segments.c]

Side = Literal["in", "out"]
Sides = dict[int, Side]
"""Segments that lie whole on one side of a condition, by their ids."""


def cut(
    tracker: TrackerStore,
    objects: ObjectStore,
    segment: Segment,
    is_wanted: Callable[[int, ParkedEvent], bool],
) -> Sides:
    """Cut a parked or discarded segment in what is wanted and what is not; return the parts.

    Args:
        tracker: the rows.
        objects: the frames.
        segment: as it was read; when its state is another meanwhile, nothing is changed.
        is_wanted: told each event with its index among the segment's events.

    Returns:
        the side of each part. A segment that lies whole on one side is not cut and returned
        itself; nothing is returned when somebody else was faster.

    Cost: one read and one PUT. Memory: the segment.

    Raises:
        CorruptSegmentError: it is damaged, or its object is gone.
    """
    packers: dict[Side, Packer] = {"in": Packer(), "out": Packer()}
    identities = _identities(tracker, segment)
    frame = read_frame(tracker, objects, segment)
    if frame is None:
        return {}
    for index, event in enumerate(events_of(segment, frame)):
        side: Side = "in" if is_wanted(index, event) else "out"
        packers[side].add(event, identities[index] if index < len(identities) else None)
    number = sum(packer.count for packer in packers.values())
    if number != segment.count:
        raise CorruptSegmentError(
            segment.object_key, segment.position, f"it holds {number} events, not {segment.count}"
        )
    if whole := [side for side, packer in packers.items() if packer.count == number]:
        return {segment.id: whole[0]}
    parts = {side: packer.finish() for side, packer in packers.items()}
    joined = _joined(list(parts.values()))
    key = new_cut_key(segment.id)
    objects.put(key, joined.body)
    with tracker.transaction() as connection:
        lock_group(connection, segment.partition_id)
        ids = swap(connection, segment, key, joined)
    names = [side for side, part in parts.items() for _ in part.segments]
    return dict(zip(ids, names, strict=True)) if ids else {}


def _identities(tracker: TrackerStore, segment: Segment) -> list[Identity | None]:
    """Return who the segment's events are, without its copies; nothing where no row says it.

    Minute and replay of an identity count only where copies are found, which was done.
    """
    query = select(segments.c.ids).where(segments.c.id == segment.id)
    with tracker.transaction() as connection:
        ids = connection.execute(query).scalar() or b""
    return [
        None if digest == NO_ID else Identity(digest, 0, "")
        for digest in split_ids(ids, set(segment.copies))
    ]


def _joined(parts: Sequence[PackedObject]) -> PackedObject:
    """Return one object with the frames of several, and a directory of its own."""
    frames: list[bytes] = []
    placed: list[SegmentDescriptor] = []
    position = 0
    for part in parts:
        for one in part.segments:
            frames.append(part.body[one.position : one.position + one.length])
            placed.append(replace(one, position=position))
            position += one.length
    return PackedObject(b"".join([*frames, directory(placed)]), tuple(placed))


def swap(connection: Connection, source: Segment, key: str, packed: PackedObject) -> list[int]:
    """Put the parts in the segment's place; returns their ids, none if its state is another.

    The caller holds the partition's row.
    """
    taken = (
        update(segments)
        .where(segments.c.id == source.id, segments.c.state == source.state)
        .values(state="replaced", changed_at=func.clock_timestamp())
        .returning(segments.c.parked_at, segments.c.replay_id)
    )
    row = connection.execute(taken).first()
    if row is None:
        return []
    connection.execute(parked_objects.insert().values(key=key, bytes=len(packed.body)))
    kept = {"parked_at": row[0], "replay_id": row[1]}
    ids = [_insert(connection, source, kept, key, one) for one in packed.segments]
    if source.state in HELD:
        more = sum(one.bytes for one in packed.segments) - source.bytes
        connection.execute(
            update(partitions)
            .where(partitions.c.id == source.partition_id)
            .values(bytes=partitions.c.bytes + more)
        )
    return ids


def _insert(
    connection: Connection,
    source: Segment,
    kept: dict[str, Any],
    key: str,
    one: SegmentDescriptor,
) -> int:
    given: dict[str, Any] = {name: getattr(one, name) for name in _GIVEN}
    for name in ("first_event_at", "last_event_at"):
        given[name] = datetime.fromisoformat(given[name])
    given["ids"] = unpack_ids(one.ids) or None
    given["copies"] = None
    placed = {
        "partition_id": source.partition_id,
        "object_key": key,
        "state": source.state,
        "scope": source.scope,
        "commit_number": source.commit_number,
        "kafka_partition": source.kafka_partition,
        "source_id": source.id,
    }
    statement = segments.insert().values(given | kept | placed).returning(segments.c.id)
    return int(connection.execute(statement).scalar_one())
