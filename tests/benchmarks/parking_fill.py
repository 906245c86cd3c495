"""Fills a tracker with parked partitions and segments as a year of failures leaves them.

By SQL alone, so no object is in any store. Skew: the largest partition holds about 1 % of all
segments, most partitions fewer than ten. Times of parking go up with the segments over 90 days;
event times lie before them, 3 % of the segments span more than an hour. Of ten segments eight are
parked. An eighth of all segments was parked in one run, by an outage of a destination, the others
over the whole time. Indexes and the unique constraint are built after the rows, foreign keys are not checked.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

from waybill.storage import TrackerStore

PARTITIONS_A_PIPELINE = 500
SEGMENTS_AN_OBJECT = 100
LAST_PARKED_AT = "2026-01-01 00:00:00+00"
STORM = "destination_unreachable"
"""The error type of an eighth of all partitions, and of an eighth of all segments in one run."""


@dataclass(frozen=True, slots=True)
class Size:
    """How many of each."""

    partitions: int
    segments: int


_PIPELINES = """
    INSERT INTO pipelines (id, name, team)
    SELECT 'pl-' || substr(md5(n::text), 1, 12), 'flow ' || substr(md5('n' || n), 1, 6) || ' ' || n,
      'team-' || n % 40
    FROM generate_series(0, (:partitions - 1) / :each) n
"""
_OBJECTS = """
    INSERT INTO parked_objects (key, bytes, committed_at)
    SELECT 'parked/2025/10/01/' || md5(n::text)::uuid || '.jsonl.zst', 40000,
      timestamptz '2025-10-03Z' + n * (interval '90 days' / (:segments / :each_object + 1))
    FROM generate_series(0, (:segments - 1) / :each_object) n
"""
_SEGMENTS = """
    INSERT INTO segments (partition_id, object_key, position, length, count, bytes, sha256,
      first_event_at, last_event_at, state, scope, commit_number, kafka_partition, first_offset,
      fingerprint, last_message, ids, parked_at, changed_at)
    SELECT partition_id, 'parked/2025/10/01/' || md5((n / :each_object)::text)::uuid
        || '.jsonl.zst',
      (n % :each_object) * 400, 400, events, events * 420, md5(n::text) || md5((-n)::text),
      event_at - span, event_at, state, 'warehouse-' || partition_id % 20, n / 1000,
      partition_id % 12, n, substr(md5((partition_id * 3 + n % 3)::text), 1, 16),
      'column "delay" is of type integer but expression is of type text: ' || n,
      decode(repeat(md5(n::text), events), 'hex'), at, at
    FROM (
      SELECT n, at, events,
        CASE WHEN n >= :storm AND n < :storm + :segments / 8
            THEN (CASE WHEN n < :storm + :partitions / 8 THEN n - :storm
              ELSE floor(:partitions / 8 * r ^ 3)::bigint END + 1) * 8
          ELSE drawn_id - CASE WHEN drawn_id % 8 = 0 THEN 1 ELSE 0 END END AS partition_id,
        at - interval '1 second' * (1 - ln(1 - random())) * 120 AS event_at,
        CASE WHEN random() < 0.03 THEN interval '1 hour' * (1 + random() * 100)
          ELSE interval '1 second' * random() * 600 END AS span,
        CASE WHEN s < 0.8 THEN 'parked' WHEN s < 0.93 THEN 'replayed' WHEN s < 0.98 THEN 'discarded'
          WHEN s < 0.99 THEN 'quarantined' ELSE 'replaying' END AS state
      FROM (
        SELECT n, r, random() AS s,
          CASE WHEN n < :partitions THEN n ELSE floor(:partitions * r ^ 3)::bigint END + 1
            AS drawn_id, 1 + floor(random() ^ 3 * 12)::int AS events,
          timestamptz '2025-10-03Z' + n * (interval '90 days' / :segments) AS at
        FROM (SELECT n, random() AS r FROM generate_series(0, :segments - 1) n) AS numbered
      ) AS drawn
    ) AS made
