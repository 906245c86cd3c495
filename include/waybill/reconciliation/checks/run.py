"""Eager checks: what is out of the usual before any equation of the ledger breaks. Every minute.

Each check measures, and decides by a pure function of numbers. A check whose servers are away finds
nothing new, keeps what it had told, and says why; it holds up no other. Nothing is written here but
a destination's own note of when its tables were counted.

Costs, for each pipeline: one step of an index for the newest minute; 6,000 steps for one that
brings nothing; a day of minutes for one of whose events suspiciously many park. The ledger is
folded before (``waybill.ledger.fold``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from waybill.deployment import active_heads
from waybill.errors import WaybillError
from waybill.ingestion.connectors import HeldLog
from waybill.ledger import all_generations, read_logs
from waybill.pipelines import PipelineHead
from waybill.reconciliation import BreachKey, open_breach, settle
from waybill.reconciliation.checks import draining, drift, parked, quiet, slots, stranded
from waybill.reconciliation.checks.drift import TablePlace
from waybill.reconciliation.checks.findings import Finding, Key, read_open_findings
from waybill.reconciliation.checks.lateness import Lateness
from waybill.reconciliation.checks.limits import WatchLimits
from waybill.settings import DestinationSettings, S3Settings
from waybill.storage import KafkaLog, TrackerStore
from waybill.topics import waits_for

_OVER: dict[str, str] = {
    "quiet": "events come in again",
    "late": "what waits is within its objective again",
    "parked_jump": "the share that parks has fallen back",
    "drift": "the table has the rows that loads put there",
    "stranded": "nothing waits in a write-ahead log that nobody opens",
    "draining": "the old generation of its topic has ended",
    "slot": "the source keeps less than its limit for the pipeline",
}


@dataclass(frozen=True, slots=True)
class WatchParts:
    """What the checks look at, opened."""

    tracker: TrackerStore
    log: KafkaLog
    destinations: Mapping[str, DestinationSettings]
    limits: WatchLimits = field(default_factory=WatchLimits)
    s3: S3Settings | None = None
    """The object store, for destinations whose tables are objects there."""
    held: Callable[[PipelineHead], HeldLog | None] = lambda _: None
    """Says what the source of a pipeline keeps for it (``slots.KINDS``)."""


@dataclass(frozen=True, slots=True)
class WatchReport:
    """What one look found."""

    findings: list[Finding]
    """All that is wrong now; what was told before and is not here is over."""
    problems: list[str]
    """Why checks could not look; what they had told is among the findings as it was."""


def tell(tracker: TrackerStore, watched: WatchReport) -> None:
    """Open a breach for each finding, and end those that are over; owners are told of both.

    One transaction: a SIGKILL leaves all as it was, and the next look tells it.
    """
    found = {one.key: one for one in watched.findings}
    known = read_open_findings(tracker).standing
    with tracker.transaction() as connection:
        for key, one in sorted(found.items()):
            open_breach(
                connection, _breach_key(key), words=one.words, gap=one.gap, detail=one.detail
            )
        for key in sorted(set(known) - set(found)):
            settle(connection, _breach_key(key), reason=_OVER[key[0]])


def _breach_key(key: Key) -> BreachKey:
    kind, pipeline_id, event_name, stage = key
    return BreachKey(pipeline_id, kind, event_name, stage)


def watch(parts: WatchParts, now: datetime) -> WatchReport:
    """Return all that is out of the usual. The ledger is folded before.

    Raises:
        RetryError: the tracker does not answer.
    """
    look = _Look(parts, now)
    findings: list[Finding] = []
    problems: list[str] = []
    for check, standing in look.checks():
        try:
            findings += check()
        except WaybillError as error:
            problems.append(str(error))
            findings += look.standing(standing)
    return WatchReport(findings, problems)


Check = Callable[[], list[Finding]]
Concerns = Callable[[Finding], bool]
"""Tells whether a finding is one of a check's."""


class _Look:
    def __init__(self, parts: WatchParts, now: datetime) -> None:
        self._parts = parts
        self._now = now
        self._minute = int(now.timestamp() // 60)
        self._pipelines: Mapping[str, PipelineHead] = active_heads(parts.tracker)
        self.known = read_open_findings(parts.tracker)
        self._lateness = Lateness(
            parts.tracker, parts.log, self._pipelines, parts.limits, self.known, now
        )

    def checks(self) -> list[tuple[Check, Concerns]]:
        """Return all checks, each with what it would have told."""
        late = self._lateness
        found: list[tuple[Check, Concerns]] = [
            (self._quiet, lambda one: one.kind == "quiet"),
            (self._parked_jumps, lambda one: one.kind == "parked_jump"),
            (self._stranded, lambda one: one.kind == "stranded"),
            (self._draining, lambda one: one.kind == "draining"),
            (late.runs, lambda one: (one.kind, one.stage) == ("late", "ingestion")),
            (late.in_log, lambda one: (one.kind, one.stage) == ("late", "transformation")),
            (late.staged, lambda one: (one.kind, one.stage) == ("late", "destination")),
        ]
        places = drift.read_places(self._parts.tracker)
        found += [self._drift(name, tables) for name, tables in places.items()]
        return found + [
            self._slot(one)
            for one in self._pipelines.values()
            if one.source.connector in slots.KINDS
        ]

    def standing(self, concerns: Concerns) -> list[Finding]:
        """Return what was told by a check."""
        return [one for one in self.known.standing.values() if concerns(one)]

    def _quiet(self) -> list[Finding]:
        with self._parts.tracker.transaction() as connection:
            return quiet.quiet(connection, self._minute, self._parts.limits, self.known, self._name)

    def _parked_jumps(self) -> list[Finding]:
        with self._parts.tracker.transaction() as connection:
            return parked.parked_jumps(
                connection, self._minute, self._parts.limits, self.known, self._name
            )

    def _stranded(self) -> list[Finding]:
        return stranded.look(read_logs(self._parts.tracker), self._parts.limits.log_unseen_s)

    def _draining(self) -> list[Finding]:
        tracker = self._parts.tracker
        with tracker.transaction() as connection:
            known = [one for own in all_generations(connection).values() for one in own]
        drain = [(one, waits_for(tracker, one)) for one in known if one.state == "draining"]
        return draining.look(drain, self._pipelines, self._parts.limits, self._now)

    def _drift(self, destination: str, places: list[TablePlace]) -> tuple[Check, Concerns]:
        keys = {one.key for one in places}

        def check() -> list[Finding]:
            settings = self._parts.destinations.get(destination)
            if settings is None:
                return self.standing(concerns)
            return drift.look(
                destination,
                settings,
                places,
                self._parts.limits.drift,
                accepted=self.known.accepted,
                s3=self._parts.s3,
            )

        def concerns(finding: Finding) -> bool:
            return finding.key in keys

        return check, concerns

    def _slot(self, pipeline: PipelineHead) -> tuple[Check, Concerns]:
        def check() -> list[Finding]:
            return slots.look(pipeline, self._parts.held(pipeline))

        def concerns(finding: Finding) -> bool:
            return (finding.kind, finding.pipeline_id) == ("slot", pipeline.id)

        return check, concerns

    def _name(self, pipeline_id: str) -> str:
        found = self._pipelines.get(pipeline_id)
        return pipeline_id if found is None else found.name
