"""A segment's state: what it counts as, moving it, and the locks that this takes.

Order of locks, kept by all that changes more than one row: partitions, by their four names in code
point order; then objects, by key; then segments. Whoever moves a partition's segments holds its
row.

A partition whose parked events are all discarded at once gets a *mark*, where a write a segment
would take minutes. The mark says that all segments which are ``parked`` in their rows, up to an id,
are discarded. The partition's numbers say so from the same transaction on. What parks later has
higher ids, as whoever adds a segment holds its partition's row before it draws an id.

Whoever locks a partition to move segments of it *settles* it first: the mark goes into the rows,
with its time, and is gone. So nothing becomes parked under a mark: a replay that runs may be
cancelled, and what it gives back is parked. The clean-up settles marks past its grace before it
looks at rows; until then an undo takes the mark away again. Who only reads rows asks ``now_in``,
``STATE_NOW`` or ``IS_UNMARKED``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Row,
    and_,
    case,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
    update,
)

from waybill.errors import InputError, NotFoundError
from waybill.parking.packed import NAMES
from waybill.storage.tracker import parked_partitions as partitions
from waybill.storage.tracker import segments

HELD = ("parked", "replaying")
_own = partitions.alias("own")
_upto = (
    select(_own.c.discarded_to)
    .where(_own.c.id == segments.c.partition_id)
    .correlate(segments)
    .scalar_subquery()
)
_is_parked = segments.c.state == "parked"
IS_MARKED: ColumnElement[bool] = and_(_is_parked, segments.c.id <= partitions.c.discarded_to)
"""Of a segment, where its partition's row is at hand: a mark discards it."""
IS_UNMARKED: ColumnElement[bool] = or_(segments.c.id > partitions.c.discarded_to, ~_is_parked)
"""The opposite."""
IS_UNMARKED_ALONE: ColumnElement[bool] = or_(~_is_parked, segments.c.id > _upto)
"""The same where the partition's row is not at hand."""
STATE_NOW: ColumnElement[str] = case(
    (IS_UNMARKED_ALONE, segments.c.state), else_=literal("discarded")
).label("state")
HAS_MARK: ColumnElement[bool] = literal_column("parked_partitions.discarded_to > 0", Boolean)
"""In words, as its partial index has it."""


def now_in(states: Sequence[str]) -> list[ColumnElement[bool]]:
    """Return the conditions on a segment: it is in one of these states, marks considered."""
    state = segments.c.state
    if "discarded" in states and "parked" not in states:
        return [state.in_([*states, "parked"]), or_(~_is_parked, segments.c.id <= _upto)]
    if "parked" in states and "discarded" not in states:
        return [state.in_(list(states)), IS_UNMARKED_ALONE]
    return [state.in_(list(states))]


LOCK_ORDER = tuple(partitions.c[name].collate("C") for name in NAMES)
_LOCKED = (
    "id",
    "parked",
    "replaying",
    "discarded",
    "bytes",
    "discarded_to",
    "marked_segments",
    "marked_events",
    "marked_bytes",
)


def lock_group(connection: Connection, partition_id: int) -> None:
    """Hold one partition's row until the transaction ends; its segments' rows are settled.

    Raises:
        InputError: there is no such partition.
    """
    query = select(partitions.c.discarded_to).where(partitions.c.id == partition_id)
    row = connection.execute(query.with_for_update(key_share=True)).first()
    if row is None:
        raise no_group(partition_id)
    if row[0]:
        settle(connection, [partition_id])


def lock_groups(
    connection: Connection, conditions: Sequence[ColumnElement[bool]], *, settled: bool = True
) -> Sequence[Row[Any]]:
    """Hold the rows of all partitions that match, taken in lock order, and return them.

    Their segments' rows are settled unless the caller does not want that.
    """
    columns = [partitions.c[name] for name in _LOCKED]
    locked = select(*columns).where(*conditions).order_by(*LOCK_ORDER)
    rows = connection.execute(locked.with_for_update(key_share=True)).all()
    marked = [row.id for row in rows if row.discarded_to]
    if settled and marked:
        settle(connection, marked)
    return rows


