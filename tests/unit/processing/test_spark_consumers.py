"""Consumers of one application: what cannot start waits, and the application outlives it."""

from __future__ import annotations

import pytest

from waybill.errors import AwayError, InputError, RetryError, StopError
from waybill.ledger import FencedError
from waybill.processing.spark import consumers
from waybill.processing.spark.consumers import Consumers, keep_running

AWAY = AwayError("the tracker did not answer", setting="WAYBILL_TRACKER__DSN")


class Query:
    """What Spark gives for a query that was started."""

    def __init__(self, error: Exception | None = None) -> None:
        self.isActive = error is None
        self._error = error

    def exception(self) -> Exception | None:
        return self._error

    def stop(self) -> None:
        self.isActive = False


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(consumers.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("kind", [RetryError, StopError, InputError])
def test_a_consumer_that_cannot_start_waits_and_its_neighbours_go_on(clock, kind):
    started: list[str] = []
    ill = [True]

    def start(name: str) -> Query:
        started.append(name)
        if name == "events.no.leader" and ill[0]:
            raise kind("Kafka did not tell how far events.no.leader/1 reaches")
        return Query()

    running = Consumers(start)
    names = ["events.a.x", "events.no.leader", "events.b.x"]
    running.look(names)
    running.look(names)
    assert started == names  # the one that failed waits
    clock[0] += 3
    running.look(names)
    assert started == [*names, "events.no.leader"]  # its neighbours were not started again
    clock[0] += 3
    running.look(names)
    assert len(started) == 4  # the wait grows
    ill[0] = False
    clock[0] += 60
    running.look(names)
    clock[0] += 60
    running.look(names)
    assert started == [*names, "events.no.leader", "events.no.leader"]


def test_a_fenced_consumer_ends_the_application(clock):
    fenced = Query(RuntimeError("consumer 'a' was taken over"))
    running = Consumers({"a": fenced}.__getitem__, fenced=lambda name: name == "a")
    running.look(["a"])
    with pytest.raises(StopError, match="taken over"):
        running.look(["a"])


def test_a_consumer_that_stopped_with_the_words_of_a_fence_is_tried_again(clock):
    quoting = Query(RuntimeError(f"{FencedError.__name__}: a destination said so"))
    running = Consumers({"a": quoting}.__getitem__)
    running.look(["a"])
    running.look(["a"])


class Stops:
    """Asked to stop after some waits; keeps how long each was."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.waits: list[float] = []

    @property
    def asked(self) -> bool:
        return len(self.waits) >= self.after

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return self.asked


def test_an_application_waits_with_back_off_while_its_own_reads_fail():
    started, answers = [], [AWAY] * 5

    def wanted():
        if answers:
            raise answers.pop()
        return ["a"]

    def start(name):
        started.append(name)
        return Query()

    stops = Stops(after=7)
    keep_running(Consumers(start).look, wanted, stops, every_s=2.0)
    assert started == ["a"]
    assert stops.waits == [4.0, 8.0, 15.0, 15.0, 15.0, 2.0, 2.0]
