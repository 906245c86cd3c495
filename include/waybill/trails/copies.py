"""Which stops belong to which copy, of an event that was taken in more than once.

An unchanged row that is read again is the same event: its id is, so its traces are found together.
What tells copies apart is where they were: the record of Kafka, the row of the commit. Copies of an
event have one key, so they keep their order from the source to the destination, also in a replay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from waybill.tracing import Trace

_Record = tuple[str, int, int]
"""Topic, partition, offset."""
Copies = tuple[int, ...]
"""Numbers of copies: 1 was taken in first."""


def ways_of_copies(
    way: Sequence[tuple[int, Trace]], commits: Mapping[str, int]
) -> dict[int, list[tuple[int, Trace, Copies]]]:
    """Return the way of each copy: {1 for the copy that was taken in first, 2, …: its stops}.

    A stop is (leg, trace, all copies that the trace stands for). Under 0, the last, is what belongs
    to a copy that cannot be told; of an event that was taken in once, everything.

    Args:
        way: (leg, trace) in the order of the way.
        commits: the commit number of each batch that is known.
    """
    copies = copies_of(way, commits)
    ways: dict[int, list[tuple[int, Trace, Copies]]] = defaultdict(list)
    for leg, trace in way:
        numbers = copies.get(id(trace), ())
        for number in numbers or (0,):
            ways[number].append((leg, trace, numbers))
    return {number: ways[number] for number in sorted(ways, key=lambda one: (one == 0, one))}


def copies_of(way: Sequence[tuple[int, Trace]], commits: Mapping[str, int]) -> dict[int, Copies]:
    """Return {id() of a trace: the copies that it stands for}; several of a replay's only.

    Left out is what cannot be told; of an event that was taken in once, everything.

    Args:
        way: (leg, trace) in the order of the way.
        commits: the commit number of each batch that is known.
    """
    legs: dict[int, list[Trace]] = defaultdict(list)
    for leg, trace in way:
        legs[leg].append(trace)
    taken = dict(enumerate(_taken(legs.get(0, ())), 1))
    if len(taken) <= 1:  # one is no copy of another
        return {}
    found: dict[int, Copies] = {id(one): (number,) for number, one in taken.items()}
    ended = _refused(legs[0], taken)
    found |= {id(one): (number,) for number, one in ended.items()}
    for leg in sorted(legs):
        if leg:
            begun = _sent(legs[leg], ended, found)
        else:
            begun = _begun(legs[leg], {n: one for n, one in taken.items() if n not in ended})
        if leg and len(begun) == 1:
            found |= dict.fromkeys(map(id, legs[leg]), (begun[0],))
            ended[begun[0]] = legs[leg][-1]
        else:
            ended |= _followed(legs[leg], begun, commits, found)
    return found


def has_untold_copy(way: Sequence[tuple[int, Trace]]) -> bool:
    """Tell whether more records than takings in were seen: a copy's first trace is missing."""
    first = [trace for leg, trace in way if not leg]
    return len(_records(first)) > max(1, len(_taken(first)))


def _taken(stops: Iterable[Trace]) -> list[Trace]:
    """Return the takings in, in their order."""
    taken = (one for one in stops if (one.phase, one.outcome) == ("ingestion", "accepted"))
    return sorted(taken, key=lambda one: (one.at, one.kafka_offset or 0))


def _refused(stops: Iterable[Trace], taken: Mapping[int, Trace]) -> dict[int, Trace]:
    """Return the copies that Kafka did not take: they parked at the ingestion.

    Their batch, ``refused:<log>:<lsn>``, ends with the copy's number in the write-ahead log.
    """
    found: dict[int, Trace] = {}
    of_lsn = {str(one.kafka_offset): number for number, one in taken.items()}
    for stop in stops:
        if (stop.phase, stop.outcome) == ("ingestion", "parked"):
            number = of_lsn.get(stop.batch.rpartition(":")[2])
            if number is not None:
                found[number] = stop
    return found


