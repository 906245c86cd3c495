"""Reading parked events: a segment's, a partition's in the order of replay, a page of them.

What cannot be read is collected in a ``Damage`` and told beside what could.

A task writes one frame for each fingerprint, so events of one key may stand in several segments.
Segments that share commit number, scope and Kafka partition are a *slice*: they go back together,
merged by offset, so that a key's events keep the order of the source (G4).

The cursor of a page names the next line by its segment's place in the order, not by a count: a page
costs its own segments, however deep it lies, and what is replayed or discarded meanwhile shifts
nothing.
"""

from __future__ import annotations

import base64
import heapq
import json
import math
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from itertools import groupby, islice
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    all_,
    cast,
    func,
    select,
    tuple_,
)

from waybill.errors import InputError
from waybill.parking.event import ParkedEvent
from waybill.parking.fingerprints import require_fingerprint
from waybill.parking.model import Segment
from waybill.parking.names import storable
from waybill.parking.packed import CorruptSegmentError, check_segment, read_segment
from waybill.parking.selection import (
    REPLAY_ORDER,
    overlaps,
    select_segments,
    to_segment,
)
from waybill.parking.states import HELD, STATE_NOW, now_in
from waybill.storage import ObjectMissingError, ObjectShorterError, ObjectStore, TrackerStore
from waybill.storage.tracker import segments

_PAGE = 500
_READERS = 4
_AHEAD_SLICES = 32
_AHEAD_BYTES = 8 * 1024**2
"""Compressed."""
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
class Unreadable:
    """Events of one parked object that could not be read."""

    object_key: str
    events: int
    """All of the segments that were looked at, whatever the window or the cause asked for."""
    reason: str

    @property
    def words(self) -> str:
        """Return it as a sentence for people."""
        noun = "event" if self.events == 1 else "events"
        return f"{self.events:,} {noun} of {self.object_key} left out: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


class Damage:
    """Collects what could not be read. For one look; not for several threads."""

    def __init__(self) -> None:
        self._found: Counter[tuple[str, str]] = Counter()
        self.segments = 0
        """How many segments could not be read, or not to their end."""

    @property
    def events(self) -> int:
        """Return how many events could not be read so far."""
        return self._found.total()

    @property
    def listed(self) -> tuple[Unreadable, ...]:
        """Return what was found so far, an object and reason each, in the order it was met."""
        return tuple(Unreadable(key, events, why) for (key, why), events in self._found.items())

    def readable(
        self, segment: Segment, begin: Callable[[], Iterator[ParkedEvent]]
    ) -> Iterator[ParkedEvent]:
        """Yield a segment's events as far as they can be read, and note the others."""
        given = 0
        try:
            for event in begin():
                given += 1
                yield event
        except CorruptSegmentError as error:
            self.note(error, segment.count - given)

    def note(self, error: CorruptSegmentError, events: int) -> None:
        """Note so many events of one segment as not read."""
        self.segments += 1
        self._found[error.key, error.reason] += events


def segments_in_order(tracker: TrackerStore, *conditions: ColumnElement[bool]) -> Iterator[Segment]:
    """Yield segments in replay order, a page at a time; no transaction is open meanwhile.

    What was put in the place of a segment of the page before, while that was read, is left out.
    """
    after: list[ColumnElement[bool]] = []
    while True:
        query = select_segments(*conditions, *after).limit(_PAGE)
        with tracker.transaction() as connection:
            page = [to_segment(row) for row in connection.execute(query)]
        yield from page
        if len(page) < _PAGE:
            return
        last = page[-1]
        values = [getattr(last, column.name) for column in REPLAY_ORDER]
        given = cast([segment.id for segment in page], ARRAY(BigInteger))
        after = [
            tuple_(*REPLAY_ORDER) > tuple_(*values),
            func.coalesce(segments.c.source_id, 0) != all_(given),
        ]


def count_segments(tracker: TrackerStore, *conditions: ColumnElement[bool]) -> int:
    """Return how many segments match."""
    query = select(func.count()).select_from(segments).where(*conditions)
    with tracker.transaction() as connection:
        return int(connection.execute(query).scalar_one())


