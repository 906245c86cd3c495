"""The books of each replay: how many of its messages came in where, and how many its marks name.

A replay that ended by itself has marked all that it sent. One that was killed amid a group, and
cancelled, has sent messages that no mark names: their events are parked still, discarded, or sent
once more by another replay. Such messages come in like any other, so they are told by their replay:
what came in of it, or is in the log, beyond what its marks name. So the books need neither the
producer's log nor anybody who opens it, and it does not matter what happens first: the arrival, the
cancelling, a mark that is settled late, or the next replay.

Locks: rows here are written after those of partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal
from uuid import UUID

from sqlalchemy import Connection, text

ReplayEntry = tuple[str, str, str]
"""(replay id, event name, stage where it enters)."""
PartitionStage = tuple[str, str, str]
"""(pipeline id, event name, stage)."""
_ADD = """
INSERT INTO replay_entries (replay_id, event_name, stage, {column})
SELECT replays.id, given.name, given.stage, given.number
FROM unnest(CAST(:ids AS uuid[]), CAST(:names AS text[]), CAST(:stages AS text[]),
  CAST(:numbers AS bigint[])) AS given (id, name, stage, number)
JOIN replays ON replays.id = given.id
ORDER BY 1, 2, 3
ON CONFLICT (replay_id, event_name, stage)
  DO UPDATE SET {column} = replay_entries.{column} + excluded.{column}
"""
_COLUMNS = {name: text(_ADD.format(column=name)) for name in ("came_in", "marked")}
_NOT_DONE = text("""
SELECT replays.id, parked_partitions.pipeline_id, parked_partitions.stage AS parked_at,
  replays.events - replays.sent AS unsent, entry.event_name, entry.stage, entry.came_in,
  entry.marked
FROM replays
JOIN parked_partitions ON parked_partitions.id = replays.partition_id
LEFT JOIN replay_entries AS entry ON entry.replay_id = replays.id
WHERE replays.state <> 'done'
  AND (CAST(:pipeline AS text) IS NULL OR parked_partitions.pipeline_id = :pipeline)
""")


def add_entries(
    connection: Connection,
    column: Literal["came_in", "marked"],
    entries: Mapping[ReplayEntry, int],
) -> None:
    """Add to the books of replays; of those that this tracker knows.

    Args:
        connection: the transaction that takes the messages in, or marks the events.
        column: what to add to.
        entries: how many, by (replay id, event name, stage of entry).
    """
    known: Counter[tuple[UUID, str, str]] = Counter()
    for (replay_id, name, stage), number in entries.items():
        if (found := _uuid(replay_id)) is not None:
            known[found, name, stage] += number
    if known:
        ids, names, stages = zip(*known, strict=True)
        numbers = list(known.values())
        given = {"ids": list(ids), "names": list(names), "stages": list(stages)}
        connection.execute(_COLUMNS[column], {**given, "numbers": numbers})


def read_unmarked(
    connection: Connection, in_log: Mapping[ReplayEntry, int], *, pipeline_id: str | None = None
) -> Counter[PartitionStage]:
    """Count what replays sent that no mark names, by where the books look for it.

    Of replays that are cancelled or still running: one that is done has marked all it sent, so that
    what comes in beyond that is a breach. So is what exceeds the events that it had left to send.

    Args:
        connection: reads the books.
        in_log: messages of replays in the log beyond the ledger's offsets.
        pipeline_id: only of this pipeline.
    """
    found: dict[tuple[str, PartitionStage], int] = {}
    unsent: dict[str, int] = {}
    places: dict[str, tuple[str, str]] = {}
    for row in connection.execute(_NOT_DONE, {"pipeline": pipeline_id}).mappings():
        replay_id = str(row["id"])
        places[replay_id] = (row["pipeline_id"], row["parked_at"])
        unsent[replay_id] = int(row["unsent"])
        if row["event_name"] is not None:
            key = _key(replay_id, places, row["event_name"], row["stage"])
            found[key] = found.get(key, 0) + int(row["came_in"]) - int(row["marked"])
    for (replay_id, name, stage), number in in_log.items():
        if replay_id in places:
            key = _key(replay_id, places, name, stage)
            found[key] = found.get(key, 0) + number
    unmarked: Counter[PartitionStage] = Counter()
    for (replay_id, place), number in sorted(found.items()):
        own = max(0, min(number, unsent[replay_id]))
        unsent[replay_id] -= own
        unmarked[place] += own
    return unmarked


def _key(
    replay_id: str, places: Mapping[str, tuple[str, str]], name: str, stage: str
) -> tuple[str, PartitionStage]:
    """Return where the books look for a message: what parked at ingestion, there."""
    pipeline_id, parked_at = places[replay_id]
    return replay_id, (pipeline_id, name, "ingestion" if parked_at == "ingestion" else stage)


def _uuid(replay_id: str) -> UUID | None:
    try:
        return UUID(replay_id)
    except ValueError:
        return None


def count_entries(entries: Iterable[tuple[str, str, str, int]]) -> Counter[ReplayEntry]:
    """Return the sum of rows as tasks write them: replay id, event name, stage, number."""
    found: Counter[ReplayEntry] = Counter()
    for replay_id, name, stage, number in entries:
        found[replay_id, name, stage] += number
    return found
