"""Books of very many batches of a pipeline, filled by the server in a few statements.

Each commit brought one event through all stages; so many of them are loaded. The numbers are what
the real commits write (``tests/integration/test_minutely_queries.py`` holds the balance to zero).
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text

from waybill.storage import TrackerStore

MINUTE = 29_000_000
_FILL = """
INSERT INTO batches (id, consumer, epoch, destination, commit_number, offsets, took_ms, committed_at)
SELECT (substr(md5(:destination), 1, 8) || lpad(to_hex(n), 24, '0'))::uuid, 'processing/' || :topic, 1, :destination, n,
  jsonb_build_array(jsonb_build_array(CAST(:topic AS text), 0, n - 1, n, 1)), 100,
  clock_timestamp() - (:commits - n) * interval '1 second'
FROM generate_series(1, :commits) AS n;

INSERT INTO ledger (reference, pipeline_id, counts, folded, committed_at)
SELECT (substr(md5(:destination), 1, 8) || lpad(to_hex(n), 24, '0'))::uuid::text, :pipeline, jsonb_build_array(
    jsonb_build_array('order', 'transformation', minute, passed),
    jsonb_build_array('order', 'mapping', minute, passed),
    jsonb_build_array('order', 'staged', minute, jsonb '[1, 0, 0, 0, 0, 0, 0, 0]')),
  true, clock_timestamp() - (:commits - n) * interval '1 second'
FROM generate_series(1, :commits) AS n, LATERAL (SELECT :base + (n - 1) / :every AS minute,
  jsonb '[1, 0, 1, 1, 0, 0, 0, 0]' AS passed) AS of_it;

INSERT INTO ledger (reference, pipeline_id, counts, folded, committed_at)
SELECT 'load:' || :destination || ':' || n, :pipeline, jsonb_build_array(
    jsonb_build_array('order', 'destination', :base + (n - 1) / :every,
      jsonb '[1, 0, 1, 1, 0, 0, 0, 0]')),
  true, clock_timestamp() - (:commits - n) * interval '1 second'
FROM generate_series(1, CASE WHEN :loads THEN :loaded ELSE 0 END) AS n;

INSERT INTO staged_objects (key, destination, commit_number, rows, bytes, state, committed_at,
  loaded_at)
SELECT 'staged/2026/01/01/' || :destination || '/' || lpad(n::text, 9, '0') || '.wbs', :destination, n, 1, 500,
  CASE WHEN n <= :loaded THEN 'loaded' ELSE 'staged' END,
  clock_timestamp() - (:commits - n) * interval '1 second',
  CASE WHEN n <= :loaded THEN clock_timestamp() - (:commits - n) * interval '1 second' END
FROM generate_series(1, :commits) AS n;

INSERT INTO ledger_minutes (pipeline_id, event_name, stage, minute, in_first, passed, out)
SELECT :pipeline, 'order', stage, :base + (n - 1) / :every, count(*), count(*), count(*)
FROM generate_series(1, :commits) AS n,
  unnest(ARRAY['ingestion', 'transformation', 'mapping', 'destination']) AS stage
WHERE stage <> 'destination' OR n <= :loaded GROUP BY 3, 4;

INSERT INTO ledger_totals (pipeline_id, event_name, stage, in_first, passed, out)
SELECT pipeline_id, event_name, stage, sum(in_first), sum(passed), sum(out) FROM ledger_minutes
WHERE pipeline_id = :pipeline GROUP BY 1, 2, 3;

INSERT INTO audit_minutes (pipeline_id, event_name, minute, changed)
SELECT DISTINCT pipeline_id, event_name, minute, 1 FROM ledger_minutes
WHERE pipeline_id = :pipeline AND minute >= :base + :loaded / :every;

INSERT INTO commit_sequences (destination, last) VALUES (:destination, :commits);
INSERT INTO load_positions (destination, last_commit) VALUES (:destination, :loaded)
"""


@dataclass(frozen=True, slots=True)
class ManyBatches:
    """What to fill in: destination and topic are new."""

    pipeline_id: str
    destination: str
    topic: str
    commits: int
    loaded: int
    every: int = 60
    """Events an intake minute."""
    loads: bool = True
    """With the ledger's rows of loads, which are as many again."""


def fill(tracker: TrackerStore, many: ManyBatches) -> None:
    """Write the books; cost: about 15 s for a million commits."""
    asked = {
        "pipeline": many.pipeline_id,
        "destination": many.destination,
        "topic": many.topic,
        "commits": many.commits,
        "loaded": many.loaded,
        "every": many.every,
        "loads": many.loads,
        "base": MINUTE,
    }
    with tracker.transaction() as connection:
        connection.execute(text("SET LOCAL synchronous_commit = off"))
        for statement in _FILL.split(";\n"):
            connection.execute(text(statement), asked)
