"""Which rows: filters as SQL conditions, and segments in the order of a replay."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    exists,
    literal_column,
    or_,
    select,
)

from waybill.parking.fingerprints import require_fingerprint
from waybill.parking.model import ParkedGroupFilter, Replay, ReplayConditions, Segment
from waybill.parking.names import storable
from waybill.parking.packed import NAMES
from waybill.parking.states import IS_UNMARKED, STATE_NOW
from waybill.storage.tracker import parked_partitions as partitions
from waybill.storage.tracker import pipelines, replays, segments

IS_HELD: ColumnElement[bool] = literal_column("segments.state IN ('parked', 'replaying')", Boolean)
"""In words, not as parameters: only so the planner sees that the partial indexes serve."""
IS_KEPT = or_(IS_HELD, segments.c.state == "quarantined")
_IS_SOME_KEPT: ColumnElement[bool] = literal_column(
    "parked_partitions.parked + parked_partitions.replaying + parked_partitions.quarantined > 0",
    Boolean,
)
LONGEST_COMMIT = timedelta(minutes=10)
"""A partition's times of parking are set a moment before its segments'."""
REPLAY_ORDER = (
    segments.c.commit_number,
    segments.c.scope,
    segments.c.kafka_partition,
    segments.c.first_offset,
    segments.c.position,
    segments.c.id,
)
_SEGMENT_FIELDS = tuple(
    STATE_NOW if name == "state" else segments.c[name] for name in Segment.__slots__
)
_REPLAY_FIELDS = tuple(replays.c[name] for name in Replay.__slots__)


def matches(wanted: ParkedGroupFilter) -> list[ColumnElement[bool]]:
    """Return the conditions on a partition's row, without windows and fingerprint."""
    conditions: list[ColumnElement[bool]] = []
    for name in NAMES:
        value = getattr(wanted, name)
        if value is not None:
            conditions.append(partitions.c[name] == storable(value))
    if wanted.held:
        conditions.append(partitions.c.parked + partitions.c.replaying > 0)
    if wanted.held or wanted.kept:
        conditions.append(_IS_SOME_KEPT)
    if wanted.teams is not None:
        own = select(pipelines.c.id).where(pipelines.c.team.in_(map(storable, wanted.teams)))
        conditions.append(partitions.c.pipeline_id.in_(own))
    return conditions


def in_window(wanted: ParkedGroupFilter) -> list[ColumnElement[bool]]:
    """Return the conditions on a partition's row: one segment of it matches the rest."""
    some = segment_matches(wanted)
    if not some:
        return []
    if wanted.held:
        some += [IS_HELD, IS_UNMARKED]
    if wanted.kept:
        some += [IS_KEPT, IS_UNMARKED]
    return [
        *spans_touch(wanted),
        exists().where(and_(segments.c.partition_id == partitions.c.id, *some)),
    ]


def segment_matches(wanted: ParkedGroupFilter) -> list[ColumnElement[bool]]:
    """Return the conditions on a segment: windows (some of its events may be in), fingerprint."""
    return [*overlaps(*wanted.window), *parked_with(wanted)]


def parked_with(wanted: ParkedGroupFilter) -> list[ColumnElement[bool]]:
    """Return the conditions on a segment that hold for all of its events or for none."""
    conditions = _parked_in(*wanted.parked_window)
    if wanted.fingerprint is not None:
        conditions.append(segments.c.fingerprint == require_fingerprint(wanted.fingerprint))
    return conditions


def may_match(partition_id: int, wanted: ReplayConditions) -> list[ColumnElement[bool]]:
    """Return the conditions on a segment of a partition: some of its events may be wanted."""
    conditions = [
        segments.c.partition_id == partition_id,
        *overlaps(*wanted.window),
        *_parked_in(*wanted.parked_window),
    ]
    if wanted.fingerprint is not None:
        causes = [require_fingerprint(wanted.fingerprint), ""]
        conditions.append(segments.c.fingerprint.in_(causes))
    return conditions


def _parked_in(since: datetime | None, until: datetime | None) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if since is not None:
        conditions.append(segments.c.parked_at >= since)
    if until is not None:
        conditions.append(segments.c.parked_at < until)
    return conditions


def spans_touch(wanted: ParkedGroupFilter) -> list[ColumnElement[bool]]:
    """Return the conditions on a partition's row without which no segment of it matches."""
    conditions = _touches(partitions, *wanted.window)
    since, until = wanted.parked_window
    if since is not None:
        conditions.append(partitions.c.last_parked_at >= since - LONGEST_COMMIT)
    if until is not None:
        conditions.append(partitions.c.first_parked_at < until)
    return conditions


def overlaps(since: datetime | None, until: datetime | None) -> list[ColumnElement[bool]]:
    """Return the conditions on a segment: some of its events may be in the window."""
    return _touches(segments, since, until)


def inside(since: datetime | None, until: datetime | None) -> list[ColumnElement[bool]]:
    """Return the conditions on a segment: all of its events are in the window."""
    conditions: list[ColumnElement[bool]] = []
    if since is not None:
        conditions.append(segments.c.first_event_at >= since)
    if until is not None:
        conditions.append(segments.c.last_event_at < until)
    return conditions


def _touches(
    table: Table,
    since: datetime | None,
    until: datetime | None,
) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if since is not None:
        conditions.append(table.c.last_event_at >= since)
    if until is not None:
        conditions.append(table.c.first_event_at < until)
    return conditions


def select_segments(*conditions: ColumnElement[bool]) -> Select[Any]:
    """Return a query for whole segments in replay order."""
    return select(*_SEGMENT_FIELDS).where(*conditions).order_by(*REPLAY_ORDER)


def to_segment(row: Row[Any]) -> Segment:
    """Return a row of ``select_segments`` as a value."""
    values: list[Any] = list(row)
    values[-1] = tuple(values[-1] or ())
    return Segment(*values)


def read_replay(connection: Connection, *conditions: ColumnElement[bool]) -> Replay | None:
    """Return the newest replay that matches."""
    query = select(*_REPLAY_FIELDS).where(*conditions).order_by(replays.c.started_at.desc())
    row = connection.execute(query.limit(1)).first()
    return None if row is None else Replay(*row)
