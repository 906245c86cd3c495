"""Clean-up: deleting the objects whose segments are all replayed or discarded.

Steps, each resumable by any later run:
  1  claim   object live -> deleting, by compare-and-set, while its row is held    (one transaction)
  2  delete  the object in the store; one that is gone already is no error
  3  close   segments -> deleted, object deleting -> deleted                       (one transaction)
A kill after 1 or 2 leaves ``deleting``: the next run goes on with 2. From 1 on nobody brings a
segment of the object back: undoing a discard holds the object's row and takes only live ones. A
segment that is parked or replaying keeps its whole object.

What a deleted segment was is still known: it was replayed if it has a replay id, else discarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, and_, exists, func, or_, select, update

from waybill.parking.model import CleanUpReport
from waybill.storage import ObjectStore, TrackerStore
from waybill.storage.tracker.tables import parked_objects as objects_table
from waybill.storage.tracker.tables import segments

BATCH = 1000
_DEAD = ("replayed", "discarded")


def clean_up(
    tracker: TrackerStore, objects: ObjectStore, *, grace_s: float, now: datetime | None
) -> CleanUpReport:
    """Delete what is past the grace; see ``Parking.clean_up``."""
    cutoff = (now or tracker_now(tracker)) - timedelta(seconds=grace_s)
    deleted = size = closed = 0
    for batch in (_left_by_others, _claim):
        while keys := batch(tracker, cutoff):
            objects.delete(keys)
            numbers = _close(tracker, keys)
            deleted, size, closed = deleted + numbers[0], size + numbers[1], closed + numbers[2]
    return CleanUpReport(deleted, size, closed)


def tracker_now(tracker: TrackerStore) -> datetime:
    """Return the tracker's clock: the one that stamps rows."""
    with tracker.transaction() as connection:
        moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return moment


def _left_by_others(tracker: TrackerStore, cutoff: datetime) -> list[str]:
    """Return keys that a run claimed and did not close."""
    del cutoff  # they were past a grace when they were claimed
    query = (
        select(objects_table.c.key)
        .where(objects_table.c.state == "deleting")
        .order_by(objects_table.c.key)
        .limit(BATCH)
    )
    with tracker.transaction() as connection:
        return [str(row[0]) for row in connection.execute(query)]


def _claim(tracker: TrackerStore, cutoff: datetime) -> list[str]:
    """Claim a batch: hold the rows first, look at their segments once they are held."""
    dead = [
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
            .where(segments.c.object_key.in_([row[0] for row in rows]), segments.c.state.in_(_DEAD))
            .values(state="deleted", changed_at=func.clock_timestamp())
        )
        number = connection.execute(gone).rowcount if rows else 0
    return len(rows), sum(int(row[1]) for row in rows), number


def _hold(connection: Connection, keys: Sequence[str]) -> None:
    query = select(objects_table.c.key).where(objects_table.c.key.in_(keys))
    connection.execute(query.order_by(objects_table.c.key).with_for_update()).all()
