"""Clean-up: deleting the objects whose segments are all replayed, discarded or replaced.

Steps, each resumable by any later run:
  0  settle  discards that are marks of partitions go into the rows                (a batch each)
  1  claim   object live -> deleting, by compare-and-set, while its row is held    (one transaction)
  2  delete  the object in the store; one that is gone already is no error
  3  close   segments -> deleted, object deleting -> deleted                       (one transaction)
A kill after 1 or 2 leaves ``deleting``: the next run goes on with 2. So does an object that the
store did not delete; the others of the run go. From 1 on nobody brings a segment of the object
back: undoing a discard holds the object's row and takes only live ones. A segment that is parked or
replaying keeps its whole object, unless the object is mostly dead: then what is parked is moved to
a new object first, and a later clean-up deletes the rest.

What a deleted segment was is still known: it was replayed if it has a replay id, else discarded. A
replaced one stays replaced: its events are counted where they are now.

Objects come by way of an index of dead segments, each once a run, in the order of their keys: what
is all alive costs nothing.

Rewriting a mostly dead object; what is parked in it moves byte for byte:
  1  read    the frames that are parked, each checked by its SHA-256
  2  store   them in a new object, whose key names the first segment that moves
  3  swap    parked -> replaced by compare-and-set, successors parked instead      (one transaction)
A kill after 2, or a segment that was taken, discarded or cut meanwhile, leaves an object that no
row names. It is garbage once that first segment is parked no more for good: all of them move in one
transaction or none, see ``refreshing``.

The original stays until the grace after the swap is over, for those who read it; its dead segments
stay where they are. An object is left alone while a replay holds a segment of it, while anything in
it changed within the grace, and for good when a frame or its directory is damaged.

Successors keep everything but their place: order, fingerprint, ids, copies, times. ``source_id``
names the segment that each was.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    and_,
    cast,
    exists,
    func,
    literal,
    literal_column,
    not_,
    or_,
    select,
    update,
)

from waybill.parking.model import CleanUpReport
from waybill.parking.object_keys import new_rewritten_key
from waybill.parking.packed import (
    CorruptSegmentError,
    SegmentDescriptor,
    directory,
    read_object_directory,
)
from waybill.parking.states import HAS_MARK, IS_UNMARKED_ALONE, lock_groups, now_in
from waybill.progress import Progress
from waybill.storage import Deletion, ObjectMissingError, ObjectStore, TrackerStore
from waybill.storage.tracker import parked_objects, segments
from waybill.storage.tracker import parked_partitions as partitions

_LOG = logging.getLogger(__name__)
BATCH = 1000
LARGEST_MOVE_BYTES = 64 * 1024**2
"""Of frames that are held in memory, and moved in one transaction; one larger frame moves alone."""
_IS_DEAD: ColumnElement[bool] = literal_column(
    "segments.state IN ('replayed', 'discarded', 'replaced')", Boolean
)
"""In words, as its partial index has it."""
_DECIDED = ("replayed", "discarded")
_DEAD = (*_DECIDED, "replaced")
_OWN = ("id", "object_key", "position", "source_id", "state")
_KEPT = [column.name for column in segments.c if column.name not in _OWN]


@dataclass(frozen=True, slots=True)
class Rewriting:
    """Which objects are worth it."""

    below: float
    """Share of an object's bytes that are still parked; 0: none is rewritten."""
    smallest_bytes: int
    """Of an object; a smaller one waits until all of it is dead."""


def clean_up(
    tracker: TrackerStore,
    objects: ObjectStore,
    *,
    grace_s: float,
    now: datetime | None,
    rewriting: Rewriting,
) -> CleanUpReport:
    """Delete what is past the grace, rewrite what is mostly dead; see ``Parking.clean_up``."""
    cutoff = (now or tracker_now(tracker)) - timedelta(seconds=grace_s)
    while _settle(tracker, cutoff) == BATCH:
        pass
    deleted = size = closed = moved = rewritten = 0
    deletion = Deletion(objects)
    progress = Progress("clean-up of parked files", "files")
    for keys, candidates in _batches(tracker, cutoff):
        if gone := deletion.delete(keys):
            numbers = _close(tracker, gone)
            deleted, size, closed = deleted + numbers[0], size + numbers[1], closed + numbers[2]
        for key, whole in mostly_dead(tracker, candidates, cutoff=cutoff, rewriting=rewriting):
            number = rewrite(tracker, objects, key, whole, cutoff=cutoff)
            moved, rewritten = moved + number, rewritten + (number > 0)
        progress.add(len(keys) + len(candidates))
    deletion.end()
    return CleanUpReport(deleted, size, closed, rewritten, moved)


