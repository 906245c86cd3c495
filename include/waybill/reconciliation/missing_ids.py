"""Naming: which events a breach is about, once the traces of its minute are in.

They are in when each stage has as many traces of committed batches as the ledger counted events of
it; after ``patience_s`` only those stages are compared whose traces, and the traces of the stage
before, are in: where some are lost, nobody is named by mistake. Minutes in balance are compared as
well: an event lost and another doubled leave the sums as they are. What moves still at a stage is
not compared there.

A copy that came in between the log and the transformation, and that the destination took for the
duplicate it is, is harmless: its breach is explained, and stays so while the gap is the same.

Who dies when: a minute's names, its breaches and its notice are one transaction.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pyarrow as pa
from sqlalchemy import Connection, text

from waybill.ledger import BalanceRow, committed, read_minutes
from waybill.reconciliation.breaches import BreachKey, open_breach, settle, tell_of
from waybill.reconciliation.id_comparison import STAGES, MinuteIds, StageIds, compare_ids
from waybill.reconciliation.queue import Unnamed, end_naming, read_unnamed
from waybill.reconciliation.verdicts import minute_words
from waybill.storage import TrackerStore
from waybill.tracing import TraceQuery

_OTHERS = text("""
SELECT DISTINCT event_name FROM ledger_minutes
WHERE pipeline_id = :pipeline AND minute = :minute AND event_name <> :name
""")
_OPEN = text("""
SELECT kind FROM breaches WHERE pipeline_id = :pipeline_id AND event_name = :event_name
  AND stage = :stage AND minute = :minute AND state = 'open' ORDER BY kind DESC
""")
_NAME = text("""
UPDATE breaches SET ids = CAST(:ids AS jsonb), named_at = clock_timestamp(),
  detail = detail || CAST(:detail AS jsonb)
WHERE pipeline_id = :pipeline_id AND event_name = :event_name AND stage = :stage
  AND minute = :minute AND kind = :kind AND state = 'open'
  AND (ids <> CAST(:ids AS jsonb) OR named_at IS NULL)
RETURNING id
""")
_ALIKE = "the ids of both stages are the same"


@dataclass(frozen=True, slots=True)
class NamingLimits:
    """How long is waited, and how much is read."""

    patience_s: float = 900.0
    """After that the stages whose traces are in are named, though those of others are not."""
    compare_within_s: float = 86_400.0
    """A minute in balance that is older is not compared: what changed it came long after."""
    minutes: int = 200
    """Looked at in one call."""
    budget_s: float = 40.0
    """No further minute is begun after that."""
    events: int = 10_000_000
    """Minutes with more events are not compared."""
    ids: int = 1_000
    """Kept of each breach; the rest is counted."""


@dataclass(slots=True)
class NamedMinute:
    """What naming said of one minute's stage."""

    pipeline_id: str
    event_name: str
    minute: int
    stage: str
    missing: list[str]
    doubled: list[str]
    whole: bool
    """As many ids differ as the ledger misses events."""
    harmless: bool = False


@dataclass(slots=True)
class NamingReport:
    """What one call named."""

    compared: int = 0
    """Minutes whose ids were compared."""
    waiting: int = 0
    """Minutes whose traces are not in."""
    named: list[NamedMinute] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)


def name_breaches(
    tracker: TrackerStore, traces: TraceQuery, limits: NamingLimits | None = None
) -> NamingReport:
    """Compare the ids of minutes that a round has judged, and name what differs.

    Raises:
        RetryError: the tracker or the trace store is away; what was named before stands.

    Cost: the traces of a minute are read once, see ``ids``.
    """
    limits = limits or NamingLimits()
    began = time.monotonic()
    report = NamingReport()
    with tracker.transaction() as connection:
        found = read_unnamed(connection, most=limits.minutes)
    for one in found:
        if time.monotonic() - began > limits.budget_s:
            break
        _Minute(tracker, traces, limits, one, report).name()
    return report