def no_group(partition_id: int) -> InputError:
    """Return the error for an id that no partition has."""
    return NotFoundError(
        f"there is no parked group {partition_id}; `waybill parked list` shows all"
    )


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


_MARK = text("""
WITH chosen AS MATERIALIZED (
  SELECT given.*, (SELECT count(*) FROM segments s
      WHERE s.partition_id = given.id AND s.state = 'parked') AS rows,
    CASE WHEN replaying = 0 THEN bytes ELSE bytes - coalesce((SELECT sum(s.bytes) FROM segments s
      WHERE s.partition_id = given.id AND s.state = 'replaying'), 0) END AS parked_bytes
  FROM unnest(CAST(:ids AS bigint[]), CAST(:parked AS bigint[]), CAST(:replaying AS bigint[]),
    CAST(:bytes AS bigint[]), CAST(:marked AS bigint[]))
    AS given (id, parked, replaying, bytes, marked)),
changed AS (
  UPDATE parked_partitions p
  SET parked = 0, bytes = p.bytes - c.parked_bytes, discarded = p.discarded + p.parked,
    discarded_to = (SELECT last_value FROM segments_id_seq), marked_at = clock_timestamp(),
    marked_segments = c.rows, marked_events = p.marked_events + p.parked,
    marked_bytes = p.marked_bytes + c.parked_bytes
  FROM chosen c WHERE p.id = c.id AND p.id = ANY(CAST(:ids AS bigint[]))
  RETURNING c.rows - c.marked AS segments, c.parked, c.parked_bytes)
SELECT count(*), coalesce(sum(segments), 0), coalesce(sum(parked), 0),
  coalesce(sum(parked_bytes), 0)
FROM changed
""")
_UNMARK = text("""
UPDATE parked_partitions p
SET parked = p.parked + p.marked_events, bytes = p.bytes + p.marked_bytes,
  discarded = p.discarded - p.marked_events, discarded_to = 0, marked_at = NULL,
  marked_segments = 0, marked_events = 0, marked_bytes = 0
WHERE p.id = ANY(CAST(:ids AS bigint[])) AND p.discarded_to > 0
""")
_SETTLE_ROWS = text("""
UPDATE segments s SET state = 'discarded', changed_at = p.marked_at, replay_id = NULL
FROM unnest(CAST(:ids AS bigint[])) AS given (id) JOIN parked_partitions p ON p.id = given.id
WHERE s.partition_id = p.id AND s.state = 'parked' AND s.id <= p.discarded_to
""")
_SETTLE = text("""
UPDATE parked_partitions
SET discarded_to = 0, marked_at = NULL, marked_segments = 0, marked_events = 0, marked_bytes = 0
WHERE id = ANY(CAST(:ids AS bigint[])) AND discarded_to > 0
""")


def mark(connection: Connection, rows: Sequence[Row[Any]]) -> Moved:
    """Discard all that is parked in partitions, whose rows the caller holds and gives."""
    values = {
        "ids": [row.id for row in rows],
        "parked": [row.parked for row in rows],
        "replaying": [row.replaying for row in rows],
        "bytes": [row.bytes for row in rows],
        "marked": [row.marked_segments for row in rows],
    }
    number, segments_, events, size = connection.execute(_MARK, values).one()
    return Moved(int(number), int(segments_), int(events), int(size))


def unmark(connection: Connection, rows: Sequence[Row[Any]]) -> Moved:
    """Take the marks of partitions away, whose rows the caller holds: all of it is parked again."""
    if rows:
        connection.execute(_UNMARK, {"ids": [row.id for row in rows]})
    return Moved(
        len(rows),
        sum(row.marked_segments for row in rows),
        sum(row.marked_events for row in rows),
        sum(row.marked_bytes for row in rows),
    )


def settle(connection: Connection, ids: Sequence[int]) -> None:
    """Write the marks of partitions into the rows of their segments.

    The caller holds the partitions' rows.
    """
    if ids:
        connection.execute(_SETTLE_ROWS, {"ids": list(ids)})
        connection.execute(_SETTLE, {"ids": list(ids)})
