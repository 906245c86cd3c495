"""The aggregates of partitions, recomputed from their segments: a check that should find nothing.

What each number is the sum of
  parked, replaying   segments in that state
  replayed            segments replayed, and deleted ones that have a replay id
  discarded           segments discarded, by row or mark, and deleted ones that have none
  quarantined         segments in that state; replaced ones count nowhere: their successors do
  bytes               segments parked or replaying
  first, last event   all segments
Of segments whose rows retention has deleted the sums are in the partition's ``trimmed_...``.
"""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import Connection, Integer, Select, and_, cast, func, literal, or_, select, update
from sqlalchemy.sql import ColumnElement

from waybill.access import write_audit
from waybill.parking.marks import IS_MARKED, IS_UNMARKED
from waybill.parking.selection import HELD, lock_partition
from waybill.storage import TrackerStore
from waybill.storage.tracker import parked_partitions as partitions
from waybill.storage.tracker import segments

_LOG = logging.getLogger(__name__)
_NUMBERS = ("parked", "replaying", "replayed", "discarded", "quarantined", "bytes")
_EDGES = {"first_event_at": func.least, "last_event_at": func.greatest}
_TRIMMED = ("replayed", "discarded", *_EDGES)


def correct_aggregates(tracker: TrackerStore) -> int:
    """Correct the partitions whose numbers are wrong; returns how many were.

    The look is one statement, so one snapshot: segments and sums change together, and work that
    goes on meanwhile is no difference. Cost: one pass over all segments.
    """
    with tracker.transaction(long_statements=True) as connection:
        wrong = [int(row[0]) for row in connection.execute(_differing())]
    return sum(_correct(tracker, partition_id) for partition_id in wrong)


def _sums() -> Select[Any]:
    deleted = segments.c.state == "deleted"
    was_replayed = segments.c.replay_id.is_not(None)
    parts: dict[str, ColumnElement[Any]] = {
        "parked": _sum(segments.c.count, and_(segments.c.state == "parked", IS_UNMARKED)),
        "replaying": _sum(segments.c.count, segments.c.state == "replaying"),
        "replayed": _sum(
            segments.c.count, or_(segments.c.state == "replayed", and_(deleted, was_replayed))
        ),
        "discarded": _sum(
            segments.c.count,
            or_(segments.c.state == "discarded", IS_MARKED, and_(deleted, ~was_replayed)),
        ),
        "quarantined": _sum(segments.c.count, segments.c.state == "quarantined"),
        "bytes": _sum(segments.c.bytes, and_(segments.c.state.in_(HELD), IS_UNMARKED)),
        "first_event_at": func.min(segments.c.first_event_at),
        "last_event_at": func.max(segments.c.last_event_at),
    }
    columns = [part.label(name) for name, part in parts.items()]
    return (
        select(segments.c.partition_id, *columns)
        .join_from(segments, partitions, partitions.c.id == segments.c.partition_id)
        .group_by(segments.c.partition_id)
    )


def _sum(column: ColumnElement[int], which: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(column * cast(which, Integer)), 0)


def _differing() -> Select[Any]:
    sums = _sums().subquery()
    differs = or_(
        *[partitions.c[n] != func.coalesce(sums.c[n], 0) + _trimmed(n) for n in _NUMBERS],
        *[partitions.c[n].is_distinct_from(_EDGES[n](sums.c[n], _trimmed(n))) for n in _EDGES],
    )
    joined = partitions.outerjoin(sums, sums.c.partition_id == partitions.c.id)
    return select(partitions.c.id).select_from(joined).where(differs).order_by(partitions.c.id)


def _trimmed(name: str) -> ColumnElement[Any]:
    """Return what deleted segments had in a number or edge of their partition."""
    return partitions.c[f"trimmed_{name}"] if name in _TRIMMED else literal(0)


def _correct(tracker: TrackerStore, partition_id: int) -> bool:
    with tracker.transaction(long_statements=True) as connection:
        lock_partition(connection, partition_id)
        before = _numbers(connection, partition_id)
        row = connection.execute(_sums().where(segments.c.partition_id == partition_id)).first()
        right = dict.fromkeys(_NUMBERS, 0) | dict.fromkeys(_EDGES)
        if row is not None:
            right = {name: row._mapping[name] for name in right}  # noqa: SLF001 - SQLAlchemy's API
        gone = _gone(connection, partition_id)
        numbers = {name: int(right[name] or 0) + (gone.get(name) or 0) for name in _NUMBERS}
        edges = {
            name: best((one for one in (right[name], gone[name]) if one is not None), default=None)
            for name, best in (("first_event_at", min), ("last_event_at", max))
        }
        if before == {**numbers, **edges}:
            return False
        connection.execute(
            update(partitions).where(partitions.c.id == partition_id).values(**numbers, **edges)
        )
        detail = {n: [before[n], numbers[n]] for n in _NUMBERS if before[n] != numbers[n]}
        write_audit(
            connection,
            who="refresh_tracker",
            action="correct_aggregates",
            target=f"partition {partition_id}",
            **detail,
        )
    _LOG.error(
        "partition %d: its numbers were not the sum of its segments: %s", partition_id, detail
    )
    return True


def _gone(connection: Connection, partition_id: int) -> dict[str, Any]:
    """Return what is left of deleted segments, by the names of numbers and edges."""
    query = select(*[partitions.c[f"trimmed_{n}"].label(n) for n in _TRIMMED])
    row = connection.execute(query.where(partitions.c.id == partition_id)).one()
    return dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's API


def _numbers(connection: Connection, partition_id: int) -> dict[str, Any]:
    query = select(*[partitions.c[n] for n in (*_NUMBERS, *_EDGES)])
    row = connection.execute(query.where(partitions.c.id == partition_id)).one()
    return dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's API
