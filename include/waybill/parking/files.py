"""Parked files: what each object holds, how much of that is wanted, since when nothing is."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Row, Select, case, func, literal, select

from waybill.parking.model import ParkedFile, ParkedFiles, ParkedGroupFilter
from waybill.parking.selection import matches
from waybill.parking.states import IS_MARKED
from waybill.storage import TrackerStore
from waybill.storage.tracker import parked_objects, segments
from waybill.storage.tracker import parked_partitions as partitions

_WANTED = ("parked", "replaying", "quarantined")
_STATES = (*_WANTED, "replayed", "discarded")


def read_files(tracker: TrackerStore, wanted: ParkedGroupFilter, *, limit: int) -> ParkedFiles:
    """Return what is in the store of these groups; see ``Parking.files``."""
    each = _each(wanted).subquery()
    is_finished = each.c.finished_at.is_not(None)
    sums = select(
        func.count(),
        func.sum(each.c.bytes),
        func.count().filter(is_finished),
        func.sum(each.c.bytes).filter(is_finished),
    )
    newest = select(each).order_by(each.c.committed_at.desc(), each.c.key.desc()).limit(limit)
    with tracker.transaction(long_statements=True) as connection:
        numbers = [int(number or 0) for number in connection.execute(sums).one()]
        rows = connection.execute(newest).all()
    return ParkedFiles(tuple(map(_file, rows)), *numbers)


def _file(row: Row[Any]) -> ParkedFile:
    events = {state: int(getattr(row, state) or 0) for state in _STATES}
    return ParkedFile(row.key, row.bytes, row.committed_at, finished_at=row.finished_at, **events)


def _each(wanted: ParkedGroupFilter) -> Select[Any]:
    """Return a row for each object that is not deleted: the fields of a `ParkedFile`."""
    item, own = parked_objects.c, segments.c
    state = case((IS_MARKED, literal("discarded")), else_=own.state)
    decided_at = case((IS_MARKED, partitions.c.marked_at), else_=own.changed_at)
    is_wanted = func.coalesce(func.bool_or(state.in_(_WANTED)), False)
    return (
        select(
            item.key,
            item.bytes,
            item.committed_at,
            *(func.sum(own.count).filter(state == one).label(one) for one in _STATES),
            case((~is_wanted, func.greatest(item.committed_at, func.max(decided_at)))).label(
                "finished_at"
            ),
        )
        .select_from(parked_objects)
        .outerjoin(segments, own.object_key == item.key)
        .outerjoin(partitions, partitions.c.id == own.partition_id)
        .where(item.state != "deleted", *_of(wanted))
        .group_by(item.key)
    )


def _of(wanted: ParkedGroupFilter) -> list[ColumnElement[bool]]:
    """Return the condition on an object that something of these groups is in it."""
    conditions = matches(wanted)
    if not conditions:
        return []
    keys = select(segments.c.object_key).join(
        partitions, partitions.c.id == segments.c.partition_id
    )
    return [parked_objects.c.key.in_(keys.where(*conditions).correlate(None))]
