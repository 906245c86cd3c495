"""Consumers of one application: what cannot start waits, and the application outlives it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from waybill.clusters import HeldConsumer, Serving
from waybill.errors import AwayError, InputError, RetryError, StopError, WaybillError
from waybill.ledger import FencedError
from waybill.loading.spark import application as loading
from waybill.processing.spark import consumers
from waybill.processing.spark.consumers import BatchGate, Consumers, keep_running, stop_queries
from waybill.settings import Settings

LONGEST_S = 120.0
AWAY = AwayError("the tracker did not answer", setting="WAYBILL_TRACKER__DSN")


class Query:
    """What Spark gives for a query that was started."""

    def __init__(self, error: Exception | None = None) -> None:
        self.isActive = error is None
        self._error = error

        self.name = "a query"
        self.stops = 0
        self.takes_long = False
        """Spark does not see its end in time."""
        self.waits: threading.Barrier | threading.Event | None = None
        """What it waits for amid its end."""

    def fail(self, message: str) -> None:
        self.isActive, self._error = False, RuntimeError(message)

    def exception(self) -> Exception | None:
        return self._error

    def stop(self) -> None:
        self.isActive = False
        self.stops += 1
        if self.waits is not None:
            self.waits.wait(LONGEST_S)
        if self.takes_long:
            raise RuntimeError("java.util.concurrent.TimeoutException: Stream Execution")


class Consumer:
    """What an application keeps for a query."""

    def __init__(self) -> None:
        self.busy = False
        """Its batch runs."""
        self.closed = False
        self.fenced_at_look = False
        self.problem = ""
        self.error: WaybillError | None = None

    def look(self) -> None:
        if self.fenced_at_look:
            raise FencedError("it was taken over")

    def end(self, query: Query) -> bool:
        if not self.busy:
            query.stop()
        return not self.busy

    def close(self) -> None:
        self.closed = True


class Application:
    """Consumers that start at once; keeps what was started last by name."""

    def __init__(self, given: dict[str, Query] | None = None) -> None:
        self.started: list[str] = []
        self._given = given or {}
        self.queries: dict[str, Query] = {}
        self.running: dict[str, Consumer] = {}
        self.consumers = Consumers(self._start)

    def _start(self, name: str) -> tuple[Consumer, Query]:
        self.started.append(name)
        self.running[name] = Consumer()
        self.queries[name] = self._given.pop(name, None) or Query()
        return self.running[name], self.queries[name]

    def fence(self, name: str) -> None:
        self.queries[name].fail(f"consumer {name!r} was taken over")


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(consumers.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("kind", [RetryError, StopError, InputError])
def test_a_consumer_that_cannot_start_waits_and_its_neighbours_go_on(clock, kind):
    started: list[str] = []
    ill = [True]

    def start(name: str) -> tuple[Consumer, Query]:
        started.append(name)
        if name == "events.no.leader" and ill[0]:
            raise kind("Kafka did not tell how far events.no.leader/1 reaches")
        return Consumer(), Query()

    running = Consumers(start)
    names = ["events.a.x", "events.no.leader", "events.b.x"]
    running.look(names)
    running.look(names)
    assert started == names  # the one that failed waits
    found = running.serving(3)
    assert found is not None
    assert (found.wanted, found.running) == (3, 2)
    words = f"{kind.__name__}: Kafka did not tell how far events.no.leader/1 reaches"
    held = "stopped" if kind is InputError else "fails"
    assert found.held == (HeldConsumer("events.no.leader", held, words),)
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
    assert running.serving(3) == Serving(3, 3, 3, 0)


@pytest.mark.usefixtures("clock")
def test_a_destination_that_is_waited_for_in_its_query_is_not_served():
    app = Application()
    assert app.consumers.serving(1) is None
    app.consumers.look(["away", "well"])
    app.running["away"].problem = "destination_unreachable: connection refused"
    found = app.consumers.serving(1)
    assert found is not None
    assert (found.running, found.failing, found.is_unable) == (1, 1, False)
    assert found.held[0].why == "destination_unreachable: connection refused"


@pytest.mark.parametrize("where", ["amid a load", "beside its loads"])
def test_a_destination_that_was_moved_away_and_back_between_two_looks_is_taken_again(clock, where):
    """Another cluster's application had its lease: nothing was wrong with this one."""
    app, wanted = Application(), ["a", "stays"]
    app.consumers.look(wanted)
    first = app.running["a"]
    if where == "amid a load":
        app.fence("a")
    else:
        first.fenced_at_look = True
    app.consumers.look(wanted)
    app.consumers.look(wanted)
    assert first.closed
    assert app.started == wanted  # it waits
    clock[0] += 3
    app.consumers.look(wanted)
    app.consumers.look(wanted)
    assert app.started == [*wanted, "a"]


