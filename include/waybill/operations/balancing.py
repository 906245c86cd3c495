"""The balance of everything: the ledger's counts and what is measured to be in flight."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

from waybill.errors import ParkError
from waybill.events import decode
from waybill.ledger import (
    BalanceRow,
    ParkedEvents,
    ReplayEntry,
    StageCounts,
    fold,
    read_balance,
    topic_positions,
)
from waybill.ledger.balance import MinuteKey
from waybill.operations.registry import active_pipelines
from waybill.pipelines import topic_of
from waybill.stages import COUNT_NAMES
from waybill.storage import KafkaLog, TrackerStore

_BESIDE = ("in_flight", "in_flight_replayed", "replayed_as_parents", "parents")
STAGES = ("ingestion", "transformation", "mapping", "destination")


@dataclass(frozen=True, slots=True)
class PipelineBalance:
    """The books of one pipeline's event name, over all minutes."""

    pipeline: str
    pipeline_id: str
    event_name: str
    stages: dict[str, StageCounts]
    breaches: dict[str, int]
    """Stage to events unaccounted for, where it is not 0. "<stage> (replays)": marked replayed and
    never seen again; "<stage> (parked)": counted as parked and in no segment."""


@dataclass(frozen=True, slots=True)
class BalanceReport:
    """The books of all pipelines."""

    ingested: int
    made: int
    """Events that transformations made beyond those they took: children less parents, without the
    children that were parked and for which their parents went back."""
    delivered: int
    superseded: int
    duplicate: int
    filtered: int
    parked: int
    """Parked now: neither replayed nor discarded nor quarantined."""
    replayed: int
    discarded: int
    in_flight: int
    unaccounted: int
    """Sum of all breaches, each counted as positive. 0: the books balance."""
    pipelines: list[PipelineBalance]
    minutes: list[BalanceRow]
    sent_unmarked: int = 0
    """Messages in the log that no mark of their replay names: it was cancelled, or runs still. They
    came in as replayed beside those that ``replayed`` counts."""
    quarantined: int = 0
    """Parked events whose files are damaged or gone: they wait until these are mended."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        flat = asdict(self)
        flat["minutes"] = [row.to_json() for row in self.minutes]
        return flat


def balance(
    tracker: TrackerStore,
    log: KafkaLog,
    *,
    pipeline_id: str | None = None,
    since_minute: int | None = None,
) -> BalanceReport:
    """Return the books; exact at rest. While events move, what moves between two looks may show.

    Raises:
        RetryError: Kafka or the tracker is away.
    """
    fold(tracker)
    in_log, replays_in_log = _in_log(tracker, log)
    rows, parked = read_balance(
        tracker,
        pipeline_id=pipeline_id,
        since_minute=since_minute,
        in_log=in_log,
        replays_in_log=replays_in_log,
    )
    names = {pipeline.id: pipeline.name for pipeline in active_pipelines(tracker).values()}
    totals: dict[tuple[str, str], dict[str, StageCounts]] = {}
    breaches: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        key = (row.pipeline_id, row.event_name)
        stages = totals.setdefault(key, {name: StageCounts() for name in STAGES})
        for name in STAGES:
            _add(stages[name], row.stage(name))
        breaches.setdefault(key, Counter()).update(row.breaches())
    unaccounted = sum(abs(gap) for row in rows for gap in row.breaches().values())
    if since_minute is None:
        unaccounted += _check_segments(totals, breaches, parked)
    groups = [
        PipelineBalance(
            names.get(key[0], key[0]),
            key[0],
            key[1],
            stages,
            {stage: gap for stage, gap in breaches[key].items() if gap},
        )
        for key, stages in sorted(totals.items())
    ]
    states = _parked_states(tracker, pipeline_id)
    report = _report(groups, rows, states, unaccounted)
    return replace(report, sent_unmarked=sum(one.unmarked for one in parked.values()))


def _report(
    groups: list[PipelineBalance],
    rows: list[BalanceRow],
    states: Counter[str],
    unaccounted: int,
) -> BalanceReport:
    def total(stage: str, name: str) -> int:
        return sum(int(getattr(group.stages[stage], name)) for group in groups)

    return BalanceReport(
        ingested=total("ingestion", "in_first"),
        made=total("transformation", "out")
        - total("transformation", "passed")
        + total("transformation", "parents")
        - total("mapping", "replayed_as_parents"),
        delivered=total("destination", "passed"),
        superseded=total("destination", "superseded"),
        duplicate=sum(total(stage, "duplicate") for stage in STAGES),
        filtered=total("transformation", "filtered"),
        parked=states["parked"] + states["replaying"],
        replayed=states["replayed"],
        discarded=states["discarded"],
        in_flight=sum(
            counts.in_flight + counts.in_flight_replayed
            for group in groups
            for counts in group.stages.values()
        ),
        unaccounted=unaccounted,
        pipelines=groups,
        minutes=rows,
        quarantined=states["quarantined"],
    )


def _parked_states(tracker: TrackerStore, pipeline_id: str | None) -> Counter[str]:
    from sqlalchemy import func, select  # noqa: PLC0415

    from waybill.storage.tracker.tables import parked_partitions  # noqa: PLC0415

    names = ("parked", "replaying", "replayed", "discarded", "quarantined")
    query = select(*[func.coalesce(func.sum(parked_partitions.c[n]), 0).label(n) for n in names])
    if pipeline_id is not None:
        query = query.where(parked_partitions.c.pipeline_id == pipeline_id)
    with tracker.transaction() as connection:
        row = connection.execute(query).mappings().one()
    return Counter({name: int(row[name]) for name in names})


def _add(into: StageCounts, more: StageCounts) -> None:
    for name in (*COUNT_NAMES, *_BESIDE):
        setattr(into, name, getattr(into, name) + getattr(more, name))


def _check_segments(
    totals: dict[tuple[str, str], dict[str, StageCounts]],
    breaches: dict[tuple[str, str], Counter[str]],
    parked: dict[tuple[str, str, str], ParkedEvents],
) -> int:
    """Hold the counts against the tracker's segments; returns the events unaccounted for.

    What was counted as parked is in a segment; what was marked replayed, or sent without a mark,
    came in again, or is on its way; or its parent did, at an earlier stage.
    """
    unaccounted = 0
    for pipeline_id, event_name in {*totals, *((p, e) for p, e, _ in parked)}:
        key = (pipeline_id, event_name)
        stages = totals.setdefault(key, {name: StageCounts() for name in STAGES})
        found = breaches.setdefault(key, Counter())
        missing: Counter[str] = Counter()
        for stage, counts in stages.items():
            segments = parked.get((*key, stage), ParkedEvents(0, 0))
            gaps = {
                "parked": counts.parked - segments.recorded,
                "replays": segments.replayed
                + segments.unmarked
                - counts.replayed_as_parents
                + counts.parents
                - counts.in_replayed
                - counts.in_flight_replayed,
            }
            for words, gap in gaps.items():
                missing[f"{stage} ({words})"] = gap
        _replayed_from_ingestion(missing)
        found.update(missing)
        unaccounted += sum(map(abs, missing.values()))
    return unaccounted


def _replayed_from_ingestion(missing: Counter[str]) -> None:
    """Look where it enters for what was replayed from ingestion and not refused by Kafka again."""
    sent = max(0, missing["ingestion (replays)"])
    missing["ingestion (replays)"] -= sent
    missing["transformation (replays)"] += sent


def _in_log(
    tracker: TrackerStore, log: KafkaLog
) -> tuple[Counter[tuple[MinuteKey, str, bool]], Counter[ReplayEntry]]:
    """Count, from the records, the events between the ledger's offsets and the log's end.

    The second counts those of replays once more, by replay.
    """
    found: Counter[tuple[MinuteKey, str, bool]] = Counter()
    replayed: Counter[ReplayEntry] = Counter()
    existing = log.topics()
    for name in sorted({topic_of(p) for p in active_pipelines(tracker).values()} & existing):
        topic = log.describe(name)
        known = topic_positions(
            tracker, cluster_id=topic.cluster_id, topic_id=topic.topic_id, topic=name
        )
        ends = {number: high for number, (_, high) in log.watermarks(topic).items()}
        ranges = {number: (known.get(number, 0), end) for number, end in ends.items()}
        if all(start >= end for start, end in ranges.values()):
            continue
        for value in log.read(name, ranges):
            try:
                event = decode(value)
            except ParkError:
                continue
            key = (event.pipeline_id, event.name, event.intake_minute)
            found[(key, event.stage, event.attempt > 0)] += 1
            if event.attempt and event.replay_id:
                replayed[event.replay_id, event.name, event.stage] += 1
    return found, replayed
