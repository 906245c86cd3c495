"""The checks of ages: runs that did not come, events that wait in the log, rows that wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from waybill.pipelines import Pipeline, topic_of
from waybill.reconciliation.checks import measurements
from waybill.reconciliation.checks.ages import Oldest, due_run, is_late
from waybill.reconciliation.checks.findings import Finding, events, span
from waybill.reconciliation.checks.limits import WatchLimits
from waybill.reconciliation.checks.open_findings import Told
from waybill.storage import KafkaLog, TrackerStore

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
