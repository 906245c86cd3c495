"""Consumers of one application: what cannot start waits, and the application outlives it."""

from __future__ import annotations

import threading

import pytest

from waybill.clusters import HeldConsumer, Serving
from waybill.errors import AwayError, InputError, RetryError, StopError
from waybill.ledger import FencedError
from waybill.processing.spark import consumers
from waybill.processing.spark.consumers import (
    LAST_BATCH_S,
    BatchGate,
    Consumers,
    keep_running,
    stop_queries,
)

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

    def exception(self) -> Exception | None:
        return self._error

    def stop(self) -> None:
        self.isActive = False
        self.stops += 1
        if self.takes_long:
            raise RuntimeError("java.util.concurrent.TimeoutException: Stream Execution")


class Consumer:
    """What an application keeps for a query."""

    def __init__(self) -> None:
        self.is_fenced = False
        self.busy = False
        """Its batch runs."""
        self.closed = False
        self.fenced_at_look = False
        self.problem = ""

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
        self.running[name].is_fenced = True
        self.queries[name] = Query(RuntimeError(f"consumer {name!r} was taken over"))
        self.consumers._states[name].running = (self.running[name], self.queries[name])


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
    held = "stopped" if kind is StopError else "fails"
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


@pytest.mark.usefixtures("clock")
def test_a_fenced_consumer_that_is_wanted_still_ends_the_application():
    app = Application()
    app.consumers.look(["a"])
    app.fence("a")
    app.consumers.look(["a"])  # what is wanted may have been read before it was taken over
    assert app.running["a"].closed
    with pytest.raises(StopError, match="taken over"):
        app.consumers.look(["a"])


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
def test_a_destination_that_was_moved_while_it_was_away_ends_nobody():
    """Whether it answers is asked beside its batches, and its lease with that."""
    app = Application()
    app.consumers.look(["away", "stays"])
    app.running["away"].fenced_at_look = True
    app.consumers.look(["away", "stays"])
    app.consumers.look(["stays"])
    assert app.running["away"].closed
    app.consumers.look(["away", "stays"])
    app.running["away"].fenced_at_look = True
    app.consumers.look(["away", "stays"])
    with pytest.raises(StopError, match="taken over"):
        app.consumers.look(["away", "stays"])


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


def test_a_consumer_that_stopped_with_the_words_of_a_fence_is_tried_again(clock):
    quoting = Query(RuntimeError(f"{FencedError.__name__}: a destination said so"))
    app = Application({"a": quoting})
    app.consumers.look(["a"])
    app.consumers.look(["a"])
    clock[0] += 3
    app.consumers.look(["a"])
    assert app.started == ["a", "a"]


def test_an_application_that_ends_lets_batches_end_and_cuts_off_what_takes_long(clock, monkeypatch):
    monkeypatch.setattr(consumers.time, "sleep", lambda s: clock.__setitem__(0, clock[0] + s))
    began, asked = clock[0], list[float]()
    idle, short, long, stuck = (Query() for _ in range(4))
    idle.takes_long = stuck.takes_long = True

    def end_idle(query: Query) -> bool:
        gate.end(query)
        return True

    def end_short(query: Query) -> bool:
        asked.append(clock[0])
        if clock[0] - began < 5:
            return False
        query.stop()
        return True

    gate = BatchGate()
    running = [
        (idle, end_idle),
        (stuck, lambda _: False),
        (short, end_short),
        (long, lambda _: False),
    ]
    stop_queries(running)
    assert [query.stops for query in (idle, stuck, short, long)] == [1, 1, 1, 1]
    assert 5 <= asked[-1] - began < 6
    assert LAST_BATCH_S <= clock[0] - began < LAST_BATCH_S + 1


def test_a_query_ends_once_its_batch_has_and_none_has_an_effect_after_that():
    gate, query = BatchGate(), Query()
    inside, go_on, effects = threading.Event(), threading.Event(), list[str]()

    def batch(name: str) -> None:
        with gate.batch() as is_wanted:
            inside.set()
            assert go_on.wait(60)
            effects.extend([name] if is_wanted else [])

    thread = threading.Thread(target=batch, args=("the last",))
    thread.start()
    assert inside.wait(60)
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
