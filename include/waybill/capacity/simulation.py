"""The policy against a simulated clock and workload, before it meets users.

Tasks arrive at random (Poisson, at the rate of the workload), take a random time (exponential), and
are served by the workers of nodes, the teams in turn. A node that is asked for takes work after
``start_s``; one that drains finishes what it has. Each minute the delay monitor's own ``summarise``
sees the tasks, and what is judged, the product's ``decide`` or a rival, says how many nodes there
are to be. All is drawn of the seed: the same simulation gives the same numbers.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from math import ceil, cos, inf, pi
from typing import Any, Literal

from waybill.capacity.model import Observation, PolicyState, Thresholds
from waybill.capacity.policy import decide
from waybill.capacity.waits import HISTORY_S, DelayReport, TaskTimes, percentile, summarise
from waybill.errors import InputError

WorkloadKind = Literal["homogeneous", "bursty", "seasonal", "storm"]
WORKLOADS: tuple[WorkloadKind, ...] = ("homogeneous", "bursty", "seasonal", "storm")
LOOK_S = 60
STEP_FROM_S, STEP_UNTIL_S = 3600, 3 * 3600
"""Of the storm."""
_REVERSAL_S = 3600.0
STORM_TEAM = "team-0"
_MOST_READ = 500
"""Waiting tasks that a look reads, the oldest first: as the monitor does."""
_RATE_STEP_S = 10
_MOST_TASKS = 3_000_000
_RIVAL_HIGH, _RIVAL_LOW, _RIVAL_REST_S = 0.7, 0.3, 300.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Tasks that come in, and the nodes that may serve them."""

    kind: WorkloadKind
    hours: float = 6.0
    tasks_per_s: float = 0.5
    """Of all teams, where nothing is going on."""
    service_s: float = 20.0
    """A task's time, on the mean."""
    teams: int = 8
    factor: float = 10.0
    """Of the storm."""
    units_per_node: int = 4
    start_s: int = 90
    """From asking for a node until it takes work."""
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated.

        Raises:
            InputError: what, and what it must be.
        """
        if self.kind not in WORKLOADS:
            raise InputError(f"no workload {self.kind!r:.60}; there are {', '.join(WORKLOADS)}")
        limits = {"hours": (0.1, 72), "tasks_per_s": (0.001, 20), "service_s": (1, 3600)}
        limits |= {"teams": (1, 1000), "factor": (0.1, 100), "units_per_node": (1, 1000)}
        limits |= {"start_s": (0, 3600)}
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise InputError(f"{name} must be from {low:g} to {high:g}")
        peak = self.tasks_per_s * (self.factor if self.kind == "storm" else 5)
        if (tasks := peak * self.hours * 3600) > _MOST_TASKS:
            raise InputError(
                f"{tasks:,.0f} tasks are too many to simulate: at most {_MOST_TASKS:,}"
            )

    def arrivals(self, random_: random.Random) -> list[tuple[float, str]]:
        """Return when tasks come in, and whose, in order; the rate is taken each 10 s."""
        found = []
        for team in range(self.teams):
            rate = self._rate(team, self.tasks_per_s / self.teams, random_)
            for begin in range(0, int(self.hours * 3600), _RATE_STEP_S):
                at = begin + _pause(random_, rate(begin))
                while at < begin + _RATE_STEP_S:
                    found.append((at, f"team-{team}"))
                    at += _pause(random_, rate(begin))
        return sorted(found)

    def _rate(self, team: int, base: float, random_: random.Random) -> Callable[[float], float]:
        if self.kind == "seasonal":
            shift = random_.uniform(0, pi / 2)
            period = self.hours * 3600
            return lambda t: base * (1 - 0.8 * cos(2 * pi * t / period + shift))
        if self.kind == "bursty":
            begins, at = [], 0.0
            while at < self.hours * 3600:
                at += random_.uniform(600, 1800)
                begins.append((at, at + random_.uniform(20, 90)))
            return lambda t: base * (5 if any(a <= t < b for a, b in begins) else 1)
        if self.kind == "storm" and team == 0:
            # the whole load is ``factor`` times as much, and this one team brings it
            more = self.tasks_per_s * (self.factor - 1)
            return lambda t: base + (more if STEP_FROM_S <= t < STEP_UNTIL_S else 0)
        return lambda _t: base


Scaler = Callable[[Observation], int]
"""What is judged: says how many nodes there are to be."""


class PolicyScaler:
    """The product's policy, with its memory."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds, self._state = thresholds, PolicyState()
        self.reasons: list[tuple[float, str]] = []

    def __call__(self, seen: Observation) -> int:
        """Decide."""
        decision, self._state = decide(self._state, seen, self._thresholds)
        if decision.action != "hold":
            self.reasons.append((seen.at_s, "; ".join(decision.reasons)))
        return decision.after


