"""Digests: once an interval and pipeline, the numbers of what is parked, as one notice.

What is new since the last digest comes from counters, never from segments: a partition's events
ever parked are parked + replaying + replayed + discarded + quarantined, and no move changes that
sum. It is kept as the last digest told it, and so is what was held then: what came to be empty
since is told once.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from waybill.notices.writing import write_notice
from waybill.storage import TrackerStore

MOST_NAMED = 10
"""Partitions of a pipeline that a digest names; the rest it counts."""

_PIPELINES = text("""
    WITH RECURSIVE found AS (
        (SELECT pipeline_id FROM parked_partitions ORDER BY pipeline_id LIMIT 1)
        UNION ALL
        SELECT (SELECT p.pipeline_id FROM parked_partitions p
                WHERE p.pipeline_id > found.pipeline_id ORDER BY p.pipeline_id LIMIT 1)
        FROM found WHERE found.pipeline_id IS NOT NULL)
    SELECT found.pipeline_id FROM found LEFT JOIN notice_digests d USING (pipeline_id)
    WHERE found.pipeline_id IS NOT NULL
      AND (d.digested_at IS NULL
           OR d.digested_at <= clock_timestamp() - make_interval(secs => :interval))
    ORDER BY 1
""")
"""One probe of the index for each pipeline, whatever the number of partitions."""

_TAKE = text("""
    INSERT INTO notice_digests AS d (pipeline_id, digested_at)
    VALUES (:pipeline, clock_timestamp())
    ON CONFLICT (pipeline_id) DO UPDATE SET digested_at = EXCLUDED.digested_at
    WHERE d.digested_at <= clock_timestamp() - make_interval(secs => :interval)
    RETURNING (xmax = 0) AS first_look
""")

_NUMBERS = text("""
    WITH seen AS MATERIALIZED (
        SELECT p.id, p.event_name, p.stage, p.error_type, p.last_message, p.discarded_to,
               p.parked + p.replaying AS held, coalesce(d.held, 0) AS held_before,
               p.parked + p.replaying + p.replayed + p.discarded + p.quarantined AS ever,
               coalesce(d.ever, 0) AS ever_before
        FROM parked_partitions p LEFT JOIN digested_partitions d ON d.partition_id = p.id
        WHERE p.pipeline_id = :pipeline),
    kept AS (
        INSERT INTO digested_partitions AS d (partition_id, ever, held)
        SELECT id, ever, held FROM seen WHERE ever <> ever_before OR held <> held_before
        ON CONFLICT (partition_id) DO UPDATE SET ever = EXCLUDED.ever, held = EXCLUDED.held),
    told AS (
        SELECT *, greatest(ever - ever_before, 0) AS new,
               count(*) OVER () AS partitions, (sum(held) OVER ())::bigint AS held_in_all,
               (sum(greatest(ever - ever_before, 0)) OVER ())::bigint AS new_in_all
        FROM seen WHERE held > 0 OR held <> held_before OR ever <> ever_before
        ORDER BY new DESC, held DESC, id LIMIT :most)
    SELECT told.*, oldest.parked_at AS oldest
    FROM told LEFT JOIN LATERAL (
        SELECT min(parked_at) AS parked_at FROM (
            (SELECT parked_at FROM segments WHERE partition_id = told.id AND state = 'parked'
             AND id > told.discarded_to ORDER BY commit_number LIMIT 1)
            UNION ALL
            (SELECT parked_at FROM segments WHERE partition_id = told.id AND state = 'replaying'
             ORDER BY commit_number LIMIT 1)) firsts) oldest ON true
    ORDER BY new DESC, held DESC, id
""")


def write_digests(tracker: TrackerStore, *, interval_s: float) -> int:
    """Write the digests that are due, each in a transaction; returns how many.

    A pipeline's first one comes an interval after the first look at it: what parks first is told
    by a notice of its own.
    """
    with tracker.transaction() as connection:
        due = list(connection.execute(_PIPELINES, {"interval": interval_s}).scalars())
    written = 0
    for pipeline_id in due:
        with tracker.transaction() as connection:
            written += _write(connection, pipeline_id, interval_s)
    return written


def _write(connection: Connection, pipeline_id: str, interval_s: float) -> bool:
    values = {"pipeline": pipeline_id, "interval": interval_s}
    first_look = connection.execute(_TAKE, values).scalar()
    if first_look is None or first_look:
        return False
    rows = connection.execute(_NUMBERS, {"pipeline": pipeline_id, "most": MOST_NAMED}).all()
    if not rows:
        return False
    write_notice(
        connection,
        kind="digest",
        pipeline_id=pipeline_id,
        parked=rows[0].held_in_all,
        new=rows[0].new_in_all,
        kinds=rows[0].partitions,
        partitions=[_named(row) for row in rows],
    )
    return True


def _named(row: Any) -> dict[str, Any]:
    oldest: datetime | None = row.oldest
    return {
        "event_name": row.event_name,
        "stage": row.stage,
        "error_type": row.error_type,
        "new": row.new,
        "parked": row.held,
        "oldest": None if oldest is None else f"{oldest:%Y-%m-%d %H:%M} UTC",
        "message": row.last_message,
    }
