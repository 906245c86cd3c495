"""Consumers of one application: what cannot start waits, and the application outlives it."""

from __future__ import annotations

import pytest
from tests.unit.processing.test_spark_consumers import Stops

from waybill.clusters import HeldConsumer, Serving
from waybill.errors import InputError, RetryError, StopError, WaybillError
from waybill.ledger import FencedError
from waybill.loading.spark import consumers
from waybill.loading.spark.consumers import Consumers, Pauses
from waybill.processing.spark.consumers import keep_running


class Consumer:
    """A consumer that was started."""

    def __init__(self) -> None:
        self.busy = False
        """Its load goes on."""
        self.ends_at = 0
        """Asked so often it ends."""
        self.is_running, self.asked = True, False
        self.closed = False
        self.fenced_at_look = False
        self.problem = ""
        self.error: WaybillError | None = None

    def fail(self, error: WaybillError) -> None:
        self.is_running, self.error = False, error

    def look(self) -> None:
        if self.fenced_at_look:
            raise FencedError("it was taken over")

    def ask_to_end(self) -> None:
        self.asked = True

    def end(self) -> bool:
        self.ends_at -= 1
        if self.ends_at <= 0 and not self.busy:
            self.is_running = False
        return not self.is_running

    def close(self) -> None:
        self.closed = True


class Application:
    """Consumers that start at once; keeps what was started last by name."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.running: dict[str, Consumer] = {}
        self.consumers = Consumers(self._start)

    def _start(self, name: str) -> Consumer:
        self.started.append(name)
        self.running[name] = Consumer()
        return self.running[name]

    def fence(self, name: str) -> None:
        self.running[name].fail(FencedError(f"consumer {name!r} was taken over"))


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(consumers.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("kind", [RetryError, StopError, InputError])
def test_a_consumer_that_cannot_start_waits_and_its_neighbours_go_on(clock, kind):
    started: list[str] = []
    ill = [True]

    def start(name: str) -> Consumer:
        started.append(name)
        if name == "events.no.leader" and ill[0]:
            raise kind("Kafka did not tell how far events.no.leader/1 reaches")
        return Consumer()

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
def test_a_destination_that_is_waited_for_is_not_served():
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
    assert not app.running["first"].closed  # its load goes on
    app.running["first"].busy = False
    app.consumers.look(["stays"])
    assert app.running["first"].closed
    assert app.running["second"].closed
    assert app.started == ["first", "second", "stays"]
    app.consumers.look(["second", "stays"])  # it came back
    assert app.started == ["first", "second", "stays", "second"]


@pytest.mark.usefixtures("clock")
def test_a_destination_that_was_moved_while_it_was_away_is_let_go_of():
    """Whether it answers is asked beside its loads, and its lease with that."""
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
    first = app.running["a"]
    first.busy = True
    app.consumers.look([])
    app.consumers.look(["a"])
    assert app.started == ["a"]
    assert first.is_running
    first.busy = False
    app.consumers.look(["a"])
    assert app.started == ["a", "a"]
    assert (first.closed, first.is_running) == (True, False)


def test_however_many_destinations_are_let_go_of_a_look_takes_seconds(clock):
    app, names = Application(), [f"d{number}" for number in range(20)]
    app.consumers.look(names)
    end = Consumer.end

    def slow(consumer: Consumer) -> bool:
        clock[0] += 2
        return end(consumer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Consumer, "end", slow)
        for _ in range(7):
            began = clock[0]
            app.consumers.look([])
            assert clock[0] - began <= 6
    assert all(consumer.closed for consumer in app.running.values())


def test_one_that_a_look_did_not_come_to_and_that_comes_back_has_not_failed(clock, caplog):
    app, names = Application(), ["slow", "later"]
    app.consumers.look(names)
    first, end = app.running["later"], Consumer.end

    def slow(consumer: Consumer) -> bool:
        clock[0] += 9
        return end(consumer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Consumer, "end", slow)
        app.consumers.look([])
    assert first.asked
    first.is_running = False  # its thread ends by itself
    app.consumers.look(["later"])
    app.consumers.look(["later"])
    assert (first.closed, app.started) == (True, [*names, "later"])
    assert "stopped" not in caplog.text


def test_a_consumer_that_stopped_is_tried_again(clock):
    app = Application()
    app.consumers.look(["a"])
    app.running["a"].fail(StopError("a table does not fit"))
    app.consumers.look(["a"])
    clock[0] += 3
    app.consumers.look(["a"])
    assert app.started == ["a", "a"]


@pytest.mark.usefixtures("clock")
def test_why_a_consumer_ended_is_reported():
    app = Application()
    app.consumers.look(["a"])
    app.running["a"].fail(StopError("column x is gone"))
    app.consumers.look(["a"])
    app.consumers.look(["a"])
    found = app.consumers.serving(1)
    assert found is not None
    assert found.held == (HeldConsumer("a", "fails", "StopError: column x is gone"),)


def test_an_application_that_ends_lets_loads_end_and_waits_for_none_for_ever():
    app, names = Application(), ["idle", "short", "stuck", "behind it"]
    app.consumers.look(names)
    app.running["short"].ends_at = 3
    app.running["stuck"].busy = True
    assert not app.consumers.stop(0.5)
    assert [app.running[name].is_running for name in names[:3]] == [False, False, True]
    assert all(consumer.asked for consumer in app.running.values()), "none begins another load"
    app.running["stuck"].busy = False
    assert app.consumers.stop(0.5)
    app.consumers.close()
    assert all(consumer.closed for consumer in app.running.values())


@pytest.mark.parametrize(
    ("usual_s", "took_s", "rest_s"),
    [(0.5, 0.1, 0.1), (0.5, 0.25, 0.25), (0.5, 0.4, 0.1), (0.5, 0.5, 0.0), (0.5, 7.0, 0.0),
     (0.0, 0.1, 0.0)],
)  # fmt: skip
def test_small_loads_that_keep_coming_leave_half_of_the_time_to_others(usual_s, took_s, rest_s):
    assert Pauses(usual_s, 2.0).behind(took_s) == pytest.approx(rest_s)


@pytest.mark.parametrize(
    ("usual_s", "idle_s", "since_s", "pause_s"),
    [(0.5, 2.0, 59.0, 0.5), (0.5, 2.0, 60.0, 2.0), (0.5, 0.1, 60.0, 0.5), (0.0, 2.0, 60.0, 0.1)],
)
def test_who_is_told_nothing_looks_less_often_after_a_minute(usual_s, idle_s, since_s, pause_s):
    assert Pauses(usual_s, idle_s).quiet(since_s) == pause_s
