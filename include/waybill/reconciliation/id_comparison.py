"""Which events are missing or doubled in one intake minute: traces against traces. Pure.

Only traces of committed batches count; of several with one place (event, phase, batch, partition,
offset) the latest, as a batch that was tried again leaves more than one. Compared are

- ingestion and transformation: each first-pass event as often as ingestion accepted it (less what
  Kafka refused); two offsets are two events;
- transformation and mapping: each record that passed the one left something at the other, and of
  children `parent/0` to `parent/n` none between is missing. Asked for only where the ledger misses
  events there: children may have another event's name;
- mapping and destination: each event, child or not, as often as mapping passed it, replays too.

Cost: 1,000,000 events (4,000,000 traces) took 10 s of processor time and 1 GB at most; what is
beyond the limit of memory goes through temporary files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from waybill.tracing import MINUTE_SCHEMA

STAGES = ("ingestion", "transformation", "mapping", "destination")
_MEMORY = "768MB"
_SHORT = """
CREATE TYPE phases AS ENUM ('ingestion', 'transformation', 'mapping', 'destination');
CREATE TYPE outcomes AS ENUM ('accepted', 'passed', 'parked', 'filtered', 'delivered',
  'deleted', 'superseded', 'duplicate');
"""
_READ = """
CREATE TABLE raw AS SELECT event_id, phase::phases AS phase, outcome::outcomes AS outcome,
  hash(batch) AS batch, coalesce(kafka_partition, -1) AS part,
  coalesce(kafka_offset, -1) AS place, coalesce(attempt, 0) AS attempt, "at" AS moment
FROM given WHERE phase IN ('ingestion', 'transformation', 'mapping', 'destination')
"""
_COUNTING = """
CREATE TABLE traced AS SELECT event_id, phase, batch, part, place,
  arg_max(outcome, moment) AS outcome, max(attempt) AS attempt
FROM raw WHERE batch IN (SELECT hash(batch) FROM done) GROUP BY ALL
"""
_HAVE = """
SELECT phase, CASE WHEN phase <> 'ingestion' THEN count(*) ELSE
  count(*) FILTER (outcome = 'accepted')
  - count(*) FILTER (outcome = 'parked' AND attempt = 0) END
FROM traced GROUP BY 1
"""
_TO_TRANSFORMATION = """
WITH passed AS (SELECT event_id, count(*) FILTER (outcome = 'accepted')
    - count(*) FILTER (outcome = 'parked') AS times
  FROM traced WHERE phase = 'ingestion' AND attempt = 0 GROUP BY 1),
seen AS (SELECT event_id, count(*) AS times
  FROM traced WHERE phase = 'transformation' AND attempt = 0 GROUP BY 1)
SELECT event_id, coalesce(passed.times, 0) - coalesce(seen.times, 0) AS gap
FROM passed FULL JOIN seen USING (event_id) WHERE gap <> 0 ORDER BY 1
"""
_TO_MAPPING = """
WITH passed AS (SELECT * FROM traced WHERE phase = 'transformation' AND outcome = 'passed'),
mapped AS (SELECT event_id, batch, part, place FROM traced WHERE phase = 'mapping'
  UNION ALL SELECT event_id, batch, part, place FROM elsewhere),
children AS (
  SELECT passed.event_id AS parent,
    list(try_cast(substr(mapped.event_id, length(passed.event_id) + 2) AS INT)) AS known
  FROM passed JOIN mapped USING (batch, part, place)
  WHERE starts_with(mapped.event_id, passed.event_id || '/')
  GROUP BY passed.event_id, batch, part, place)
SELECT event_id, 1 FROM passed ANTI JOIN mapped USING (batch, part, place)
UNION ALL
SELECT parent || '/' || number, 1 FROM (
  SELECT parent, known, unnest(range(list_max(known))) AS number FROM children)
WHERE NOT list_contains(known, number) ORDER BY 1
"""
_TO_DESTINATION = """
WITH passed AS (SELECT event_id, count(*) AS times
  FROM traced WHERE phase = 'mapping' AND outcome = 'passed' GROUP BY 1),
