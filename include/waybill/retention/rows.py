"""Rows of the tracker that nothing asks for any more.

Each trim goes through its table in windows, a transaction each, by an index from its old end on: it
reads what it deletes, what it has to keep, and one window. Who asks for what:

batches         the way to a destination, until they are loaded; the auditor's ranges, until it has
                looked at them; traces, to know what was committed; trimming Kafka (``records``),
                which stops at a commit of which something is to be made again from the log
ledger          minutes and totals, until they are folded; what a commit that waits brought; what is
                lost and may be made again; marks of replays, which are written once: as long as
                the replay's row is there
staged_objects  loading; refresh, until the object is deleted; what is lost, with all of its commit
segments        parked events, replays, marks that are settled late, traces of replays; their sums
                go to ``parked_partitions.trimmed_…``
replays         messages that are on their way; the books, of one that did not end by itself

What each table of the tracker grows by, and who trims it; docs/operations.md shows the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, text

from waybill.parking import lock_groups
from waybill.progress import Progress
from waybill.reconciliation import last_report
from waybill.storage import TrackerStore
from waybill.storage.tracker import parked_partitions


@dataclass(frozen=True, slots=True)
class Growth:
    """One table."""

    by: str
    """One row for each of these."""
    trimmed: str
    """When rows go, and by which setting; or why they stay."""
    lasts: bool = False
    """Rows stay for ever."""
    grows: bool = True
    """With events, or with what people do."""


def _lasts(by: str, why: str) -> Growth:
    return Growth(by, why, lasts=True, grows=why != _NAMES)


_BOOKS = "`BOOKS_DAYS`"
_NAMES = "stays: its number does not grow with events"
GROWTH: dict[str, Growth] = {
    "applications": _lasts("application of a virtual cluster", _NAMES),
    "audit_log": _lasts("decision of a person", "lasts: who did what"),
    "audit_minutes": Growth("minute of an event name in work", "the auditor, once it balances"),
    "audit_rounds": Growth("minute", "the auditor, after a day"),
    "audit_seals": _lasts("seal of the audit log", "lasts: at most one in a quarter of an hour"),
    "auto_replays": _lasts("marked partition", _NAMES),
    "batches": Growth(
        "micro-batch",
        f"{_BOOKS} after its commit, loaded and audited, once nothing up to it waits to be made "
        "again from Kafka",
    ),
    "breaches": _lasts("breach", "lasts: what did not add up, and how it ended"),
    "campaign_groups": Growth("parked group in a campaign", f"{_BOOKS} after its campaign ended"),
    "campaigns": _lasts("campaign", "lasts: who asked for what, and what came of it in numbers"),
    "capacity_acks": Growth(
        "application, or enhancer of a node, that acknowledged announced nodes",
        "the delay monitor: after three days, unless it is the newest version",
    ),
    "capacity_nodes": Growth(
        "node that declared its capacity", "the delay monitor, three days after it is gone"
    ),
    "capacity_rounds": Growth(
        "kind of node and minute", "the delay monitor: after 90 days, without a change after three"
    ),
    "capacity_thresholds": _lasts("kind of node", _NAMES),
    "capacity_versions": Growth("change of the nodes", "the infra coordinator: 100 are kept"),
    "cluster_assignments": Growth("change of who serves whom", "the coordinator: 100 are kept"),
    "cluster_loads": Growth("cluster and minute", "the coordinator, after three days"),
    "cluster_pins": _lasts("team that is pinned to a cluster", _NAMES),
    "commit_sequences": _lasts("destination, pipeline", _NAMES),
    "connector_positions": _lasts("pipeline", _NAMES),
    "consumers": _lasts("topic, destination", _NAMES),
    "cursor_resets": _lasts(
        "source that was read again", "lasts: who asked, and the cursor that stood there before"
    ),
    "delivered_minutes": Growth("pipeline and minute with loads", "folding, after three hours"),
    "deployment": _lasts("tracker", _NAMES),
    "destination_rewinds": _lasts(
        "destination that was put back to an older point", "lasts: what was lost, who settled it"
    ),
    "destination_states": _lasts("destination that is waited for", _NAMES),
    "digested_partitions": _lasts("parked partition", _NAMES),
    "intake_watermarks": _lasts("pipeline", _NAMES),
    "ledger": Growth("pipeline in a commit", f"{_BOOKS} after its commit, folded"),
    "ledger_minutes": _lasts(
        "stage of an event name in a minute with events",
        "lasts: the books by minute, of which balance and eager checks are made; not by event",
    ),
    "ledger_totals": _lasts("stage of an event name", "lasts: the sums of all books"),
    "load_positions": _lasts("destination", _NAMES),
    "loaded_tables": _lasts("table of a destination", _NAMES),
    "mapping_versions": _lasts("change of a mapping", "lasts: what rows were mapped by, and whose"),
    "notice_digests": _lasts("pipeline", _NAMES),
    "notice_messages": Growth("owner and sink with something to tell", "once it was sent"),
    "notices": Growth("thing to tell", "`WAYBILL_NOTICES__KEEP_SENT_DAYS` after it was sent"),
    "parked_objects": Growth(
        "task that parked, in a batch", f"{_BOOKS}, once it and its segments are deleted"
    ),
    "parked_partitions": _lasts("way to fail of an event name", _NAMES),
    "pipeline_holds": Growth("hold", f"{_BOOKS} after its release"),
    "pipeline_versions": _lasts("deploy", "lasts: what was deployed, and by whom"),
    "pipelines": _lasts("pipeline", _NAMES),
    "refused_messages": Growth(
        "message that Kafka refused", f"{_BOOKS}, once the object that holds it is deleted"
    ),
    "replay_entries": Growth("replay, event name and stage", "with its replay"),
    "replay_outcomes": Growth("replay and outcome", "with its replay"),
    "replays": Growth(
        "replay", f"{_BOOKS} after it was done; one that was cancelled lasts: the books ask for it"
    ),
    "segments": Growth(
        "partition in a parked object",
        f"{_BOOKS} after its object was deleted; its numbers stay in `parked_partitions`",
    ),
    "source_runs": _lasts("pipeline", _NAMES),
    "staged_objects": Growth(
        "task that passed events on, in a batch", f"{_BOOKS} after its load, once it is deleted"
    ),
    "task_waits": Growth("minute", "the delay monitor, after three days"),
    "team_loads": Growth("team and minute", "the coordinator, after a day"),
    "topic_looks": Growth("topic", "the coordinator, a day after it answered last"),
    "topic_generations": _lasts("generation of a topic", "lasts: no name comes back"),
    "topic_offsets": _lasts("topic partition", _NAMES),
    "topic_stops": _lasts("topic that was stopped", "lasts: what was lost, and how it was settled"),
    "trace_queries": Growth("question", "`WAYBILL_TRACES__KEEP_QUESTIONS_DAYS`"),
    "undeployments": _lasts("undeployed pipeline", "until it is deployed again"),
    "upkeep_jobs": _lasts("job of upkeep", _NAMES),
    "virtual_clusters": _lasts("virtual cluster", _NAMES),
    "write_ahead_logs": _lasts(
        "write-ahead log of a node",
        "30 days after it was closed; one that was taken over or settled lasts: it is never sent",
    ),
}
_SIZES = text("""
SELECT relname, pg_total_relation_size(oid) FROM pg_class
WHERE relkind = 'r' AND relnamespace = to_regnamespace(quote_ident(current_schema()))
""")


def table_sizes(tracker: TrackerStore) -> dict[str, int]:
    """Return {table of the tracker: bytes on disk, with its indexes}. Cost: one statement.

    Raises:
        RetryError: the tracker does not answer.
    """
    with tracker.transaction() as connection:
        rows = connection.execute(_SIZES).all()
    return {name: int(size) for name, size in rows if size is not None and name in GROWTH}


MOST_ROWS = 1_000
"""Rows that one transaction looks at."""
_BATCHES = text("""
WITH needed AS (
  SELECT destination, min(commit_number) AS first FROM (
    SELECT destination, commit_number FROM staged_objects WHERE state = 'lost'
    UNION ALL
    SELECT scope, commit_number FROM segments
    JOIN parked_partitions AS own ON own.id = partition_id
    WHERE own.quarantined > 0 AND state = 'quarantined' AND problem = '') AS waiting
  GROUP BY 1),
