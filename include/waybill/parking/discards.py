"""Discarding parked segments, and undoing it until the clean-up has run.

A segment is discarded whole, and only when the window holds all of it: an event that nobody named
is never discarded. What the window cuts through is cut first (``edges``). Undoing takes the
object's row first, as the clean-up does, and acts in a second statement: an object that the
clean-up has claimed is left to it.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, func, or_, select
from sqlalchemy.sql import and_

from waybill.errors import InputError
from waybill.parking.edges import cut_edges, partly, within
from waybill.parking.model import DiscardReport, PartitionFilter
from waybill.parking.moves import Moved, move, words, write_audit
from waybill.parking.selection import lock_partitions, matches, parked_with
from waybill.storage import ObjectStore, TrackerStore
from waybill.storage.tracker.tables import parked_objects, segments
from waybill.storage.tracker.tables import parked_partitions as partitions


def discard(
    tracker: TrackerStore,
    objects: ObjectStore,
    wanted: PartitionFilter,
    *,
    who: str,
    why: str,
    most_cuts: int | None = None,
) -> DiscardReport:
    """Mark parked segments as not wanted; see ``Parking.discard``."""
    by, reason = words(who, "who"), words(why, "why")
    _refuse_all(wanted)
    edges = cut_edges(tracker, objects, wanted, "parked", most=most_cuts)
    with tracker.transaction() as connection:
        conditions = [*matches(wanted), partitions.c.parked > 0]
        lock_partitions(connection, conditions)
        chosen = and_(
            segments.c.partition_id.in_(select(partitions.c.id).where(*conditions)),
            *parked_with(wanted),
        )
        left = _count(connection, and_(chosen, partly(wanted, edges)), "parked")
        moved = move(
            connection, "parked", "discarded", chosen, within(wanted, edges), replay_id=None
        )
        report = _report(moved, left)
        _write(connection, "discard", by, reason, wanted, report)
    return report


def undo_discard(
    tracker: TrackerStore,
    objects: ObjectStore,
    wanted: PartitionFilter,
    *,
    who: str,
    why: str,
    most_cuts: int | None = None,
) -> DiscardReport:
    """Put discarded segments back; see ``Parking.undo_discard``."""
    by, reason = words(who, "who"), words(why, "why")
    _refuse_all(wanted)
    edges = cut_edges(tracker, objects, wanted, "discarded", most=most_cuts)
    with tracker.transaction() as connection:
        conditions = [*matches(wanted), partitions.c.discarded > 0]
        lock_partitions(connection, conditions)
        touched = and_(
            segments.c.partition_id.in_(select(partitions.c.id).where(*conditions)),
            *parked_with(wanted),
        )
        chosen = and_(touched, within(wanted, edges))
        _lock_objects(connection, chosen)
        live = select(parked_objects.c.key).where(parked_objects.c.state == "live")
        claimed = and_(chosen, segments.c.object_key.not_in(live))
        uncut = and_(touched, partly(wanted, edges))
        left = _count(connection, or_(claimed, uncut), "discarded")
        moved = move(connection, "discarded", "parked", chosen, segments.c.object_key.in_(live))
        report = _report(moved, left)
        _write(connection, "undo_discard", by, reason, wanted, report)
    return report


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
    who: str,
    why: str,
    wanted: PartitionFilter,
    report: DiscardReport,
) -> None:
    write_audit(
        connection,
        who=who,
        action=action,
        target="parked partitions",
        why=why,
        filter=_storable(wanted),
        report=report.to_json(),
    )


def _storable(wanted: PartitionFilter) -> dict[str, str]:
    from waybill.parking.names import storable  # noqa: PLC0415

    return {name: storable(str(value)) for name, value in wanted.to_json().items()}


def _refuse_all(wanted: PartitionFilter) -> None:
    if wanted.names_nothing:
        raise InputError(
            "no filter was given, so every parked event there is would be meant; name a pipeline, "
            "event name, stage, error type or window"
        )
