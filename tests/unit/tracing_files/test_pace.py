"""The rate follows the store: a simulated one that takes so many objects a second."""

from __future__ import annotations

import pytest

from waybill.tracing.files import Pace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, delay_s: float) -> None:
        self.now += delay_s


def pace_of(clock: Clock, **settings) -> Pace:
    return Pace(clock=clock, sleep=clock.sleep, **settings)


class Limited:
    """Takes ``per_s`` objects in each second, refuses the others; each call takes 2 ms."""

    def __init__(self, clock: Clock, per_s: int) -> None:
        self.clock, self.per_s = clock, per_s
        self.second, self.taken = 0, 0
        self.refused = 0

    def takes(self) -> bool:
        self.clock.now += 0.002
        if int(self.clock.now) != self.second:
            self.second, self.taken = int(self.clock.now), 0
        self.taken += 1
        self.refused += self.taken > self.per_s
        return self.taken <= self.per_s


def send(pace: Pace, store: Limited, clock: Clock, for_s: float) -> int:
    """Send for so long; return how many objects were taken."""
    end, taken = clock.now + for_s, 0
    while clock.now < end:
        pace.wait()
        if store.takes():
            pace.sent()
            taken += 1
        else:
            pace.refused()
    return taken


def test_without_refusals_nothing_waits() -> None:
    clock = Clock()
    taken = send(pace_of(clock), Limited(clock, 10**6), clock, 10)
    assert taken == pytest.approx(10 / 0.002, rel=0.02)


def test_a_store_that_throttles_is_used_nearly_to_its_limit_with_few_refusals() -> None:
    clock = Clock()
    store = Limited(clock, 40)
    pace = pace_of(clock)
    taken = send(pace, store, clock, 120)
    assert taken > 0.6 * 40 * 120
    assert store.refused < 0.05 * taken


def test_the_rate_recovers_when_the_store_does() -> None:
    clock = Clock()
    store = Limited(clock, 10)
    pace = pace_of(clock)
    send(pace, store, clock, 60)
    assert pace.rate_per_s < 40
    store.per_s = 10**6
    before = pace.rate_per_s
    send(pace, store, clock, 20)
    assert pace.rate_per_s == pytest.approx(before + 5 * 20, rel=0.2)


def test_the_rate_never_falls_to_nothing_nor_above_the_most() -> None:
    clock = Clock()
    pace = pace_of(clock, most_per_s=50)
    send(pace, Limited(clock, 0), clock, 60)
    assert 0.1 < pace.rate_per_s < 1
    taken = send(pace, Limited(clock, 10**6), clock, 100)
    assert taken <= 50 * 100
    assert pace.rate_per_s == 50