old_ones AS (
  SELECT old.* FROM commit_sequences AS sequence
  JOIN load_positions AS loaded USING (destination)
  LEFT JOIN needed USING (destination)
  CROSS JOIN LATERAL (
    SELECT id, committed_at FROM batches
    WHERE destination = sequence.destination
      AND commit_number <= least(loaded.last_commit, sequence.last - 1, needed.first - 1,
        CASE WHEN :audited
          THEN coalesce((CAST(:reached AS jsonb) ->> sequence.destination)::bigint, 0)
          ELSE sequence.last END)
    ORDER BY commit_number LIMIT :most) AS old
  WHERE old.committed_at < clock_timestamp() - make_interval(secs => :kept_s)
  LIMIT :most)
DELETE FROM batches WHERE id IN (SELECT id FROM old_ones)
""")
# A row is as old as the oldest one after it: a clock that was ahead holds nothing up.
_LEDGER = text("""
WITH seen AS (
  SELECT id, reference, folded, min(committed_at) OVER (ORDER BY id DESC)
    < clock_timestamp() - make_interval(secs => :kept_s) AS is_old
  FROM (SELECT * FROM ledger WHERE id > :after ORDER BY id LIMIT :most) AS ledger),
lost AS (
  SELECT DISTINCT destination, commit_number FROM staged_objects WHERE state = 'lost'),
