"""One application, kept running: which looks start, adopt, wait, stop."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from waybill.back_off import BackOff
from waybill.errors import InputError, RetryError
from waybill_airflow.supervision import Supervisor


@dataclass
class Seen:
    pid: int | None
    running: bool


@dataclass
class ScriptedApplication:
    """An application whose deaths the test decides; counts what was done to it."""

    running: bool = False
    pid: int | None = None
    starts: list[int] = field(default_factory=list)
    stops: int = 0
    status_error: Exception | None = None
    start_error: Exception | None = None

    def start(self) -> int:
        if self.start_error:
            raise self.start_error
        assert not self.running, "two applications"
        self.pid = 100 + len(self.starts)
        self.starts.append(self.pid)
        self.running = True
        return self.pid

    def status(self) -> Seen:
        if self.status_error:
            raise self.status_error
        return Seen(self.pid if self.running else None, self.running)

    def stop(self) -> None:
        self.stops += 1
        self.running = False

    def last_words(self) -> str:
        return "the end"


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, message: str, *values: Any) -> None:
        self.said.append(message % values)

    warning = info


@pytest.fixture
def application():
    return ScriptedApplication()


@pytest.fixture
def lines():
    return Lines()


def supervise(application, lines, **options):
    options.setdefault("wanted", lambda: True)
    return Supervisor(application, journal=lines, **options)


def test_the_first_look_starts_it_and_remembers_the_pid(application, lines):
    remembered: list[int] = []
    supervise(application, lines, on_start=remembered.append).look(0.0)
    assert application.starts == [100]
    assert remembered == [100]


def test_one_that_runs_is_adopted_not_started_again(application, lines):
    application.start()
    supervisor = supervise(application, lines)
    for second in range(10):
        supervisor.look(float(second))
    assert application.starts == [100]
    assert supervisor.pid == 100


def test_each_death_is_followed_by_a_start_and_said_with_its_last_words(application, lines):
    supervisor = supervise(application, lines)
    now = 0.0
    for _ in range(50):
        application.running = False
        supervisor.look(now)
        now += 1000.0
        supervisor.look(now)
        now += 1000.0
    assert len(application.starts) == 50
    assert sum("died" in line and "the end" in line for line in lines.said) == 49


def test_waits_double_up_to_the_longest_while_it_keeps_dying(application, lines):
    supervisor = supervise(application, lines, back_off=BackOff(1.0, 8.0, healthy_s=60.0))
    started, now = [], 0.0
    while len(started) < 7:
        before = len(application.starts)
        supervisor.look(now)
        if len(application.starts) > before:
            started.append(now)
            application.running = False
        now += 0.5
    gaps = [later - earlier for earlier, later in pairwise(started)]
    # Each gap is the wait plus one look to see the death.
    assert [gap - 0.5 for gap in gaps] == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_a_long_healthy_life_starts_the_waits_anew(application, lines):
    supervisor = supervise(application, lines, back_off=BackOff(1.0, 300.0, healthy_s=60.0))
    now = 0.0
    for _ in range(6):
        supervisor.look(now)
        application.running = False
        supervisor.look(now)
        now += 300.0
    supervisor.look(now)
    application.running = True
    now += 100.0
    application.running = False
    supervisor.look(now)
    supervisor.look(now + 0.9)
    before = len(application.starts)
    supervisor.look(now + 1.0)
    assert len(application.starts) == before + 1


def test_nothing_is_started_while_the_state_is_not_known(application, lines):
    supervisor = supervise(application, lines)
    application.status_error = RetryError("registry away")
    for second in range(100):
        supervisor.look(float(second))
    assert application.starts == []
    application.status_error = None
    supervisor.look(100.0)
    assert application.starts == [100]


def test_a_start_that_may_succeed_later_is_tried_again_with_growing_waits(application, lines):
    supervisor = supervise(application, lines, back_off=BackOff(1.0, 300.0))
    application.start_error = RetryError("no memory")
    tries = []
    for second in range(40):
        said = len(lines.said)
        supervisor.look(float(second))
        if len(lines.said) > said:
            tries.append(second)
    assert tries == [0, 1, 3, 7, 15, 31]


def test_wrong_input_ends_the_supervisor(application, lines):
    application.start_error = InputError("Java is missing")
    with pytest.raises(InputError, match="Java"):
        supervise(application, lines).look(0.0)


def test_a_request_to_stop_stops_once_and_keeps_it_stopped_until_asked_to_run(application, lines):
    wanted = True
    supervisor = supervise(application, lines, wanted=lambda: wanted)
    supervisor.look(0.0)
    wanted = False
    for second in range(1, 50):
        supervisor.look(float(second))
    assert application.stops == 1
    assert not application.running
    assert len(application.starts) == 1
    wanted = True
    supervisor.look(50.0)
    assert application.running
    assert not any("died" in line for line in lines.said), lines.said
