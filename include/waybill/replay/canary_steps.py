"""Canary: a replay in three steps, each only if what the one before sent did not park again.

Steps of 1 %, 10 % and 100 % of the events, counted from the first; each is a replay of its own
under the same run id. They take the first events in the order of replay, so that the order of a
key is the same as without a canary; how representative they are, a dry run with a sample by
fingerprint tells. What is parked after the first step began, and so what the steps themselves park
again, is left to the next replay.

A pipeline that is held takes nothing in: no step begins while it is, and what a hold caught of a
step says nothing of the cause. The canary stops there; those events go back after the release, by
themselves.

Killed anywhere, a run with the same run id goes on: a step that began is known by its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from waybill.errors import InputError, RetryError
from waybill.events import HELD_ERROR
from waybill.replay.messages import asked_entry

if TYPE_CHECKING:
    from waybill.parking import Replay, ReplayConditions
    from waybill.replay.outcome import AwaitedEnds, ReplayOutcome
    from waybill.replay.run import ReplayReport, ReplayRun

STEPS = (("1%", 0.01), ("10%", 0.10), ("100%", 1.0))


class CanaryWaitError(RetryError):
    """A step is not processed and loaded yet; called again, the canary goes on from here."""

    def __init__(self, message: str, step: str) -> None:
        super().__init__(message)
        self.step = step
        self.ends: Mapping[str, AwaitedEnds] = {}
        """What each step waits, or waited, for."""


@dataclass(frozen=True, slots=True)
class CanaryWait:
    """How long a canary waits for a step, and what for."""

    limit_s: float
    ends: Mapping[str, AwaitedEnds] = field(default_factory=dict)
    """By step, as a ``CanaryWaitError`` had them."""


@dataclass(frozen=True, slots=True)
class CanaryStep:
    """What became of one step."""

    step: str
    events: int
    parked_again: int
    """Events; of the last step it is not waited for, so it is 0 there."""
    share: float
    """Of the events sent that no hold caught."""
    ways: dict[str, int]
    """Stage and error type to events that are parked again."""
    held: int = 0
    """Events that wait because the pipeline was held meanwhile; not among ``parked_again``."""


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """What a replay with a canary did, over all its runs."""

    partition_id: int
    replay_id: str
    """Of the last step."""
    state: str
    """done, or stopped: too much was parked again, or the pipeline is held; the rest stays
    parked."""
    events: int
    sent: int
    resumed: int
    refused: int
    quarantined: int
    seconds: float
    steps: list[CanaryStep]
    problem: str = field(default="", compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CanaryParts:
    """What a canary needs."""

    send: Callable[[ReplayRun], ReplayReport]
    """Runs one step to its end."""
    watch: Callable[[str], ReplayOutcome]
    """Waits until all of a step is processed and loaded, up to a limit; returns what is known."""
    known: Callable[[str], Replay | None]
    """Returns a step of this run that began."""
    parked: Callable[[ReplayConditions], int]
    """Counts the events that are parked now and match, windows as whole segments."""
    threshold: float
    """Largest share that may be parked again."""
    held: Callable[[], str] = str
    """Returns the message that the pipeline is held; empty: it is not."""


def canary(parts: CanaryParts, run: ReplayRun) -> CanaryReport:
    """Replay in steps; stops where more than the threshold is parked again.

    Raises:
        CanaryWaitError: a step is not processed and loaded yet; call again.
        RetryError: something is away; call again.
        InputError: as ``replay``; the pipeline is held, so no step began.
    """
    reports: list[ReplayReport] = []
    steps: list[CanaryStep] = []
    for name, share in STEPS:
        step = _step_of(parts, run, name, share, taken=sum(r.events for r in reports))
        if step is None:
            continue
        if parts.known(name) is None and (reason := parts.held()):
            if not reports:
                raise InputError(reason)
            return _report(reports, steps, f"the canary stopped before its {name} step: {reason}")
        reports.append(parts.send(step))
        if share == 1:
            steps.append(CanaryStep(name, reports[-1].events, 0, 0.0, {}))
            break
        steps.append(_judged(parts, name))
        if stopped := _stopped(parts, run, steps[-1]):
            return _report(reports, steps, stopped)
    return _report(reports, steps, "")


def _step_of(
    parts: CanaryParts, run: ReplayRun, name: str, share: float, *, taken: int
) -> ReplayRun | None:
    """Return one step's run; None: it would take nothing beyond the steps before."""
    asked = run.conditions
    first = parts.known(STEPS[0][0])
    conditions = asked if first is None else parked_before(asked, first)
    total = taken + parts.parked(conditions)
    if asked.max_events is not None:
        total = min(total, asked.max_events)
    most = math.ceil(total * share) - taken
    limited = share < 1 or (asked.max_events is not None and taken > 0)
    if limited and most < 1 and parts.known(name) is None:
        return None
    if share < 1 or asked.max_events is not None:
        conditions = replace(conditions, max_events=max(1, most), about=share < 1)
    step = replace(run, conditions=conditions, step=name)
    if name == STEPS[0][0]:
        return replace(step, choice=asked)
    return step if first is None else replace(step, entry=first.entry or asked_entry(run.enter))


