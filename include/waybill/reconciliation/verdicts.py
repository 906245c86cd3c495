"""Verdicts: what the counts of one intake minute say at each stage. Values in, values out.

``in_stage``     what came in became something: in = passed + parked + filtered + superseded +
                 duplicate. Both sides are written in one transaction: it holds always, also while
                 events move.
``on_the_way``   first-pass in + in flight + unrecoverable = what the stage before passed on. To
                 mapping and to the destination all of it stands in the tracker; to the
                 transformation it is judged once the minute is whole (see ``snapshot``), and the
                 log was read, or the ledger has passed all that was in the log when the minute was
                 whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from waybill.ledger import BalanceRow, StageCounts
from waybill.reconciliation.minutes import STAGES, Verdict, numbered
from waybill.reconciliation.snapshot import Whole

_BEFORE = {"transformation": "ingestion", "mapping": "transformation", "destination": "mapping"}


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that one equation misses; negative: has too many."""

    stage: str
    kind: str
    """``on_the_way`` or ``in_stage``."""
    gap: int
    words: str


@dataclass(slots=True)
class StageVerdict:
    """One stage's verdict."""

    verdict: Verdict
    gap: int = 0
    why: str = ""

    def to_json(self) -> dict[str, object]:
        """Return it as the tracker keeps it."""
        return {"verdict": self.verdict, "gap": self.gap, "why": self.why}


@dataclass(slots=True)
class MinuteVerdict:
    """What the counts of a minute say."""

    stages: dict[str, StageVerdict]
    gaps: list[Gap] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen beside the counts of a minute."""

    whole: Whole
    """Of its pipeline."""
    log_known: bool
    """The log was read, or all that was in it when the minute was whole is processed."""
    log_why: str = ""
    """If not: what waits."""
    staged_known: bool = True
    staged_why: str = ""


def judge(row: BalanceRow, evidence: Evidence) -> MinuteVerdict:
    """Judge a minute."""
    found = MinuteVerdict({})
    for stage in STAGES:
        counts = row.stage(stage)
        if not evidence.staged_known and stage == "destination":
            counts.in_flight = counts.in_flight_replayed = 0
        wait = _wait(row, stage, evidence)
        gaps = [Gap(stage, "in_stage", counts.left_over(), "")]
        if wait is None:
            gaps.append(Gap(stage, "on_the_way", row.on_the_way(stage), ""))
        real = [Gap(g.stage, g.kind, g.gap, _words(row, g)) for g in gaps if g.gap]
        found.gaps += real
        found.stages[stage] = _judged(counts, real, wait)
    return found


def _judged(counts: StageCounts, gaps: list[Gap], wait: str | None) -> StageVerdict:
    if gaps:
        return StageVerdict(
            "breach", sum(one.gap for one in gaps), "; ".join(g.words for g in gaps)
        )
    if wait is not None:
        return StageVerdict("moving", 0, wait)
    if moving := counts.in_flight + counts.in_flight_replayed:
        way = "is on its way" if moving == 1 else "are on their way"
        return StageVerdict("moving", 0, f"{moving:,} {way} to it")
    return StageVerdict("balanced")


def _wait(row: BalanceRow, stage: str, evidence: Evidence) -> str | None:
    """Return why the way to a stage cannot be judged yet; None: it can."""
    if stage == "transformation":
        if not evidence.whole.holds(row.minute):
            return evidence.whole.why
        return None if evidence.log_known else evidence.log_why
    if stage == "destination" and not evidence.staged_known:
        return evidence.staged_why
    return None


def _words(row: BalanceRow, gap: Gap) -> str:
    number, much = abs(gap.gap), "missing" if gap.gap > 0 else "too many"
    counts = row.stage(gap.stage)
    events = numbered(number, "event")
    minute = minute_words(row.minute)
    if gap.kind == "in_stage":
        came = counts.in_first + counts.in_replayed
        return (
            f"{events} {much} in {gap.stage} of {minute}: {came:,} came in, "
            f"{_being(came - gap.gap)} accounted for"
        )
    before = _BEFORE[gap.stage]
    flight = f" and {_being(counts.in_flight)} in flight" if counts.in_flight else ""
    if counts.unrecoverable:
        flight += f" and {_being(counts.unrecoverable)} unrecoverable"
    return (
        f"{events} {much} between {before} and {gap.stage} of {minute}: {before} passed on "
        f"{row.stage(before).out:,}, {counts.in_first:,} came in{flight}"
    )


def _being(number: int) -> str:
    return f"{number:,} {'is' if number == 1 else 'are'}"


def minute_words(minute: int) -> str:
    """Return an intake minute for people."""
    return f"{datetime.fromtimestamp(minute * 60, UTC):%Y-%m-%d %H:%M} UTC"
