"""Copies: an event that is parked already, and would park again with the same id and version.

They come from a producer's recovery, a source's second read, or a replay that was killed and sent
its events again. A copy stays a line of its frame, is named in ``segments.copies``, never counted
and never given; the books count it ``duplicate``, at its own intake minute.

The rule
  An event is a copy when, in its partition,
  - a segment that is parked or replaying, and whose time span touches its own, holds its identity
    in a line that is no copy itself - but for segments of the replay that the event came with; or
  - an event before it in the same commit that is no copy has its identity.
  Of the stage ``ingestion`` all times touch, and a segment that is discarded, or deleted since,
  stands for its events as well: it holds records of a source, which may be read again at any time.
Why
  - The original of a replayed event is about to be marked replayed: what parks again takes its
    place, so it is no copy of it. A cancelled replay's segments count as its own as well: one that
    was whole in the producer's log may still be marked replayed.
  - A second copy of the same replayed event meets the segment where the first one parked again,
    which is of no replay or of a later one: it is a copy.
  - A copy that comes while the original is on its way in a replay is one: the replay brings the
    event itself.
  - Where it is not known with which replay an event came, it came with each.
  - Segments in quarantine are not compared: nobody can read them, so they stand for no event. Nor
    are discarded ones: somebody decided about those events, not about this one. A record of a
    source that is read again, the same bytes at the same place, is the one that was decided about.
In doubt an event parks twice, which the destination sees; it is never dropped for one that may be
gone.

Who writes at the same time: the partition's row is locked before segments are looked at, so of two
writers one sees what the other parked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, text

from waybill.parking.identities import ANY_REPLAY, NO_ID, split_ids, unpack_ids
from waybill.parking.packed import ParkedGroupKey, SegmentDescriptor

CopyKey = tuple[str, str, str, int]
"""(pipeline id, event name, stage, intake minute)."""
_TOUCHED = """
FROM unnest(CAST(:ids AS bigint[]), CAST(:firsts AS timestamptz[]), CAST(:lasts AS timestamptz[]))
  AS given (id, first_at, last_at)
JOIN parked_partitions p ON p.id = given.id
JOIN segments s ON s.partition_id = given.id AND s.state IN ('parked', 'replaying')
  AND (s.id > p.discarded_to OR s.state <> 'parked')
  AND s.last_event_at >= given.first_at AND s.first_event_at <= given.last_at
WHERE s.ids IS NOT NULL
"""
_OF_SOURCES = """
FROM unnest(CAST(:ids AS bigint[]), CAST(:firsts AS timestamptz[]), CAST(:lasts AS timestamptz[]))
  AS given (id, first_at, last_at)
JOIN segments s ON s.partition_id = given.id
  AND s.state IN ('parked', 'replaying', 'discarded', 'deleted')