waiting AS (
  SELECT 'lost:' || destination || ':' || commit_number AS reference FROM lost
  UNION ALL
  SELECT 'found:' || key FROM lost JOIN staged_objects USING (destination, commit_number)),
gone AS (
  DELETE FROM ledger USING seen
  WHERE ledger.id = seen.id AND seen.is_old AND seen.folded AND NOT CASE
    WHEN seen.reference ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(:|$)' THEN EXISTS (
      SELECT FROM batches WHERE batches.id = left(seen.reference, 36)::uuid)
    WHEN seen.reference LIKE 'replay:%' THEN EXISTS (
      SELECT FROM replays WHERE replays.id::text = split_part(seen.reference, ':', 2))
    ELSE seen.reference IN (SELECT reference FROM waiting) END
  RETURNING 1)
SELECT max(id) AS last, bool_and(is_old) AS all_old, (SELECT count(*) FROM gone) AS gone FROM seen
""")
_STAGED = text("""
WITH old AS (
  SELECT staged.* FROM commit_sequences AS sequence
  CROSS JOIN LATERAL (
    SELECT key, state, loaded_at FROM staged_objects AS own
    WHERE destination = sequence.destination AND NOT EXISTS (
      SELECT FROM staged_objects AS lost
      WHERE lost.destination = own.destination AND lost.commit_number = own.commit_number
        AND lost.state = 'lost')
    ORDER BY commit_number, key LIMIT :most) AS staged
  WHERE staged.state = 'deleted'
    AND staged.loaded_at < clock_timestamp() - make_interval(secs => :kept_s)
  LIMIT :most)
DELETE FROM staged_objects WHERE key IN (SELECT key FROM old)
""")
_PARKED_WINDOW = text("""
SELECT key, state = 'deleted'
  AND committed_at < clock_timestamp() - make_interval(secs => :kept_s) AS is_old
FROM parked_objects WHERE key > :after ORDER BY key LIMIT :most
""")
_PARTITIONS_OF = text("SELECT DISTINCT partition_id FROM segments WHERE object_key = ANY(:keys)")
_SEGMENTS = text("""
WITH gone AS (
  DELETE FROM segments WHERE object_key = ANY(:keys) AND state IN ('deleted', 'replaced')
    AND changed_at < clock_timestamp() - make_interval(secs => :kept_s)
    AND NOT EXISTS (SELECT FROM segments AS later WHERE later.source_id = segments.id)
  RETURNING partition_id, state, replay_id, count, first_event_at, last_event_at),
sums AS (
  SELECT partition_id,
    coalesce(sum(count) FILTER (WHERE state = 'deleted' AND replay_id IS NOT NULL), 0) AS replayed,
    coalesce(sum(count) FILTER (WHERE state = 'deleted' AND replay_id IS NULL), 0) AS discarded,
    min(first_event_at) AS first_event_at, max(last_event_at) AS last_event_at, count(*) AS number
  FROM gone GROUP BY 1),
kept AS (
  UPDATE parked_partitions AS own SET
    trimmed_replayed = own.trimmed_replayed + sums.replayed,
    trimmed_discarded = own.trimmed_discarded + sums.discarded,
    trimmed_first_event_at = least(own.trimmed_first_event_at, sums.first_event_at),
    trimmed_last_event_at = greatest(own.trimmed_last_event_at, sums.last_event_at)
  FROM sums WHERE own.id = sums.partition_id)
SELECT coalesce(sum(number), 0) FROM sums
""")
_OBJECTS = text("""
DELETE FROM parked_objects WHERE key = ANY(:keys) AND state = 'deleted'
  AND NOT EXISTS (SELECT FROM segments WHERE object_key = parked_objects.key)
""")
_REPLAYS = text("""
WITH old AS (
  SELECT id FROM replays
  WHERE state = 'done' AND finished_at < clock_timestamp() - make_interval(secs => :kept_s)
    AND NOT EXISTS (SELECT FROM segments WHERE replay_id = replays.id)
    AND NOT EXISTS (
      SELECT FROM replay_entries WHERE replay_id = replays.id AND came_in < marked)
  ORDER BY id LIMIT :most FOR UPDATE SKIP LOCKED),
entries AS (DELETE FROM replay_entries WHERE replay_id IN (SELECT id FROM old)),
outcomes AS (DELETE FROM replay_outcomes WHERE replay_id IN (SELECT id FROM old))
SELECT id FROM old
""")
_REPLAYS_GONE = text("DELETE FROM replays WHERE id = ANY(:ids)")
_REFUSED = text("""
DELETE FROM refused_messages WHERE (wal_id, lsn) IN (
  SELECT wal_id, lsn FROM refused_messages AS old
  WHERE parked_at < clock_timestamp() - make_interval(secs => :kept_s)
    AND NOT EXISTS (SELECT FROM parked_objects WHERE key = old.object_key)
  LIMIT :most)
