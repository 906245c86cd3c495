"""What the eager checks are told: measured in the tracker and in the log, a few statements a look.

Costs, for each pipeline: one step of an index for the newest minute; 6,000 steps for one that
brings nothing; a day of minutes for one of whose events suspiciously many park. The ledger is
folded before (``waybill.ledger.fold``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

from sqlalchemy import Connection, text

from waybill.errors import ParkError
from waybill.events import decode
from waybill.ledger import WAITING_COUNTS, topic_positions, waiting_asked
from waybill.reconciliation.checks.ages import Oldest
from waybill.reconciliation.checks.parked import WINDOW_MINUTES, Window
from waybill.reconciliation.checks.quiet import HISTORY_WEEKS, SLOT_MINUTES, WEEK
from waybill.storage import KafkaLog, TrackerStore
from waybill.topics import read_stops

_WEEK_MINUTES = WEEK * SLOT_MINUTES
_HISTORY_DAYS = 8
_DAY_MINUTES = 24 * 60
_AROUND_MINUTES = 60
_NEAR_MINUTES = 6 * 60
_NEWEST = text("""
SELECT pipelines.id, newest.minute FROM pipelines
CROSS JOIN LATERAL (
  SELECT minute FROM ledger_minutes
  WHERE pipeline_id = pipelines.id AND stage = 'ingestion' AND in_first > 0 AND minute <= :now
  ORDER BY minute DESC LIMIT 1) AS newest
""")
_ACTIVE = text("""
SELECT slot FROM generate_series(CAST(:since AS int), CAST(:until AS int)) AS slot
WHERE EXISTS (
  SELECT 1 FROM ledger_minutes
  WHERE pipeline_id = :pipeline AND minute >= slot * :size AND minute < (slot + 1) * :size
    AND stage = 'ingestion' AND in_first > 0)
ORDER BY slot
""")
_TAKEN_IN = text("""
SELECT coalesce(sum(in_first), 0) FROM ledger_minutes
WHERE pipeline_id = :pipeline AND stage = 'ingestion' AND minute > :since AND minute <= :until
""")
_RECENT = text("""
SELECT pipelines.id, recent.taken_in, recent.parked FROM pipelines
CROSS JOIN LATERAL (
  SELECT coalesce(sum(in_first) FILTER (WHERE stage = 'ingestion'), 0)::bigint AS taken_in,
    coalesce(sum(parked), 0)::bigint AS parked
  FROM ledger_minutes
  WHERE pipeline_id = pipelines.id AND minute > :since AND minute <= :until) AS recent
WHERE recent.taken_in > 0
""")
_WINDOWS = text("""
SELECT sum(in_first) FILTER (WHERE stage = 'ingestion')::bigint AS taken_in,
  sum(parked)::bigint AS parked
FROM unnest(CAST(:ends AS int[])) AS window_end
JOIN ledger_minutes ON pipeline_id = :pipeline
  AND minute > window_end - :size AND minute <= window_end
GROUP BY window_end
""")
_MOST_WAITING = 2_000
"""Commits of a destination, the oldest first, that are looked at for the oldest rows."""
_STAGED = text(f"""
WITH {WAITING_COUNTS}
SELECT pipeline_id, min(committed_at) AS since,
  sum((row->3->>0)::bigint + (row->3->>1)::bigint)::bigint AS waiting,
  (array_agg(destination || ' commit ' || commit_number ORDER BY committed_at))[1] AS at
