"""One round of the auditor: all that changed, and all that moves, judged in one moment.

Who dies when: a round writes what it saw in one transaction, with the breaches that it opens and
their notices; killed before, the next round sees the same. Two rounds never write at once.

Cost: the minutes that changed since the last round and those that move, about 30 µs each; the
ledger's totals, a row for each stage of each event name; the records that wait in a topic's log, up
to a limit; the rows of batches that wait for a destination, up to a limit. Nothing of it grows with
history, and what is over a limit at one topic or destination takes nothing from the others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Connection, RowMapping

from waybill.deployment import active_heads
from waybill.ledger import (
    BalanceRow,
    IntakeWatermark,
    ParkedEvents,
    add_in_flight,
    add_lost_in_flight,
    fold,
    read_lost_in_flight,
    read_minutes,
    read_parked,
    read_staged,
    read_totals,
    read_watermarks,
    unloaded_commits,
)
from waybill.loading import Rewind, open_rewinds
from waybill.pipelines import PipelineHead, base_topic, topic_of
from waybill.reconciliation.breaches import Found, Writer
from waybill.reconciliation.minutes import numbered
from waybill.reconciliation.offset_ranges import RangeFault, Reached, check_ranges
from waybill.reconciliation.queue import (
    Due,
    Seen,
    begin_round,
    end_round,
    has_passed,
    last_report,
    read_due,
    take_turn,
    write_seen,
)
from waybill.reconciliation.segment_sums import sum_gaps
from waybill.reconciliation.snapshot import InLog, Snapshot, take_snapshot
from waybill.reconciliation.verdicts import Evidence, MinuteVerdict, judge
from waybill.storage import KafkaLog, TrackerStore


@dataclass(frozen=True, slots=True)
class AuditLimits:
    """How much one round reads."""

    log_records: int = 200_000
    """Of a topic, beyond the ledger; where more wait they are not read."""
    unloaded_batches: int = 2_000
    """Of a destination; where more wait they are not read, and its pipelines' way there is not
    judged."""
    minutes: int = 100_000
    """Of all pipelines; where there are more, each gets its share."""
    compare_ids: bool = True
    """Keep minutes in balance on the list until their ids were compared as well."""


@dataclass(slots=True)
class AuditReport:
    """What one round saw."""

    number: int = 0
    """0: another round was at work, and this one did nothing."""
    looked_at: int = 0
    balanced: int = 0
    moving: int = 0
    breaches: int = 0
    """Minutes with a breach, of those looked at."""
    opened: list[str] = field(default_factory=list)
    """In words: the breaches that are new."""
    explained: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)


@dataclass(slots=True)
class _Books:
    due: list[Due]
    rows: dict[tuple[str, str, int], BalanceRow]
    totals: dict[tuple[str, str], BalanceRow]
    parked: dict[tuple[str, str, str], ParkedEvents]
    waters: dict[str, IntakeWatermark]
    faults: list[RangeFault]
    reached: Reached
    behind: dict[str, int]
    """Destinations whose commits were not read, with their number."""
    rewinds: dict[str, list[Rewind]]


def audit(tracker: TrackerStore, log: KafkaLog, limits: AuditLimits | None = None) -> AuditReport:
    """Run one round; safe to run at any time, to kill, and to run twice at once.

    Raises:
        RetryError: Kafka or the tracker is away; nothing was written.
    """
    began = time.monotonic()
    limits = limits or AuditLimits()
    with tracker.transaction(long_idle=True) as turn:  # locks no row: it is the round's turn
        if not take_turn(turn):
            return AuditReport()
        fold(tracker)
        pipelines = active_heads(tracker)
        books, snapshot = take_snapshot(
            tracker,
            log,
            pipelines.values(),
            lambda connection, in_log: _read(connection, in_log, limits, pipelines),
            most_records=limits.log_records,
        )
        with tracker.transaction(long_statements=True, long_idle=True) as connection:
            report = AuditReport(begin_round(connection, snapshot.in_log))
            _Round(connection, pipelines, books, snapshot, limits, report).run()
            report.seconds = round(time.monotonic() - began, 3)
            said = {**report.to_json(), "ranges": books.reached.to_json()}
            end_round(connection, report.number, said)
    return report


def _read(
    connection: Connection,
    in_log: InLog,
    limits: AuditLimits,
    pipelines: Mapping[str, PipelineHead],
) -> _Books:
    due = read_due(connection, most=limits.minutes)
    unloaded = unloaded_commits(connection)
    behind = {name: n for name, n in unloaded.items() if n > limits.unloaded_batches}
    rows = read_minutes(connection, [one.key for one in due])
    totals = read_totals(connection)
    staged = read_staged(connection, leave_out=behind)
    add_in_flight(rows, staged, in_log.counts)
    add_lost_in_flight(rows, read_lost_in_flight(connection))
    _add_replayed_in_flight(totals, staged, in_log)
    reached = Reached.from_json(last_report(connection).get("ranges", {}))
    return _Books(
        due=due,
        rows=rows,
        totals=totals,
        parked=read_parked(connection, replays_in_log=in_log.replayed),
        waters=read_watermarks(connection),
        faults=check_ranges(
            connection, reached, {topic_of(one): one.destination for one in pipelines.values()}
        ),
        reached=reached,
        behind=behind,
        rewinds=open_rewinds(connection),
    )


def _add_replayed_in_flight(
    totals: dict[tuple[str, str], BalanceRow],
    staged: Sequence[RowMapping],
    in_log: InLog,
) -> None:
    for found in staged:
        if row := totals.get((found["pipeline_id"], found["event_name"])):
            row.stage("destination").in_flight_replayed += found["in_replayed"]
    for ((pipeline_id, event_name, _), stage, again), number in in_log.counts.items():
        if again and (row := totals.get((pipeline_id, event_name))):
            row.stage(stage).in_flight_replayed += number


class _Round:
    """Judges what was read, and writes."""

    def __init__(
        self,
        connection: Connection,
        pipelines: dict[str, PipelineHead],
        books: _Books,
        snapshot: Snapshot,
        limits: AuditLimits,
        report: AuditReport,
    ) -> None:
        self._connection = connection
        self._pipelines = pipelines
        self._books = books
        self._snapshot = snapshot
        self._limits = limits
        self._report = report
        self._writer = Writer(connection)

    def run(self) -> None:
        report, seen = self._report, []
        for due in self._books.due:
            seen.append(self._minute(due))
        self._sums()
        self._ranges()
        self._sources()
        self._destinations()
        write_seen(self._connection, seen, report.number)
        states = Counter(one.state for one in seen)
        report.looked_at = len(seen)
        report.moving, report.breaches = states["moving"], states["breach"] + states["mixed"]
        report.balanced = len(seen) - report.moving - report.breaches
        report.opened = self._writer.tell()
        report.explained = self._writer.explained

    def _minute(self, due: Due) -> Seen:
        evidence = self._evidence(due)
        judgement = judge(self._books.rows[due.key], evidence)
        stands = self._writer.minute(due.key, judgement.gaps)
        stages = {name: one.to_json() for name, one in judgement.stages.items()}
        for gap in stands:
            stages[gap.stage] |= {"verdict": "balanced", "why": f"ended: {gap.words}"}
        state = _state(stages)
        if state == "balanced" and not self._limits.compare_ids:
            state = ""
        return Seen(due, state, stages, fenced=evidence.whole.holds(due.key[2]))

    def _evidence(self, due: Due) -> Evidence:
        whole, behind = self._snapshot.of(due.key[0]), self._behind(due.key[0])
        pipeline = self._pipelines.get(due.key[0])
        topic = "" if pipeline is None else topic_of(pipeline)
        in_log = self._snapshot.in_log
        names = in_log.names_of(topic)
        known = in_log.unread.isdisjoint(names) and in_log.strange.keys().isdisjoint(names)
        waiting = sum(in_log.topics[name].waiting for name in names if name in in_log.topics)
        strange = [in_log.strange[name] for name in names if name in in_log.strange]
        return Evidence(
            whole=whole,
            log_known=known or all(has_passed(in_log, name, due.fence) for name in names),
            log_why="; ".join(strange) or f"processing lags: {waiting:,} records of {topic} wait",
            staged_known=not behind,
            staged_why=f"loading lags: {behind:,} batches wait",
        )

    def _behind(self, pipeline_id: str) -> int:
        """Return how many commits wait that were not read, where a pipeline's rows may be."""
        pipeline, behind = self._pipelines.get(pipeline_id), self._books.behind
        if pipeline is None:
            return sum(behind.values())
        return behind.get(pipeline.destination, 0)

    def _sums(self) -> None:
        """Hold what was counted as parked, and as replayed, against the segments."""
        in_log = self._snapshot.in_log
        unread = {base_topic(name) for name in in_log.unread | in_log.strange.keys()}
        lagging = {one.id for one in self._pipelines.values() if topic_of(one) in unread}
        gaps = sum_gaps(self._books.totals, self._books.parked)
        for (pipeline_id, event_name), found in gaps.items():
            late = pipeline_id in lagging or self._behind(pipeline_id) > 0
            for (stage, kind), (gap, words) in found.items():
                if kind == "parked" or not late:
                    self._writer.one(Found(pipeline_id, kind, gap, words, event_name, stage))

    def _ranges(self) -> None:
        strange = [RangeFault(t, 0, words) for t, words in self._snapshot.in_log.strange.items()]
        faults: dict[str, list[RangeFault]] = {}
        for fault in [*self._books.faults, *strange]:
            faults.setdefault(base_topic(fault.topic), []).append(fault)
        for pipeline in self._pipelines.values():
            if found := faults.get(topic_of(pipeline)):
                gap = max((fault.gap for fault in found), key=abs)
                words = "; ".join(fault.words for fault in found)
                self._writer.open(Found(pipeline.id, "offsets", gap, words))

    def _destinations(self) -> None:
        """Tell of destinations that lack what they took; see ``loading.rewinds``."""
        for pipeline in self._pipelines.values():
            found = self._books.rewinds.get(pipeline.destination, ())
            rows = sum(
                one.lost_rows + (one.rows if one.reloaded_at is None else 0) for one in found
            )
            gap = max(rows, 1) if found else 0
            words = "; ".join(f"destination {one.destination}: {one.words}" for one in found)
            self._writer.one(Found(pipeline.id, "put_back", gap, words, "", "destination"))

    def _sources(self) -> None:
        """Hold what the source counted against what was taken in of it."""
        for pipeline_id, water in self._books.waters.items():
            counted, ingested = (int(water.source.get(n, 0)) for n in ("counted", "ingested"))
            left = 0 if water.open else int(water.source.get("left", 0))
            gap = counted - ingested + left
            words = (
                f"the source counted {numbered(counted, 'record')} where {ingested:,} "
                f"{'was' if ingested == 1 else 'were'} taken in, and had "
                f"{left:,} left when a run had read it to its end"
            )
            self._writer.one(Found(pipeline_id, "source_count", gap, words, "", "ingestion"))


def _state(stages: dict[str, dict[str, object]]) -> str:
    verdicts = {str(one["verdict"]) for one in stages.values()}
    if {"breach", "moving"} <= verdicts:
        return "mixed"
    return next((v for v in ("breach", "moving") if v in verdicts), "balanced")


__all__ = ["AuditLimits", "AuditReport", "MinuteVerdict", "audit"]
