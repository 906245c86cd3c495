"""Late: the oldest event on its way to a stage, or a connector's run, is over its objective.

Age is the time that an event has waited before the stage (since Kafka or the tracker took it), not
that since its intake: a replayed event is not late for having been parked. What is parked waits for
people and is not on its way. It is over when the oldest is below four fifths of the objective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, text

from waybill.errors import ParkError
from waybill.events import decode
from waybill.ledger import WAITING_COUNTS, live_names, topic_positions, waiting_asked
from waybill.pipelines import PipelineHead, cron_schedule, topic_of
from waybill.reconciliation.checks.findings import Finding, OpenFindings, events, span
from waybill.reconciliation.checks.limits import WatchLimits
from waybill.settings import WaitingStage
from waybill.storage import KafkaLog, TrackerStore
from waybill.topics import read_stops

_OVER_SHARE = 0.8
_UNSCHEDULED = ("@once", "@continuous")
_CRON = {"@quarterly": "0 0 1 */3 *"}
_WAITS = {"transformation": "the oldest event in the log", "destination": "the oldest staged rows"}
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
class Oldest:
    """The oldest of what waits before a stage."""

    pipeline_id: str
    stage: WaitingStage
    since: datetime
    """Since when it waits."""
    where: str = ""
    """A topic's partition, a commit: for people."""
    waiting: int = 0
    """Events that wait there; 0: not counted."""
    event_id: str = ""


def is_late(oldest: Oldest, now: datetime, objective_s: float, *, told: bool) -> bool:
    """Tell whether the oldest is over its objective; once ``told``, until it is well below."""
    limit = objective_s * (_OVER_SHARE if told else 1.0)
    return (now - oldest.since).total_seconds() > limit


def due_run(schedule: str | None, ended: datetime, now: datetime) -> datetime | None:
    """Return when the first run was due after the one that ended last; None: none is due yet.

    Args:
        schedule: of the pipeline, by ``cron_schedule``; by hand, once, continuously: never due.
        ended: when its last run ended.
        now: the time.
    """
    if schedule is None or schedule in _UNSCHEDULED:
        return None
    from croniter import croniter  # type: ignore[import-untyped]

    due = croniter(_CRON.get(schedule, schedule), ended.astimezone(UTC)).get_next(datetime)
    return due if due <= now else None


@dataclass(frozen=True, slots=True)
class Lateness:
    """The three checks, of one look."""

    tracker: TrackerStore
    log: KafkaLog
    pipelines: Mapping[str, PipelineHead]
    limits: WatchLimits
    known: OpenFindings
    now: datetime

    def runs(self) -> list[Finding]:
        """Return the pipelines whose scheduled run did not come, or has not ended."""
        with self.tracker.transaction() as connection:
            ended = _ended_runs(connection)
        found = []
        for pipeline_id, at in sorted(ended.items()):
            pipeline = self.pipelines.get(pipeline_id)
            if pipeline is None:
                continue
            due = due_run(cron_schedule(pipeline.schedule, pipeline.id), at, self.now)
            if due is None:
                continue
            words = (
                f"a run of {pipeline.name} was due at {due:%H:%M on %a %d %b} "
                f"({pipeline.schedule}); the last one ended at {at:%H:%M on %a %d %b}"
            )
            found += self._told_of(Oldest(pipeline_id, "ingestion", due, words))
        return found

    def in_log(self) -> list[Finding]:
        """Return the pipelines whose oldest event in the log waits for too long."""
        topics: dict[str, list[str]] = {}
        for pipeline in sorted(self.pipelines.values(), key=lambda one: one.id):
            topics.setdefault(topic_of(pipeline), []).append(pipeline.id)
        with self.tracker.transaction() as connection:
            names = live_names(connection, topics)
        ids = {name: topics[topic] for topic, own in names.items() for name in own}
        return self._late(_oldest_in_log(self.tracker, self.log, ids))

    def staged(self) -> list[Finding]:
        """Return the pipelines whose oldest rows wait too long to be loaded."""
        with self.tracker.transaction() as connection:
            waiting = _oldest_staged(connection)
        return self._late(waiting)

    def _late(self, waiting: Sequence[Oldest]) -> list[Finding]:
        newest_first = sorted(waiting, key=lambda one: one.since, reverse=True)
        oldest = {one.pipeline_id: one for one in newest_first}
        return [finding for one in oldest.values() for finding in self._told_of(one)]

    def _told_of(self, one: Oldest) -> list[Finding]:
        objective = self.limits.late_after(one.stage, self._name(one.pipeline_id), one.pipeline_id)
        standing = ("late", one.pipeline_id, "", one.stage) in self.known.standing
        if not is_late(one, self.now, objective, told=standing):
            return []
        age_s = round((self.now - one.since).total_seconds())
        detail = {
            "age_s": age_s,
            "objective_s": objective,
            "since": one.since.isoformat(),
            "where": one.where,
            "waiting": one.waiting,
            "event_id": one.event_id,
        }
        words = f"{self._said(one, age_s)}; the objective is {span(objective)}"
        return [Finding("late", one.pipeline_id, words, stage=one.stage, detail=detail)]

    def _said(self, one: Oldest, age_s: int) -> str:
        if one.stage == "ingestion":
            return one.where
        name = self._name(one.pipeline_id)
        waiting = f"{events(one.waiting)} wait there"
        return f"{name}: {_WAITS[one.stage]} waits for {span(age_s)} ({one.where}; {waiting})"

    def _name(self, pipeline_id: str) -> str:
        pipeline = self.pipelines.get(pipeline_id)
        return pipeline_id if pipeline is None else pipeline.name


def _oldest_staged(connection: Connection) -> list[Oldest]:
    """Return for each pipeline the oldest of its rows that wait to be loaded.

    ``waiting`` counts the first 2,000 commits of a destination that wait.
    """
    return [
        Oldest(str(row.pipeline_id), "destination", row.since, str(row.at), int(row.waiting))
        for row in connection.execute(_STAGED, waiting_asked(most=_MOST_WAITING))
    ]


def _ended_runs(connection: Connection) -> dict[str, datetime]:
    """Return {pipeline id: when its last run of ingestion ended, or took a page}."""
    return {str(row[0]): row[1] for row in connection.execute(_RUNS)}


def _oldest_in_log(
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
