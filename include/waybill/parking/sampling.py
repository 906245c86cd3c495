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
from itertools import accumulate, islice
from typing import NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Connection, select, text

from waybill.parking.event import ParkedEvent
from waybill.parking.fingerprints import fingerprint_of
from waybill.parking.model import ReplayConditions, Segment
from waybill.parking.packed import CorruptSegmentError
from waybill.parking.reading import (
    Damage,
    Wanted,
    of_partition,
    read_segment_events,
    segments_in_order,
)
from waybill.parking.selection import REPLAY_ORDER, may_match, select_segments, to_segment
from waybill.parking.states import now_in
from waybill.storage import ObjectStore, TrackerStore
from waybill.storage.tracker import segments

K = TypeVar("K", bound=Hashable)
_FLOOR = 30
"""A group gets as many at least, where the sample has room: enough for a rate of its own."""
_ROOM = 5
"""Groups get one in five of the sample's places at most; the smallest beyond are one group."""
_ROWS_A_FETCH = 5_000
_SEGMENTS_A_QUERY = 500


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


def draw(
    tracker: TrackerStore,
    objects: ObjectStore,
    partition_id: int,
    choice: ReplayConditions,
    n: int | None,
    seed: int | None,
) -> EventSample:
    """Return all events of a choice, or a sample of them; see ``Parking.draw``.

    In a sample, a segment that is cut or mixed counts whole towards ``max_events``.
    """
    conditions = [*may_match(partition_id, choice), *now_in(["parked"])]
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


class _Row(NamedTuple):
    id: int
    events: int
    stratum: Stratum


def _rows(
    connection: Connection, conditions: Sequence[ColumnElement[bool]], choice: ReplayConditions
) -> Iterator[_Row]:
    """Yield segments in replay order, up to the limit; the last one's count is cut to it."""
    names = ("id", "count", "fingerprint", "first_event_at", "last_event_at")
    query = select(*[segments.c[name] for name in names]).where(*conditions)
    ordered = query.order_by(*REPLAY_ORDER).execution_options(yield_per=_ROWS_A_FETCH)
    left = choice.max_events
    for number, count, known, first, last in connection.execute(ordered):
        taken = count if left is None else min(count, left)
        if taken:
            stratum = Stratum(known, _is_whole(choice, known, first, last))
            yield _Row(int(number), int(taken), stratum)
        if left is not None:
            left -= taken
            if left == 0:
                return


def _is_whole(choice: ReplayConditions, known: str, first: datetime, last: datetime) -> bool:
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
    choice: ReplayConditions,
    sample: EventSample,
) -> Iterator[tuple[Stratum, ParkedEvent]]:
    is_wanted = choice.event_filter()
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
                    if stratum.whole or is_wanted(event):
                        yield stratum, event
                if number >= numbers[-1]:
                    break


def _all(
    tracker: TrackerStore,
    objects: ObjectStore,
    conditions: Sequence[ColumnElement[bool]],
    choice: ReplayConditions,
    sample: EventSample,
) -> Iterator[tuple[Stratum, ParkedEvent]]:
    is_wanted = choice.event_filter()
    given = 0
    for segment in segments_in_order(tracker, *conditions):
        for event in _read(tracker, objects, segment, sample, segment.count):
            if choice.max_events is not None and given >= choice.max_events:
                return
            if is_wanted(event):
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


def read_newest(
    tracker: TrackerStore,
    objects: ObjectStore,
    partition_id: int,
    wanted: Wanted,
    *,
    most_segments: int,
    most_bytes: int,
) -> list[ParkedEvent]:
    """Return the events of a partition's newest segments; see ``Parking.newest``."""
    own = of_partition(partition_id, wanted.states, wanted.fingerprint)
    newest_first = [column.desc() for column in REPLAY_ORDER]
    query = select_segments(*own).order_by(None).order_by(*newest_first).limit(most_segments)
    with tracker.transaction() as connection:
        newest = [to_segment(row) for row in connection.execute(query)]
    sizes = accumulate(segment.length for segment in newest)
    chosen = [one for one, size in zip(newest, sizes, strict=True) if size <= most_bytes]
    return [
        event
        for segment in reversed(chosen)
        for event in read_segment_events(tracker, objects, segment)
    ]


def read_sample(  # noqa: PLR0913 - conditions of one partition's events
    tracker: TrackerStore,
    objects: ObjectStore,
    partition_id: int,
    n: int,
    *,
    states: Sequence[str],
    damage: Damage | None = None,
    fingerprint: str | None = None,
) -> list[ParkedEvent]:
    """Return up to ``n`` events spread over a partition; see ``Parking.sample``."""
    wanted = of_partition(partition_id, states, fingerprint)
    listing = select(segments.c.id, segments.c.count).where(*wanted).order_by(*REPLAY_ORDER)
    with tracker.transaction() as connection:
        found = [(int(row[0]), int(row[1])) for row in connection.execute(listing)]
        chosen = _spread(found, min(n, len(found)))
        quotas = _quotas(chosen, n)
        query = select_segments(segments.c.id.in_(list(quotas)))
        picked = [to_segment(row) for row in connection.execute(query)]
    events: list[ParkedEvent] = []
    for segment in picked:
        quota = quotas[segment.id]
        wanted_lines = {index * segment.count // quota for index in range(quota)}
        lines = enumerate(read_segment_events(tracker, objects, segment, damage))
        events.extend(event for index, event in lines if index in wanted_lines)
    return events


def _spread(found: list[tuple[int, int]], number: int) -> list[tuple[int, int]]:
    """Pick ``number`` items, evenly apart."""
    return [found[index * len(found) // number] for index in range(number)]


def _quotas(chosen: list[tuple[int, int]], n: int) -> dict[int, int]:
    """Share ``n`` events out over segments (id, count), as evenly as their counts allow."""
    quotas: dict[int, int] = {}
    left = n
    for done, (segment_id, count) in enumerate(sorted(chosen, key=lambda item: item[1])):
        share = -(-left // (len(chosen) - done))
        quotas[segment_id] = min(share, count)
        left -= quotas[segment_id]
    return {segment_id: quota for segment_id, quota in quotas.items() if quota}