WHERE s.ids IS NOT NULL
"""
_GIVE_IDS = "SELECT DISTINCT ON (s.id) s.ids"
_GIVE_SEGMENTS = (
    "SELECT DISTINCT ON (s.id) s.partition_id, coalesce(s.replay_id::text, ''), s.ids, s.copies"
)
_IDS, _IDS_OF_SOURCES = (text(f"{_GIVE_IDS} {held}") for held in (_TOUCHED, _OF_SOURCES))
_SEGMENTS, _SEGMENTS_OF_SOURCES = (
    text(f"{_GIVE_SEGMENTS} {held}") for held in (_TOUCHED, _OF_SOURCES)
)
_PAGE = 2_000
"""Segments whose identities are in memory at a time."""


@dataclass(slots=True)
class Copies:
    """What was found in the segments of one commit."""

    lines: dict[int, tuple[int, ...]]
    """Index of a segment to its lines that are copies."""
    counts: Counter[CopyKey]
    """How many there are."""


@dataclass(frozen=True, slots=True)
class _Held:
    """One stored segment."""

    partition_id: int
    replay_id: str
    ids: bytes
    copies: frozenset[int]


def find_copies(
    connection: Connection,
    segments: Sequence[SegmentDescriptor],
    partitions: Mapping[ParkedGroupKey, int],
    known: set[ParkedGroupKey],
) -> Copies:
    """Return the copies among segments that are about to be recorded.

    Args:
        connection: its transaction holds the partitions' rows.
        segments: in the order they are recorded.
        partitions: ids of their partitions.
        known: the partitions that were there before.

    Cost: one statement that fetches the identities of segments of the known partitions whose times
    touch, 2,000 segments at a time, one sort; a second one for the partitions where some identity
    is there twice.
    """
    given = [(index, segment) for index, segment in enumerate(segments) if segment.ids]
    ids = {index: unpack_ids(segment.ids) for index, segment in given}
    touching = [(index, segment) for index, segment in given if segment.partition in known]
    twice = _twice(b"".join(ids.values()), _stored_ids(connection, touching, partitions))
    found = Copies({}, Counter())
    if not twice:
        return found
    doubtful = [(index, s) for index, s in touching if not twice.isdisjoint(split_ids(ids[index]))]
    stored = _by_identity(_held(connection, doubtful, partitions), twice)
    kept: set[tuple[int, bytes]] = set()
    for index, segment in given:
        partition_id = partitions[segment.partition]
        lines = []
        each = zip(split_ids(ids[index]), _origins(segment), strict=True)
        for line, (identity, (minute, replay_id)) in enumerate(each):
            if identity not in twice:
                continue
            place = (partition_id, identity)
            if place in kept or _stands(stored.get(place, ()), replay_id):
                lines.append(line)
                found.counts[*segment.partition[:3], minute] += 1
            else:
                kept.add(place)
        if lines:
            found.lines[index] = tuple(lines)
    return found


def _stored_ids(
    connection: Connection,
    given: Sequence[tuple[int, SegmentDescriptor]],
    partitions: Mapping[ParkedGroupKey, int],
) -> Iterator[bytes]:
    """Yield the identities of all stored segments that may hold events of these, in pieces."""
    if not given:
        return
    spans = _spans(given, partitions)
    query = _IDS_OF_SOURCES if _are_of_sources(given) else _IDS
    rows = connection.execute(query, spans, execution_options={"yield_per": _PAGE})
    for page in rows.partitions():
        yield b"".join(bytes(row[0]) for row in page)


def _held(
    connection: Connection,
    given: Sequence[tuple[int, SegmentDescriptor]],
    partitions: Mapping[ParkedGroupKey, int],
) -> list[_Held]:
    """Return the stored segments that may hold events of these."""
    if not given:
        return []
    query = _SEGMENTS_OF_SOURCES if _are_of_sources(given) else _SEGMENTS
    rows = connection.execute(query, _spans(given, partitions))
    return [_Held(int(r[0]), r[1], bytes(r[2]), frozenset(r[3] or ())) for r in rows]


def _are_of_sources(given: Sequence[tuple[int, SegmentDescriptor]]) -> bool:
    """Tell whether segments are of a page of a source, of which all are parked at one stage."""
    return all(segment.stage == "ingestion" for _, segment in given)


def _spans(
    given: Sequence[tuple[int, SegmentDescriptor]], partitions: Mapping[ParkedGroupKey, int]
) -> dict[str, str]:
    """Return partitions and spans as texts of arrays, ten times as quick as lists.

    One span a segment: one event with an odd time does not make the others meet all of the past.
    """
    spans = sorted({(partitions[s.partition], s.first_event_at, s.last_event_at) for _, s in given})
    return {
        "ids": _array(str(partition_id) for partition_id, _, _ in spans),
        "firsts": _array(first for _, first, _ in spans),
        "lasts": _array(last for _, _, last in spans),
    }


def _array(items: Iterable[str]) -> str:
    return "{" + ",".join(items) + "}"


def _twice(new: bytes, stored: Iterable[bytes]) -> set[bytes]:
    """Return the identities that are in ``new`` and a second time in ``new`` or ``stored``."""
    mine = np.sort(np.frombuffer(new, np.uint64))
    if not len(mine):
        return set()
    again = [mine[:-1][mine[1:] == mine[:-1]]]
    for piece in stored:
        others = np.frombuffer(piece, np.uint64)
        nearest = mine[np.minimum(np.searchsorted(mine, others), len(mine) - 1)]
        again.append(others[nearest == others])
    return {number.tobytes() for number in np.unique(np.concatenate(again))} - {NO_ID}


def _by_identity(held: Sequence[_Held], wanted: set[bytes]) -> dict[tuple[int, bytes], set[str]]:
    """Return (partition id, identity) to the replays of the segments that hold it."""
    found: dict[tuple[int, bytes], set[str]] = defaultdict(set)
    for item in held:
        for line, identity in enumerate(split_ids(item.ids)):
            if identity in wanted and line not in item.copies:
                found[item.partition_id, identity].add(item.replay_id)
    return found


def _stands(replays: Sequence[str] | set[str], came_with: str) -> bool:
    """Tell whether a stored segment stands for an event, by the replays of those that hold it."""
    if came_with == ANY_REPLAY:
        return "" in replays
    return any(not replay or replay != came_with for replay in replays)


def _origins(segment: SegmentDescriptor) -> Iterator[tuple[int, str]]:
    """Yield (intake minute, replay id) of each line."""
    for minute, replay_id, number in segment.origins:
        for _ in range(number):
            yield minute, replay_id
