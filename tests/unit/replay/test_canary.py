"""The canary's steps over a world in memory: sizes, stops, resumption."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from waybill.errors import InputError, RetryError
from waybill.parking import Replay, ReplayConditions
from waybill.replay.canary_steps import CanaryParts, CanaryReport, canary
from waybill.replay.outcome import ReplayOutcome
from waybill.replay.run import ReplayReport, ReplayRun

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class World:
    """Parked events, each with the time of its parking; a share of those sent parks again."""

    parked: list[datetime]
    fails: float = 0.0
    waits_for: Any = ""
    now: datetime = START
    steps: dict[str, Replay] = field(default_factory=dict)
    sizes: list[tuple[str, int]] = field(default_factory=list)
    dies_after: str = ""
    holds_after: str = ""
    """The step that a hold catches whole; none begins after it."""
    held: bool = False
    entry: str | None = "as_parked"
    """Of the first step, in its row."""
    asked: list[ReplayRun] = field(default_factory=list)

    def matching(self, conditions: ReplayConditions) -> list[datetime]:
        _, until = conditions.parked_window
        return [at for at in self.parked if until is None or at < until]

    def send(self, request: ReplayRun) -> ReplayReport:
        known = self.steps.get(request.step)
        if known is None:
            chosen = self.matching(request.conditions)[: request.conditions.max_events]
            self.now += timedelta(minutes=1)
            known = _replay(request, len(chosen), self.now, self.entry)
            self.asked.append(request)
            self.steps[request.step] = known
            self.sizes.append((request.step, len(chosen)))
            for at in chosen:
                self.parked.remove(at)
            self.now += timedelta(minutes=1)
            self.parked += [self.now] * round(len(chosen) * self.fails)
            if self.dies_after == request.step:
                self.dies_after = ""
                raise RetryError("killed")
        number = known.events
        return ReplayReport(7, str(known.id), "done", 1, number, number, 0, 0, 0, 1.0)

    def watch(self, step: str) -> ReplayOutcome:
        sent = self.steps[step].events
        if step == self.holds_after:
            self.held, caught = True, {"transformation/pipeline_held": sent}
            return ReplayOutcome("r", sent, sent, 0, caught, {}, 0, self.waits_for)
        again = round(sent * self.fails)
        ways = {"mapping/type_mismatch": again} if again else {}
        return ReplayOutcome("r", sent, sent, sent - again, ways, {}, 0, self.waits_for)

    def run(self, enter: str | None = None, **conditions: Any) -> CanaryReport:
        parts = CanaryParts(
            send=self.send,
            watch=self.watch,
            known=self.steps.get,
            parked=lambda asked: len(self.matching(asked)),
            threshold=0.05,
            held=lambda: "the pipeline is held since noon" if self.held else "",
        )
        run = ReplayRun(7, "ann", "r1", ReplayConditions(**conditions), enter=enter)
        return canary(parts, run)


def _replay(request: ReplayRun, events: int, at: datetime, entry: str | None) -> Replay:
    return Replay(
        id=uuid4(),
        partition_id=7,
        state="done",
        requested_by="ann",
        run_id=request.run_id,
        since=None,
        until=None,
        rate_per_s=None,
        fingerprint=None,
        max_events=request.conditions.max_events,
        step=request.step,
        entry=entry,
        events=events,
        sent=events,
        quarantined=0,
        started_at=at,
        finished_at=None,
    )


def world(events: int = 1000, **more: Any) -> World:
    return World([START - timedelta(days=1)] * events, **more)


def test_steps_are_counted_from_the_first() -> None:
    found = world()
    report = found.run()
    assert found.sizes == [("1%", 10), ("10%", 90), ("100%", 900)]
    assert (report.state, report.events, report.sent, report.problem) == ("done", 1000, 1000, "")


@pytest.mark.parametrize(
    ("decided", "asked", "later"),
    [
        ("transformation", None, "transformation"),
        ("as_parked", None, "as_parked"),
        (None, None, "as_parked"),  # an older release began it
        (None, "transformation", "transformation"),
    ],
)
def test_where_it_enters_is_decided_over_all_of_it_by_its_first_step(
    decided: str | None, asked: str | None, later: str
) -> None:
    found = world(entry=decided)
    found.run(asked, max_events=500)
    assert [run.entry for run in found.asked] == [None, later, later]
    assert found.asked[0].choice == ReplayConditions(max_events=500)
    assert [run.choice for run in found.asked[1:]] == [None, None]


def test_too_much_parked_again_stops_it_and_leaves_the_rest() -> None:
    found = world(fails=0.2)
    report = found.run()
    assert found.sizes == [("1%", 10)]
    assert report.state == "stopped"
    assert "2 mapping/type_mismatch" in report.problem
    assert "of 10 events" in report.problem
    assert len(found.parked) == 992


def test_what_a_step_parks_again_is_not_sent_by_the_next() -> None:
    found = world(2000, fails=0.05)
    report = found.run()
    assert [size for _, size in found.sizes] == [20, 180, 1800]
    assert report.state == "done"
    assert len(found.parked) == 1 + 9 + 90


def test_into_a_held_pipeline_no_step_is_sent() -> None:
    found = world(held=True)
    with pytest.raises(InputError, match="is held since noon"):
        found.run()
    assert found.sizes == []
    assert len(found.parked) == 1000


def test_what_a_hold_caught_is_not_parked_again_for_a_cause_and_stops_it_in_words() -> None:
    found = world(holds_after="1%")
    report = found.run()
    assert (report.state, found.sizes) == ("stopped", [("1%", 10)])
    assert (report.steps[0].parked_again, report.steps[0].held) == (0, 10)
    assert "was held during its 1% step" in report.problem
    assert "parked again" not in report.problem


def test_a_hold_between_two_steps_stops_it_before_the_second() -> None:
    found = world(dies_after="1%")
    with pytest.raises(RetryError):
        found.run()
    found.held = True
    report = found.run()
    assert (report.state, [step for step, _ in found.sizes]) == ("stopped", ["1%"])
    assert "before its 10% step: the pipeline is held" in report.problem


@pytest.mark.parametrize("dies_after", ["1%", "10%", "100%"])
def test_a_run_that_was_killed_goes_on_with_the_step_it_was_at(dies_after: str) -> None:
    found = world(dies_after=dies_after)
    with pytest.raises(RetryError, match="killed"):
        found.run()
    report = found.run()
    assert [size for _, size in found.sizes] == [10, 90, 900]
    assert (report.events, report.state) == (1000, "done")


def test_a_step_that_nobody_processed_yet_is_no_success() -> None:
    found = world(waits_for="processing")
    with pytest.raises(RetryError, match="1% step waits for processing"):
        found.run()
    found.waits_for = ""
    assert found.run().events == 1000


@pytest.mark.parametrize("events", [0, 1, 5])
def test_few_events_are_sent_once(events: int) -> None:
    found = world(events)
    assert found.run().events == events
    assert found.parked == []


def test_a_limit_is_the_whole_of_it() -> None:
    found = world(1000)
    assert found.run(max_events=200).events == 200
    assert [size for _, size in found.sizes] == [2, 18, 180]
    assert len(found.parked) == 800


@pytest.mark.parametrize("most", [1, 2, 11])
def test_no_event_beyond_a_limit_is_sent(most: int) -> None:
    found = world(1000)
    assert found.run(max_events=most).events == most
    assert len(found.parked) == 1000 - most
