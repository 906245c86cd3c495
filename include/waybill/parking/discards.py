"""Discarding parked segments, and undoing it until the clean-up has run.

A segment is discarded whole, and only when the window holds all of it: an event that nobody named
is never discarded. Segments that the window cuts through are cut first, each in a transaction of
its own (``splits``): killed between a cut and the marking, the same events are parked, or
discarded, in more segments. What is left whole is what somebody else took meanwhile, what came
after the first look, and what is damaged: nobody knows its events' times.

Undoing takes the object's row first, as the clean-up does, and acts in a second statement: an
object that the clean-up has claimed is left to it.

Many whole groups are marked, as a write a segment would take minutes (``states``). Where a window
or a fingerprint is given, segments are discarded row by row.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Row,
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

from waybill.access import Decision, write_audit
from waybill.errors import InputError
from waybill.parking.model import DiscardReport, ParkedGroupFilter, Segment
from waybill.parking.names import storable
from waybill.parking.packed import CorruptSegmentError
from waybill.parking.selection import (
    inside,
    matches,
    overlaps,
    parked_with,
    segment_matches,
    select_segments,
    to_segment,
)
from waybill.parking.splits import cut
from waybill.parking.states import Moved, lock_groups, mark, move, now_in, settle, unmark
from waybill.storage import ObjectStore, TrackerStore
from waybill.storage.tracker import parked_objects, segments
from waybill.storage.tracker import parked_partitions as partitions

_log = logging.getLogger(__name__)
MANY = 10_000
"""Events; what is more, and whole partitions, is discarded by marks."""
_PAGE = 500
_NOTHING = Moved(0, 0, 0, 0)
_Rows = Sequence[Row[Any]]
Verb = Literal["discard", "undo_discard"]


def decide(
    tracker: TrackerStore,
    objects: ObjectStore,
    verb: Verb,
    wanted: ParkedGroupFilter,
    decision: Decision,
    *,
    most_cuts: int | None = None,
) -> DiscardReport:
    """Discard parked events, or put them back; see ``Parking.discard`` and ``undo_discard``."""
    why = decision.require_why()
    _refuse_all(wanted)
    state, change = ("parked", _discard) if verb == "discard" else ("discarded", _undo)
    edges = cut_edges(tracker, objects, wanted, state, most=most_cuts)
    with tracker.transaction(long_statements=True) as connection:
        moved, left = change(connection, wanted, edges)
        report = DiscardReport(moved.partitions, moved.segments, moved.events, moved.bytes, *left)
        write_audit(
            connection,
            who=decision.who,
            action=verb,
            target="parked partitions",
            why=why,
            **decision.beside_who(),
            filter={name: storable(str(value)) for name, value in wanted.to_json().items()},
            report=report.to_json(),
        )
    return report


class TooManyCutsError(InputError):
    """The window cuts through more segments than the caller has time for; nothing was changed."""


def _discard(
    connection: Connection, wanted: ParkedGroupFilter, edges: Edges
) -> tuple[Moved, tuple[int, int]]:
    """Return what was discarded, and (segments, events) that match and were left."""
    conditions = [*matches(wanted), partitions.c.parked > 0]
    rows = lock_groups(connection, conditions, settled=False)
    if not segment_matches(wanted) and sum(row.parked for row in rows) > MANY:
        return mark(connection, rows), (0, 0)
    if not rows:
        return _NOTHING, (0, 0)
    settle(connection, [row.id for row in rows if row.discarded_to])
    chosen = and_(_in_partitions(rows), *parked_with(wanted))
    left = _count(connection, and_(chosen, partly(wanted, edges)), "parked")
    whole = within(wanted, edges)
    return move(connection, "parked", "discarded", chosen, whole, replay_id=None), left


def _undo(
    connection: Connection, wanted: ParkedGroupFilter, edges: Edges
) -> tuple[Moved, tuple[int, int]]:
    """Return what was put back, and (segments, events) that match and were left."""
    conditions = [*matches(wanted), partitions.c.discarded > 0]
    whole = not segment_matches(wanted)
    rows = lock_groups(connection, conditions, settled=not whole)
    marked = [row for row in rows if whole and row.discarded_to]
    moved = unmark(connection, marked)
    both = [row for row in marked if row.discarded > row.marked_events]
    others = [row for row in rows if not (whole and row.discarded_to)]
    again, left = _undo_rows(connection, wanted, edges, both, others)
    return moved + again, left


def _undo_rows(
    connection: Connection, wanted: ParkedGroupFilter, edges: Edges, both: _Rows, others: _Rows
) -> tuple[Moved, tuple[int, int]]:
    """Undo what is discarded in rows; partitions of ``both`` are counted by their marks."""
    if not both and not others:
        return _NOTHING, (0, 0)
    touched = and_(_in_partitions([*both, *others]), *parked_with(wanted))
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
        moved = move(connection, "discarded", "parked", _in_partitions(others), *matching, is_live)
    if both:
        more = move(connection, "discarded", "parked", _in_partitions(both), *matching, is_live)
        moved += replace(more, partitions=0)
    return moved, (left[0] + gone[0], left[1] + gone[1])


def _in_partitions(rows: _Rows) -> ColumnElement[bool]:
    ids = cast([row.id for row in rows], ARRAY(BigInteger))
    return segments.c.partition_id == any_(ids)


def _taken(
    connection: Connection, wanted: ParkedGroupFilter, touched: ColumnElement[bool]
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


def _refuse_all(wanted: ParkedGroupFilter) -> None:
    if wanted.names_nothing:
        raise InputError(
            "no filter was given, which would select every parked event; name a pipeline, event "
            "name, stage, error type or window"
        )


@dataclass(slots=True)
class Edges:
    """Segments whose span the window cuts through, and whose events it does not; their ids."""

    inside: list[int] = field(default_factory=list)
    outside: list[int] = field(default_factory=list)


def cut_edges(
    tracker: TrackerStore,
    objects: ObjectStore,
    wanted: ParkedGroupFilter,
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
    window = wanted.window
    for segment in _partly_inside(tracker, wanted, state):
        try:  # an event whose time nobody knows is not inside
            sides = cut(
                tracker, objects, segment, lambda _, event: event.is_within(*window) is True
            )
        except CorruptSegmentError as error:
            _log.warning("segment %s is left as it is: %s", segment.id, error)
            continue
        edges.inside += [part for part, side in sides.items() if side == "in"]
        edges.outside += [part for part, side in sides.items() if side == "out"]
    return edges


def within(wanted: ParkedGroupFilter, edges: Edges) -> ColumnElement[bool]:
    """Return the condition on a segment: all of its events are inside the window."""
    whole = and_(true(), *inside(*wanted.window))
    return or_(whole, _among(edges.inside)) if edges.inside else whole


def partly(wanted: ParkedGroupFilter, edges: Edges) -> ColumnElement[bool]:
    """Return the condition on a segment: the window may cut through it."""
    since, until = wanted.window
    if since is None and until is None:
        return false()
    span = and_(*overlaps(since, until), not_(and_(*inside(since, until))))
    known = edges.inside + edges.outside
    return and_(span, not_(_among(known))) if known else span


def _refuse_more(tracker: TrackerStore, wanted: ParkedGroupFilter, state: str, most: int) -> None:
    if wanted.window == (None, None):
        return
    some = select(segments.c.id).where(*_cut_through(wanted, state)).limit(most + 1).subquery()
    with tracker.transaction(long_statements=True) as connection:
        number = connection.execute(select(func.count()).select_from(some)).scalar_one()
    if number > most:
        raise TooManyCutsError(
            f"the window on event time cuts through more than {most:,} parts of parked files, "
            "and each has to be read and cut in two"
        )


def _cut_through(wanted: ParkedGroupFilter, state: str) -> list[ColumnElement[bool]]:
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


def _partly_inside(
    tracker: TrackerStore, wanted: ParkedGroupFilter, state: str
) -> Iterator[Segment]:
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
