"""A partition's events a page at a time, in replay order, by a cursor that says where to go on.

The cursor names the next line by its segment's place in the order, not by a count: a page costs its
own segments, however deep it lies, and what is replayed or discarded meanwhile shifts nothing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, tuple_

from waybill.errors import InputError
from waybill.parking import queries
from waybill.parking.damage import Damage, Unreadable
from waybill.parking.event import ParkedEvent
from waybill.parking.model import Segment
from waybill.parking.names import storable
from waybill.parking.selection import REPLAY_ORDER
from waybill.parking.states import HELD, now_in
from waybill.storage import ObjectStore, TrackerStore
from waybill.storage.tracker import segments

_PAGE_BYTES = 8 * 1024**2
"""A page ends once its events' own bytes are over this: few huge ones do not fill the memory."""
_MOST_DAMAGED = 100
"""A page ends after so many segments that cannot be read: each costs a read of the store."""
_INT64 = 2**63
_KINDS = (*(column.type.python_type for column in REPLAY_ORDER), int)
"""Of a cursor's values: a segment's place in the order, and a line."""
_SEVERAL = ""
"""The fingerprint of a segment with events of several causes."""


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events of a partition."""

    events: tuple[ParkedEvent, ...]
    next: str | None
    """The cursor of the page after it; None: this was the last."""
    damaged: tuple[Unreadable, ...]
    """What lay on this page and could not be read."""


def read_event_page(  # noqa: PLR0913 - conditions of one partition's events
    tracker: TrackerStore,
    objects: ObjectStore,
    partition_id: int,
    *,
    after: str | None = None,
    limit: int = 20,
    fingerprint: str | None = None,
    states: Sequence[str] = HELD,
) -> EventPage:
    """Return up to ``limit`` events from a cursor on. Cost: one read a segment.

    With a fingerprint only events of that cause: segments of another are left out, those with
    several causes are read. What is damaged, or gone from the store, is told beside the others.

    Raises:
        InputError: the cursor is none that a page gave.
    """
    wanted: list[ColumnElement[bool]] = [
        segments.c.partition_id == partition_id,
        *now_in(states),
    ]
    if fingerprint is not None:
        wanted.append(segments.c.fingerprint.in_([storable(fingerprint), _SEVERAL]))
    place = None if after is None else _place(after)
    if place is not None:
        wanted.append(tuple_(*REPLAY_ORDER) >= tuple_(*place[:-1]))
    found: list[ParkedEvent] = []
    taken = 0
    damage = Damage()
    for segment, index, event in _lines(tracker, objects, wanted, place, damage):
        if event is None or len(found) >= limit or taken > _PAGE_BYTES:
            return EventPage(tuple(found), _cursor(segment, index), damage.listed)
        taken += len(event.value)  # read, whether or not it is one of the wanted
        if fingerprint is None or event.fingerprint == fingerprint:
            found.append(event)
    return EventPage(tuple(found), None, damage.listed)


def _lines(
    tracker: TrackerStore,
    objects: ObjectStore,
    wanted: list[ColumnElement[bool]],
    place: list[Any] | None,
    damage: Damage,
) -> Iterator[tuple[Segment, int, ParkedEvent | None]]:
    """Yield lines with their places; one without an event: too much was damaged, stop here."""
    for segment in queries.segments_in_order(tracker, *wanted):
        begun = place is not None and place[-2] == segment.id
        first = max(0, place[-1]) if begun and place is not None else 0
        if damage.segments >= _MOST_DAMAGED:
            yield segment, first, None
        lines = enumerate(queries.read_segment_events(tracker, objects, segment, damage))
        for index, event in islice(lines, first, None):
            yield segment, index, event


def _cursor(segment: Segment, index: int) -> str:
    place = [getattr(segment, column.name) for column in REPLAY_ORDER]
    return base64.urlsafe_b64encode(json.dumps([*place, index]).encode()).decode().rstrip("=")


def _place(cursor: str) -> list[Any]:
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        found = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list) and len(found) == len(_KINDS) and all(map(_is_of, found, _KINDS)):
        return found
    raise InputError(f"after: {cursor[:80]!r} is not a cursor of a page; begin without it")


def _is_of(value: object, kind: type) -> bool:
    """Tell whether a value can stand in a segment's place, or be a line's number."""
    if kind is str:
        return isinstance(value, str) and "\x00" not in value and value.isprintable()
    return type(value) is int and -_INT64 <= value < _INT64