class _Minute:
    """One minute of one event name."""

    def __init__(
        self,
        tracker: TrackerStore,
        traces: TraceQuery,
        limits: NamingLimits,
        one: Unnamed,
        report: NamingReport,
    ) -> None:
        self._tracker = tracker
        self._traces = traces
        self._limits = limits
        self._one = one
        self._report = report

    def name(self) -> None:
        with self._tracker.transaction() as connection:
            [row] = read_minutes(connection, [self._one.key]).values()
        if self._is_past(row):
            self._end("compared" if self._one.state == "balanced" else "not compared")
            return
        found = self._compare(row)
        late = self._one.waited_s > self._limits.patience_s
        ready = [stage for stage in found.stages if _is_in(row, found, stage)]
        whole = len(ready) == len(found.stages)
        if not whole and not late:
            self._report.waiting += 1
            return
        self._report.compared += 1
        with self._tracker.transaction() as connection:
            for stage in ready:
                self._write(connection, row, found, stage)
            end_naming(connection, self._one, "compared" if whole else "in part")

    def _is_past(self, row: BalanceRow) -> bool:
        events = max(row.stage(stage).in_first for stage in STAGES)
        age_s = time.time() - self._one.key[2] * 60
        old = self._one.state == "balanced" and age_s > self._limits.compare_within_s
        return old or events > self._limits.events

    def _end(self, said: str) -> None:
        with self._tracker.transaction() as connection:
            end_naming(connection, self._one, said)

    def _stages(self) -> list[str]:
        """Return the stages to compare: where nothing moves, and no gap stands as ended."""
        said = self._one.stages
        still = []
        for stage in STAGES:
            verdict, gap = said.get(stage, {}).get("verdict"), said.get(stage, {}).get("gap")
            if verdict == "breach" or (verdict == "balanced" and not gap):
                still.append(stage)
        return still

    def _compare(self, row: BalanceRow) -> MinuteIds:
        stages = self._stages()
        if not (row.on_the_way("mapping") or row.stage("mapping").left_over()):
            stages = [stage for stage in stages if stage != "mapping"]
        return compare_ids(
            self._read(self._one.key[1]),
            lambda names: committed(self._tracker, names),
            stages,
            elsewhere=self._elsewhere() if "mapping" in stages else (),
        )

    def _read(self, event_name: str) -> Iterator[pa.RecordBatch]:
        pipeline_id, _, minute = self._one.key
        since = datetime.fromtimestamp(minute * 60, UTC) - timedelta(minutes=5)
        until = datetime.now(UTC) + timedelta(minutes=5)
        return self._traces.minute_traces(pipeline_id, event_name, minute, since=since, until=until)

    def _elsewhere(self) -> Iterator[pa.RecordBatch]:
        pipeline_id, name, minute = self._one.key
        asked = {"pipeline": pipeline_id, "minute": minute, "name": name}
        with self._tracker.transaction() as connection:
            others = list(connection.execute(_OTHERS, asked).scalars())
        for other in others:
            yield from self._read(other)

    def _write(self, connection: Connection, row: BalanceRow, found: MinuteIds, stage: str) -> None:
        ids = found.stages[stage]
        pipeline_id, event_name, minute = self._one.key
        own = BreachKey(*_key(self._one, stage, "ids"))
        kinds = list(connection.execute(_OPEN, _asked(own)).scalars())
        if not ids.missing and not ids.doubled:
            if "ids" in kinds:
                settle(connection, own, reason=_ALIKE)
            return
        off = row.on_the_way(stage) + row.stage(stage).left_over()
        lost = _unrecoverable(row, stage)
        gap = off + lost
        exact = len(ids.missing) - len(ids.doubled) == gap
        named = NamedMinute(pipeline_id, event_name, minute, stage, ids.missing, ids.doubled, exact)
        self._report.named.append(named)
        counted = [kind for kind in kinds if kind != "ids"]
        key = BreachKey(*_key(self._one, stage, counted[0] if counted else "ids"))
        if not counted and not self._open(connection, key, named):
            return
        if not self._keep(connection, key, named, gap):
            return
        if stage == "transformation" and _is_harmless(row, found, ids, gap):
            named.harmless = True
            settle(connection, key, reason=_harmless_words(row, ids), stands=True)
        elif exact and lost and not off:
            named.harmless = True
            words = f"{lost:,} of them {'was' if lost == 1 else 'were'} lost with staged objects"
            words += f", and {'is' if lost == 1 else 'are'} unrecoverable"
            settle(connection, key, reason=words, stands=True)
        else:
            tell_of(connection, key, words=_named_words(named, gap), event="named", gap=gap)

    def _open(self, connection: Connection, key: BreachKey, named: NamedMinute) -> bool:
        gap = len(named.missing) - len(named.doubled)
        words = _named_words(named, gap) + "; in number they balance"
        return open_breach(connection, key, words=words, gap=gap, tell=False) is not None

    def _keep(self, connection: Connection, key: BreachKey, named: NamedMinute, gap: int) -> bool:
        """Write the names; False: they were the same before."""
        most = self._limits.ids
        ids = {"missing": named.missing[:most], "doubled": named.doubled[:most]}
        detail = {
            "named": _named_words(named, gap),
            "missing": len(named.missing),
            "doubled": len(named.doubled),
            "whole": named.whole,
        }
        values = {"ids": orjson.dumps(ids).decode(), "detail": orjson.dumps(detail).decode()}
        return connection.execute(_NAME, {**_asked(key), **values}).first() is not None


