"""Offset ranges of committed batches: each topic partition's follow one another, up to the ledger.

Incremental: the round's report keeps how far each partition's ranges reached, and which commits
were looked at. A range that begins at 0 begins a topic that was made anew; one that begins where
somebody who settled a topic put the position follows the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from waybill.pipelines import base_topic

MOST_BATCHES = 20_000
"""Commits of a destination that one round looks at."""
_BATCHES = text("""
SELECT batch.* FROM commit_sequences AS sequence
CROSS JOIN LATERAL (
  SELECT destination, commit_number, offsets FROM batches
  WHERE destination = sequence.destination
    AND commit_number > coalesce((CAST(:after AS jsonb) ->> sequence.destination)::bigint, 0)
  ORDER BY commit_number LIMIT :most) AS batch
WHERE sequence.last > coalesce((CAST(:after AS jsonb) ->> sequence.destination)::bigint, 0)
ORDER BY batch.destination, batch.commit_number
""")
_POSITIONS = text(
    "SELECT topic, partition, max(next_offset) AS at FROM topic_offsets GROUP BY 1, 2"
)
_MOVES = text("""
SELECT topic, move FROM topic_stops, jsonb_array_elements(settlement -> 'moves') AS move
WHERE settled_at IS NOT NULL ORDER BY id
""")
Moves = dict[str, list[tuple[int, int]]]
""""topic/partition" to where settling it moved the position, from and to, the oldest first."""


@dataclass(frozen=True, slots=True)
class RangeFault:
    """Two ranges that do not meet, or a position that no range reaches."""

    topic: str
    gap: int
    """Records: positive: no batch has them, negative: more than one has."""
    words: str


@dataclass(slots=True)
class Reached:
    """How far ranges were looked at."""

    after: dict[str, int]
    """Destination to commit number."""
    ends: dict[str, int]
    """"topic/partition" to the end of its last range."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Reached:
        """Read what ``to_json`` gave; of nothing: the beginning."""
        return cls(dict(value.get("after", {})), dict(value.get("ends", {})))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"after": self.after, "ends": self.ends}


def check_ranges(
    connection: Connection, reached: Reached, destinations: Mapping[str, str]
) -> list[RangeFault]:
    """Look at the batches committed since, in a snapshot, and move ``reached`` on.

    Args:
        connection: reads the books.
        reached: how far the round before looked; moved on.
        destinations: topic (its first generation) to destination; a position is held against the
            ranges once all commits of its topic's destination were looked at.

    Cost: the batches since the last round, about 20 µs each; the first round reads all there are,
    20,000 of a destination at a time.
    """
    import orjson

    asked = {"after": orjson.dumps(reached.after).decode(), "most": MOST_BATCHES}
    rows = connection.execute(_BATCHES, asked).all()
    faults: list[RangeFault] = []
    moves = _read_moves(connection)
    for row in rows:
        faults += _follow(reached.ends, row.commit_number, row.offsets, moves)
        reached.after[row.destination] = int(row.commit_number)
    looked_at = Counter(row.destination for row in rows)
    partly = {name for name, number in looked_at.items() if number >= MOST_BATCHES}
    positions = {
        f"{row.topic}/{row.partition}": int(row.at)
        for row in connection.execute(_POSITIONS)
        if not partly or destinations.get(base_topic(row.topic), "") not in {"", *partly}
    }
    faults += _beyond(reached.ends, positions, moves)
    return faults


def _read_moves(connection: Connection) -> Moves:
    found: Moves = {}
    for topic, (partition, start, to) in connection.execute(_MOVES):
        found.setdefault(f"{topic}/{partition}", []).append((int(start), int(to)))
    return found


def _was_moved(moves: Moves, place: str, start: int, to: int) -> bool:
    """Tell whether a position was settled from one offset to another, by one step or several."""
    for before, after in moves.get(place, ()):
        if before == start:
            start = after
        if start == to:
            return True
    return False


def _follow(
    ends: dict[str, int], commit: int, ranges: Iterable[Sequence[Any]], moves: Moves
) -> Iterable[RangeFault]:
    for topic, partition, start, end, count, *absent in ranges:
        place = f"{topic}/{partition}"
        before = ends.get(place, start)
        if start != before and start > 0 and not _was_moved(moves, place, before, start):
            kind = "no batch has" if start > before else "more than one batch has"
            yield RangeFault(
                topic,
                start - before,
                f"{kind} the offsets {min(start, before)} to {max(start, before)} of {place} "
                f"(commit {commit})",
            )
        if count + sum(absent) != end - start:
            words = (
                f"commit {commit} saw {count} records in the offsets {start} to {end} of {place}"
            )
            yield RangeFault(topic, end - start - count, words)
        ends[place] = end


def _beyond(
    ends: dict[str, int], positions: Mapping[str, int], moves: Moves
) -> Iterable[RangeFault]:
    for place, at in positions.items():
        reached = ends.get(place, at)
        if at != reached and not _was_moved(moves, place, reached, at):
            words = f"the ledger stands at {at} of {place}, its last batch ends at {ends[place]}"
            yield RangeFault(place.rpartition("/")[0], at - ends[place], words)
            ends[place] = at