def _settle(tracker: TrackerStore, cutoff: datetime) -> int:
    """Write marks that are past the grace into the rows, a batch; returns how many partitions."""
    own = partitions.c
    query = select(own.id).where(HAS_MARK, own.marked_at < cutoff).order_by(own.marked_at)
    with tracker.transaction(long_statements=True) as connection:
        ids = list(connection.execute(query.limit(BATCH)).scalars())
        if ids:
            lock_groups(connection, [own.id.in_(ids)])
    return len(ids)


def _batches(tracker: TrackerStore, cutoff: datetime) -> Iterator[tuple[list[str], list[str]]]:
    """Yield keys that are claimed, and keys of other objects with some dead segments."""
    left = ""
    while keys := _left_by_others(tracker, left):
        yield keys, []
        left = keys[-1]
    while keys := _claim_empty(tracker, cutoff):
        yield keys, []
    after = ""
    while candidates := _with_dead_segments(tracker, after):
        claimed = _claim(tracker, cutoff, parked_objects.c.key.in_(candidates))
        yield claimed, sorted(set(candidates) - set(claimed))
        after = candidates[-1]


def _with_dead_segments(tracker: TrackerStore, after: str) -> list[str]:
    """Return the keys of objects that hold a dead segment, in order, those after a key."""
    key = segments.c.object_key
    query = select(key).where(_IS_DEAD, key > after).group_by(key).order_by(key).limit(BATCH)
    with tracker.transaction(long_statements=True) as connection:
        return [str(row[0]) for row in connection.execute(query)]


def _claim_empty(tracker: TrackerStore, cutoff: datetime) -> list[str]:
    """Claim objects that were recorded without any segment."""
    any_segment = (
        select(segments.c.id).where(segments.c.object_key == parked_objects.c.key).limit(1)
    )
    return _claim(tracker, cutoff, any_segment.scalar_subquery().is_(None))


def tracker_now(tracker: TrackerStore) -> datetime:
    """Return the tracker's clock: the one that stamps rows."""
    with tracker.transaction() as connection:
        moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return moment


def _left_by_others(tracker: TrackerStore, after: str) -> list[str]:
    """Return keys, behind one, that a run claimed and did not close: past its grace then."""
    is_claimed = literal_column("parked_objects.state = 'deleting'", Boolean)
    query = (
        select(parked_objects.c.key)
        .where(is_claimed, parked_objects.c.key > after)
        .order_by(parked_objects.c.key)
        .limit(BATCH)
    )
    with tracker.transaction() as connection:
        return [str(row[0]) for row in connection.execute(query)]


def _claim(tracker: TrackerStore, cutoff: datetime, which: ColumnElement[bool]) -> list[str]:
    """Claim a batch: hold the rows first, look at their segments once they are held."""
    dead = [
        which,
        parked_objects.c.state == "live",
        parked_objects.c.committed_at < cutoff,
        _all_dead(cutoff),
    ]
    candidates = (
        select(parked_objects.c.key).where(*dead).order_by(parked_objects.c.key).limit(BATCH)
    )
    with tracker.transaction() as connection:
        rows = connection.execute(candidates.with_for_update(skip_locked=True))
        held = [str(row[0]) for row in rows]
        if not held:
            return []
        claimed = (
            update(parked_objects)
            .where(parked_objects.c.key.in_(held), *dead)
            .values(state="deleting")
            .returning(parked_objects.c.key)
        )
        return sorted(str(row[0]) for row in connection.execute(claimed))


def _all_dead(cutoff: datetime) -> ColumnElement[bool]:
    alive = or_(segments.c.state.not_in(_DEAD), segments.c.changed_at >= cutoff)
    return ~exists().where(and_(segments.c.object_key == parked_objects.c.key, alive))


def _close(tracker: TrackerStore, keys: Sequence[str]) -> tuple[int, int, int]:
    """Mark objects and their segments deleted; return (objects, bytes, segments) that this did."""
    with tracker.transaction() as connection:
        _hold(connection, keys)
        closed = (
            update(parked_objects)
            .where(parked_objects.c.key.in_(keys), parked_objects.c.state == "deleting")
            .values(state="deleted")
            .returning(parked_objects.c.key, parked_objects.c.bytes)
        )
        rows = connection.execute(closed).all()
        gone = (
            update(segments)
            .where(
                segments.c.object_key.in_([row[0] for row in rows]), segments.c.state.in_(_DECIDED)
            )
            .values(state="deleted", changed_at=func.clock_timestamp())
        )
        number = connection.execute(gone).rowcount if rows else 0
    return len(rows), sum(int(row[1]) for row in rows), number


def _hold(connection: Connection, keys: Sequence[str]) -> None:
    query = select(parked_objects.c.key).where(parked_objects.c.key.in_(keys))
    connection.execute(query.order_by(parked_objects.c.key).with_for_update()).all()


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
    lock_groups(connection, [partitions.c.id.in_({one.partition_id for one in some})])
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
