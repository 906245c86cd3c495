"""Parked jumps, ages and drifts: no alarm in normal life, told once, over when it is over."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from waybill.destinations import RowCount
from waybill.pipelines import Column, TableSpec
from waybill.reconciliation.checks.drift import TablePlace, drift
from waybill.reconciliation.checks.findings import clock, span
from waybill.reconciliation.checks.lateness import Oldest, due_run, is_late
from waybill.reconciliation.checks.limits import JumpLimits, WatchLimits
from waybill.reconciliation.checks.parked import Window, is_over, parked_jump
from waybill.settings import AuditSettings

LIMITS = JumpLimits()
NOW = datetime(2026, 3, 4, 14, 30, tzinfo=UTC)
SPEC = TableSpec(
    schema_name="shop", name="orders", columns=(Column(name="id", type="int64"),), key=("id",)
)


def window(r: random.Random, events: int, share: float) -> Window:
    return Window(events, sum(r.random() < share for _ in range(events)))


@pytest.mark.parametrize(
    ("events", "share"), [(60, 0.01), (60, 0.02), (60, 0.1), (300, 0.0), (2000, 0.3)]
)
def test_a_month_of_windows_with_the_same_share_has_no_jump(events, share):
    r = random.Random(f"{events} {share}")
    windows = [window(r, events, share) for _ in range(30 * 96)]
    for place in range(96, len(windows)):
        assert parked_jump(windows[place], windows[place - 96 : place], LIMITS) is None


@pytest.mark.parametrize("usual", [0.0, 0.01, 0.1, 0.5])
def test_a_jump_is_found_in_its_first_window_and_over_when_it_has_fallen(usual):
    r = random.Random(str(usual))
    history = [window(r, 400, usual) for _ in range(96)]
    jump = parked_jump(window(r, 400, 0.9), history, LIMITS)
    assert jump is not None
    assert usual - 0.05 <= jump.usual <= usual + 0.1
    assert not is_over(window(r, 400, 0.88), jump.over_below, LIMITS)
    assert not is_over(Window(3, 0), jump.over_below, LIMITS)  # too few to say
    assert is_over(window(r, 400, usual), jump.over_below, LIMITS)


def test_a_pipeline_without_history_or_with_few_events_has_no_jump():
    assert parked_jump(Window(1000, 900), [Window(400, 0)] * 4, LIMITS) is None
    assert parked_jump(Window(1000, 900), [Window(400, 0)] * 5, LIMITS) is not None
    assert parked_jump(Window(1000, 900), [Window(5, 0)] * 50, LIMITS) is None
    assert parked_jump(Window(49, 49), [Window(400, 0)] * 50, LIMITS) is None


def test_a_wait_is_late_beyond_its_objective_and_until_it_is_well_below():
    oldest = Oldest("p", "destination", NOW - timedelta(seconds=100))
    assert not is_late(oldest, NOW, 100, told=False)
    assert is_late(oldest, NOW, 99, told=False)
    assert is_late(oldest, NOW, 120, told=True)
    assert not is_late(oldest, NOW, 125, told=True)


@pytest.mark.parametrize(
    ("schedule", "ended", "due"),
    [
        (None, timedelta(days=9), None),
        ("@once", timedelta(days=9), None),
        ("@continuous", timedelta(days=9), None),
        ("@hourly", timedelta(minutes=29), None),
        ("@hourly", timedelta(minutes=31), "14:00"),
        ("@hourly", timedelta(minutes=95), "13:00"),
        ("@daily", timedelta(hours=13), None),
        ("@quarterly", timedelta(days=40), None),
        ("15 2 * * 1-5", timedelta(hours=11), None),
        ("15 2 * * 1-5", timedelta(hours=13), "02:15"),
    ],
)
def test_a_run_is_due_at_the_first_time_after_the_last_one_ended(schedule, ended, due):
    found = due_run(schedule, NOW - ended, NOW)
    assert (None if found is None else f"{found:%H:%M}") == due


def test_a_weekday_schedule_is_not_due_on_sunday():
    friday = datetime(2026, 3, 6, 2, 30, tzinfo=UTC)
    assert due_run("15 2 * * 1-5", friday, datetime(2026, 3, 8, 23, tzinfo=UTC)) is None
    assert due_run("15 2 * * 1-5", friday, datetime(2026, 3, 9, 3, tzinfo=UTC)) is not None


def test_a_drift_says_how_many_rows_who_and_where():
    place = TablePlace("pl-1", "order", SPEC)
    assert drift(place, RowCount(SPEC, counted=10, expected=10, beside=0)) is None
    gone = drift(place, RowCount(SPEC, counted=1_000, expected=1_003, beside=0))
    assert gone is not None
    assert gone.gap == 3
    assert "shop.orders has 1,000 rows, loads put 1,003 there: 3 were deleted" in gone.words
    one = drift(place, RowCount(SPEC, counted=2, expected=3, beside=0))
    assert one.words.endswith("1 was deleted by somebody else")
    more = drift(place, RowCount(SPEC, counted=5, expected=3, beside=0))
    assert more is not None
    assert (more.gap, "2 were added" in more.words) == (-2, True)


def test_times_and_spans_are_said_in_words():
    minute = int(NOW.timestamp() // 60)
    assert clock(minute, minute + 10) == "14:30"
    assert clock(minute, minute + 1440) == "14:30 on Wed 04 Mar"
    said = [span(s) for s in (40, 60, 3599, 3600, 7500, 86_400, 90_000, 3 * 86_400 + 4 * 3600)]
    assert said == ["40 s", "1 min", "59 min", "1 h", "2 h 5 min", "1 d", "1 d 1 h", "3 d 4 h"]


def test_objectives_are_those_of_the_settings_and_of_single_pipelines():
    settings = AuditSettings(
        late_destination_s=120.0, late_of_pipelines={"orders": {"destination": 5.0}}
    )
    limits = WatchLimits.of(settings)
    assert limits.late_after("destination", "orders", "pl-1") == 5.0
    assert limits.late_after("destination", "refunds", "pl-2") == 120.0
    assert limits.late_after("transformation", "orders", "pl-1") == 600.0
    assert WatchLimits.of(AuditSettings()) == WatchLimits()
