"""The delay monitor: how long tasks wait that may run and do not run yet. Pure.

A task may run from when its upstream tasks are done and the scheduler says so (Airflow's
``scheduled_when``); it waits for a slot of a pool, of the executor, or of a node. Percentiles are
over the tasks that wait now, for as long as they have waited, and those that began within the last
minute: a queue that stands still shows as well as one that moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, NamedTuple

LATELY_S = 60.0
"""Tasks that began within this time are in the percentiles."""
ARRIVALS_S = 120.0
"""What came in is counted over this time,"""
HISTORY_S = 600.0
"""and how long tasks take over this one."""
MOST_GROUPS = 200
"""That a report names, those that wait longest first; the others are summed up."""


class TaskTimes(NamedTuple):
    """A task: whose, and its times in seconds since the epoch."""

    team: str
    connector: str
    """Kind of its pipeline's source; of a task that ingests nothing its DAG."""
    queue: str
    eligible_s: float
    started_s: float | None = None
    """None: it waits."""
    ended_s: float | None = None
    """None: it waits or runs."""


@dataclass(frozen=True, slots=True)
class WaitGroup:
    """How long tasks of a team, connector kind and queue wait."""

    team: str
    connector: str
    queue: str
    waiting: int
    started: int
    """Within the last minute."""
    p50_s: float
    p95_s: float
    oldest_s: float
    """Of those that wait; 0: none does."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DelayReport:
    """What the monitor saw at one time."""

    at_s: float
    waiting: int
    busy: int
    """Tasks that run."""
    arrival_per_s: float
    """Tasks that became eligible."""
    service_s: float
    """How long one runs, on the mean; 0: none ended lately, and none runs."""
    p50_s: float
    p95_s: float
    oldest_s: float
    groups: tuple[WaitGroup, ...] = ()
    unseen: int = 0
    """Tasks that were counted and not looked at: there are more than the monitor reads."""

    @property
    def demand(self) -> float:
        """Return the workers that what comes in keeps busy."""
        return self.arrival_per_s * self.service_s

    @property
    def backlog_s(self) -> float:
        """Return the seconds of a worker that what waits will take."""
        return (self.waiting + self.unseen) * self.service_s

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self) | {"demand": self.demand, "backlog_s": self.backlog_s}


def summarise(tasks: Iterable[TaskTimes], now_s: float, *, unseen: int = 0) -> DelayReport:
    """Return how long tasks wait.

    Args:
        tasks: those that wait, run, or ended within ``HISTORY_S``; times that lie ahead, as a
            clock stepped back, count as now.
        now_s: the clock of their times.
        unseen: tasks that wait and are not among them: they are younger than those that are.

    Cost: linear, and a sort of the waits.
    """
    waits: dict[tuple[str, str, str], tuple[list[float], list[float]]] = {}
    services: list[float] = []
    busy = arrived = 0
    tasks, youngest = list(tasks), 0.0
    for task in tasks:
        eligible = min(task.eligible_s, now_s)
        arrived += now_s - eligible <= ARRIVALS_S
        if task.started_s is None:
            youngest = max(youngest, eligible)
            _group(waits, task)[0].append(now_s - eligible)
            continue
        started = min(task.started_s, now_s)
        if now_s - started <= LATELY_S:
            _group(waits, task)[1].append(max(0.0, started - eligible))
        if task.ended_s is None:
            busy += 1
        elif now_s - task.ended_s <= HISTORY_S:
            services.append(max(0.0, task.ended_s - started))
    lately = min(1.0, ARRIVALS_S / max(now_s - youngest, 1.0))  # of those unseen, all younger
    if not services:  # the first tasks: as long as they have run, at least
        services = [now_s - min(t.started_s, now_s) for t in tasks if t.started_s is not None]
    groups = sorted(
        (_summary(key, *lists) for key, lists in waits.items()),
        key=lambda one: (-one.oldest_s, -one.p95_s, one.team, one.connector, one.queue),
    )
    every = [wait for lists in waits.values() for part in lists for wait in part]
    waiting = [wait for lists in waits.values() for wait in lists[0]]
    return DelayReport(
        now_s,
        len(waiting),
        busy,
        (arrived + unseen * lately) / ARRIVALS_S,
        sum(services) / len(services) if services else 0.0,
        percentile(every, 0.5),
        percentile(every, 0.95),
        max(waiting, default=0.0),
        tuple(groups[:MOST_GROUPS]),
        unseen,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that so large a share of them does not exceed (nearest rank); 0: none."""
    if not values:
        return 0.0
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def _group(
    waits: dict[tuple[str, str, str], tuple[list[float], list[float]]], task: TaskTimes
) -> tuple[list[float], list[float]]:
    return waits.setdefault((task.team, task.connector, task.queue), ([], []))


def _summary(
    key: tuple[str, str, str], waiting: Sequence[float], started: Sequence[float]
) -> WaitGroup:
    every = [*waiting, *started]
    return WaitGroup(
        *key,
        waiting=len(waiting),
        started=len(started),
        p50_s=percentile(every, 0.5),
        p95_s=percentile(every, 0.95),
        oldest_s=max(waiting, default=0.0),
    )
