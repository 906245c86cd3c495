"""What was measured, and what follows: arrival that lasts, the cost of an event, forecasts, cores."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from waybill.clusters import (
    Assignment,
    DryRunInfra,
    LoadSample,
    Placement,
    TeamLoad,
    VirtualCluster,
    team_load,
)
from waybill.clusters.capacity import CapacityDemand, capacity
from waybill.clusters.forecast import forecast
from waybill.clusters.loads import MOST_HOT, HotPartition, HotSpot, cluster_activity

SEED = 20261124


def samples(rates: list[float], **more: float) -> list[LoadSample]:
    """A look each minute, at which so many events a second have come in since the one before."""
    written, found = 0, []
    for minute, rate in enumerate([0.0, *rates]):
        written += round(rate * 60)
        found.append(LoadSample("t", minute * 60.0, 2, written, written, 0.0, **more))  # type: ignore[arg-type]
    return found


def test_a_step_counts_after_three_minutes():
    assert team_load(samples([10] * 20 + [100, 100])).arrival_per_s < 25
    assert team_load(samples([10] * 20 + [100, 100, 100])).arrival_per_s == 100


def test_a_burst_of_a_minute_is_no_step():
    assert team_load(samples([10] * 20 + [70, 70, 10])).arrival_per_s == pytest.approx(18)


def test_a_load_comes_down_slowly():
    after_five = team_load(samples([100] * 20 + [10] * 5)).arrival_per_s
    assert 50 < after_five < 100
    assert team_load(samples([100] * 20 + [10] * 20)).arrival_per_s == 10


def test_a_look_that_was_left_out_changes_no_rate():
    every = samples([10] * 20)
    assert team_load([*every[:10], *every[13:]]).arrival_per_s == pytest.approx(10)


def test_a_topic_that_was_made_anew_has_no_negative_rate():
    before = LoadSample("t", 0.0, 1, written=1000, read=1000, lag_s=0)
    after = LoadSample("t", 60.0, 1, written=10, read=0, lag_s=5)
    found = team_load([before, after])
    assert found.arrival_per_s == 0
    assert found.waiting == 10


def test_one_look_says_nothing_of_rates():
    found = team_load(samples([])[:1])
    assert (found.arrival_per_s, found.core_s_per_event, found.demand_cores) == (0, 0, 0)


def test_the_cost_of_an_event_is_that_of_large_batches():
    """Each batch costs 0.2 core seconds and 0.1 ms an event."""
    looks = [
        LoadSample("t", n * 60.0, 1, 0, 0, 0.0, batches=60, batch_events=60 * size, core_s=60 * (0.2 + size * 1e-4))
        for n, size in enumerate([1, 10, 100, 1000, 10_000, 20_000])
    ]  # fmt: skip
    assert team_load(looks).core_s_per_event == pytest.approx(1.2e-4, rel=0.02)


def test_a_line_is_forecast_as_a_line_that_flattens():
    found = forecast([float(n) for n in range(120)], steps=15)
    assert found.values[0] == pytest.approx(120, rel=0.03)
    assert all(a < b for a, b in zip(found.values, found.values[1:], strict=False))
    assert found.values[-1] < 135


def test_what_is_constant_stays_and_nothing_gives_nothing():
    assert forecast([3.0] * 50, steps=3).values == pytest.approx((3.0, 3.0, 3.0))
    assert forecast([3.0] * 50, steps=3).deviation == pytest.approx(0, abs=1e-9)
    assert forecast([], steps=3).values == (0, 0, 0)
    assert forecast([5.0], steps=2).values == pytest.approx((5.0, 5.0))


def test_nothing_negative_is_forecast():
    assert min(forecast([100.0 - n for n in range(100)], steps=60).values) >= 0


def nightly(minute: int) -> float:
    """A job of an hour at five each morning."""
    return 8.0 if 300 <= minute % 1440 < 360 else 2.0


def test_what_comes_each_day_is_foreseen_once_two_days_are_known():
    noise = random.Random(SEED)
    series = [nightly(n) + noise.gauss(0, 0.2) for n in range(2 * 1440 + 295)]
    assert forecast(series, steps=15, season=1440).peak > 6, f"seed {SEED}"
    assert forecast(series, steps=15).peak < 4
    assert forecast(series[-1440:], steps=15, season=1440).peak < 4


def test_cores_are_asked_for_by_what_comes_in_with_a_fifth_to_spare():
    loads = [TeamLoad("t", 1, arrival_per_s=4000, core_s_per_event=0.001)]
    found = capacity(VirtualCluster("a", cores=4), loads, [4.0] * 60)
    assert found.demand_cores == pytest.approx(4.0)
    assert found.needed_cores == 5
    assert found.is_short


def test_a_backlog_is_to_be_gone_within_the_objective():
    waiting = TeamLoad("t", 1, arrival_per_s=1000, core_s_per_event=0.001, waiting=720_000)
    history = [1.0] * 60
    strict = capacity(VirtualCluster("a", cores=4, lag_objective_s=60), [waiting], history)
    easy = capacity(VirtualCluster("a", cores=4, lag_objective_s=600), [waiting], history)
    assert strict.needed_cores == math.ceil(1 / 0.8 + (720 - 60) / 60)
    assert easy.needed_cores < strict.needed_cores


def test_a_cluster_without_teams_needs_nothing():
    assert capacity(VirtualCluster("a", cores=4), [], []).needed_cores == 0


def test_a_dry_run_writes_down_what_it_would_ask_for(caplog):
    infra = DryRunInfra()
    one = capacity(VirtualCluster("a"), [TeamLoad("t", 1, 1000, 0.001)], [1.0])
    with caplog.at_level("INFO"):
        infra.request(CapacityDemand((one, one)))
    assert infra.requests[0].cores == 4
    assert "4 cores would be asked for (a 2, a 2)" in caplog.text


def test_of_many_hot_spots_the_hottest_are_kept_and_not_the_first_by_name():
    teams = [f"t-{number:03}" for number in range(MOST_HOT + 5)]
    looks = {
        team: [LoadSample(team, 0.0, 1, 0, 0, 0.0, hot_partitions=(HotPartition(team, 0, n, 0.9),))]
        for n, team in enumerate(teams)
    }
    at = Placement("default", 0.0, "new", "it is new")
    placements = dict.fromkeys(teams, at) | {teams[2]: replace(at, hot=True)}
    hot = cluster_activity(Assignment(1, placements), looks)["default"].hot
    kept = [HotSpot(team, team, 0) for team in teams[6:]]
    assert hot == (HotSpot(teams[2]), *reversed(kept))
