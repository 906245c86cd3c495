"""The balance of everything: the ledger's counts and what is measured to be in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

from sqlalchemy import Connection, func, select, text

from waybill.deployment import active_heads
from waybill.ledger import BalanceRow, ParkedEvents, StageCounts, fold, read_books
from waybill.reconciliation.breaches import read_breaches
from waybill.reconciliation.segment_sums import STAGES, check_segments
from waybill.reconciliation.snapshot import InLog, Snapshot, take_snapshot
from waybill.reconciliation.verdicts import Evidence, judge
from waybill.storage import KafkaLog, TrackerStore
from waybill.storage.tracker import COUNT_COLUMNS, parked_partitions, segments

_BESIDE = (
    "in_flight",
    "in_flight_replayed",
    "replayed_as_parents",
    "parents",
    "unrecoverable",
    "unrecoverable_replayed",
)
_Books: TypeAlias = tuple[
    list[BalanceRow],
    dict[tuple[str, str, str], ParkedEvents],
    Counter[str],
    dict[tuple[str, str, str], int],
    int,
]
_ACCOUNTED = text("""
SELECT coalesce(sum(abs(gap)), 0) FROM breaches WHERE state <> 'open'
  AND kind IN ('on_the_way', 'in_stage', 'parked', 'replays') AND detail ->> 'stands' = 'true'
  AND (CAST(:pipeline AS text) IS NULL OR pipeline_id = :pipeline)
  AND (CAST(:since AS int) IS NULL OR minute >= :since)
""")


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
    unrecoverable: dict[str, int] = field(default_factory=dict)
    """Stage to events that were lost and cannot be made again, where it is not 0: those that were
    parked there, and those that were staged on their way to it."""


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
    in_wal: int = 0
    """Events that ingestion counted, and that Kafka had not acknowledged when it was told last."""
    uncounted: int = 0
    """Of minutes that are not whole: events in the log whose page ingestion has not counted yet;
    negative: counted ones that are on their way to the log. Not counted in ``unaccounted``."""
    missed: int = 0
    """Events that the equations of whole minutes miss, also where that was explained or closed by
    name; negative: too many."""
    settling: dict[str, str] = field(default_factory=dict)
    """Pipelines with minutes that are not whole yet, and why: their way from ingestion to the log
    is not judged."""
    accounted: int = 0
    """Gaps that were explained or closed by name (``waybill audit breaches --all``); not counted in
    ``unaccounted``."""
    verdicts: dict[str, int] = field(default_factory=dict)
    """How many (event name, intake minute, stage) are balanced, moving, a breach."""
    open_breaches: list[dict[str, Any]] = field(default_factory=list)
    """What the auditor has found and nobody has closed, the newest first."""
    quarantined: int = 0
    """Parked events whose files are damaged or gone, and that may be made again: they wait."""
    unrecoverable: int = 0
    """Events whose parked or staged files are damaged or gone, and that cannot be made again:
    ``waybill parked lost`` and ``waybill destination lost`` name them. Only a restored parked file
    brings them back."""

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
    """Return the books of one moment, exact also while events move.

    What ingestion has counted and not brought to Kafka yet, or brought and not counted yet, is no
    breach: the minutes where that may be are named in ``settling``.

    Raises:
        RetryError: Kafka or the tracker is away.
    """
    fold(tracker)
    pipelines = active_heads(tracker)

    def read(connection: Connection, in_log: InLog) -> _Books:
        rows, parked = read_books(
            connection,
            pipeline_id=pipeline_id,
            since_minute=since_minute,
            in_log=in_log.counts,
            replays_in_log=in_log.replayed,
        )
        accounted = _accounted(connection, pipeline_id, since_minute)
        states = _parked_states(connection, pipeline_id)
        lost = read_unrecoverable(connection, None if pipeline_id is None else [pipeline_id])
        return rows, parked, states, lost, accounted

    found, snapshot = take_snapshot(tracker, log, pipelines.values(), read, strict=True)
    rows, parked, states, lost, accounted = found
    names = {pipeline.id: pipeline.name for pipeline in pipelines.values()}
    totals: dict[tuple[str, str], dict[str, StageCounts]] = {}
    breaches: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        key = (row.pipeline_id, row.event_name)
        stages = totals.setdefault(key, {name: StageCounts() for name in STAGES})
        for name in STAGES:
            _add(stages[name], row.stage(name))
        breaches.setdefault(key, Counter()).update(_settled_breaches(row, snapshot))
    unaccounted = sum(abs(gap) for row in rows for gap in _settled_breaches(row, snapshot).values())
    if since_minute is None:
        unaccounted += check_segments(totals, breaches, parked)
    groups = [
        PipelineBalance(
            names.get(key[0], key[0]),
            key[0],
            key[1],
            stages,
            {stage: gap for stage, gap in breaches[key].items() if gap},
            _unrecoverable(stages, {stage: lost.get((*key, stage), 0) for stage in STAGES}),
        )
        for key, stages in sorted(totals.items())
    ]
    apart = Counter({**states, "quarantined": states["quarantined"] - sum(lost.values())})
    report = _report(groups, rows, apart, max(0, unaccounted - accounted))
    asked = None if pipeline_id is None else [pipeline_id]
    return replace(
        report,
        unrecoverable=sum(sum(group.unrecoverable.values()) for group in groups),
        sent_unmarked=sum(one.unmarked for one in parked.values()),
        uncounted=-sum(
            row.on_the_way("transformation")
            for row in rows
            if not snapshot.of(row.pipeline_id).holds(row.minute)
        ),
        missed=sum(gap for row in rows for gap in _settled_breaches(row, snapshot).values()),
        in_wal=sum(one.waiting for one in snapshot.whole.values()),
        settling=_settling(rows, snapshot, names),
        accounted=min(unaccounted, accounted),
        verdicts=_verdicts(rows, snapshot),
        open_breaches=[
            one.to_json() for one in read_breaches(tracker, pipeline_ids=asked, states=["open"])
        ],
    )


def _unrecoverable(stages: dict[str, StageCounts], parked: dict[str, int]) -> dict[str, int]:
    found = {
        name: counts.unrecoverable + counts.unrecoverable_replayed + parked[name]
        for name, counts in stages.items()
    }
    return {name: number for name, number in found.items() if number}


def _verdicts(rows: list[BalanceRow], snapshot: Snapshot) -> dict[str, int]:
    found: Counter[str] = Counter()
    for row in rows:
        judged = judge(row, Evidence(snapshot.of(row.pipeline_id), log_known=True))
        found.update(one.verdict for one in judged.stages.values())
    return dict(found)


def _accounted(connection: Connection, pipeline_id: str | None, since: int | None) -> int:
    asked = {"pipeline": pipeline_id, "since": since}
    return int(connection.execute(_ACCOUNTED, asked).scalar_one())


def _settled_breaches(row: BalanceRow, snapshot: Snapshot) -> dict[str, int]:
    """Return a minute's breaches; what lies between ingestion and the log only once it is whole."""
    found = row.breaches()
    if snapshot.of(row.pipeline_id).holds(row.minute):
        return found
    if within := row.stage("transformation").left_over():
        return {**found, "transformation": within}
    found.pop("transformation", None)
    return found