def _begun(stops: Sequence[Trace], taken: Mapping[int, Trace]) -> list[int]:
    """Return which copies the records of the first leg are of, in their order.

    While there are fewer records than copies, a record is the next copy's only if the one behind
    that was not taken in yet: traces of an earlier one may be missing, or on their way.
    """
    first_at = sorted(min(one.at for one in those) for those in _records(stops).values())
    begun = list(taken)
    if len(first_at) >= len(begun):
        return begun
    later = list(taken.values())[1:]
    are_told = all(at < after.at for at, after in zip(first_at, later, strict=False))
    return begun if are_told else []


def _sent(
    stops: Sequence[Trace], ended: Mapping[int, Trace], found: dict[int, Copies]
) -> list[int]:
    """Return which copies a replay sent, by the parked objects that it read them from.

    Of several copies in one object perhaps some were left out, as one that was discarded: they are
    told apart once as many have come back.
    """
    sent: dict[str, list[Trace]] = defaultdict(list)
    for stop in stops:
        if stop.phase == "replay":
            sent[stop.object_key].append(stop)
    parked: dict[str, list[int]] = {key: [] for key in sent}
    for number, last in sorted(ended.items()):
        if last.outcome == "parked" and last.object_key in parked:
            parked[last.object_key].append(number)
    begun = sorted(number for numbers in parked.values() for number in numbers)
    if len(begun) not in (sum(map(len, sent.values())), len(_records(stops))):
        parked = {key: numbers for key, numbers in parked.items() if not numbers[1:]}
        begun = []
    for key, numbers in parked.items():
        _mark_sent(sent[key], numbers, found)
    return begun


def _mark_sent(sent: Sequence[Trace], numbers: Sequence[int], found: dict[int, Copies]) -> None:
    """Give a replay's traces of one object their copies: one each, or each stands for all."""
    if len(sent) == len(numbers):
        found |= {id(one): (number,) for one, number in zip(sent, numbers, strict=True)}
    elif numbers:
        found |= {id(one): tuple(numbers) for one in sent}


def _records(stops: Iterable[Trace]) -> dict[_Record, list[Trace]]:
    """Return the stops by the record of Kafka that they were at."""
    found: dict[_Record, list[Trace]] = defaultdict(list)
    for stop in stops:
        if stop.kafka_partition is not None and stop.kafka_offset is not None:
            found[stop.topic, stop.kafka_partition, stop.kafka_offset].append(stop)
    return found


def _order(record: _Record) -> tuple[int, _Record]:
    """Return what sorts records as they were written: a topic's generation 10 is after its 9."""
    return len(record[0]), record


def _followed(
    stops: Sequence[Trace],
    begun: Sequence[int],
    commits: Mapping[str, int],
    found: dict[int, Copies],
) -> dict[int, Trace]:
    """Find the copies of a leg's stops from Kafka on; return the last stop of each copy."""
    records = _records(stops)
    if len(records) > len(begun):
        return {}
    ended: dict[int, Trace] = {}
    passed: dict[int | None, list[int]] = defaultdict(list)
    for number, place in zip(begun, sorted(records, key=_order), strict=False):
        for stop in records[place]:
            found[id(stop)] = (number,)
        last = max(records[place], key=lambda stop: stop.order[1])
        ended[number] = last
        if (last.phase, last.outcome) == ("mapping", "passed"):
            passed[commits.get(last.batch)].append(number)
    return ended | _loaded(stops, passed, found)


def _loaded(
    stops: Iterable[Trace], passed: Mapping[int | None, Sequence[int]], found: dict[int, Copies]
) -> dict[int, Trace]:
    rows: dict[int | None, list[Trace]] = defaultdict(list)
    for stop in stops:
        if stop.phase == "destination":
            rows[stop.commit_number if stop.commit_number in passed else None].append(stop)
    ended: dict[int, Trace] = {}
    for commit, those in rows.items():
        numbers = passed.get(commit, ())
        if len(those) != len(numbers):
            continue
        those.sort(key=lambda stop: (stop.commit_number or 0, stop.kafka_offset or 0))
        for number, stop in zip(numbers, those, strict=True):
            found[id(stop)] = (number,)
            ended[number] = stop
    return ended
