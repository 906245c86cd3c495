"""Transient errors of user code are met again before an event is parked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.processing.made import chained, event, pipeline, rows

from waybill.events import CATALOGUE
from waybill.processing import Fault, Retries

AWAY = Fault("io_error", "away")
FLAKY = """
import os
from waybill.errors import ParkError
TRIES = {{}}
def transform(event):
    n = event.data["id"]
    event.data["n"] += 1
    with open({log!r}, "a") as log:
        log.write(f"{{n}} ")
    TRIES[n] = TRIES.get(n, 0) + 1
    if TRIES[n] <= event.data.pop("fails"):
        {failing}
    return event
"""


class Clock:
    """Time that passes only where it is waited for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def retries(self, attempts: int = 3, **given: float) -> Retries:
        return Retries(attempts, clock=lambda: self.now, sleep=self.sleep, **given)


def flaky(tmp_path: Path, failing: str = "raise ConnectionError('away')") -> Any:
    return pipeline(FLAKY.format(log=str(tmp_path / "log"), failing=failing), n="int64")


def seen(tmp_path: Path) -> list[int]:
    return [int(word) for word in (tmp_path / "log").read_text().split()]


def test_an_event_is_run_again_in_place_as_it_came(tmp_path: Path) -> None:
    clock = Clock()
    events = [event(n, {"id": n, "n": 0, "fails": 2 if n == 1 else 0}) for n in range(3)]
    result = chained(flaky(tmp_path), events, retries=clock.retries())
    assert result.failures == []
    assert seen(tmp_path) == [0, 1, 1, 1, 2]
    assert sorted((row["id"], row["n"]) for row in rows(result)) == [(0, 1), (1, 1), (2, 1)]
    assert clock.waits == [0.2, 0.4]


def test_a_transient_error_that_stays_parks_and_says_how_often_it_was_tried(
    tmp_path: Path,
) -> None:
    clock = Clock()
    events = [event(1, {"id": 1, "n": 0, "fails": 9})]
    [failure] = chained(flaky(tmp_path), events, retries=clock.retries()).failures
    assert failure.fault.code == "io_error"
    assert failure.fault.message == "ConnectionError: away (attempts: 3)"
    assert b'"fails":9' in failure.value
    assert seen(tmp_path) == [1, 1, 1]


@pytest.mark.parametrize(
    ("failing", "runs"),
    [
        ("raise ParkError('destination_throttled', 'slow')", 3),
        ("raise TimeoutError", 3),
        ("raise ParkError('record_invalid', 'bad')", 1),
        ("raise ValueError('bad')", 1),
    ],
)
def test_only_transient_errors_are_met_again(tmp_path: Path, failing: str, runs: int) -> None:
    events = [event(1, {"id": 1, "n": 0, "fails": 9})]
    chained(flaky(tmp_path, failing), events, retries=Clock().retries())
    assert seen(tmp_path) == [1] * runs


def test_a_service_that_is_down_costs_a_task_its_budget_once(tmp_path: Path) -> None:
    clock = Clock()
    events = [event(n, {"id": n, "n": 0, "fails": 99}) for n in range(200)]
    result = chained(flaky(tmp_path), events, retries=clock.retries(budget_s=1.5))
    assert len(result.failures) == 200
    assert clock.now <= 1.5
    runs = seen(tmp_path)
    assert runs[:6] == [0, 0, 0, 1, 1, 1]
    assert len(runs) < 200 + 8
    assert result.failures[-1].fault.message.endswith("(attempts: 1)")


def test_repeated_runs_count_against_the_budget_as_waits_do() -> None:
    clock = Clock()
    retries = clock.retries(attempts=10, budget_s=5.0)

    def slow() -> Fault:
        clock.now += 4.9
        return AWAY

    assert retries.settle(AWAY, slow) == Fault("io_error", "away (attempts: 2)")
    assert retries.spent_s == pytest.approx(5.1)
    assert retries.settle(AWAY, slow) == Fault("io_error", "away (attempts: 1)")


def test_an_event_that_fails_otherwise_the_second_time_parks_as_that() -> None:
    retries = Clock().retries()
    again: Callable[[], Fault] = lambda: Fault("value_error", "bad")  # noqa: E731
    assert retries.settle(AWAY, again) == Fault("value_error", "bad")


def test_errors_of_input_and_output_are_transient() -> None:
    assert CATALOGUE["io_error"].transient