class FixedScaler:
    """A rival: always so many nodes."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    def __call__(self, _seen: Observation) -> int:
        """Decide."""
        return self._nodes


class ThresholdScaler:
    """A rival: one node more over 70 % utilisation, one less under 30 %, five minutes apart.

    The simple scaling policies of cloud providers, with their usual cool-down.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self._limits, self._changed_s = thresholds, -1e9

    def __call__(self, seen: Observation) -> int:
        """Decide."""
        if seen.at_s - self._changed_s < _RIVAL_REST_S or not seen.units:
            return seen.nodes
        share = seen.busy / seen.units
        after = seen.nodes + (share > _RIVAL_HIGH) - (share < _RIVAL_LOW)
        after = min(max(after, self._limits.min_nodes), self._limits.max_nodes)
        if after != seen.nodes:
            self._changed_s = seen.at_s
        return after


@dataclass(frozen=True, slots=True)
class Minute:
    """What a look saw, and what was decided."""

    at_s: float
    nodes: int
    """After the decision."""
    ready: int
    busy: int
    waiting: int
    p95_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a simulation."""

    minutes: tuple[Minute, ...]
    tasks: int
    """That began."""
    p95_s: float
    late_s: float
    """Seconds that tasks waited beyond the objective, summed up."""
    node_hours: float
    reversals: int
    """Changes of direction within an hour of the change before."""
    recovery_s: float | None
    """From the step until p95 is within the objective for good; None: no storm, or never."""
    other_p95_s: float
    """Of the teams but the storm's."""
    reasons: tuple[tuple[float, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON, without the minutes."""
        names = ("tasks", "p95_s", "late_s", "node_hours", "reversals", "recovery_s", "other_p95_s")
        return {name: getattr(self, name) for name in names}


@dataclass(slots=True)
class _Node:
    ready_at: float
    units: int
    busy: int = 0
    draining: bool = False


@dataclass(slots=True)
class _Fleet:
    """Nodes and the tasks on them."""

    units: int
    nodes: list[_Node] = field(default_factory=list)
    queues: dict[str, deque[float]] = field(default_factory=dict)
    """Times since which the tasks of each team wait."""
    turn: deque[str] = field(default_factory=deque)
    ends: list[tuple[float, int, _Node, TaskTimes]] = field(default_factory=list)
    recent: deque[TaskTimes] = field(default_factory=deque)
    """Tasks that ended, the oldest end first."""
    number: int = 0

    def finish(self, now: float) -> None:
        while self.ends and self.ends[0][0] <= now:
            end, _, node, task = heapq.heappop(self.ends)
            node.busy -= 1
            self.recent.append(task._replace(ended_s=end))
        while self.recent and (self.recent[0].ended_s or 0) < now - HISTORY_S:
            self.recent.popleft()
        if any(one.draining and not one.busy for one in self.nodes):
            self.nodes = [one for one in self.nodes if one.busy or not one.draining]

    def start(self, now: float, service: Callable[[], float]) -> list[tuple[str, float]]:
        """Begin what there are workers for, the teams in turn; return (team, wait) of each."""
        begun: list[tuple[str, float]] = []
        if not self.turn:
            return begun
        free = [
            one
            for one in self.nodes
            if one.ready_at <= now and not one.draining and one.busy < one.units
        ]
        while free and self.turn:
            team = self.turn.popleft()
            queue = self.queues[team]
            eligible = queue.popleft()
            if queue:
                self.turn.append(team)
            node = free[-1]
            node.busy += 1
            if node.busy == node.units:
                free.pop()
            self.number += 1
            task = TaskTimes(team, "", "", eligible, now)
            heapq.heappush(self.ends, (now + service(), self.number, node, task))
            begun.append((team, now - eligible))
        return begun

    def arrive(self, team: str, at: float) -> None:
        queue = self.queues.setdefault(team, deque())
        if not queue:
            self.turn.append(team)
        queue.append(at)

    def resize(self, target: int, now: float, start_s: float) -> None:
        """Ask for nodes, or drain those with the least to do."""
        kept = [one for one in self.nodes if not one.draining]
        for _ in range(target - len(kept)):
            self.nodes.append(_Node(now + start_s, self.units))
        for one in sorted(kept, key=lambda one: (one.ready_at <= now, one.busy))[
            : max(0, len(kept) - target)
        ]:
            one.draining = True

    def report(self, now: float) -> DelayReport:
        """Return what the delay monitor sees."""
        first = heapq.merge(
            *([(at, team) for at in islice(q, _MOST_READ)] for team, q in self.queues.items())
        )
        waiting = [TaskTimes(team, "", "", at) for at, team in islice(first, _MOST_READ)]
        unseen = sum(map(len, self.queues.values())) - len(waiting)
        running = [task for _, _, _, task in self.ends]
        return summarise([*waiting, *running, *self.recent], now, unseen=unseen)

    def seen(self, report: DelayReport, node_hours: float) -> Observation:
        """Return what a scaler is told."""
        now = report.at_s
        kept = [one for one in self.nodes if not one.draining]
        ready = sum(one.ready_at <= now for one in kept)
        return Observation(
            at_s=now,
            units_per_node=self.units,
            units=ready * self.units,
            ready=ready,
            starting=len(kept) - ready,
            draining=len(self.nodes) - len(kept),
            busy=report.busy,
            demand=report.demand,
            backlog_unit_s=report.backlog_s,
            waiting=report.waiting,
            p95_s=report.p95_s,
            oldest_s=report.oldest_s,
            node_hours=node_hours,
        )


def simulate(
    workload: Workload, scaler: Scaler, *, first_nodes: int, objective_s: float = 60.0
) -> Run:
    """Run a workload against what decides about nodes.

    Args:
        workload: what comes in.
        scaler: asked each minute.
        first_nodes: at the beginning, ready.
        objective_s: beyond it a task is late.

    Cost: about a second for 100,000 tasks.
    """
    random_ = random.Random(workload.seed)
    arrivals = deque(workload.arrivals(random_))
    fleet = _Fleet(workload.units_per_node)
    fleet.resize(first_nodes, 0.0, 0.0)
    waits: list[tuple[str, float]] = []
    minutes: list[Minute] = []
    node_s = day_s = 0.0
    for now in range(int(workload.hours * 3600)):
        fleet.finish(now)
        while arrivals and arrivals[0][0] <= now:
            at, team = arrivals.popleft()
            fleet.arrive(team, at)
        waits += fleet.start(now, lambda: random_.expovariate(1 / workload.service_s))
        node_s += len(fleet.nodes)
        day_s = 0.0 if now % 86_400 == 0 else day_s + len(fleet.nodes)
        if now % LOOK_S == 0:
            report = fleet.report(now)
            seen = fleet.seen(report, day_s / 3600)
            target = scaler(seen)
            fleet.resize(target, now, workload.start_s)
            minutes.append(
                Minute(
                    now,
                    target,
                    seen.ready,
                    report.busy,
                    report.waiting + report.unseen,
                    report.p95_s,
                )
            )
    late = [wait - objective_s for _, wait in waits if wait > objective_s]
    left = [now - at - objective_s for queue in fleet.queues.values() for at in queue]
    return Run(
        tuple(minutes),
        len(waits),
        percentile([wait for _, wait in waits], 0.95),
        sum(late) + sum(one for one in left if one > 0),
        node_s / 3600,
        count_reversals(minutes),
        _recovery_s(minutes, objective_s) if workload.kind == "storm" else None,
        percentile([wait for team, wait in waits if team != STORM_TEAM], 0.95),
        tuple(getattr(scaler, "reasons", ())),
    )


def nodes_for(workload: Workload, thresholds: Thresholds) -> int:
    """Return the nodes that the workload wants where nothing is going on, within the limits."""
    busy = workload.tasks_per_s * workload.service_s
    wanted = ceil(busy / thresholds.busy_target / workload.units_per_node)
    return min(max(wanted, thresholds.min_nodes), thresholds.max_nodes)


def count_reversals(minutes: Sequence[Minute]) -> int:
    """Return how often nodes went the other way within an hour of the change before."""
    found, direction, changed_s = 0, 0, 0.0
    for before, after in pairwise(minutes):
        if after.nodes == before.nodes:
            continue
        turned = 1 if after.nodes > before.nodes else -1
        found += turned == -direction and after.at_s - changed_s < _REVERSAL_S
        direction, changed_s = turned, after.at_s
    return found


def _recovery_s(minutes: Sequence[Minute], objective_s: float) -> float | None:
    during = [one for one in minutes if STEP_FROM_S <= one.at_s < STEP_UNTIL_S]
    bad = [one.at_s for one in during if one.p95_s > objective_s]
    if not bad:
        return 0.0
    return None if bad[-1] == during[-1].at_s else bad[-1] + LOOK_S - STEP_FROM_S


def _pause(random_: random.Random, rate: float) -> float:
    return random_.expovariate(rate) if rate > 0 else inf
