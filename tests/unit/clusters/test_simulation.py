"""The benchmark's simulator, small: what the coordinator does for teams, and that it can fail."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.support import simulated_clusters
from tests.support.simulated_clusters import (
    Fleet,
    Run,
    Simulation,
    bursty,
    homogeneous,
    recovery_s,
    storm,
    storm_team,
)

from waybill.clusters import PackingPolicy

FLEET = Fleet(clusters=4, teams=16, seed=11)
TEAM = storm_team(FLEET)
STORMY = replace(FLEET, more_partitions=(TEAM,))
OTHERS = [number for number in range(FLEET.teams) if number != TEAM]
SECONDS, STEP_S = 1500, 300
NERVOUS = PackingPolicy(fill=0.60, over=0.61, rest_s=0.0, return_s=0.0, moves=10)


@cache
def stormy(policy: PackingPolicy | None, scheduler: str = "fair") -> Run:
    """Return the run, which nobody may change: several tests look at the same one."""
    rates = storm(STORMY, SECONDS, team=TEAM, at_s=STEP_S)
    return Simulation(STORMY, rates, policy=policy, scheduler=scheduler).go()


def recovery(run: Run) -> float | None:
    return recovery_s(run, TEAM, at_s=STEP_S, objective_s=FLEET.lag_objective_s)


@cache
def spread(groups: int | None, *, is_stormy: bool) -> Run:
    """Return a run as in processing, with so many groups a cluster; None: as many as it has."""
    fleet = replace(STORMY, queries="apart", groups=groups)
    rates = homogeneous(fleet, SECONDS)
    if is_stormy:
        rates = storm(fleet, SECONDS, team=TEAM, at_s=STEP_S)
    return Simulation(fleet, rates, policy=PackingPolicy()).go()


def others_lag_s(run: Run) -> float:
    return run.p95_lag(OTHERS, STEP_S, SECONDS)


def test_a_team_in_a_storm_recovers_and_nobody_else_notices():
    calm, in_storm = spread(None, is_stormy=False), spread(None, is_stormy=True)
    assert recovery(in_storm) is not None
    assert in_storm.reversals() == 0
    assert others_lag_s(in_storm) <= 1.1 * others_lag_s(calm)


def test_without_a_coordinator_it_does_not():
    assert recovery(stormy(PackingPolicy())) is not None
    run = stormy(None)
    assert recovery(run) is None
    assert run.moves == []


def test_a_scheduler_that_is_not_fair_is_noticed_by_the_others():
    fair, fifo = stormy(None), stormy(None, "fifo")
    usual = fair.p95_lag(OTHERS, STEP_S, SECONDS)
    assert fifo.p95_lag(OTHERS, STEP_S, SECONDS) > 1.1 * usual


def test_a_policy_without_hysteresis_moves_to_and_fro():
    nervous = Simulation(FLEET, bursty(FLEET, 1500), policy=NERVOUS).go()  # one is enough
    calm = Simulation(FLEET, bursty(FLEET, 3000), policy=PackingPolicy()).go()
    assert calm.moves
    assert calm.reversals() == 0
    assert nervous.reversals() > 0


def test_a_calm_day_moves_nobody():
    assert Simulation(FLEET, homogeneous(FLEET, 900), policy=PackingPolicy()).go().moves == []


def test_every_event_is_processed_once_through_all_moves():
    rates = storm(STORMY, SECONDS, team=TEAM, at_s=STEP_S)
    run = stormy(PackingPolicy())
    assert run.moves
    read = np.zeros(FLEET.teams, dtype=int)
    for _, team, events, first, last in run.lags:
        read[team] += events
        assert first >= last >= 0
    assert sum(read) + run.unread == pytest.approx(rates.sum(), abs=FLEET.teams)


def test_a_move_pauses_its_team_for_as_long_as_looking_and_starting_take():
    run = stormy(PackingPolicy())
    assert len(run.pauses) == len(run.moves) > 0
    assert min(run.pauses) > 3


def test_the_same_seed_gives_the_same_run():
    another = stormy.__wrapped__(PackingPolicy())
    assert another is not stormy(PackingPolicy())
    assert another.moves == stormy(PackingPolicy()).moves


def test_in_one_query_a_storm_reaches_its_neighbours_and_in_one_of_its_own_it_does_not():
    """Spark shares a batch's limit by what waits in each topic."""
    longest = {}
    for queries in ("cluster", "apart"):
        fleet = replace(STORMY, queries=queries)
        rates = storm(fleet, SECONDS, team=TEAM, at_s=STEP_S)
        run = Simulation(fleet, rates, policy=PackingPolicy()).go()
        longest[queries] = max(max(run.lag_by_second[team]) for team in OTHERS)
    assert longest["cluster"] > 2 * FLEET.lag_objective_s
    assert longest["apart"] < FLEET.lag_objective_s


def test_over_several_groups_others_lag_less():
    calm_s, shared_s = (others_lag_s(spread(groups, is_stormy=False)) for groups in (None, 1))
    assert calm_s < 0.95 * shared_s


def test_where_queries_begin_batches_together_all_lag_more(monkeypatch):
    apart_s = others_lag_s(spread(None, is_stormy=False))
    monkeypatch.setattr(simulated_clusters, "staggered_ms", lambda usual_ms, _number: usual_ms)
    together_s = others_lag_s(spread.__wrapped__(None, is_stormy=False))
    assert apart_s < 0.95 * together_s


@pytest.mark.parametrize(("number", "interval_ms"), [(1, 500), (2, 507), (8, 549)])
def test_ticks_are_the_multiples_of_an_interval_since_the_epoch(number, interval_ms):
    simulation = Simulation(FLEET, homogeneous(FLEET, 1), policy=None)
    query, now, ticks_ms = simulated_clusters._Query("c0", [], number=number), 0.0, []
    for _ in range(10_000):
        now = simulation._next_tick(now, query)
        ticks_ms.append(simulated_clusters._EPOCH_MS + round(1000 * now))
    assert {tick_ms % interval_ms for tick_ms in ticks_ms} == {0}
    assert set(np.diff(ticks_ms)) == {interval_ms}, "none is passed over, none comes twice"


def test_those_beside_a_storm_keep_their_lag_before_anybody_is_moved():
    simulation = Simulation(STORMY, homogeneous(STORMY, 2), policy=None)
    simulation.go()
    clusters = simulation.first_clusters
    beside = [number for number in OTHERS if clusters[number] == clusters[TEAM]]
    calm, stormy_run = spread(None, is_stormy=False), spread(None, is_stormy=True)
    first = (STEP_S, stormy_run.moves[0][0])
    assert stormy_run.p95_lag(beside, *first) < 1.5 * calm.p95_lag(beside, *first)
    assert recovery(stormy_run) is not None
