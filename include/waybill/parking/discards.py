"""Discarding parked segments, and undoing it until the clean-up has run.

A segment is discarded whole, and only when the window holds all of it: an event that nobody named
is never discarded. What the window cuts through is cut first (``edges``). Undoing takes the
object's row first, as the clean-up does, and acts in a second statement: an object that the
clean-up has claimed is left to it.

Many whole partitions are marked, as a write a segment would take minutes (``marks``). Where a
window or a fingerprint is given, segments are discarded row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    any_,
    cast,
    func,
    or_,
    select,
)
from sqlalchemy.sql import and_

from waybill.access import Decision, write_audit
from waybill.errors import InputError
from waybill.parking.edges import Edges, cut_edges, partly, within
from waybill.parking.marks import mark, settle, unmark
from waybill.parking.model import DiscardReport, PartitionFilter
from waybill.parking.moves import Moved, move
from waybill.parking.selection import (
    lock_partitions,
    matches,
    overlaps,
    parked_with,
    segment_matches,
)
from waybill.storage import ObjectStore, TrackerStore
from waybill.storage.tracker import parked_objects, segments
from waybill.storage.tracker import parked_partitions as partitions

MANY = 10_000
"""Events; what is more, and whole partitions, is discarded by marks."""
_NOTHING = Moved(0, 0, 0, 0)
_Rows = Sequence[Row[Any]]


def discard(
    tracker: TrackerStore,
    objects: ObjectStore,
    wanted: PartitionFilter,
    decision: Decision,
    *,
    most_cuts: int | None = None,
) -> DiscardReport:
    """Mark parked segments as not wanted; see ``Parking.discard``."""
    decision.require_why()
    _refuse_all(wanted)
    edges = cut_edges(tracker, objects, wanted, "parked", most=most_cuts)
    with tracker.transaction(long_statements=True) as connection:
        conditions = [*matches(wanted), partitions.c.parked > 0]
        rows = lock_partitions(connection, conditions, settled=False)
        if not segment_matches(wanted) and sum(row.parked for row in rows) > MANY:
            report = _report(Moved(*mark(connection, rows)), (0, 0))
        else:
            report = _report(*_discard_rows(connection, wanted, edges, rows))
        _write(connection, "discard", decision, wanted, report)
    return report


def _discard_rows(
    connection: Connection, wanted: PartitionFilter, edges: Edges, rows: _Rows
) -> tuple[Moved, tuple[int, int]]:
    if not rows:
        return _NOTHING, (0, 0)
    settle(connection, [row.id for row in rows if row.discarded_to])
    chosen = and_(_among(rows), *parked_with(wanted))
    left = _count(connection, and_(chosen, partly(wanted, edges)), "parked")
    whole = within(wanted, edges)
    return move(connection, "parked", "discarded", chosen, whole, replay_id=None), left


def undo_discard(
    tracker: TrackerStore,
    objects: ObjectStore,
    wanted: PartitionFilter,
    decision: Decision,
    *,
    most_cuts: int | None = None,
) -> DiscardReport:
    """Put discarded segments back; see ``Parking.undo_discard``."""
    decision.require_why()
    _refuse_all(wanted)
    edges = cut_edges(tracker, objects, wanted, "discarded", most=most_cuts)
    with tracker.transaction(long_statements=True) as connection:
        conditions = [*matches(wanted), partitions.c.discarded > 0]
        whole = not segment_matches(wanted)
        rows = lock_partitions(connection, conditions, settled=not whole)
        marked = [row for row in rows if whole and row.discarded_to]
        moved = Moved(*unmark(connection, marked))
        both = [row for row in marked if row.discarded > row.marked_events]
        others = [row for row in rows if not (whole and row.discarded_to)]
        again, left = _undo_rows(connection, wanted, edges, both, others)
        report = _report(moved + again, left)
        _write(connection, "undo_discard", decision, wanted, report)
    return report


def _undo_rows(
    connection: Connection, wanted: PartitionFilter, edges: Edges, both: _Rows, others: _Rows
) -> tuple[Moved, tuple[int, int]]:
    """Undo what is discarded in rows; partitions of ``both`` are counted by their marks."""
    if not both and not others:
        return _NOTHING, (0, 0)
    touched = and_(_among([*both, *others]), *parked_with(wanted))
    matching = (*parked_with(wanted), within(wanted, edges))
    chosen = and_(touched, within(wanted, edges))
    _lock_objects(connection, chosen)
    live = select(parked_objects.c.key).where(parked_objects.c.state == "live")
    claimed = and_(chosen, segments.c.object_key.not_in(live))
    left = _count(connection, or_(claimed, and_(touched, partly(wanted, edges))), "discarded")
    gone = _taken(connection, wanted, touched)
    is_live = segments.c.object_key.in_(live)
    moved = _NOTHING
    if others:
        moved = move(connection, "discarded", "parked", _among(others), *matching, is_live)
    if both:
        more = move(connection, "discarded", "parked", _among(both), *matching, is_live)
        moved += replace(more, partitions=0)
    return moved, (left[0] + gone[0], left[1] + gone[1])


def _among(rows: _Rows) -> ColumnElement[bool]:
    ids = cast([row.id for row in rows], ARRAY(BigInteger))
    return segments.c.partition_id == any_(ids)


def _taken(
    connection: Connection, wanted: PartitionFilter, touched: ColumnElement[bool]
) -> tuple[int, int]:
    """Return (segments, events) that match, were discarded, and that a clean-up has taken since."""
    discarded = segments.c.replay_id.is_(None)
    return _count(connection, and_(touched, discarded, *overlaps(*wanted.window)), "deleted")


def _lock_objects(connection: Connection, chosen: ColumnElement[bool]) -> None:
    """Hold the objects of discarded segments, so that no clean-up claims them meanwhile."""
    keys = select(segments.c.object_key).where(segments.c.state == "discarded", chosen)
    key = parked_objects.c.key
    locked = select(key).where(key.in_(keys)).order_by(key)
    rows = locked.with_for_update(key_share=True).subquery()
    connection.execute(select(func.count()).select_from(rows))


def _count(connection: Connection, which: ColumnElement[bool], state: str) -> tuple[int, int]:
    query = select(func.count(), func.coalesce(func.sum(segments.c.count), 0)).where(
        segments.c.state == state, which
    )
    row = connection.execute(query).one()
    return int(row[0]), int(row[1])


def _report(moved: Moved, left: tuple[int, int]) -> DiscardReport:
    return DiscardReport(moved.partitions, moved.segments, moved.events, moved.bytes, *left)


def _write(
    connection: Connection,
    action: str,
    decision: Decision,
    wanted: PartitionFilter,
    report: DiscardReport,
) -> None:
    write_audit(
        connection,
        who=decision.who,
        action=action,
        target="parked partitions",
        why=decision.require_why(),
        **decision.beside_who(),
        filter=_storable(wanted),
        report=report.to_json(),
    )


def _storable(wanted: PartitionFilter) -> dict[str, str]:
    from waybill.parking.names import storable

    return {name: storable(str(value)) for name, value in wanted.to_json().items()}


def _refuse_all(wanted: PartitionFilter) -> None:
    if wanted.names_nothing:
        raise InputError(
            "no filter was given, so every parked event there is would be meant; name a pipeline, "
            "event name, stage, error type or window"
        )