""")
_HOLDS = text("""
DELETE FROM pipeline_holds WHERE id IN (
  SELECT id FROM pipeline_holds
  WHERE released_at < clock_timestamp() - make_interval(secs => :kept_s) LIMIT :most)
""")
_CAMPAIGN_GROUPS = text("""
WITH old AS (
  SELECT id FROM campaigns WHERE ended_at < clock_timestamp() - make_interval(secs => :kept_s)),
gone AS (
  SELECT own.* FROM old CROSS JOIN LATERAL (
    SELECT campaign_id, partition_id FROM campaign_groups WHERE campaign_id = old.id LIMIT :most
  ) AS own LIMIT :most)
DELETE FROM campaign_groups AS own USING gone
WHERE own.campaign_id = gone.campaign_id AND own.partition_id = gone.partition_id
""")


def trim_rows(tracker: TrackerStore, *, kept_s: float) -> dict[str, int]:
    """Delete rows of what has been over for so long; returns {table: rows}.

    Safe to kill, and to run twice at once. Cost: about 20 µs a row that goes.

    Raises:
        RetryError: the tracker does not answer; what went is gone, the next run goes on.
    """
    return {table: trim(tracker, kept_s) for table, trim in TRIMS.items()}


def _batches(tracker: TrackerStore, kept_s: float) -> int:
    def once(connection: Connection) -> int:
        report = last_report(connection)
        reached = report.get("ranges", {}).get("after", {})
        asked = {"audited": bool(report), "reached": orjson.dumps(reached).decode()}
        return connection.execute(_BATCHES, _asked(kept_s, asked)).rowcount

    return _until_none(tracker, once)


def _ledger(tracker: TrackerStore, kept_s: float) -> int:
    gone = after = 0
    while True:
        with tracker.transaction() as connection:
            row = connection.execute(_LEDGER, _asked(kept_s, {"after": after})).one()
        if row.last is None:
            return gone
        gone, after = gone + int(row.gone), int(row.last)
        if not row.all_old:
            return gone


def _simply(statement: Any) -> Callable[[TrackerStore, float], int]:
    def trim(tracker: TrackerStore, kept_s: float) -> int:
        return _until_none(
            tracker, lambda connection: connection.execute(statement, _asked(kept_s)).rowcount
        )

    return trim


def _segments(tracker: TrackerStore, kept_s: float) -> int:
    """Trim segments, and then the objects that have none left."""
    gone, after = 0, ""
    progress = Progress("retention: the tracker", "parked files looked at")
    while True:
        with tracker.transaction() as connection:
            rows = connection.execute(_PARKED_WINDOW, _asked(kept_s, {"after": after})).all()
        if not rows:
            return gone
        after = str(rows[-1].key)
        progress.add(len(rows))
        if keys := [str(row.key) for row in rows if row.is_old]:
            with tracker.transaction() as connection:
                gone += _trim_objects(connection, keys, kept_s)


def _trim_objects(connection: Connection, keys: list[str], kept_s: float) -> int:
    ids = list(connection.execute(_PARTITIONS_OF, {"keys": keys}).scalars())
    lock_groups(connection, [parked_partitions.c.id.in_(ids)])
    gone = connection.execute(_SEGMENTS, {"keys": keys, "kept_s": kept_s}).scalar_one()
    connection.execute(_OBJECTS, {"keys": keys})
    return int(gone)


def _replays(tracker: TrackerStore, kept_s: float) -> int:
    def once(connection: Connection) -> int:
        ids = list(connection.execute(_REPLAYS, _asked(kept_s)).scalars())
        return connection.execute(_REPLAYS_GONE, {"ids": ids}).rowcount if ids else 0

    return _until_none(tracker, once)


def _until_none(tracker: TrackerStore, once: Callable[[Connection], int]) -> int:
    gone = 0
    progress = Progress("retention: the tracker", "rows deleted")
    while True:
        with tracker.transaction() as connection:
            number = once(connection)
        gone += number
        progress.add(number)
        if not number:
            return gone


def _asked(kept_s: float, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"kept_s": kept_s, "most": MOST_ROWS, **(more or {})}


TRIMS: dict[str, Callable[[TrackerStore, float], int]] = {
    "batches": _batches,
    "staged_objects": _simply(_STAGED),
    "segments": _segments,
    "replays": _replays,
    "ledger": _ledger,
    "refused_messages": _simply(_REFUSED),
    "pipeline_holds": _simply(_HOLDS),
    "campaign_groups": _simply(_CAMPAIGN_GROUPS),
}
"""In the order in which one makes room for the next."""