def _settling(rows: list[BalanceRow], snapshot: Snapshot, names: dict[str, str]) -> dict[str, str]:
    """Return {pipeline: what goes on} of those with minutes that are not whole."""
    return {
        names.get(row.pipeline_id, row.pipeline_id): snapshot.of(row.pipeline_id).why
        for row in rows
        if not snapshot.of(row.pipeline_id).holds(row.minute)
    }


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


def read_unrecoverable(
    connection: Connection, pipeline_ids: Sequence[str] | None
) -> dict[tuple[str, str, str], int]:
    """Return parked events that cannot be made again, by (pipeline id, event name, stage).

    Args:
        connection: reads the books.
        pipeline_ids: only of these; None: of all.

    Cost: the segments in quarantine, by index.
    """
    own, names = (
        segments.c,
        [parked_partitions.c[n] for n in ("pipeline_id", "event_name", "stage")],
    )
    query = (
        select(*names, func.sum(own.count))
        .join_from(parked_partitions, segments, own.partition_id == parked_partitions.c.id)
        .where(parked_partitions.c.quarantined > 0, own.state == "quarantined", own.problem != "")
        .group_by(*names)
    )
    if pipeline_ids is not None:
        query = query.where(parked_partitions.c.pipeline_id.in_(pipeline_ids))
    return {(row[0], row[1], row[2]): int(row[3]) for row in connection.execute(query)}


def _parked_states(connection: Connection, pipeline_id: str | None) -> Counter[str]:
    names = ("parked", "replaying", "replayed", "discarded", "quarantined")
    query = select(*[func.coalesce(func.sum(parked_partitions.c[n]), 0).label(n) for n in names])
    if pipeline_id is not None:
        query = query.where(parked_partitions.c.pipeline_id == pipeline_id)
    row = connection.execute(query).mappings().one()
    return Counter({name: int(row[name]) for name in names})


def _add(into: StageCounts, more: StageCounts) -> None:
    for name in (*COUNT_COLUMNS, *_BESIDE):
        setattr(into, name, getattr(into, name) + getattr(more, name))
