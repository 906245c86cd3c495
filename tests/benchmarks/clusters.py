"""``make bench-clusters``: the packing of teams into virtual clusters, on a simulated clock.

24 teams in clusters of 4 cores (``tests/support/simulated_clusters.py`` says what is simulated, and
how), the product's own coordinator, several seeds, and four kinds of load:

homogeneous  constant rates
bursty       each team has five times its rate for 20 to 90 seconds, every quarter of an hour or so
seasonal     each team goes up to 1.8 times its rate and down to 0.2; all peaks within half a period
storm        one team has ten times its rate from the tenth minute on; with all clusters in use, and
             with an empty one

``recovery_s``            until the team of a storm is within its lag objective for good, the worst
``reversals``             moves back in less than an hour, the most in one run
``moves_per_hour``        of homogeneous, bursty and seasonal loads, on the mean
``others_p95_lag_ratio``  p95 lag of all other teams from the step on, against the same run without
                          the step, the worst, at most 1.1; ``…_one_empty``: where a cluster is empty
``others_first_p95_s``    the same lag in seconds in the three minutes behind the step, of those in the
                          cluster of the storm's team, before anybody is moved; ``calm_p95_s``: theirs
                          without a storm. Each the worst

A cluster's topics share queries as in processing: a few groups, and those that fill batches have one
of their own. The same storms without a coordinator are shown beside it, and with other ways to share
queries: one group a cluster beside topics that fill batches (``one_group_…``), one query a cluster for
all (``grouped_…``), and one for each topic (``single_…``); their ratios are against calm runs of the
same way. ``QUERIES=cluster`` or ``topic`` takes one of these instead.
``COMMIT_S`` is what the commit of a topic takes in seconds, ``RESTART_S`` the restart of a query: how
much hangs on what is assumed. ``QUICK=1``: less than a minute. Runs are in a process for each core.
Exit code 1 where a figure is beyond its limit.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from tests.support.simulated_clusters import (
    Costs,
    Fleet,
    Rates,
    Run,
    Simulation,
    bursty,
    homogeneous,
    recovery_s,
    seasonal,
    storm,
    storm_team,
)

from waybill.clusters import PackingPolicy

STEP_S = 600
QUERIES = os.environ.pop("QUERIES", "apart")
POLICY = PackingPolicy()
COSTS = Costs(
    commit_s=float(os.environ.pop("COMMIT_S", Costs.commit_s)),
    restart_s=float(os.environ.pop("RESTART_S", Costs.restart_s)),
)
FIRST_S = 180
MOST_REVERSALS, MOST_LAG_RATIO = 1, 1.1


@dataclass(frozen=True)
class Size:
    """How long the runs of one form are, in simulated seconds, and how many there are."""

    seeds: tuple[int, ...]
    calm_s: int
    season_s: int
    storm_s: int


FULL = Size((11, 12, 13, 14, 15), 4 * 3600, 12 * 3600, 3600)
QUICK = Size((11, 12), 2400, 3600, 2400)


@dataclass(frozen=True)
class Storm:
    """One storm, and what it did to the others."""

    run: Run
    recovery_s: float | None
    ratio: float
    first_p95_s: float
    """Lag of the others in its cluster, behind the step,"""
    calm_p95_s: float
    """and without it."""
    worst_lag_s: float
    """Longest that an event of the others waited."""
    unmanaged_recovery_s: float | None
    unmanaged_ratio: float


def main() -> None:
    size = QUICK if os.environ.pop("QUICK", "") == "1" else FULL
    with ProcessPoolExecutor() as pool:

        def storms_of(**fleet: Any) -> list[Future[Storm]]:
            fleets = [Fleet(seed=seed, **fleet) for seed in size.seeds]
            return [pool.submit(storm_run, fleet, size.storm_s) for fleet in fleets]

        calm_runs = {
            kind: [pool.submit(calm_run, size, kind, seed) for seed in size.seeds]
            for kind in ("homogeneous", "bursty", "seasonal")
        }
        storm_runs = {
            "storm": storms_of(queries=QUERIES),
            "storm, one empty": storms_of(queries=QUERIES, clusters=6, empty=1),
        }
        shared_runs = {
            "one group": storms_of(queries="apart", groups=1),
            "cluster": storms_of(queries="cluster"),
            "topic": storms_of(queries="topic"),
        }
        calm, storms = results(calm_runs), results(storm_runs)
        shared = results(shared_runs)
    show(size, calm, storms)
    show_shared(shared)
    report = report_of(size, calm, storms) | shared_report(shared)
    sys.stdout.write(json.dumps(report) + "\n")
    if broken := beyond(report):
        raise SystemExit("beyond its limit: " + ", ".join(broken))


def results(runs: dict[str, list[Future[Any]]]) -> dict[str, list[Any]]:
    """Return what came of the runs."""
    return {name: [run.result() for run in own] for name, own in runs.items()}


def calm_run(size: Size, kind: str, seed: int) -> Run:
    """Run a load without a storm."""
    fleet = Fleet(seed=seed, queries=QUERIES)
    rates: dict[str, Callable[[], Rates]] = {
        "homogeneous": lambda: homogeneous(fleet, size.calm_s),
        "bursty": lambda: bursty(fleet, size.calm_s),
        "seasonal": lambda: seasonal(fleet, size.season_s, size.season_s),
    }
    return Simulation(fleet, rates[kind](), policy=POLICY, costs=COSTS).go()


def storm_run(fleet: Fleet, seconds: int) -> Storm:
    """Run a storm with and without the coordinator, and the same without a storm."""
    team = storm_team(fleet)
    fleet = replace(fleet, more_partitions=(team,))
    others = [number for number in range(fleet.teams) if number != team]
    rates = storm(fleet, seconds, team=team, at_s=STEP_S)
    before = Simulation(fleet, homogeneous(fleet, seconds), policy=POLICY, costs=COSTS)
    calm = before.go()
    clusters = before.first_clusters
    beside = [number for number in others if clusters[number] == clusters[team]]
    usual = calm.p95_lag(others, STEP_S, seconds)
    with_it, without = (
        Simulation(fleet, rates, policy=policy, costs=COSTS).go() for policy in (POLICY, None)
    )

    def recovery(run: Run) -> float | None:
        return recovery_s(run, team, at_s=STEP_S, objective_s=fleet.lag_objective_s)

    return Storm(
        with_it,
        recovery(with_it),
        with_it.p95_lag(others, STEP_S, seconds) / usual,
        with_it.p95_lag(beside, STEP_S, STEP_S + FIRST_S),
        calm.p95_lag(beside, STEP_S, STEP_S + FIRST_S),
        longest_lag_s(with_it, others),
        recovery(without),
        without.p95_lag(others, STEP_S, seconds) / usual,
    )


def longest_lag_s(run: Run, teams: Sequence[int]) -> float:
    """Return how long an event of these teams waited at most since the step."""
    return max(max(run.lag_by_second[team][STEP_S // 5 :]) for team in teams)


def report_of(
    size: Size, calm: dict[str, list[Run]], storms: dict[str, list[Storm]]
) -> dict[str, Any]:
    """Return the figures."""
    calm_runs_ = [run for runs in calm.values() for run in runs]
    storms_ = [one for found in storms.values() for one in found]
    runs = [*calm_runs_, *(one.run for one in storms_)]
    recoveries = [one.recovery_s for one in storms_]
    hours = sum(run.seconds for run in calm_runs_) / 3600
    fleet = Fleet()
    return {
        "recovery_s": None if None in recoveries else max(r for r in recoveries if r is not None),
        "recovery_median_s": median(recoveries),
        "reversals": max(run.reversals() for run in runs),
        "moves_per_hour": round(sum(len(run.moves) for run in calm_runs_) / hours, 3),
        "others_p95_lag_ratio": round(max(one.ratio for one in storms_), 3),
        "others_p95_lag_ratio_one_empty": round(
            max(one.ratio for one in storms["storm, one empty"]), 3
        ),
        "others_first_p95_s": round(max(one.first_p95_s for one in storms_), 2),
        "calm_p95_s": round(max(one.calm_p95_s for one in storms_), 2),
        "move_pause_p95_s": round(
            statistics.quantiles([p for run in runs for p in run.pauses], n=20)[-1], 1
        ),
        "unmanaged_recovery_s": median([one.unmanaged_recovery_s for one in storms_]),
        "unmanaged_p95_lag_ratio": round(max(one.unmanaged_ratio for one in storms_), 3),
        "simulated_hours": round(sum(run.seconds for run in runs) / 3600, 1),
        "teams": fleet.teams,
        "clusters": fleet.clusters,
        "cores": fleet.cores,
        "seeds": list(size.seeds),
        "queries": QUERIES,
        "commit_s": COSTS.commit_s,
        "restart_s": COSTS.restart_s,
        "worst_lag_s": round(max(one.worst_lag_s for one in storms_), 1),
    }


def shared_report(shared: dict[str, list[Storm]]) -> dict[str, Any]:
    """Return the figures of other ways to share queries."""
    return {
        f"{name}_{key}": value
        for name, found in (
            ("one_group", shared["one group"]),
            ("grouped", shared["cluster"]),
            ("single", shared["topic"]),
        )
        for key, value in {
            "p95_lag_ratio": round(max(one.ratio for one in found), 3),
            "first_p95_s": round(max(one.first_p95_s for one in found), 2),
            "worst_lag_s": round(max(one.worst_lag_s for one in found), 1),
        }.items()
    }


def median(values: list[float | None]) -> float | None:
    """Return the median, where None is longer than any; None: at least half are None."""
    ordered = sorted(values, key=lambda one: float("inf") if one is None else one)
    return ordered[len(ordered) // 2]


def beyond(report: dict[str, Any]) -> list[str]:
    """Return the figures that are beyond their limits."""
    broken = {
        "reversals": report["reversals"] > MOST_REVERSALS,
        "others_p95_lag_ratio": report["others_p95_lag_ratio"] > MOST_LAG_RATIO,
        "recovery_s": report["recovery_s"] is None,
    }
    return [name for name, is_broken in broken.items() if is_broken]


def show(size: Size, calm: dict[str, list[Run]], storms: dict[str, list[Storm]]) -> None:
    """Print a row for each kind of load."""
    fleet = Fleet()
    write(
        f"{fleet.teams} teams, {fleet.clusters} clusters of {fleet.cores} cores, "
        f"{fleet.busy:.0%} busy with events, lag objective {fleet.lag_objective_s:.0f} s, "
        f"seeds {', '.join(map(str, size.seeds))}, a query a {QUERIES}"
    )
    everyone = range(fleet.teams)
    write(
        f"{'load':18} {'hours':>6} {'moves/h':>8} {'reversals':>9} {'p95 lag s':>9} {'pause s':>8}"
    )
    for name, runs in [
        *calm.items(),
        *((n, [s.run for s in found]) for n, found in storms.items()),
    ]:
        hours = sum(run.seconds for run in runs) / 3600
        pauses = [pause for run in runs for pause in run.pauses]
        lag = max(run.p95_lag(everyone, STEP_S, run.seconds) for run in runs)
        write(
            f"{name:18} {hours:6.1f} {sum(len(run.moves) for run in runs) / hours:8.2f} "
            f"{max(run.reversals() for run in runs):9} {lag:9.2f} "
            f"{max(pauses, default=0.0):8.1f}"
        )
    for name, found in storms.items():
        write(
            f"\n{name}: {'recovery s':>24} {'others p95 lag':>15} {'first s':>8}   without coordinator:"
        )
        for one in found:
            write(
                f"{seconds(one.recovery_s):>{26 + len(name)}} {one.ratio:14.3f}x {one.first_p95_s:8.2f}"
                f" {seconds(one.unmanaged_recovery_s):>12} {one.unmanaged_ratio:8.3f}x"
            )


def show_shared(shared: dict[str, list[Storm]]) -> None:
    """Print a row for each storm and way to share queries."""
    write(f"\n{'queries':10} {'recovery s':>10} {'others p95 lag':>15} {'their longest s':>16}")
    for way, found in shared.items():
        for one in found:
            write(
                f"{way:10} {seconds(one.recovery_s):>10} {one.ratio:14.3f}x {one.worst_lag_s:16.1f}"
            )


def seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.0f}"


def write(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
