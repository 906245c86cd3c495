"""How queries end, and the loop of an application, which outlives a tracker that is away."""

from __future__ import annotations

import threading
import time

from waybill.errors import AwayError
from waybill.processing.spark import consumers
from waybill.processing.spark.consumers import BatchGate, keep_running, stop_queries

LONGEST_S = 120.0
AWAY = AwayError("the tracker did not answer", setting="WAYBILL_TRACKER__DSN")


class Query:
    """What Spark gives for a query that was started."""

    def __init__(self) -> None:
        self.isActive = True
        self.name = "a query"
        self.stops = 0
        self.takes_long = False
        """Spark does not see its end in time."""
        self.waits: threading.Barrier | threading.Event | None = None
        """What it waits for amid its end."""

    def stop(self) -> None:
        self.isActive = False
        self.stops += 1
        if self.waits is not None:
            self.waits.wait(LONGEST_S)
        if self.takes_long:
            raise RuntimeError("java.util.concurrent.TimeoutException: Stream Execution")


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
    looks, answers = [], [AWAY] * 5

    def wanted():
        if answers:
            raise answers.pop()
        return ["a"]

    stops = Stops(after=7)
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        stops.after -= 1

    keep_running(looks.append, wanted, stops, every_s=2.0, sleep=sleep)
    assert looks == [["a"], ["a"]]
    assert stops.waits == [4.0, 8.0, 15.0, 15.0, 15.0]
    assert sleeps == [2.0, 2.0]