def parked_before(asked: ReplayConditions, first: Replay) -> ReplayConditions:
    """Return the conditions without what parks, or parks again, once the first step began."""
    _, until = asked.parked_window
    return replace(
        asked, parked_until=first.started_at if until is None else min(until, first.started_at)
    )


def _judged(parts: CanaryParts, name: str) -> CanaryStep:
    outcome = parts.watch(name)
    if outcome.waits_for:
        raise CanaryWaitError(
            f"the canary's {name} step waits for {outcome.waits_for}: {outcome.in_flight:,} of its "
            f"{outcome.sent:,} events are not processed yet, or not all are loaded. The next try "
            "continues from here; see `waybill status`",
            name,
        )
    ways = outcome.parked_again
    held = sum(events for way, events in ways.items() if way.endswith(f"/{HELD_ERROR}"))
    again, judged = outcome.sent - outcome.passed - held, outcome.sent - held
    share = again / judged if judged else 0.0
    return CanaryStep(name, outcome.sent, again, round(share, 4), ways, held)


def _stopped(parts: CanaryParts, run: ReplayRun, step: CanaryStep) -> str:
    """Return why the canary stops after a step; empty: it goes on."""
    if step.share > parts.threshold:
        return _over_threshold(parts, run, step)
    if not step.held:
        return ""
    return (
        f"the canary stopped: the pipeline was held during its {step.step} step, and {step.held:,} "
        f"of {step.events:,} events of partition {run.partition_id} wait; they go back by "
        "themselves after the release. The rest stays parked: once the pipeline is released "
        "(`waybill pipelines holds`), start a new replay"
    )


def _over_threshold(parts: CanaryParts, run: ReplayRun, step: CanaryStep) -> str:
    ways = ", ".join(f"{number:,} {way}" for way, number in sorted(step.ways.items()))
    return (
        f"the canary stopped: of {step.events:,} events of partition {run.partition_id} that "
        f"its {step.step} step sent, {step.parked_again:,} parked again ({ways}), more than "
        f"{parts.threshold:.1%}. The rest stays parked: fix the cause, try it with a dry "
        "run, and start a new replay"
    )


def _report(reports: list[ReplayReport], steps: list[CanaryStep], stopped: str) -> CanaryReport:
    last = reports[-1]
    return CanaryReport(
        partition_id=last.partition_id,
        replay_id=last.replay_id,
        state="stopped" if stopped else last.state,
        events=sum(report.events for report in reports),
        sent=sum(report.sent for report in reports),
        resumed=sum(report.resumed for report in reports),
        refused=max(report.refused for report in reports),
        quarantined=sum(report.quarantined for report in reports),
        seconds=round(sum(report.seconds for report in reports), 2),
        steps=steps,
        problem=" ".join(filter(None, [stopped, *(report.problem for report in reports)])),
    )
