"""The checks of ages: runs that did not come, events that wait in the log, rows that wait.

Late is what has its oldest event on the way to a stage, or a connector's run, over its objective.
Age is the time that an event has waited before the stage (since Kafka or the tracker took it), not
that since its intake: a replayed event is not late for having been parked. What is parked waits for
people and is not on its way. It is over when the oldest is below four fifths of the objective.

Stranded are events in the write-ahead logs of runs that are gone: on a node, or a disk, that may be
lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from waybill.ledger import LogLine
from waybill.pipelines import Pipeline, topic_of
from waybill.reconciliation.checks import measurements
from waybill.reconciliation.checks.findings import Finding, Told, WatchLimits, events, span
from waybill.settings import WaitingStage
from waybill.storage import KafkaLog, TrackerStore

Stage = WaitingStage
_OVER_SHARE = 0.8
_UNSCHEDULED = ("@once", "@continuous")
_CRON = {"@quarterly": "0 0 1 */3 *"}


@dataclass(frozen=True, slots=True)
class Oldest:
    """The oldest of what waits before a stage."""

    pipeline_id: str
    stage: Stage
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
        schedule: of the pipeline; by hand, once and continuously are never due.
        ended: when its last run ended.
        now: the time.
    """
    if schedule is None or schedule in _UNSCHEDULED:
        return None
    from croniter import croniter  # type: ignore[import-untyped]

    due = croniter(_CRON.get(schedule, schedule), ended.astimezone(UTC)).get_next(datetime)
    return due if due <= now else None


_WAITS = {"transformation": "the oldest event in the log", "destination": "the oldest staged rows"}


@dataclass(frozen=True, slots=True)
class Lateness:
    """The three checks, of one look."""

    tracker: TrackerStore
    log: KafkaLog
    pipelines: Mapping[str, Pipeline]
    limits: WatchLimits
    told: Told
    now: datetime

    def runs(self) -> list[Finding]:
        """Return the pipelines whose scheduled run did not come, or has not ended."""
        with self.tracker.transaction() as connection:
            ended = measurements.ended_runs(connection)
        found = []
        for pipeline_id, at in sorted(ended.items()):
            pipeline = self.pipelines.get(pipeline_id)
            due = None if pipeline is None else due_run(pipeline.schedule, at, self.now)
            if pipeline is None or due is None:
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
        return self._late(measurements.oldest_in_log(self.tracker, self.log, topics))

    def staged(self) -> list[Finding]:
        """Return the pipelines whose oldest rows wait too long to be loaded."""
        with self.tracker.transaction() as connection:
            waiting = measurements.oldest_staged(connection)
        return self._late(waiting)

    def _late(self, waiting: Sequence[Oldest]) -> list[Finding]:
        newest_first = sorted(waiting, key=lambda one: one.since, reverse=True)
        oldest = {one.pipeline_id: one for one in newest_first}
        return [finding for one in oldest.values() for finding in self._told_of(one)]

    def _told_of(self, one: Oldest) -> list[Finding]:
        objective = self.limits.late_after(one.stage, self._name(one.pipeline_id), one.pipeline_id)
        standing = ("late", one.pipeline_id, "", one.stage) in self.told.standing
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


_MOST_NAMED = 3


def look_at_stranded(logs: Sequence[LogLine], unseen_s: float) -> list[Finding]:
    """Return the pipelines with events in a log that was not seen for ``unseen_s``.

    Args:
        logs: those that are open. Replays are left out: what they hold is parked still.
        unseen_s: a run that goes on tells the tracker every few seconds.
    """
    held: dict[str, list[LogLine]] = {}
    for one in logs:
        gone = one.state == "open" and one.unsettled and one.unseen_s >= unseen_s
        if gone and one.purpose == "ingestion":
            held.setdefault(one.pipeline_id, []).append(one)
    return [_finding(pipeline_id, found) for pipeline_id, found in sorted(held.items())]


def _finding(pipeline_id: str, logs: Sequence[LogLine]) -> Finding:
    named = "; ".join(_words(one) for one in logs[:_MOST_NAMED])
    more = f"; and {len(logs) - _MOST_NAMED} more" if len(logs) > _MOST_NAMED else ""
    detail = {"logs": [one.wal_id for one in logs], "unsettled": sum(one.unsettled for one in logs)}
    words = f"{logs[0].pipeline}: {named}{more}"
    return Finding("stranded", pipeline_id, words, stage="ingestion", detail=detail)


def _words(one: LogLine) -> str:
    fate = (
        "the next run, on any node, reads them again"
        if one.rereadable
        else "they cannot be had again: bring the node back, or `waybill logs settle` it"
    )
    return (
        f"{events(one.unsettled)} wait in write-ahead log {one.wal_id[:8]} on {one.node}, which "
        f"was not seen for {span(one.unseen_s)}; {fate}"
    )