"""
_PARTITIONS = """
    INSERT INTO parked_partitions (id, pipeline_id, event_name, stage, error_type, parked,
      replaying, replayed, discarded, quarantined, bytes, first_event_at, last_event_at,
      first_parked_at, last_parked_at, last_message)
    SELECT partition_id,
      'pl-' || substr(md5(((partition_id * 7919) % :partitions / :each)::text), 1, 12),
      'event_' || partition_id % 251 || '_' || partition_id,
      CASE WHEN partition_id % 8 = 0 THEN 'destination' WHEN partition_id % 97 = 1 THEN 'ingestion'
        WHEN partition_id % 3 = 1 THEN 'mapping' ELSE 'transformation' END,
      CASE WHEN partition_id % 8 = 0 THEN :eighth
        ELSE 'error_' || floor(50 * (partition_id % 1009 / 1009.0) ^ 2) END,
      coalesce(sum(count) FILTER (WHERE state = 'parked'), 0),
      coalesce(sum(count) FILTER (WHERE state = 'replaying'), 0),
      coalesce(sum(count) FILTER (WHERE state = 'replayed'), 0),
      coalesce(sum(count) FILTER (WHERE state = 'discarded'), 0),
      coalesce(sum(count) FILTER (WHERE state = 'quarantined'), 0),
      coalesce(sum(bytes) FILTER (WHERE state IN ('parked', 'replaying')), 0),
      min(first_event_at), max(last_event_at), min(parked_at), max(parked_at), max(last_message)
    FROM segments GROUP BY partition_id
"""
_TABLES = "('segments', 'parked_partitions')"
_INDEXES = f"""
    SELECT c.relname, pg_get_indexdef(c.oid), k.conname, pg_get_constraintdef(k.oid),
      i.indrelid::regclass::text
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
      LEFT JOIN pg_constraint k ON k.conindid = c.oid AND k.contype = 'u'
    WHERE i.indrelid::regclass::text IN {_TABLES} AND NOT i.indisprimary
"""


def fill(tracker: TrackerStore, size: Size) -> None:
    """Fill an empty tracker; about 25 s a million segments."""
    given = {
        "partitions": size.partitions,
        "segments": size.segments,
        "each": PARTITIONS_A_PIPELINE,
        "each_object": SEGMENTS_AN_OBJECT,
        "eighth": STORM,
        "storm": size.segments * 6 // 10,
    }
    with tracker.transaction() as connection:
        for setting in ("session_replication_role = replica", "maintenance_work_mem = '256MB'"):
            connection.execute(text(f"SET LOCAL {setting}"))
        connection.execute(text("SET LOCAL work_mem = '128MB'"))
        connection.execute(text("SELECT setseed(0.5)"))
        indexes = connection.execute(text(_INDEXES)).all()
        _drop(connection, indexes)
        for statement in (_PIPELINES, _OBJECTS, _SEGMENTS, _PARTITIONS):
            connection.execute(text(statement), given)
        _create(connection, indexes)
        connection.execute(
            text("SELECT setval('parked_partitions_id_seq', :last)"), {"last": size.partitions}
        )
    settle(tracker)


def settle(tracker: TrackerStore) -> None:
    """Do what autovacuum does between a day's work and the next."""
    with tracker.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(
            text("VACUUM (ANALYZE) segments, parked_partitions, pipelines, parked_objects")
        )
        connection.execute(text("CHECKPOINT"))


def _drop(connection: Connection, indexes: object) -> None:
    for name, _, constraint, _, table in indexes:  # type: ignore[attr-defined]
        if constraint is None:
            connection.execute(text(f"DROP INDEX {name}"))
        else:
            connection.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT {constraint}"))


def _create(connection: Connection, indexes: object) -> None:
    for _, definition, constraint, words, table in indexes:  # type: ignore[attr-defined]
        if constraint is None:
            connection.execute(text(definition))
        else:
            connection.execute(text(f"ALTER TABLE {table} ADD CONSTRAINT {constraint} {words}"))