FROM waiting, jsonb_array_elements(counts) AS row
WHERE row->>1 = 'staged' GROUP BY 1
""")
_RUNS = text("SELECT pipeline_id, updated_at FROM connector_positions")


@dataclass(frozen=True, slots=True)
class Usual:
    """What some hours brought in the weeks before."""

    events: int
    """The median of the weeks."""
    weeks: tuple[int, ...]
    """Of each week, the newest first."""


def newest_minutes(connection: Connection, now_minute: int) -> dict[str, int]:
    """Return {pipeline id: the newest minute in which it took events in}."""
    rows = connection.execute(_NEWEST, {"now": now_minute})
    return {str(row[0]): int(row[1]) for row in rows}


def active_slots(connection: Connection, pipeline_id: str, now_slot: int) -> list[int]:
    """Return the numbers of the slots in which a pipeline took events in, rising."""
    given = {
        "pipeline": pipeline_id,
        "since": now_slot - HISTORY_WEEKS * WEEK,
        "until": now_slot,
        "size": SLOT_MINUTES,
    }
    return [int(row[0]) for row in connection.execute(_ACTIVE, given)]


def usual_events(
    connection: Connection, pipeline_id: str, *, since: int, until: int, weeks: int
) -> Usual:
    """Return what the minutes after ``since`` up to ``until`` brought in the weeks before."""
    found = []
    for week in range(1, weeks + 1):
        back = week * _WEEK_MINUTES
        given = {"pipeline": pipeline_id, "since": since - back, "until": until - back}
        found.append(int(connection.execute(_TAKEN_IN, given).scalar_one()))
    return Usual(int(median(found)) if found else 0, tuple(found))


def recent_windows(connection: Connection, now_minute: int) -> dict[str, Window]:
    """Return {pipeline id: what came in during the last window of whole minutes}."""
    given = {"since": now_minute - 1 - WINDOW_MINUTES, "until": now_minute - 1}
    rows = connection.execute(_RECENT, given)
    return {str(row[0]): Window(int(row[1]), int(row[2])) for row in rows}


def earlier_windows(connection: Connection, pipeline_id: str, now_minute: int) -> list[Window]:
    """Return a pipeline's windows of the last 6 hours, and of these hours of the last 8 days."""
    newest = now_minute - 1 - WINDOW_MINUTES
    ends = list(range(newest - _NEAR_MINUTES, newest + 1, WINDOW_MINUTES))
    for day in range(1, _HISTORY_DAYS + 1):
        then = newest - day * _DAY_MINUTES
        ends += range(then - _AROUND_MINUTES, then + _AROUND_MINUTES + 1, WINDOW_MINUTES)
    given = {"pipeline": pipeline_id, "ends": ends, "size": WINDOW_MINUTES}
    rows = connection.execute(_WINDOWS, given)
    return [Window(int(row[0] or 0), int(row[1] or 0)) for row in rows]


def oldest_staged(connection: Connection) -> list[Oldest]:
    """Return for each pipeline the oldest of its rows that wait to be loaded.

    ``waiting`` counts the first 2,000 commits of a destination that wait.
    """
    return [
        Oldest(str(row.pipeline_id), "destination", row.since, str(row.at), int(row.waiting))
        for row in connection.execute(_STAGED, waiting_asked(most=_MOST_WAITING))
    ]


def ended_runs(connection: Connection) -> dict[str, datetime]:
    """Return {pipeline id: when its last run of ingestion ended, or took a page}."""
    return {str(row[0]): row[1] for row in connection.execute(_RUNS)}


def oldest_in_log(
    tracker: TrackerStore, log: KafkaLog, topics: Mapping[str, Sequence[str]]
) -> list[Oldest]:
    """Return the first unread event of each partition of topics, as far as there is one.

    Args:
        tracker: the books.
        log: where the topics are.
        topics: {topic: ids of the pipelines that write to it}; the first stands for an event that
            cannot be read.

    Raises:
        RetryError: Kafka or the tracker does not answer.
        StopError: a topic is not the one that the ledger knows.
    """
    found = []
    stopped = {stop.topic for stop in read_stops(tracker)}  # told already, and not read
    for name in sorted((set(topics) & log.topics()) - stopped):
        topic = log.describe(name)
        known = topic_positions(
            tracker, cluster_id=topic.cluster_id, topic_id=topic.topic_id, topic=name
        )
        marks = {number: high for number, (_, high) in log.watermarks(topic).items()}
        unread = {number: known.get(number, 0) for number, high in marks.items()}
        behind = {number: at for number, at in unread.items() if at < marks[number]}
        for number, (at_ms, value) in log.first(name, behind).items():
            pipeline_id, event_id = _names(value, topics[name][0])
            found.append(
                Oldest(
                    pipeline_id,
                    "transformation",
                    datetime.fromtimestamp(at_ms / 1000, UTC),
                    f"{name}, partition {number}, offset {behind[number]}",
                    marks[number] - behind[number],
                    event_id,
                )
            )
    return found


def _names(value: bytes, otherwise: str) -> tuple[str, str]:
    """Return an event's pipeline id and id."""
    try:
        event = decode(value)
    except ParkError:
        return otherwise, ""
    return event.pipeline_id, event.id