def read_segment_events(
    tracker: TrackerStore, objects: ObjectStore, segment: Segment, damage: Damage | None = None
) -> Iterator[ParkedEvent]:
    """Yield one segment's events; see ``Parking.read``. ``damage`` takes what is damaged.

    Those of a segment that was cut or rewritten, and whose object is gone, come from the segments
    in its place, merged by offset; what was decided of them and cleaned up since is left out.
    """
    if damage is None:
        return _read(tracker, objects, segment, None)
    return damage.readable(segment, lambda: _read(tracker, objects, segment, damage))


def _read(
    tracker: TrackerStore, objects: ObjectStore, segment: Segment, damage: Damage | None
) -> Iterator[ParkedEvent]:
    frame = read_frame(tracker, objects, segment)
    if frame is not None:
        return events_of(segment, frame)
    query = select_segments(segments.c.source_id == segment.id)
    with tracker.transaction() as connection:
        successors = [to_segment(row) for row in connection.execute(query)]
    parts = [read_segment_events(tracker, objects, successor, damage) for successor in successors]
    return heapq.merge(*parts, key=lambda event: event.kafka_offset)


def read_frame(tracker: TrackerStore, objects: ObjectStore, segment: Segment) -> bytes | None:
    """Return one segment's frame, unchecked; None: a clean-up took it, and was right to.

    Whether its events are elsewhere now, its successors say: ``source_id`` names it.
    """
    try:
        return objects.get(segment.object_key, position=segment.position, length=segment.length)
    except ObjectShorterError:
        return b""
    except ObjectMissingError as error:
        if _was_deleted(tracker, segment):
            return None
        raise CorruptSegmentError(
            segment.object_key, segment.position, "the object is gone from the store", missing=True
        ) from error


def events_of(segment: Segment, frame: bytes) -> Iterator[ParkedEvent]:
    """Yield the events of a segment's frame, checked by its SHA-256 before the first."""
    return read_segment(
        frame,
        sha256=segment.sha256,
        key=segment.object_key,
        position=segment.position,
        copies=segment.copies,
    )


def _was_deleted(tracker: TrackerStore, segment: Segment) -> bool:
    """Tell whether a clean-up took the segment, after someone replayed, discarded or cut it."""
    query = select(STATE_NOW).where(segments.c.id == segment.id)
    with tracker.transaction() as connection:
        state = connection.execute(query).scalar()
    return state in ("replayed", "discarded", "replaced", "deleted")


class Wanted(NamedTuple):
    """Which events of a partition: by state, own time, number and cause."""

    states: Sequence[str]
    since: datetime | None = None
    until: datetime | None = None
    limit: int | None = None
    fingerprint: str | None = None


def read_events(
    tracker: TrackerStore,
    objects: ObjectStore,
    partition_id: int,
    wanted: Wanted,
    damage: Damage | None,
) -> Iterator[ParkedEvent]:
    """Yield a partition's events in replay order; see ``Parking.events``."""
    edges = wanted.since, wanted.until
    own = of_partition(partition_id, wanted.states, wanted.fingerprint)
    given = 0
    for segment in segments_in_order(tracker, *own, *overlaps(*edges)):
        for event in read_segment_events(tracker, objects, segment, damage):
            if wanted.limit is not None and given >= wanted.limit:
                return
            if event.is_within(*edges) is not False:
                given += 1
                yield event


def of_partition(
    partition_id: int, states: Sequence[str], fingerprint: str | None
) -> list[ColumnElement[bool]]:
    """Return the conditions on a partition's segments."""
    wanted = [segments.c.partition_id == partition_id, *now_in(states)]
    if fingerprint is not None:
        wanted.append(segments.c.fingerprint == require_fingerprint(fingerprint))
    return wanted


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
    for segment in segments_in_order(tracker, *wanted):
        begun = place is not None and place[-2] == segment.id
        first = max(0, place[-1]) if begun and place is not None else 0
        if damage.segments >= _MOST_DAMAGED:
            yield segment, first, None
        lines = enumerate(read_segment_events(tracker, objects, segment, damage))
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
    raise InputError(
        f"after: {cursor[:80]!r} is not a page cursor; leave it out to start from the beginning"
    )


def _is_of(value: object, kind: type) -> bool:
    """Tell whether a value can stand in a segment's place, or be a line's number."""
    if kind is str:
        return isinstance(value, str) and "\x00" not in value and value.isprintable()
    return type(value) is int and -_INT64 <= value < _INT64