def _key(one: Unnamed, stage: str, kind: str) -> tuple[str, str, str, str, int]:
    pipeline_id, event_name, minute = one.key
    return pipeline_id, kind, event_name, stage, minute


def _asked(key: BreachKey) -> dict[str, Any]:
    return asdict(key)


def _is_in(row: BalanceRow, found: MinuteIds, stage: str) -> bool:
    """Tell whether a stage and the one before have as many traces as the ledger counted events."""
    two = (STAGES[STAGES.index(stage) - 1], stage)
    return all(found.have[one] >= _expected(row, one) for one in two)


def _expected(row: BalanceRow, stage: str) -> int:
    counts = row.stage(stage)
    if stage == "ingestion":
        return counts.passed
    extra = row.stage("destination").in_replayed if stage == "mapping" else 0
    return extra + sum(
        (counts.passed, counts.parked, counts.filtered, counts.superseded, counts.duplicate)
    )


def _unrecoverable(row: BalanceRow, stage: str) -> int:
    counts = row.stage(stage)
    return counts.unrecoverable + counts.unrecoverable_replayed


def _is_harmless(row: BalanceRow, found: MinuteIds, ids: StageIds, gap: int) -> bool:
    """Tell whether all that is wrong are copies that the destination, or parking, recognised."""
    if ids.missing or gap != -len(ids.doubled) or row.stage("transformation").left_over():
        return False
    copies = Counter(ids.doubled)
    known = sum(row.stage(s).duplicate for s in STAGES)
    return copies.keys() <= found.recognised and known >= len(ids.doubled)


def _harmless_words(row: BalanceRow, ids: StageIds) -> str:
    number = len(ids.doubled)
    one = number == 1
    return (
        f"{number:,} cop{'y' if one else 'ies'} of {minute_words(row.minute)} came in between log "
        f"and transformation; the destination recognised {'it' if one else 'them'}"
    )


def _named_words(named: NamedMinute, gap: int) -> str:
    parts = []
    for what, ids in (("missing", named.missing), ("doubled", named.doubled)):
        if ids:
            more = ", …" if len(ids) > _SHOWN else ""
            parts.append(f"{len(ids):,} {what}: {', '.join(ids[:_SHOWN])}{more}")
    words = f"{named.stage} of {minute_words(named.minute)}: {'; '.join(parts)}"
    if not named.whole:
        words += f" (in part: the ledger misses {gap:,})"
    return words


_SHOWN = 3
