"""Rewriting: what is still parked in a mostly dead object moves to a new one, byte for byte.

Steps
  1  read    the frames that are parked, each checked by its SHA-256
  2  store   them in a new object, whose key names the first segment that moves
  3  swap    parked -> replaced by compare-and-set, successors parked instead      (one transaction)
A kill after 2, or a segment that was taken, discarded or cut meanwhile, leaves an object that no
row names. It is garbage once that first segment is parked no more for good: all of them move in one
transaction or none (``can_commit``).

The original stays until the grace after the swap is over, for those who read it; its dead segments
stay where they are. An object is left alone while a replay holds a segment of it, while anything in
it changed within the grace, and for good when a frame or its directory is damaged.

Successors keep everything but their place: order, fingerprint, ids, copies, times. ``source_id``
names the segment that each was.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Connection,
    and_,
    cast,
    func,
    literal,
    not_,
    or_,
    select,
    update,
)

from waybill.parking.marks import IS_UNMARKED_ALONE, now_in
from waybill.parking.object_keys import read_object_directory
from waybill.parking.packed import CorruptSegmentError, SegmentDescriptor, directory
from waybill.parking.selection import lock_partitions
from waybill.storage import ObjectMissingError, ObjectStore, TrackerStore
from waybill.storage.tracker import parked_objects, segments
from waybill.storage.tracker import parked_partitions as partitions

_LOG = logging.getLogger(__name__)
LARGEST_MOVE_BYTES = 64 * 1024**2
"""Of frames that are held in memory, and moved in one transaction; one larger frame moves alone."""
_KEY = re.compile(r"parked/rewritten/([0-9]{1,19})/[0-9a-f]{32}\.jsonl\.zst")
_FINAL = ("replayed", "replaced", "deleted")
_DEAD = ("replayed", "discarded", "replaced")
_OWN = ("id", "object_key", "position", "source_id", "state")
_KEPT = [column.name for column in segments.c if column.name not in _OWN]


@dataclass(frozen=True, slots=True)
class Rewriting:
    """Which objects are worth it."""

    below: float
    """Share of an object's bytes that are still parked; 0: none is rewritten."""
    smallest_bytes: int
    """Of an object; a smaller one waits until all of it is dead."""


@dataclass(frozen=True, slots=True)
class _Parked:
    id: int
    partition_id: int
    position: int
    length: int
    sha256: str


def mostly_dead(
    tracker: TrackerStore, keys: Sequence[str], *, cutoff: datetime, rewriting: Rewriting
) -> list[tuple[str, int]]:
    """Return key and bytes of those of some objects that are to be rewritten."""
    if not keys or rewriting.below <= 0:
        return []
    own, item = segments.c, parked_objects.c
    is_parked = and_(own.state == "parked", IS_UNMARKED_ALONE)
    live = func.coalesce(func.sum(own.length).filter(is_parked), 0)
    still = and_(or_(is_parked, own.state.in_(_DEAD)), own.changed_at < cutoff)
    query = (
        select(item.key, item.bytes)
        .join_from(parked_objects, segments, own.object_key == item.key)
        .where(
            item.key.in_(list(keys)), item.state == "live", item.bytes >= rewriting.smallest_bytes
        )
        .group_by(item.key, item.bytes)
        .having(func.bool_and(still), live > 0, live < item.bytes * rewriting.below)
        .order_by(item.key)
    )
    with tracker.transaction() as connection:
        return [(str(row[0]), int(row[1])) for row in connection.execute(query)]


def rewrite(
    tracker: TrackerStore, objects: ObjectStore, key: str, size: int, *, cutoff: datetime
) -> int:
    """Move what is parked in an object to others; returns how many segments moved.

    Memory: ``LARGEST_MOVE_BYTES`` twice, or its largest frame.
    """
    try:
        described = {one.position: one for one in read_object_directory(objects, key, size)}
        return sum(
            _move(tracker, objects, key, some, described)
            for some in _portions(_parked(tracker, key, cutoff))
        )
    except (CorruptSegmentError, ObjectMissingError) as error:
        _LOG.warning("%s is not rewritten: %s", key, error)
        return 0


def _parked(tracker: TrackerStore, key: str, cutoff: datetime) -> list[_Parked]:
    columns = [segments.c[name] for name in _Parked.__slots__]
    own = segments.c
    query = select(*columns).where(
        own.object_key == key, *now_in(["parked"]), own.changed_at < cutoff
    )
    with tracker.transaction() as connection:
        return [_Parked(*row) for row in connection.execute(query.order_by(own.position))]