def slice_of(segment: Segment) -> tuple[int, str, int]:
    """Return what the segments of one slice have in common."""
    return segment.commit_number, segment.scope, segment.kafka_partition


def slices(in_order: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Yield segments in replay order, a slice at a time. Memory: one slice's rows."""
    for _, some in groupby(in_order, slice_of):
        yield list(some)


def merged(
    some: Sequence[Segment], read: Callable[[Segment], Iterator[ParkedEvent]]
) -> Iterator[tuple[Segment, ParkedEvent]]:
    """Yield the events of a slice by offset, each with its segment.

    Args:
        some: segments of a slice, in replay order.
        read: opens one; called when the stream has come to its first offset.

    Events of one segment keep their order, whatever their offsets. Memory: the segments that
    overlap where the stream is.
    """
    heap: list[_Head] = []
    waiting = 0
    while heap or waiting < len(some):
        while waiting < len(some) and (not heap or some[waiting].first_offset <= heap[0][0]):
            _push(heap, waiting, read(some[waiting]))
            waiting += 1
        if not heap:
            continue
        _, index, event, rest = heapq.heappop(heap)
        yield some[index], event
        if heap:
            _push(heap, index, rest)
            continue
        end = some[waiting].first_offset if waiting < len(some) else math.inf
        for event in rest:  # alone up to there
            if event.kafka_offset >= end:
                heap.append((event.kafka_offset, index, event, rest))
                break
            yield some[index], event


_Head: TypeAlias = tuple[int, int, ParkedEvent, Iterator[ParkedEvent]]
"""Offset, index of the segment, the event there, those behind it."""


def _push(heap: list[_Head], index: int, rest: Iterator[ParkedEvent]) -> None:
    event = next(rest, None)
    if event is not None:
        heapq.heappush(heap, (event.kafka_offset, index, event, rest))


@dataclass(frozen=True, slots=True)
class SliceReading:
    """A slice's events, and what of it is damaged."""

    segments: tuple[Segment, ...]
    """Those that are whole."""
    events: Iterator[tuple[Segment, ParkedEvent]]
    """Theirs, merged, each with its segment; to be read once."""
    damaged: tuple[tuple[Segment, CorruptSegmentError], ...]


def read_slice(
    tracker: TrackerStore, objects: ObjectStore, some: Sequence[Segment]
) -> SliceReading:
    """Read a slice, each segment checked whole; see ``Parking.read_slice``."""
    return _reading([(one, partial(_checked, tracker, objects, one)) for one in some])


def read_slices(
    tracker: TrackerStore, objects: ObjectStore, slices: Iterable[list[Segment]]
) -> Generator[SliceReading]:
    """Read slices, some ahead, each segment checked whole; see ``Parking.read_slices``."""
    pool = ThreadPoolExecutor(_READERS, "waybill-reading-parked")
    ahead: deque[Sequence[tuple[Segment, Callable[[], bytes]]]] = deque()
    try:
        for some in slices:
            reads = [(one, pool.submit(_checked, tracker, objects, one).result) for one in some]
            ahead.append(reads)
            while len(ahead) > 1 and _is_much(ahead):
                yield _reading(ahead.popleft())
        while ahead:
            yield _reading(ahead.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _is_much(ahead: Sequence[Iterable[tuple[Segment, object]]]) -> bool:
    size = sum(segment.length for reads in ahead for segment, _ in reads)
    return len(ahead) > _AHEAD_SLICES or size > _AHEAD_BYTES


def _reading(reads: Iterable[tuple[Segment, Callable[[], bytes]]]) -> SliceReading:
    frames: dict[int, bytes] = {}
    damaged: list[tuple[Segment, CorruptSegmentError]] = []
    whole: list[Segment] = []
    for segment, read in reads:
        try:
            frames[segment.id] = read()
            whole.append(segment)
        except CorruptSegmentError as error:
            damaged.append((segment, error))
    stream = merged(whole, lambda segment: events_of(segment, frames.pop(segment.id)))
    return SliceReading(tuple(whole), stream, tuple(damaged))


def _checked(tracker: TrackerStore, objects: ObjectStore, segment: Segment) -> bytes:
    frame = read_frame(tracker, objects, segment)
    lines = segment.count + len(segment.copies)
    check_segment(frame or b"", segment.sha256, lines, segment.object_key, segment.position)
    return frame or b""
