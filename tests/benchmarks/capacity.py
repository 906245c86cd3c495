"""The policy of capacity on a simulated clock: ``make bench-ingestion PARTS=simulator``.

The same ``decide`` as live, the same delay monitor, six hours, four workloads (homogeneous, bursty,
seasonal, a storm of one team), several seeds. Node capacity is 4 tasks, a node takes 90 s to start,
a task 20 s.

``sim_recovery_s``     from a step to ten times the load until p95 waits are within 60 s for good:
                       the worst of the seeds
``sim_reversals``      changes of direction from that step until the storm ends: the most;
                       ``…_whole_run``: of all six hours, small steps of the calm ones included
``sim_vs_fixed``       cost against the best fixed number of nodes, found in hindsight for each run:
                       less than 1 is better
``sim_vs_threshold``   cost against a plain threshold autoscaler (over 70 % busy one node more, under
                       30 % one less, five minutes apart)
``…_calm``             the same without the storm

Cost is node hours and the hours that tasks waited beyond the objective, summed up.
"""

from __future__ import annotations

from collections.abc import Iterable

from waybill.capacity.model import Thresholds
from waybill.capacity.simulation import (
    LOOK_S,
    STEP_FROM_S,
    STEP_UNTIL_S,
    WORKLOADS,
    FixedScaler,
    PolicyScaler,
    Run,
    ThresholdScaler,
    Workload,
    count_reversals,
    nodes_for,
    simulate,
)

THRESHOLDS = Thresholds(max_nodes=60, most_added=16)
FIXED = (4, 5, 6, 8, 12, 18, 26, 38)


def cost(run: Run) -> float:
    """Return what a run cost."""
    return run.node_hours + run.late_s / 3600


def best_fixed(workload: Workload) -> float:
    """Return the lowest cost of a fixed number of nodes: once waits cost nothing, more cost more."""
    found = []
    for nodes in FIXED:
        run = simulate(workload, FixedScaler(nodes), first_nodes=nodes)
        found.append(cost(run))
        if not run.late_s:
            break
    return min(found)


def run(seeds: int) -> dict[str, float]:
    """Return the figures, over so many seeds."""
    storms: list[Run] = []
    costs: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in WORKLOADS}
    for seed in range(1, seeds + 1):
        for kind in WORKLOADS:
            workload = Workload(kind, seed=seed)
            first = nodes_for(workload, THRESHOLDS)
            ours = simulate(workload, PolicyScaler(THRESHOLDS), first_nodes=first)
            rival = simulate(workload, ThresholdScaler(THRESHOLDS), first_nodes=first)
            costs[kind].append((cost(ours), best_fixed(workload), cost(rival)))
            storms += [ours] * (kind == "storm")
    every = [one for kind in WORKLOADS for one in costs[kind]]
    calm = [one for kind in WORKLOADS if kind != "storm" for one in costs[kind]]
    never = 6 * 3600.0
    return {
        "sim_recovery_s": max(never if r.recovery_s is None else r.recovery_s for r in storms),
        "sim_reversals": max(map(reversals_of_step, storms)),
        "sim_reversals_whole_run": max(r.reversals for r in storms),
        "sim_vs_fixed": _ratio(every, 1),
        "sim_vs_threshold": _ratio(every, 2),
        "sim_vs_fixed_calm": _ratio(calm, 1),
        "sim_vs_threshold_calm": _ratio(calm, 2),
    }


def reversals_of_step(run: Run) -> int:
    """Return the changes of direction from the step of a storm until it is over."""
    during = [one for one in run.minutes if STEP_FROM_S - LOOK_S <= one.at_s < STEP_UNTIL_S]
    return count_reversals(during)


def _ratio(costs: Iterable[tuple[float, float, float]], rival: int) -> float:
    found = list(costs)
    return round(sum(one[0] for one in found) / sum(one[rival] for one in found), 4)
