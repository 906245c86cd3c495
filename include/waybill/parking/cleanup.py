"""Clean-up: deleting the objects whose segments are all replayed, discarded or replaced.

Steps, each resumable by any later run:
  0  settle  discards that are marks of partitions go into the rows                (a batch each)
  1  claim   object live -> deleting, by compare-and-set, while its row is held    (one transaction)
  2  delete  the object in the store; one that is gone already is no error
  3  close   segments -> deleted, object deleting -> deleted                       (one transaction)
A kill after 1 or 2 leaves ``deleting``: the next run goes on with 2. From 1 on nobody brings a
segment of the object back: undoing a discard holds the object's row and takes only live ones. A
segment that is parked or replaying keeps its whole object, unless the object is mostly dead: then
``rewriting`` moves what is parked first, and a later clean-up deletes the rest.

What a deleted segment was is still known: it was replayed if it has a replay id, else discarded. A
replaced one stays replaced: its events are counted where they are now.

Objects come by way of an index of dead segments, each once a run, in the order of their keys: what
is all alive costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    and_,
    exists,
    func,
    literal_column,
    or_,
    select,
    update,
)

from waybill.parking.marks import HAS_MARK
from waybill.parking.model import CleanUpReport
from waybill.parking.rewriting import Rewriting, mostly_dead, rewrite
from waybill.parking.selection import lock_partitions
from waybill.storage import ObjectStore, TrackerStore
from waybill.storage.tracker import parked_objects as objects_table
from waybill.storage.tracker import parked_partitions as partitions
from waybill.storage.tracker import segments

BATCH = 1000
_IS_DEAD: ColumnElement[bool] = literal_column(
    "segments.state IN ('replayed', 'discarded', 'replaced')", Boolean
)
"""In words, as its partial index has it."""
_DECIDED = ("replayed", "discarded")
_DEAD = (*_DECIDED, "replaced")


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
    for keys, candidates in _batches(tracker, cutoff):
        if keys:
            objects.delete(keys)
            numbers = _close(tracker, keys)
            deleted, size, closed = deleted + numbers[0], size + numbers[1], closed + numbers[2]
        for key, whole in mostly_dead(tracker, candidates, cutoff=cutoff, rewriting=rewriting):
            number = rewrite(tracker, objects, key, whole, cutoff=cutoff)
            moved, rewritten = moved + number, rewritten + (number > 0)
    return CleanUpReport(deleted, size, closed, rewritten, moved)


def _settle(tracker: TrackerStore, cutoff: datetime) -> int:
    """Write marks that are past the grace into the rows, a batch; returns how many partitions."""
    own = partitions.c
    query = select(own.id).where(HAS_MARK, own.marked_at < cutoff).order_by(own.marked_at)
    with tracker.transaction(long_statements=True) as connection:
        ids = list(connection.execute(query.limit(BATCH)).scalars())
        if ids:
            lock_partitions(connection, [own.id.in_(ids)])
    return len(ids)


def _batches(tracker: TrackerStore, cutoff: datetime) -> Iterator[tuple[list[str], list[str]]]:
    """Yield keys that are claimed, and keys of other objects with some dead segments."""
    while keys := _left_by_others(tracker):
        yield keys, []
    while keys := _claim_empty(tracker, cutoff):
        yield keys, []
    after = ""
    while candidates := _with_dead_segments(tracker, after):
        claimed = _claim(tracker, cutoff, objects_table.c.key.in_(candidates))
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
    any_segment = select(segments.c.id).where(segments.c.object_key == objects_table.c.key).limit(1)
    return _claim(tracker, cutoff, any_segment.scalar_subquery().is_(None))


def tracker_now(tracker: TrackerStore) -> datetime:
    """Return the tracker's clock: the one that stamps rows."""
    with tracker.transaction() as connection:
        moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return moment


def _left_by_others(tracker: TrackerStore) -> list[str]:
    """Return keys that a run claimed and did not close; they were past its grace then."""
    query = (
        select(objects_table.c.key)
        .where(literal_column("parked_objects.state = 'deleting'", Boolean))
        .order_by(objects_table.c.key)
        .limit(BATCH)
    )
    with tracker.transaction() as connection:
        return [str(row[0]) for row in connection.execute(query)]


def _claim(tracker: TrackerStore, cutoff: datetime, which: ColumnElement[bool]) -> list[str]:
    """Claim a batch: hold the rows first, look at their segments once they are held."""
    dead = [
        which,
        objects_table.c.state == "live",
        objects_table.c.committed_at < cutoff,
        _all_dead(cutoff),
    ]
    candidates = select(objects_table.c.key).where(*dead).order_by(objects_table.c.key).limit(BATCH)
    with tracker.transaction() as connection:
        rows = connection.execute(candidates.with_for_update(skip_locked=True))
        held = [str(row[0]) for row in rows]
        if not held:
            return []
        claimed = (
            update(objects_table)
            .where(objects_table.c.key.in_(held), *dead)
            .values(state="deleting")
            .returning(objects_table.c.key)
        )
        return sorted(str(row[0]) for row in connection.execute(claimed))


def _all_dead(cutoff: datetime) -> ColumnElement[bool]:
    alive = or_(segments.c.state.not_in(_DEAD), segments.c.changed_at >= cutoff)
    return ~exists().where(and_(segments.c.object_key == objects_table.c.key, alive))


def _close(tracker: TrackerStore, keys: Sequence[str]) -> tuple[int, int, int]:
    """Mark objects and their segments deleted; return (objects, bytes, segments) that this did."""
    with tracker.transaction() as connection:
        _hold(connection, keys)
        closed = (
            update(objects_table)
            .where(objects_table.c.key.in_(keys), objects_table.c.state == "deleting")
            .values(state="deleted")
            .returning(objects_table.c.key, objects_table.c.bytes)
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
    query = select(objects_table.c.key).where(objects_table.c.key.in_(keys))
    connection.execute(query.order_by(objects_table.c.key).with_for_update()).all()
