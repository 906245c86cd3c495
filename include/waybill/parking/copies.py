"""Copies: an event that is parked already, and would park again with the same id and version.

They come from a producer's recovery, a source's second read, or a replay that was killed and sent
its events again. A copy stays a line of its frame, is named in ``segments.copies``, never counted
and never given; the books count it ``duplicate``, at its own intake minute.

The rule
  An event is a copy when, in its partition,
  - a segment that is parked or replaying, and whose time span touches its own, holds its identity
    in a line that is no copy itself - but for segments of the replay that the event came with; or
  - an event before it in the same commit that is no copy has its identity.
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
    are discarded ones: somebody decided about those events, not about this one.
In doubt an event parks twice, which the destination sees; it is never dropped for one that may be
gone.

Who writes at the same time: the partition's row is locked before segments are looked at, so of two
writers one sees what the other parked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from sqlalchemy import Connection, text

from waybill.parking.identities import ANY_REPLAY, ID_BYTES, NO_ID, unpack_ids
from waybill.parking.packed import PartitionKey, SegmentDescriptor

CopyKey = tuple[str, str, str, int]
"""(pipeline id, event name, stage, intake minute)."""
_STORED = text("""
SELECT s.partition_id, coalesce(s.replay_id::text, ''), s.ids, s.copies
FROM unnest(CAST(:ids AS bigint[]), CAST(:firsts AS timestamptz[]), CAST(:lasts AS timestamptz[]))
  AS given (id, first_at, last_at)
JOIN segments s ON s.partition_id = given.id AND s.state IN ('parked', 'replaying')
  AND s.last_event_at >= given.first_at AND s.first_event_at <= given.last_at
WHERE s.ids IS NOT NULL
""")


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
    partitions: Mapping[PartitionKey, int],
    known: set[PartitionKey],
) -> Copies:
    """Return the copies among segments that are about to be recorded.

    Args:
        connection: its transaction holds the partitions' rows.
        segments: in the order they are recorded.
        partitions: ids of their partitions.
        known: the partitions that were there before.

    Cost: one statement for the known partitions, one sort of all identities; nothing more unless
    some identity is there twice.
    """
    given = [(index, segment) for index, segment in enumerate(segments) if segment.ids]
    ids = {index: unpack_ids(segment.ids) for index, segment in given}
    held = _held(connection, [s for _, s in given if s.partition in known], partitions)
    twice = _twice(list(ids.values()), [item.ids for item in held])
    found = Copies({}, Counter())
    if not twice:
        return found
    stored = _by_identity(held, twice)
    kept: set[tuple[int, bytes]] = set()
    for index, segment in given:
        partition_id = partitions[segment.partition]
        lines = []
        for line, (minute, replay_id) in enumerate(_origins(segment)):
            identity = ids[index][line * ID_BYTES : (line + 1) * ID_BYTES]
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


def _held(
    connection: Connection,
    segments: Sequence[SegmentDescriptor],
    partitions: Mapping[PartitionKey, int],
) -> list[_Held]:
    """Return the stored segments that may hold events of these."""
    spans: dict[int, tuple[datetime, datetime]] = {}
    for segment in segments:
        partition_id = partitions[segment.partition]
        first = datetime.fromisoformat(segment.first_event_at)
        last = datetime.fromisoformat(segment.last_event_at)
        before = spans.get(partition_id, (first, last))
        spans[partition_id] = (min(before[0], first), max(before[1], last))
    if not spans:
        return []
    values: dict[str, Any] = {
        "ids": list(spans),
        "firsts": [span[0] for span in spans.values()],
        "lasts": [span[1] for span in spans.values()],
    }
    rows = connection.execute(_STORED, values)
    return [_Held(int(r[0]), r[1], bytes(r[2]), frozenset(r[3] or ())) for r in rows]


def _twice(new: Sequence[bytes], stored: Sequence[bytes]) -> set[bytes]:
    """Return the identities that are in ``new`` and a second time in ``new`` or ``stored``."""
    mine = np.sort(np.frombuffer(b"".join(new), np.uint64))
    again = mine[:-1][mine[1:] == mine[:-1]]
    if stored:
        others = np.frombuffer(b"".join(stored), np.uint64)
        again = np.concatenate([again, mine[np.isin(mine, others)]])
    return {number.tobytes() for number in np.unique(again)} - {NO_ID}


def _by_identity(held: Sequence[_Held], wanted: set[bytes]) -> dict[tuple[int, bytes], set[str]]:
    """Return (partition id, identity) to the replays of the segments that hold it."""
    found: dict[tuple[int, bytes], set[str]] = defaultdict(set)
    for item in held:
        for line in range(len(item.ids) // ID_BYTES):
            identity = item.ids[line * ID_BYTES : (line + 1) * ID_BYTES]
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