seen AS (SELECT event_id, count(*) AS times FROM traced WHERE phase = 'destination' GROUP BY 1)
SELECT event_id, coalesce(passed.times, 0) - coalesce(seen.times, 0) AS gap
FROM passed FULL JOIN seen USING (event_id) WHERE gap <> 0 ORDER BY 1
"""
_QUESTIONS = {
    "transformation": _TO_TRANSFORMATION,
    "mapping": _TO_MAPPING,
    "destination": _TO_DESTINATION,
}
_RECOGNISED = """
SELECT event_id FROM traced JOIN asked USING (event_id)
WHERE phase = 'destination' OR phase <> 'ingestion' AND outcome = 'parked'
GROUP BY 1 HAVING count(*) FILTER (outcome IN ('delivered', 'deleted', 'superseded')) <= 1
  AND count(*) FILTER (outcome = 'duplicate') + greatest(0,
    count(*) FILTER (outcome = 'parked') - 1) >= max(times)
"""


@dataclass(slots=True)
class StageIds:
    """What differs between one stage and the one before it."""

    missing: list[str] = field(default_factory=list)
    """Event ids, each as often as it is missing."""
    doubled: list[str] = field(default_factory=list)
    """Event ids, each as often as it is there too much."""


@dataclass(slots=True)
class MinuteIds:
    """What the traces of one minute say."""

    have: dict[str, int]
    """Stage to traces that count; at ingestion less what Kafka refused."""
    stages: dict[str, StageIds]
    recognised: set[str]
    """Of those doubled at the transformation: the destination took all copies for duplicates, or
    all of them parked; whether parking took them for duplicates the ledger tells."""


def compare_ids(
    batches: Iterable[pa.RecordBatch],
    committed: Callable[[set[str]], set[str]],
    stages: Iterable[str],
    *,
    elsewhere: Iterable[pa.RecordBatch] = (),
) -> MinuteIds:
    """Compare the ids of one minute at each of some stages with those of the stage before.

    Args:
        batches: all traces of the minute and event name, of ``MINUTE_SCHEMA``.
        committed: tells which of these batches of traces were committed.
        stages: those to compare with the stage before; of ingestion nothing is asked.
        elsewhere: traces of the pipeline's other event names in the minute, where the mapping is
            asked for: children may have their names.
    """
    import duckdb

    config = {"memory_limit": _MEMORY, "threads": 2}
    with (
        TemporaryDirectory(prefix="waybill-ids-") as folder,
        duckdb.connect(config={**config, "temp_directory": folder}) as store,
    ):
        _fill(store, batches, committed)
        _fill_elsewhere(store, elsewhere)
        found = {name: _ids(store, name) for name in stages if name in _QUESTIONS}
        have = dict.fromkeys(STAGES, 0) | dict(store.execute(_HAVE).fetchall())
        return MinuteIds(have, found, _recognised(store, found.get("transformation")))


def _fill(
    store: Any,
    batches: Iterable[pa.RecordBatch],
    committed: Callable[[set[str]], set[str]],
) -> None:
    names: set[str] = set()

    def noted() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            names.update(batch.column("batch").unique().to_pylist())
            yield batch

    store.execute(_SHORT)
    store.register("given", pa.RecordBatchReader.from_batches(MINUTE_SCHEMA, noted()))
    store.execute(_READ)
    done = sorted(committed({name for name in names if name}))
    store.register("done", pa.table({"batch": pa.array(done, pa.string())}))
    store.execute(_COUNTING)
    store.execute("DROP TABLE raw")


def _fill_elsewhere(store: Any, batches: Iterable[pa.RecordBatch]) -> None:
    store.register("others", pa.RecordBatchReader.from_batches(MINUTE_SCHEMA, batches))
    store.execute(
        "CREATE TABLE elsewhere AS SELECT event_id, hash(batch) AS batch, "
        "coalesce(kafka_partition, -1) AS part, coalesce(kafka_offset, -1) AS place "
        "FROM others WHERE phase = 'mapping'"
    )


def _ids(store: Any, stage: str) -> StageIds:
    found = StageIds()
    for event_id, gap in store.execute(_QUESTIONS[stage]).fetchall():
        (found.missing if gap > 0 else found.doubled).extend([event_id] * abs(gap))
    return found


def _recognised(store: Any, found: StageIds | None) -> set[str]:
    if found is None or not found.doubled:
        return set()
    times: dict[str, int] = {}
    for event_id in found.doubled:
        times[event_id] = times.get(event_id, 0) + 1
    asked = pa.table(
        {
            "event_id": pa.array(list(times), pa.string()),
            "times": pa.array(list(times.values()), pa.int64()),
        }
    )
    store.register("asked", asked)
    return {row[0] for row in store.execute(_RECOGNISED).fetchall()}
