"""The edges of a discard's window: segments that it cuts through are cut before it marks any.

Each cut is a transaction of its own (``cutting``): killed between a cut and the marking, the same
events are parked, or discarded, in more segments. What is left whole is what somebody else took
meanwhile, what came after the first look, and what is damaged: nobody knows its events' times.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    and_,
    any_,
    cast,
    false,
    func,
    not_,
    or_,
    select,
    true,
)

from waybill.errors import InputError
from waybill.events import instant
from waybill.parking.cutting import cut
from waybill.parking.event import ParkedEvent
from waybill.parking.marks import now_in
from waybill.parking.model import PartitionFilter, Segment
from waybill.parking.packed import CorruptSegmentError
from waybill.parking.selection import (
    inside,
    matches,
    overlaps,
    parked_with,
    select_segments,
    to_segment,
)
from waybill.storage import ObjectStore, TrackerStore
from waybill.storage.tracker import parked_partitions as partitions
from waybill.storage.tracker import segments

_log = logging.getLogger(__name__)
_PAGE = 500


class TooManyCutsError(InputError):
    """The window cuts through more segments than the caller has time for; nothing was changed."""


@dataclass(slots=True)
class Edges:
    """Segments whose span the window cuts through, and whose events it does not; their ids."""

    inside: list[int] = field(default_factory=list)
    outside: list[int] = field(default_factory=list)


def cut_edges(
    tracker: TrackerStore,
    objects: ObjectStore,
    wanted: PartitionFilter,
    state: str,
    *,
    most: int | None = None,
) -> Edges:
    """Cut what the window on event time cuts through, of segments in one state.

    Args:
        tracker: the rows.
        objects: the frames.
        wanted: the window, and which partitions.
        state: ``parked`` or ``discarded``.
        most: segments to look into; None: however many there are.

    Returns:
        what lies whole on one side though its span does not.

    Raises:
        TooManyCutsError: there are more than ``most``.

    Cost: of each segment that the window may cut through one read, of each that it does one PUT:
    10-20 ms; nothing without a window. Memory: a page of rows, one segment, the ids.
    """
    edges = Edges()
    if most is not None:
        _refuse_more(tracker, wanted, state, most)
    for segment in _partly_inside(tracker, wanted, state):
        try:
            sides = cut(tracker, objects, segment, lambda _, event: _is_inside(event, wanted))
        except CorruptSegmentError as error:
            _log.warning("segment %s is left as it is: %s", segment.id, error)
            continue
        edges.inside += [part for part, side in sides.items() if side == "in"]
        edges.outside += [part for part, side in sides.items() if side == "out"]
    return edges


def within(wanted: PartitionFilter, edges: Edges) -> ColumnElement[bool]:
    """Return the condition on a segment: all of its events are inside the window."""
    whole = and_(true(), *inside(*wanted.window))
    return or_(whole, _among(edges.inside)) if edges.inside else whole


def partly(wanted: PartitionFilter, edges: Edges) -> ColumnElement[bool]:
    """Return the condition on a segment: the window may cut through it."""
    since, until = wanted.window
    if since is None and until is None:
        return false()
    span = and_(*overlaps(since, until), not_(and_(*inside(since, until))))
    known = edges.inside + edges.outside
    return and_(span, not_(_among(known))) if known else span


def _refuse_more(tracker: TrackerStore, wanted: PartitionFilter, state: str, most: int) -> None:
    if wanted.window == (None, None):
        return
    some = select(segments.c.id).where(*_cut_through(wanted, state)).limit(most + 1).subquery()
    with tracker.transaction(long_statements=True) as connection:
        number = connection.execute(select(func.count()).select_from(some)).scalar_one()
    if number > most:
        raise TooManyCutsError(
            f"the window on event time cuts through more than {most:,} segments of parked files, "
            "and each has to be read and cut in two"
        )


def _cut_through(wanted: PartitionFilter, state: str) -> list[ColumnElement[bool]]:
    """Return the conditions on a segment in one state: the window may cut through it."""
    chosen = select(partitions.c.id).where(*matches(wanted), partitions.c[state] > 0)
    return [
        segments.c.partition_id.in_(chosen),
        *now_in([state]),
        partly(wanted, Edges()),
        *parked_with(wanted),
    ]


def _among(ids: list[int]) -> ColumnElement[bool]:
    return segments.c.id == any_(cast(ids, ARRAY(BigInteger)))


def _partly_inside(tracker: TrackerStore, wanted: PartitionFilter, state: str) -> Iterator[Segment]:
    """Yield segments in the order of their ids, a page at a time; those made since are left out."""
    if wanted.window == (None, None):
        return
    conditions = _cut_through(wanted, state)
    with tracker.transaction(long_statements=True) as connection:
        last = connection.execute(select(func.max(segments.c.id))).scalar() or 0
    after = 0
    while True:
        query = select_segments(*conditions, segments.c.id > after, segments.c.id <= last)
        ordered = query.order_by(None).order_by(segments.c.id).limit(_PAGE)
        with tracker.transaction(long_statements=True) as connection:
            page = [to_segment(row) for row in connection.execute(ordered)]
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1].id


def _is_inside(event: ParkedEvent, wanted: PartitionFilter) -> bool:
    """Tell whether an event is inside the window; one whose time nobody knows is not."""
    since, until = wanted.window
    at: datetime | None = instant(event.event_at) or instant(event.parked_at)
    if at is None:
        return False
    return (since is None or at >= since) and (until is None or at < until)
