"""Parked events to try: all that a choice names, or a sample of each fingerprint's.

A sample is drawn from the rows, before any object is read: in each stratum (the segments of one
fingerprint) every event is as likely as any other. Segments whose events are mixed, and those that
the choice cuts through, are strata of their own: their events are looked at one by one, and those
that are not wanted count as drawn.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Connection, select, text

from waybill.events import instant, window
from waybill.parking.damage import Damage
from waybill.parking.event import ParkedEvent
from waybill.parking.fingerprints import fingerprint, require_fingerprint
from waybill.parking.model import Segment
from waybill.parking.packed import CorruptSegmentError
from waybill.parking.queries import read_segment_events, segments_in_order
from waybill.parking.selection import REPLAY_ORDER, overlaps, select_segments, to_segment
from waybill.parking.states import now_in
from waybill.storage import ObjectStore, TrackerStore
from waybill.storage.tracker import segments

K = TypeVar("K", bound=Hashable)

_FLOOR = 30
"""A group gets as many at least, where the sample has room: enough for a rate of its own."""
_ROOM = 5
"""Groups get one in five of the sample's places at most; the smallest beyond are one group."""


def merged(sizes: Mapping[K, int], n: int, rest: K) -> dict[K, K]:
    """Return {group: the group it is sampled with}: itself, or ``rest`` for the smallest.

    Args:
        sizes: group to its number of events.
        n: events in the sample.
        rest: what the smallest groups are sampled as, together.
    """
    most = max(1, n // _ROOM)
    largest = sorted(sizes, key=lambda key: (-sizes[key], str(key)))
    if len(largest) <= most:
        return {key: key for key in largest}
    own = set(largest[: most - 1])
    return {key: key if key in own else rest for key in largest}


def allocated(sizes: Mapping[K, int], n: int) -> dict[K, int]:
    """Share a sample of ``n`` out: a floor for each group, the rest in proportion to their sizes.

    No group gets more than it has; all of them together at most ``n``, or all there is. There are
    at most ``n`` groups.
    """
    if sum(sizes.values()) <= n:
        return dict(sizes)
    floor = max(1, min(_FLOOR, n // (2 * len(sizes))))
    shares = {key: min(size, floor) for key, size in sizes.items()}
    while left := n - sum(shares.values()):
        open_sizes = {key: size for key, size in sizes.items() if size > shares[key]}
        whole = sum(open_sizes.values())
        wanted = {key: left * size / whole for key, size in open_sizes.items()}
        for key, more in wanted.items():
            shares[key] = min(sizes[key], shares[key] + int(more))
        if all(more < 1 for more in wanted.values()):
            for key in sorted(wanted, key=lambda key: -wanted[key])[:left]:
                shares[key] += 1
            break
    return shares


_ROWS_A_FETCH = 5_000
_SEGMENTS_A_QUERY = 500


@dataclass(frozen=True, slots=True)
class EventChoice:
    """Which of a partition's parked events; what is not given matches all."""

    since: datetime | str | None = None
    """Event time from; one that is no time counts as the time of parking."""
    until: datetime | str | None = None
    parked_since: datetime | str | None = None
    """From when on they were parked: as their segment was committed."""
    parked_until: datetime | str | None = None
    fingerprint: str | None = None
    limit: int | None = None
    """The first so many in replay order. In a sample, a segment that is cut or mixed counts whole
    towards it."""

    @property
    def window(self) -> tuple[datetime | None, datetime | None]:
        """Return the edges of event time in UTC.

        Raises:
            InputError: one is no time, or the window holds nothing.
        """
        return window(self.since, self.until)

    def wants(self, event: ParkedEvent) -> bool:
        """Tell whether one event is wanted; not asked of the time it was parked, nor the limit."""
        if self.fingerprint is not None and fingerprint_of(event) != self.fingerprint:
            return False
        since, until = self.window
        if since is None and until is None:
            return True
        at = instant(event.event_at) or instant(event.parked_at)
        if at is None:
            return True
        return (since is None or at >= since) and (until is None or at < until)


class Stratum(NamedTuple):
    """Segments that are sampled together."""

    fingerprint: str
    """Of all their events; empty: mixed."""
    whole: bool
    """All their events are wanted."""


_REST = Stratum("", whole=False)


@dataclass(slots=True)
class Drawn:
    """A stratum's numbers; whole once all events were taken from the iterator."""

    population: int
    """Events in its segments."""
    drawn: int = 0
    """Events read, wanted or not."""


@dataclass(slots=True)
class EventSample:
    """Events to try, and what they stand for."""

    events: Iterator[tuple[Stratum, ParkedEvent]]
    """Read as they are taken; memory: a segment."""
    strata: dict[Stratum, Drawn] = field(default_factory=dict)
    damage: Damage = field(default_factory=Damage)
    """What could not be read: damaged segments, and those whose object is gone."""


def fingerprint_of(event: ParkedEvent) -> str:
    """Return an event's fingerprint; computed where a release parked it that knew none."""
    return event.fingerprint or fingerprint(event.message, event.where)


def draw(
    tracker: TrackerStore,
    objects: ObjectStore,
    partition_id: int,
    choice: EventChoice,
    n: int | None,
    seed: int | None,
) -> EventSample:
    """Return all events of a choice, or a sample of them; see ``Parking.draw``."""
    conditions = _conditions(partition_id, choice)
    sample = EventSample(iter(()))
    if n is None:
        sample.events = _all(tracker, objects, conditions, choice, sample)
        return sample
    with tracker.transaction(long_statements=True) as connection:
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        sizes: Counter[Stratum] = Counter()
        for row in _rows(connection, conditions, choice):
            sizes[row.stratum] += row.events
        together = merged(sizes, n, _REST)
        populations: Counter[Stratum] = Counter()
        for stratum, size in sizes.items():
            populations[together[stratum]] += size
        places = _places(populations, n, seed)
        picks = _picks(_rows(connection, conditions, choice), together, places)
    sample.strata = {stratum: Drawn(size) for stratum, size in populations.items()}
    sample.events = _picked(tracker, objects, picks, choice, sample)
    return sample


def _conditions(partition_id: int, choice: EventChoice) -> list[ColumnElement[bool]]:
    columns = segments.c
    conditions = [
        columns.partition_id == partition_id,
        *now_in(["parked"]),
        *overlaps(*choice.window),
    ]
    since, until = window(choice.parked_since, choice.parked_until, prefix="parked_")
    if since is not None:
        conditions.append(columns.parked_at >= since)
    if until is not None:
        conditions.append(columns.parked_at < until)
    if choice.fingerprint is not None:
        conditions.append(columns.fingerprint.in_([require_fingerprint(choice.fingerprint), ""]))
    return conditions


class _Row(NamedTuple):
    id: int
    events: int
    stratum: Stratum


def _rows(
    connection: Connection, conditions: Sequence[ColumnElement[bool]], choice: EventChoice
) -> Iterator[_Row]:
    """Yield segments in replay order, up to the limit; the last one's count is cut to it."""
    names = ("id", "count", "fingerprint", "first_event_at", "last_event_at")
    query = select(*[segments.c[name] for name in names]).where(*conditions)
    ordered = query.order_by(*REPLAY_ORDER).execution_options(yield_per=_ROWS_A_FETCH)
    left = choice.limit
    for number, count, known, first, last in connection.execute(ordered):
        taken = count if left is None else min(count, left)
        if taken:
            stratum = Stratum(known, _is_whole(choice, known, first, last))
            yield _Row(int(number), int(taken), stratum)
        if left is not None:
            left -= taken
            if left == 0:
                return


def _is_whole(choice: EventChoice, known: str, first: datetime, last: datetime) -> bool:
    since, until = choice.window
    in_window = (since is None or first >= since) and (until is None or last < until)
    return in_window and (choice.fingerprint is None or choice.fingerprint == known)


def _places(
    populations: Counter[Stratum], n: int, seed: int | None
) -> dict[Stratum, Iterator[int]]:
    """Return, for each stratum, which of its events are drawn: numbers from 0, in order."""
    rng = random.Random(seed)  # noqa: S311 - a sample, no secret
    return {
        stratum: iter(sorted(rng.sample(range(populations[stratum]), share)))
        for stratum, share in sorted(allocated(populations, n).items())
    }


_Picks = dict[int, tuple[Stratum, list[int]]]
"""Segment id to its stratum and the numbers of its events that are drawn."""


def _picks(
    rows: Iterator[_Row], together: dict[Stratum, Stratum], places: dict[Stratum, Iterator[int]]
) -> _Picks:
    picks: _Picks = {}
    upcoming = {stratum: next(numbers, None) for stratum, numbers in places.items()}
    begins: Counter[Stratum] = Counter()
    for row in rows:
        stratum = together[row.stratum]
        begin, end = begins[stratum], begins[stratum] + row.events
        begins[stratum] = end
        while (place := upcoming[stratum]) is not None and place < end:
            picks.setdefault(row.id, (stratum, []))[1].append(place - begin)
            upcoming[stratum] = next(places[stratum], None)
    return picks


def _picked(
    tracker: TrackerStore,
    objects: ObjectStore,
    picks: _Picks,
    choice: EventChoice,
    sample: EventSample,
) -> Iterator[tuple[Stratum, ParkedEvent]]:
    left = iter(picks)
    while ids := list(islice(left, _SEGMENTS_A_QUERY)):
        with tracker.transaction() as connection:
            query = select_segments(segments.c.id.in_(ids))
            page = [to_segment(row) for row in connection.execute(query)]
        for segment in page:
            stratum, numbers = picks[segment.id]
            wanted = set(numbers)
            events = _read(tracker, objects, segment, sample, len(numbers))
            for number, event in enumerate(events):
                if number in wanted:
                    sample.strata[stratum].drawn += 1
                    if stratum.whole or choice.wants(event):
                        yield stratum, event
                if number >= numbers[-1]:
                    break


def _all(
    tracker: TrackerStore,
    objects: ObjectStore,
    conditions: Sequence[ColumnElement[bool]],
    choice: EventChoice,
    sample: EventSample,
) -> Iterator[tuple[Stratum, ParkedEvent]]:
    given = 0
    for segment in segments_in_order(tracker, *conditions):
        for event in _read(tracker, objects, segment, sample, segment.count):
            if choice.limit is not None and given >= choice.limit:
                return
            if choice.wants(event):
                given += 1
                stratum = Stratum(fingerprint_of(event), whole=True)
                numbers = sample.strata.setdefault(stratum, Drawn(0))
                numbers.population += 1
                numbers.drawn += 1
                yield stratum, event


def _read(
    tracker: TrackerStore,
    objects: ObjectStore,
    segment: Segment,
    sample: EventSample,
    needed: int,
) -> Iterator[ParkedEvent]:
    """Return a segment's events; of one that is damaged none, and ``needed`` are noted as such."""
    try:
        return read_segment_events(tracker, objects, segment)
    except CorruptSegmentError as error:
        sample.damage.note(error, needed)
        return iter(())