def test_an_application_that_a_newer_one_replaced_ends_at_its_next_beat():
    app, answers = Application(), [["a"]]

    def wanted() -> list[str]:
        if answers:
            return answers.pop()
        raise FencedError("loading of 'default' was started anew: epoch 1 is over")

    def sleep(_: float) -> None:
        app.fence("a")

    with pytest.raises(StopError, match="started anew"):
        keep_running(app.consumers.look, wanted, Stops(after=9), every_s=2.0, sleep=sleep)
    assert app.started == ["a"]


def test_a_destination_that_is_moved_while_another_is_let_go_of_ends_nobody(clock):
    app = Application()
    app.consumers.look(["first", "second", "stays"])
    app.running["first"].busy = True
    app.consumers.look(["second", "stays"])  # "second" is moved meanwhile, and loaded elsewhere
    app.fence("second")
    clock[0] += 100
    app.consumers.look(["second", "stays"])
    app.consumers.look(["stays"])
    assert not app.running["first"].closed  # its batch goes on
    app.running["first"].busy = False
    app.consumers.look(["stays"])
    assert app.running["first"].closed
    assert app.running["second"].closed
    assert app.started == ["first", "second", "stays"]
    app.consumers.look(["second", "stays"])  # it came back
    assert app.started == ["first", "second", "stays", "second"]


@pytest.mark.usefixtures("clock")
def test_a_destination_that_was_moved_while_it_was_away_is_let_go_of():
    """Whether it answers is asked beside its batches, and its lease with that."""
    app = Application()
    app.consumers.look(["away", "stays"])
    app.running["away"].fenced_at_look = True
    app.consumers.look(["away", "stays"])
    app.consumers.look(["stays"])
    assert app.running["away"].closed
    app.consumers.look(["away", "stays"])
    assert app.started == ["away", "stays", "away"]


@pytest.mark.usefixtures("clock")
def test_a_destination_that_comes_back_while_its_last_load_goes_on_waits_for_that():
    app = Application()
    app.consumers.look(["a"])
    first, query = app.running["a"], app.queries["a"]
    first.busy = True
    app.consumers.look([])
    app.consumers.look(["a"])
    assert app.started == ["a"]
    assert query.isActive
    first.busy = False
    app.consumers.look(["a"])
    assert app.started == ["a", "a"]
    assert (first.closed, query.isActive) == (True, False)


def test_however_many_destinations_are_let_go_of_a_look_takes_seconds(clock):
    app, names = Application(), [f"d{number}" for number in range(20)]
    app.consumers.look(names)
    end = Consumer.end

    def slow(consumer: Consumer, query: Query) -> bool:
        clock[0] += 2
        return end(consumer, query)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Consumer, "end", slow)
        for _ in range(7):
            began = clock[0]
            app.consumers.look([])
            assert clock[0] - began <= 6
    assert all(consumer.closed for consumer in app.running.values())


