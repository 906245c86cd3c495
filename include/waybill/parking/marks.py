"""Discarding very many whole partitions: one mark a partition, not a write a segment.

A mark says that all segments of the partition that are ``parked`` in their rows, up to an id, are
discarded. The partition's numbers say so from the same transaction on. What parks later has higher
ids, as whoever adds a segment holds its partition's row before it draws an id.

Whoever locks a partition to move segments of it *settles* it first: the mark goes into the rows,
with its time, and is gone. So nothing becomes parked under a mark: a replay that runs may be
cancelled, and what it gives back is parked. The clean-up settles marks past its grace before it
looks at rows; until then an undo takes the mark away again. Who only reads rows asks ``now_in``,
``STATE_NOW`` or ``IS_UNMARKED``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Row,
    and_,
    case,
    literal,
    literal_column,
    or_,
    select,
    text,
)

from waybill.storage.tracker import parked_partitions as partitions
from waybill.storage.tracker import segments

_Numbers = tuple[int, int, int, int]
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


def now_in(states: Sequence[str]) -> list[ColumnElement[bool]]:
    """Return the conditions on a segment: it is in one of these states, marks considered."""
    state = segments.c.state
    if "discarded" in states and "parked" not in states:
        return [state.in_([*states, "parked"]), or_(~_is_parked, segments.c.id <= _upto)]
    if "parked" in states and "discarded" not in states:
        return [state.in_(list(states)), IS_UNMARKED_ALONE]
    return [state.in_(list(states))]


def mark(connection: Connection, rows: Sequence[Row[Any]]) -> _Numbers:
    """Discard all that is parked in partitions, whose rows the caller holds and gives.

    Returns how many (partitions, segments, events, bytes).
    """
    values = {
        "ids": [row.id for row in rows],
        "parked": [row.parked for row in rows],
        "replaying": [row.replaying for row in rows],
        "bytes": [row.bytes for row in rows],
        "marked": [row.marked_segments for row in rows],
    }
    number, segments_, events, size = connection.execute(_MARK, values).one()
    return int(number), int(segments_), int(events), int(size)


def unmark(connection: Connection, rows: Sequence[Row[Any]]) -> _Numbers:
    """Take the marks of partitions away, whose rows the caller holds: all of it is parked again.

    Returns how many (partitions, segments, events, bytes).
    """
    if rows:
        connection.execute(_UNMARK, {"ids": [row.id for row in rows]})
    return (
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