def _portions(found: Iterable[_Parked]) -> Iterator[list[_Parked]]:
    some: list[_Parked] = []
    size = 0
    for one in found:
        if some and size + one.length > LARGEST_MOVE_BYTES:
            yield some
            some, size = [], 0
        some.append(one)
        size += one.length
    if some:
        yield some


def _move(
    tracker: TrackerStore,
    objects: ObjectStore,
    key: str,
    some: Sequence[_Parked],
    described: dict[int, SegmentDescriptor],
) -> int:
    frames = _frames(objects, key, some)
    placed: list[SegmentDescriptor] = []
    position = 0
    for one in some:
        if one.position not in described:
            raise CorruptSegmentError(key, one.position, "its directory lacks this segment")
        placed.append(replace(described[one.position], position=position))
        position += one.length
    body = b"".join([*frames, directory(placed)])
    target = new_rewritten_key(some[0].id)
    objects.put(target, body)
    positions = [one.position for one in placed]
    with tracker.transaction() as connection:
        if _take(connection, key, some):
            _insert(connection, target, len(body), some, positions)
            return len(some)
    return 0


def _frames(objects: ObjectStore, key: str, some: Sequence[_Parked]) -> list[bytes]:
    """Return the frames, read in as few requests as their neighbourhood allows, and checked."""
    frames: list[bytes] = []
    for run in _runs(some):
        start = run[0].position
        length = run[-1].position + run[-1].length - start
        body = objects.get(key, position=start, length=length)
        for one in run:
            frame = body[one.position - start : one.position - start + one.length]
            if hashlib.sha256(frame).hexdigest() != one.sha256:
                raise CorruptSegmentError(
                    key, one.position, "these are not the bytes that were parked"
                )
            frames.append(frame)
    return frames


def _runs(some: Sequence[_Parked]) -> Iterator[list[_Parked]]:
    """Yield segments that lie side by side."""
    run: list[_Parked] = []
    for one in some:
        if run and run[-1].position + run[-1].length != one.position:
            yield run
            run = []
        run.append(one)
    yield run


def _take(connection: Connection, key: str, some: Sequence[_Parked]) -> bool:
    """Mark segments replaced, all or none: False when one of them is parked no more.

    In the order of locks; the object's row keeps a clean-up off.
    """
    lock_partitions(connection, [partitions.c.id.in_({one.partition_id for one in some})])
    item = parked_objects.c
    held = select(item.state).where(item.key == key).with_for_update()
    if connection.execute(held).scalar() != "live":
        return False
    ids = [one.id for one in some]
    gone = select(segments.c.id).where(segments.c.id.in_(ids), not_(segments.c.state == "parked"))
    if connection.execute(gone.limit(1)).first() is not None:
        return False
    connection.execute(
        update(segments)
        .where(segments.c.id.in_(ids))
        .values(state="replaced", changed_at=func.clock_timestamp())
    )
    return True


def _insert(
    connection: Connection, key: str, size: int, some: Sequence[_Parked], positions: Sequence[int]
) -> None:
    """Record the new object and the successors; the partitions' sums stay as they are."""
    connection.execute(parked_objects.insert().values(key=key, bytes=size))
    columns = [[one.id for one in some], list(positions)]
    arrays = [cast(column, ARRAY(BigInteger)) for column in columns]
    given = func.unnest(*arrays).table_valued("id", "position", name="given").render_derived()
    kept: list[Any] = [segments.c[name] for name in _KEPT]
    query = (
        select(*kept, literal(key), given.c.position, segments.c.id, literal("parked"))
        .join_from(given, segments, segments.c.id == given.c.id)
        .order_by(given.c.position)
    )
    names = [*_KEPT, "object_key", "position", "source_id", "state"]
    connection.execute(segments.insert().from_select(names, query))


def new_rewritten_key(segment_id: int) -> str:
    """Return a fresh key: ``parked/rewritten/<segment id>/<uuid4>.jsonl.zst``."""
    return f"parked/rewritten/{segment_id}/{uuid4().hex}.jsonl.zst"


def first_moved(key: str) -> int | None:
    """Return the id of the first segment that an object took over; None: it is another kind."""
    found = _KEY.fullmatch(key)
    return None if found is None else int(found[1])


def can_commit(tracker: TrackerStore, segment_id: int) -> bool:
    """Tell whether a process that froze before the swap of this segment may still do it."""
    query = select(segments.c.state).where(segments.c.id == segment_id)
    with tracker.transaction() as connection:
        state = connection.execute(query).scalar()
    return state is None or state not in _FINAL
