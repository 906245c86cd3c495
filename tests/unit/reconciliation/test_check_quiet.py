"""Quiet: no alarm in a month of normal life, and none missed when a pipeline falls silent."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable

import pytest

from waybill.reconciliation.checks.quiet import (
    HISTORY_WEEKS,
    SLOT_MINUTES,
    WEEK,
    unusual_silence,
)

DAY = WEEK // 7
DAYS = 36
"""A month in which the checks know enough, and some days before."""
SHORTEST = 2
Life = Callable[[random.Random], set[int]]


def each_day(days: int, slots: Callable[[random.Random, int], list[int]]) -> Life:
    """Return a life in which a day's slots come from a function of the day's number."""
    return lambda r: {d * DAY + slot for d in range(days) for slot in slots(r, d)}


def at_random(mean: float) -> Life:
    """Return a life of events at random, ``mean`` slots apart."""

    def live(r: random.Random) -> set[int]:
        found, at = set(), r.expovariate(1 / mean)
        while at < DAYS * DAY:
            found.add(int(at))
            at += r.expovariate(1 / mean)
        return found

    return live


def bursts(r: random.Random) -> set[int]:
    found: set[int] = set()
    at = 0.0
    while at < DAYS * DAY:
        length = r.randint(3, 30)
        found |= {int(at) + n for n in range(length) if r.random() < 0.9}
        at += length + r.expovariate(1 / 40)
    return {slot for slot in found if slot < DAYS * DAY}


def office_hours(r: random.Random, day: int) -> list[int]:
    return [] if day % 7 >= 5 else [s for s in range(48, 102) if r.random() < 0.95]


def one_hour_less(life: Life, since_day: int) -> Life:
    """Return a life in local time: from a day on an hour earlier in UTC."""
    return lambda r: {s - 6 * (s // DAY >= since_day) for s in life(r)}


LIVES: dict[str, Life] = {
    "always": each_day(DAYS, lambda _r, _d: list(range(DAY))),
    "nearly always": each_day(DAYS, lambda r, _d: [s for s in range(DAY) if r.random() < 0.9]),
    "hourly": each_day(DAYS, lambda r, _d: [h * 6 + r.randint(0, 1) for h in range(24)]),
    "nightly": each_day(DAYS, lambda r, _d: [12 + r.randint(0, 2)]),
    "weekday nights": each_day(DAYS, lambda r, d: [12 + r.randint(0, 2)] if d % 7 < 5 else []),
    "office hours": each_day(DAYS, office_hours),
    "every other day": each_day(DAYS, lambda r, d: [60 + r.randint(0, 1)] if d % 2 else []),
    "weekly": each_day(DAYS, lambda r, d: [60 + r.randint(0, 1)] if d % 7 == 2 else []),
    "the month's end": each_day(DAYS, lambda _r, d: list(range(20, 90)) if d % 30 > 26 else []),
    "growing": each_day(DAYS, lambda r, d: [s for s in range(DAY) if r.random() < d / DAYS]),
    "twice an hour": at_random(3),
    "at random, hourly": at_random(6),
    "at random, four a day": at_random(36),
    "at random, daily": at_random(144),
    "bursts": bursts,
}
LIVES["office hours, clocks change"] = one_hour_less(LIVES["office hours"], 31)
LIVES["nightly, clocks change"] = one_hour_less(LIVES["nightly"], 31)


def lived(name: str, seed: int) -> list[int]:
    return sorted(LIVES[name](random.Random(f"{name} {seed}")))


@pytest.mark.parametrize("name", LIVES)
def test_a_month_of_normal_life_has_no_alarm(name):
    looked = 0
    for seed in range(3):
        active = lived(name, seed)
        for place, following in enumerate(active[1:], start=1):
            before = active[place - 1]
            if following - before <= SHORTEST:
                continue
            known = active[bisect_left(active, before - HISTORY_WEEKS * WEEK) : place]
            # a silence only grows more unusual: without an alarm at its end there was none before
            assert unusual_silence(known, following, shortest=SHORTEST) is None, (seed, before)
            looked += 1
    assert looked or name == "always"


@pytest.mark.parametrize(
    ("name", "promised_minutes"),
    [
        ("always", 40),
        ("nearly always", 90),
        ("hourly", 70),
        ("nightly", 200),
        ("weekday nights", 200),
        ("office hours", 90),
        ("every other day", 4 * 24 * 60 + 60),
        ("twice an hour", 12 * 60),
        ("at random, hourly", 24 * 60),
        ("at random, four a day", 7 * 24 * 60),
    ],
)
def test_a_silence_is_found_in_the_promised_time(name, promised_minutes):
    for seed in range(4):
        active = lived(name, seed)
        stop = random.Random(f"stop {seed}").randrange((DAYS - 6) * DAY, (DAYS - 2) * DAY)
        place = bisect_left(active, stop)
        due = active[place]
        known = active[:place]
        limit = due + promised_minutes // SLOT_MINUTES
        assert any(
            unusual_silence(known, now, shortest=SHORTEST) for now in range(due, limit + 1)
        ), (seed, due)


def test_too_little_history_is_no_alarm():
    short = list(range(7 * DAY))
    assert unusual_silence(short, 9 * DAY, shortest=SHORTEST) is None
    assert unusual_silence([], 9 * DAY, shortest=SHORTEST) is None
    weekdays = [s for s in range(5 * DAY)]
    assert unusual_silence(weekdays, 7 * DAY, shortest=SHORTEST) is None  # its first weekend


def test_a_young_pipeline_is_told_of_a_silence_far_beyond_its_longest():
    active = [s for s in range(10 * DAY) if s % 6 < 3]
    last = active[-1]
    assert unusual_silence(active, last + 10, shortest=SHORTEST) is None
    silence = unusual_silence(active, last + 11, shortest=SHORTEST)
    assert silence is not None
    assert (silence.last_slot, silence.slots, silence.weeks, silence.longest) == (last, 10, 0, 3)


def test_one_outage_in_the_weeks_before_hides_no_second_one():
    hours = range(3 * WEEK + 20, 3 * WEEK + 60)
    active = [s for s in range(4 * WEEK + 20) if s not in hours]
    silence = unusual_silence(active, 4 * WEEK + 20 + 8, shortest=SHORTEST)
    assert silence is not None
    assert silence.weeks == 4
    assert silence.missed >= 1


def test_the_shortest_silence_is_the_settings():
    active = list(range(5 * WEEK))
    assert unusual_silence(active, 5 * WEEK + 4, shortest=4) is not None
    assert unusual_silence(active, 5 * WEEK + 4, shortest=5) is None