def test_a_consumer_that_stopped_is_tried_again(clock):
    app = Application({"a": Query(RuntimeError("a table does not fit"))})
    app.consumers.look(["a"])
    app.consumers.look(["a"])
    clock[0] += 3
    app.consumers.look(["a"])
    assert app.started == ["a", "a"]


@pytest.mark.usefixtures("clock")
def test_why_a_query_ended_is_what_its_batch_failed_with_and_not_words_of_spark():
    app = Application()
    app.consumers.look(["a"])
    app.running["a"].error = StopError("column x is gone")
    app.queries["a"].fail("[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception")
    app.consumers.look(["a"])
    app.consumers.look(["a"])
    found = app.consumers.serving(1)
    assert found is not None
    assert found.held == (HeldConsumer("a", "fails", "StopError: column x is gone"),)


@pytest.mark.parametrize("error", [StopError("column x is gone"), KeyError("x")])
def test_a_destination_keeps_what_its_last_batch_failed_with(monkeypatch, tmp_path, error):
    monkeypatch.setattr(loading, "load_position", lambda *_: 0)
    unused: Any = None
    loader: Any = SimpleNamespace(name="d")
    consumer: Any = loading.LoadingConsumer(
        Settings(_env_file=None), unused, loader, unused, tmp_path
    )

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(consumer, "_load", fail)
    with pytest.raises(type(error)):
        consumer._on_batch(None, 0)
    kept = error if isinstance(error, WaybillError) else WaybillError("KeyError: 'x'")
    assert (type(consumer.error), str(consumer.error)) == (type(kept), str(kept))


def never(_: Query) -> bool:
    return False


def test_an_application_that_ends_lets_batches_end_and_cuts_off_what_takes_long(monkeypatch):
    """Ten queries that Spark does not see end take as long as one."""
    monkeypatch.setattr(consumers, "LAST_BATCH_S", 0.3)
    idle, short, *stuck = (Query() for _ in range(12))
    idle.takes_long = True
    at_once, looks = threading.Barrier(len(stuck)), iter([False, True])
    for query in stuck:
        query.waits = at_once

    def end_idle(query: Query) -> bool:
        return BatchGate().end(query)

    def end_short(query: Query) -> bool:
        return next(looks) and BatchGate().end(query)

    stop_queries([(idle, end_idle), (short, end_short), *((query, never) for query in stuck)])
    assert [query.stops for query in (idle, short, *stuck)] == [1] * 12
    assert not at_once.broken


def test_an_application_that_ends_waits_for_no_query_for_ever(monkeypatch):
    monkeypatch.setattr(consumers, "LAST_BATCH_S", 0.1)
    monkeypatch.setattr(consumers, "_CUT_OFF_S", 0.1)
    query, go_on = Query(), threading.Event()
    query.waits = go_on
    began = time.monotonic()
    stop_queries([(query, never)])
    assert time.monotonic() - began < LONGEST_S
    go_on.set()


def test_a_query_ends_once_its_batch_has_and_none_has_an_effect_after_that():
    gate, query = BatchGate(), Query()
    inside, go_on, effects = threading.Event(), threading.Event(), list[str]()

    def batch(name: str) -> None:
        with gate.batch() as is_wanted:
            inside.set()
            assert go_on.wait(300)
            effects.extend([name] if is_wanted else [])

    thread = threading.Thread(target=batch, args=("the last",))
    thread.start()
    assert inside.wait(300)
    assert not gate.end(query)
    assert query.isActive
    go_on.set()
    thread.join()
    batch("too late")
    assert gate.end(query)
    assert (effects, query.isActive) == (["the last"], False)


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
        return Consumer(), Query()

    stops = Stops(after=7)
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        stops.after -= 1

    keep_running(Consumers(start).look, wanted, stops, every_s=2.0, sleep=sleep)
    assert started == ["a"]
    assert stops.waits == [4.0, 8.0, 15.0, 15.0, 15.0]
    assert sleeps == [2.0, 2.0]
