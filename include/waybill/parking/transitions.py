"""Moving segments between states, with the aggregates of their partitions, in one statement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select, update

from waybill.parking.selection import HELD
from waybill.storage.tracker import parked_partitions as partitions
from waybill.storage.tracker import segments


@dataclass(frozen=True, slots=True)
class Moved:
    """How much a move moved."""

    partitions: int
    segments: int
    events: int
    bytes: int

    def __add__(self, other: Moved) -> Moved:
        """Return the sum."""
        return Moved(
            self.partitions + other.partitions,
            self.segments + other.segments,
            self.events + other.events,
            self.bytes + other.bytes,
        )


def move(
    connection: Connection,
    source: str,
    target: str,
    *conditions: ColumnElement[bool],
    **values: Any,
) -> Moved:
    """Move the segments that match from one state to another, and the sums of their partitions.

    The caller holds the partitions' rows. Idempotent: what is not in ``source`` stays.
    """
    moved = (
        update(segments)
        .where(segments.c.state == source, *conditions)
        .values(state=target, changed_at=func.clock_timestamp(), **values)
        .returning(segments.c.partition_id, segments.c.count, segments.c.bytes)
        .cte("moved")
    )
    sums = (
        select(
            moved.c.partition_id,
            func.count().label("segments"),
            func.sum(moved.c.count).label("events"),
            func.sum(moved.c.bytes).label("bytes"),
        )
        .group_by(moved.c.partition_id)
        .cte("sums")
    )
    held = (target in HELD) - (source in HELD)
    changed = (
        update(partitions)
        .where(partitions.c.id == sums.c.partition_id)
        .values(
            {
                source: partitions.c[source] - sums.c.events,
                target: partitions.c[target] + sums.c.events,
                "bytes": partitions.c.bytes + held * sums.c.bytes,
            }
        )
        .returning(sums.c.segments, sums.c.events, sums.c.bytes)
        .cte("changed")
    )
    total = select(
        func.count(),
        *[func.coalesce(func.sum(changed.c[n]), 0) for n in ("segments", "events", "bytes")],
    ).select_from(changed)
    return Moved(*(int(number) for number in connection.execute(total).one()))
