"""Moving segments between states, with the aggregates of their partitions, in one statement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select, update

from waybill.errors import InputError
from waybill.parking.selection import HELD
from waybill.storage.tracker.columns import json_value, text_value
from waybill.storage.tracker.tables import audit_log, segments
from waybill.storage.tracker.tables import parked_partitions as partitions

_DEEPEST = 32


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
    **values: Any,  # noqa: ANN401 - further columns to set
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


def write_audit(
    connection: Connection, *, who: str, action: str, target: str, **detail: object
) -> None:
    """Write who did what, in the transaction that does it; what SQL cannot hold is escaped."""
    connection.execute(
        audit_log.insert().values(
            who=text_value(who),
            action=action,
            target=text_value(target),
            detail=json_value(detail, deepest=_DEEPEST),
        )
    )


def words(value: str, name: str) -> str:
    """Return a text that a person must give.

    Raises:
        InputError: it is empty.
    """
    cleaned = text_value(value.replace("\x00", "")).strip()
    if not cleaned:
        raise InputError(f"`{name}` must not be empty: it goes into the audit log")
    return cleaned
