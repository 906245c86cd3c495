"""Offset ranges of committed batches: each topic partition's follow one another, up to the ledger.

Incremental: the round's report keeps how far each partition's ranges reached, and which commits
were looked at. A range that begins at 0 begins a topic's new generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

MOST_BATCHES = 20_000
"""Commits of all destinations that one round looks at."""
_BATCHES = text("""
SELECT destination, commit_number, offsets FROM batches
LEFT JOIN LATERAL (SELECT (CAST(:after AS jsonb) ->> batches.destination)::bigint AS last) a ON true
WHERE commit_number > coalesce(a.last, 0) ORDER BY destination, commit_number LIMIT :most
""")
_POSITIONS = text(
    "SELECT topic, partition, max(next_offset) AS at FROM topic_offsets GROUP BY 1, 2"
)


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


def check_ranges(connection: Connection, reached: Reached) -> list[RangeFault]:
    """Look at the batches committed since, in a snapshot, and move ``reached`` on.

    Cost: the batches since the last round, about 20 µs each; the first round reads all there are,
    20,000 at a time.
    """
    import orjson  # noqa: PLC0415

    asked = {"after": orjson.dumps(reached.after).decode(), "most": MOST_BATCHES}
    rows = connection.execute(_BATCHES, asked).all()
    faults: list[RangeFault] = []
    for row in rows:
        faults += _follow(reached.ends, row.commit_number, row.offsets)
        reached.after[row.destination] = int(row.commit_number)
    if len(rows) < MOST_BATCHES:
        positions = {f"{r.topic}/{r.partition}": int(r.at) for r in connection.execute(_POSITIONS)}
        faults += _beyond(reached.ends, positions)
    return faults


def _follow(
    ends: dict[str, int], commit: int, ranges: Iterable[tuple[str, int, int, int, int]]
) -> Iterable[RangeFault]:
    for topic, partition, start, end, count in ranges:
        place = f"{topic}/{partition}"
        before = ends.get(place, start)
        if start != before and start > 0:
            kind = "no batch has" if start > before else "more than one batch has"
            yield RangeFault(
                topic,
                start - before,
                f"{kind} the offsets {min(start, before)} to {max(start, before)} of {place} "
                f"(commit {commit})",
            )
        if count != end - start:
            words = (
                f"commit {commit} saw {count} records in the offsets {start} to {end} of {place}"
            )
            yield RangeFault(topic, end - start - count, words)
        ends[place] = end


def _beyond(ends: dict[str, int], positions: Mapping[str, int]) -> Iterable[RangeFault]:
    for place, at in positions.items():
        if at != ends.get(place, at):
            words = f"the ledger stands at {at} of {place}, its last batch ends at {ends[place]}"
            yield RangeFault(place.rpartition("/")[0], at - ends[place], words)
            ends[place] = at
