"""Virtual clusters on a simulated clock: queries, cores, Kafka, the ledger and the coordinator.

What is as in the real thing: a topic a team; queries whose micro-batches begin at ticks, take at
most so many events (shared by what waits in each topic, as Spark shares ``maxOffsetsPerTrigger``),
and cost driver time, tasks, and a commit a topic. A task holds its core until it ends; a core that
gets free goes to the query with the fewest running tasks (Spark's FAIR scheduler) or to the oldest
batch (FIFO). Over how many queries topics are spread, which batch is full, and how many cores a topic
with long batches may hold beside other queries is decided by the product's code, as in processing.
Ticks are multiples of a query's interval since the epoch, as those of Spark's
``ProcessingTimeExecutor``, and the interval is the product's; the first batch of a query begins at
once, and so does one whose tick passed during the batch before. The coordinator is the product's,
too: it sees what the tracker and Kafka would tell it, once a minute and some seconds late.

A move pauses its team: the old application looks every two seconds, ends the batch at work, and
releases; the new one looks every two seconds, starts a query, which takes seconds, and its first
batch is slow, slower still where it served nobody. With every move the other topics of both
groups stop for ``restart_s``, as a query does that gains or loses a topic.

Not in it: data that is skewed over partitions, executors that die, loading, a driver that is short
of CPU.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from waybill.clusters import (
    Assignment,
    LoadSample,
    PackingPolicy,
    VirtualCluster,
    assign,
    team_load,
)
from waybill.processing.spark.batch_size import BatchSize, QueriesAtWork
from waybill.processing.spark.idle_trigger import staggered_ms
from waybill.processing.spark.topic_groups import group_load, groups_for

Rates = np.ndarray
"""Events a second, of each team (row) and second (column)."""
_EPOCH_MS = 1_790_000_000_000
"""When the simulated clock begins; ticks count from the epoch."""


@dataclass(frozen=True)
class Costs:
    """What things take, in seconds.

    Of commits and restarts the benchmarks tell on a quiet machine (``docs/performance.md``):
    ``processing_commit_ms`` of ``bench-tracker`` 6.7, ``group_restart_s`` of ``bench-processing``
    0.32 to 0.49, the longest of five. The rest is of a local run of the main job.
    """

    trigger_ms: int = 500
    """As declared, between two ticks."""
    most_events: int = 200_000
    driver_s: float = 0.1
    """Before a batch's tasks."""
    commit_s: float = 0.01
    """After them."""
    task_s: float = 0.01
    """Of a task without events,"""
    object_s: float = 0.02
    """and of a topic's partition in it: its objects."""
    alone_s: float = 120.0
    """For so long a topic that filled a batch has a query of its own."""
    look_s: float = 2.0
    """Between two looks of an application at the assignment."""
    query_s: float = 3.0
    """Until a new consumer's query runs."""
    first_batch_s: float = 2.0
    """More that its first batch takes."""
    idle_application_s: float = 10.0
    """More in an application that served nobody: nothing is compiled, no worker runs. It is there:
    no team is moved into a cluster without one."""
    restart_s: float = 0.5
    """For how long the others of a group stop when one comes or goes."""
    coordinator_s: float = 8.0
    """From a full minute until the coordinator has decided."""


@dataclass(frozen=True)
class Fleet:
    """The clusters and teams of a run."""

    clusters: int = 5
    cores: int = 4
    teams: int = 24
    partitions: int = 2
    """Of a topic: so many tasks a batch, so many cores that a team can use. Teams that use a fifth
    of a cluster on the mean have one for each core."""
    more_partitions: tuple[int, ...] = ()
    """Other teams whose topic has a partition for each core."""
    busy: float = 0.4
    """Share of all cores that the teams' events keep busy on the mean; tasks take some on top."""
    empty: int = 0
    """Of the clusters: there, and given to nobody at first."""
    lag_objective_s: float = 20.0
    seed: int = 7
    queries: str = "topic"
    """A query for each ``topic``, or one for each ``cluster``; or as in processing: topics are
    spread over ``groups`` of a cluster, and those ``apart`` that are more than a quarter of a full
    batch, until two minutes after their last full one."""
    groups: int | None = None
    """Of a cluster; None: as many as processing has with so many cores."""

    def partitions_of(self) -> list[int]:
        """Return the partitions of each team's topic."""
        large = self.base_rates() * self.event_costs() > self.cores / 5
        return [
            self.cores if large[team] or team in self.more_partitions else self.partitions
            for team in range(self.teams)
        ]

    def event_costs(self) -> np.ndarray:
        """Return the core seconds of an event, by team: 15 to 45 microseconds."""
        return np.random.default_rng(self.seed).uniform(15e-6, 45e-6, self.teams)

    def base_rates(self) -> np.ndarray:
        """Return the events a second of each team; loads differ by a factor of ten or so."""
        made = np.random.default_rng(self.seed + 1)
        share = made.lognormal(0, 0.6, self.teams)
        demand = share / share.sum() * self.busy * (self.clusters - self.empty) * self.cores
        rates: np.ndarray = demand / self.event_costs()
        return rates


@dataclass
class _Batch:
    query: _Query
    began: float
    parts: list[tuple[_Consumer, int, float]]
    """(consumer, events, core seconds)."""
    tasks: list[float]
    """Seconds of those that wait for a core."""
    at_work: ExitStack
    """Closed when it ends."""
    running: int = 0

    @property
    def events(self) -> int:
        return sum(events for _, events, _ in self.parts)


@dataclass
class _Query:
    """A streaming query: the consumers that share its batches."""

    cluster: str
    members: list[_Consumer]
    restarts: bool = False
    fresh: bool = False
    number: int = 1
    """The least that was free in its cluster."""
    apart_since: float | None = None
    """When its one member, which is out of the groups, last filled a batch."""
    leaving: list[_Consumer] = field(default_factory=list)
    """Members that fill its batches,"""
    leave_at: float = 0.0
    """and when the application has seen it."""


class _Consumer:
    """A team's topic."""

    def __init__(self, number: int, cumulative: list[float], cost: float) -> None:
        self.number = number
        self.team = f"team{number:02}"
        self.cost = cost
        self.cumulative = cumulative
        self.read = 0
        self.cluster: str | None = None
        self.target: str | None = None
        """Where it is to go."""
        self.left_at: float | None = None
        self.last_commit = 0.0
        self.batch_size = BatchSize()
        self.since_look = [0, 0, 0.0]
        """Batches, events, core seconds since the coordinator's last look."""
        self._at = 0

    def written(self, now: float) -> int:
        """Return how many events have come in."""
        second = min(int(now), len(self.cumulative) - 2)
        part = now - second
        there = self.cumulative[second]
        return int(there + part * (self.cumulative[second + 1] - there))

    def came_at(self, number: int) -> float:
        """Return when an event came in; asked in rising order."""
        at, total = self._at, self.cumulative
        while at + 2 < len(total) and total[at + 1] <= number:
            at += 1
        self._at = at
        width = total[at + 1] - total[at]
        return at + (number - total[at]) / width if width > 0 else at + 1.0


@dataclass
class Run:
    """What happened."""

    seconds: int
    lags: list[tuple[float, int, int, float, float]] = field(default_factory=list)
    """(time, team, events, lag of the first, lag of the last) of each batch."""
    lag_by_second: dict[int, list[float]] = field(default_factory=dict)
    """By team: how long its oldest unread event has waited, every five seconds."""
    moves: list[tuple[float, str, str | None, str, str]] = field(default_factory=list)
    """(time, team, old, new, kind)."""
    pauses: list[float] = field(default_factory=list)
    """Of moved teams, from the last commit here to the first one there."""
    problems: set[str] = field(default_factory=set)
    unread: int = 0

    def reversals(self, within_s: float = 3600.0) -> int:
        """Return how often a team went back where it came from in less than an hour."""
        back = 0
        for place, (at, team, old, _, _) in enumerate(self.moves):
            for later, other, _, new, _ in self.moves[place + 1 :]:
                if other == team and new == old and later - at < within_s:
                    back += 1
                    break
        return back

    def p95_lag(self, teams: Sequence[int], first: float, last: float) -> float:
        """Return the lag that 95 of 100 events of these teams stayed below."""
        chosen = set(teams)
        rows = [row for row in self.lags if first <= row[0] < last and row[1] in chosen]
        lags = np.array([lag for row in rows for lag in row[3:5]])
        weights = np.array([row[2] / 2 for row in rows for _ in range(2)])
        order = np.argsort(lags)
        reached = np.searchsorted(np.cumsum(weights[order]), 0.95 * weights.sum())
        return float(lags[order][reached])


def _groups_of(fleet: Fleet) -> int:
    return groups_for(fleet.cores) if fleet.groups is None else fleet.groups


class Simulation:
    """One run.

    Args:
        fleet: who there is.
        rates: what comes in.
        policy: of the packing; None: nobody is ever moved.
        scheduler: ``fair`` or ``fifo``.
    """

    def __init__(
        self,
        fleet: Fleet,
        rates: Rates,
        *,
        policy: PackingPolicy | None,
        scheduler: str = "fair",
        costs: Costs | None = None,
    ) -> None:
        self._fleet, self._policy, self._costs = fleet, policy, costs or Costs()
        self._fifo = scheduler == "fifo"
        self._partitions = fleet.partitions_of()
        self._seconds = rates.shape[1]
        self._random = random.Random(fleet.seed + 2)
        total = np.concatenate([np.zeros((fleet.teams, 1)), np.cumsum(rates, axis=1)], axis=1)
        costs_of = fleet.event_costs()
        self._consumers = [
            _Consumer(n, total[n].tolist(), float(costs_of[n])) for n in range(fleet.teams)
        ]
        self._clusters = [
            VirtualCluster(f"c{n}", cores=fleet.cores, lag_objective_s=fleet.lag_objective_s)
            for n in range(fleet.clusters)
        ]
        self._free = {one.name: fleet.cores for one in self._clusters}
        self._queries: list[_Query] = []
        self._groups: dict[str, list[_Query]] = {one.name: [] for one in self._clusters}
        self._most_groups = 1 if fleet.queries == "cluster" else _groups_of(fleet)
        self._now = 0.0
        self.first_clusters: list[str] = []
        """Of each team, by number, once it runs."""
        self._at_work = {one.name: QueriesAtWork(lambda: self._now) for one in self._clusters}
        self._queues: dict[str, list[_Batch]] = {one.name: [] for one in self._clusters}
        self._samples: dict[int, list[LoadSample]] = {n: [] for n in range(fleet.teams)}
        self._assignment: Assignment | None = None
        self._heap: list[tuple[float, int, Callable[..., None], Any]] = []
        self._sequence = 0
        self.run = Run(self._seconds, lag_by_second={n: [] for n in range(fleet.teams)})

    def go(self) -> Run:
        """Run to the end."""
        self._place_all()
        self._at(60.0 + self._costs.coordinator_s, self._coordinate, None)
        self._at(5.0, self._look, None)
        while self._heap:
            now, _, act, what = heapq.heappop(self._heap)
            if now >= self._seconds:
                break
            self._now = now
            act(now, what)
        end = float(self._seconds)
        self.run.unread = sum(max(0, one.written(end) - one.read) for one in self._consumers)
        return self.run

    def _at(self, when: float, act: Callable[..., None], what: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, act, what))

    def _place_all(self) -> None:
        """Begin as after a quiet night: teams are packed by what they ask for on the mean."""
        rates = self._fleet.base_rates()
        used = self._clusters[: len(self._clusters) - self._fleet.empty]
        loads = [
            replace(
                team_load([self._sample(one, 0.0)]),
                arrival_per_s=float(rates[one.number]),
                core_s_per_event=one.cost,
            )
            for one in self._consumers
        ]
        self._assignment = assign(None, loads, used, {}, now_s=-7200.0)
        for one in self._consumers:
            one.cluster = one.target = self._assignment.placements[one.team].cluster
            self.first_clusters.append(one.cluster)
            self._join(0.0, one)

    # Queries

    def _join(self, now: float, one: _Consumer) -> None:
        """Give a consumer a query in its cluster: the idlest group, once there are enough."""
        assert one.cluster is not None
        groups = self._groups[one.cluster]
        groups[:] = [query for query in groups if query.members]
        if len(groups) >= self._most_groups and self._fleet.queries != "topic":
            group = min(groups, key=self._load)
            group.members.append(one)
            group.restarts = group.restarts or now > 0
            return
        query = self._new_query(one, fresh=now > 0)
        groups.append(query)
        self._at(now + (0 if now else self._random.random()), self._trigger, query)

    def _load(self, query: _Query) -> tuple[int, float, int]:
        coming = sum(one.left_at is not None for one in query.members)
        cores = self._at_work[query.cluster].cores_of(str(id(query)))
        return group_load(coming, cores, len(query.members))

    def _new_query(self, one: _Consumer, **fields: Any) -> _Query:
        assert one.cluster is not None
        running = (query for query in self._queries if query.members)
        used = {query.number for query in running if query.cluster == one.cluster}
        number = next(number for number in count(1) if number not in used)
        query = _Query(one.cluster, [one], number=number, **fields)
        self._queries.append(query)
        return query

    def _trigger(self, now: float, query: _Query) -> None:
        for one in [one for one in query.members if one.target != query.cluster]:
            query.members.remove(one)
            query.restarts = True
            self._release(now, one)
        if self._fleet.queries == "apart":
            self._set_apart(now, query)
        if not query.members:
            return
        if query.restarts:
            query.restarts = False
            self._at(now + self._costs.restart_s, self._trigger, query)
            return
        batch = self._batch_of(now, query)
        if batch is None:
            self._at(self._next_tick(now, query), self._trigger, query)
            return
        more = self._costs.first_batch_s if query.fresh else 0.0
        query.fresh = False
        self._at(now + self._costs.driver_s + more, self._submit, batch)

    def _set_apart(self, now: float, query: _Query) -> None:
        """Give topics that fill batches a query of their own, and let those back that do not."""
        if query.apart_since is not None:
            if query.members and now - query.apart_since > self._costs.alone_s:
                [one] = query.members
                query.members.clear()
                self._join(now, one)
        elif query.leaving and now >= query.leave_at:
            for one in query.leaving:
                if query.members == [one]:
                    query.apart_since = now
                    self._groups[query.cluster].remove(query)
                elif one in query.members:
                    query.members.remove(one)
                    query.restarts = True
                    own = self._new_query(one, apart_since=now)
                    self._at(now + self._costs.restart_s, self._trigger, own)
            query.leaving = []

    def _note_full(self, now: float, batch: _Batch) -> bool:
        """Note which topics a full batch is much of, as ``TopicGroup`` does."""
        query, events = batch.query, batch.events
        if events < 0.9 * self._costs.most_events:
            return False
        if query.apart_since is not None:
            query.apart_since = now
        elif not query.leaving:
            query.leaving = [one for one, number, _ in batch.parts if number > 0.25 * events]
            query.leave_at = now + self._random.random() * self._costs.look_s
        return True

    def _batch_of(self, now: float, query: _Query) -> _Batch | None:
        """Take what waits; a limit is shared by what waits in each topic, as Spark does."""
        waiting = [(one, one.written(now) - one.read) for one in query.members]
        total = sum(number for _, number in waiting)
        limit = min(1.0, self._costs.most_events / total) if total else 0.0
        parts, pieces = [], []
        for one, number in waiting:
            events = max(1, int(number * limit)) if number > 0 else 0
            if not events:
                continue
            partitions = self._partitions[one.number]
            each = events / partitions * one.cost * self._random.lognormvariate(0, 0.1)
            each += self._costs.object_s
            pieces += [each] * partitions
            parts.append((one, events, each * partitions))
        if not parts:
            return None
        stack = ExitStack()
        stack.enter_context(self._at_work[query.cluster].batch(str(id(query))))
        most = min(len(pieces), self._most_tasks(query, parts[0][1]))
        shares = [sum(pieces[n::most]) for n in range(most)]
        if len(parts) == 1 and most < len(pieces):  # as ``shares_of`` cuts partitions
            shares = [sum(pieces) / most] * most
        tasks = [self._costs.task_s + share for share in shares]
        return _Batch(query, now, parts, tasks, stack)

    def _most_tasks(self, query: _Query, events: int) -> int:
        """Return how many tasks ``TopicGroup`` gives a batch."""
        at_work, name, cores = self._at_work[query.cluster], str(id(query)), self._fleet.cores
        left, turn_s = at_work.cores_for(name, cores), at_work.turn_s(name)
        is_one = len(query.members) == 1 and self._fleet.queries == "apart"
        is_long = is_one and query.members[0].batch_size.is_long(events, turn_s)
        return left if is_long and left < cores else 2 * cores

    def _submit(self, now: float, batch: _Batch) -> None:
        name = batch.query.cluster
        self._queues[name].append(batch)
        self._schedule(now, name)

    def _schedule(self, now: float, name: str) -> None:
        queue = self._queues[name]
        while self._free[name] and queue:
            batch = queue[0] if self._fifo else min(queue, key=lambda one: one.running)
            self._free[name] -= 1
            batch.running += 1
            self._at(now + batch.tasks.pop(), self._task_ended, (name, batch))
            if not batch.tasks:
                queue.remove(batch)

    def _task_ended(self, now: float, what: tuple[str, _Batch]) -> None:
        name, batch = what
        self._free[name] += 1
        batch.running -= 1
        if not batch.running and not batch.tasks:
            commits_s = self._costs.commit_s * len(batch.parts)
            self._at(now + commits_s, self._commit, batch)
        self._schedule(now, name)

    def _commit(self, now: float, batch: _Batch) -> None:
        is_full = self._note_full(now, batch)
        took_s = sum(core_s for _, _, core_s in batch.parts)
        at_work = self._at_work[batch.query.cluster]
        at_work.worked(str(id(batch.query)), took_s, is_full=is_full)
        batch.at_work.close()
        for one, events, core_s in batch.parts:
            one.batch_size.worked(events, core_s)
            first, last = one.came_at(one.read), one.came_at(one.read + events - 1)
            one.read += events
            self.run.lags.append((now, one.number, events, now - first, now - last))
            if one.left_at is not None:
                self.run.pauses.append(now - one.left_at)
                one.left_at = None
            one.last_commit = now
            seen = one.since_look
            one.since_look = [seen[0] + 1, seen[1] + events, seen[2] + core_s]
        next_tick = self._next_tick(batch.began, batch.query)
        self._at(max(now, next_tick), self._trigger, batch.query)

    def _next_tick(self, began: float, query: _Query) -> float:
        """Return the tick behind a moment, as Spark's ``nextBatchTime``: its clock has whole ms."""
        trigger_ms = staggered_ms(self._costs.trigger_ms, query.number)
        clock_ms = _EPOCH_MS + math.floor(began * 1000 + 1e-6)
        return ((clock_ms // trigger_ms + 1) * trigger_ms - _EPOCH_MS) / 1000

    # Moves

    def _release(self, now: float, one: _Consumer) -> None:
        """End here, and begin where it is to go, once that one has looked and started."""
        old, new = one.cluster, one.target
        assert new is not None
        runs = any(x.cluster == new for x in self._consumers)
        if self._fleet.queries == "topic":  # as if they were in groups: all of both clusters stop
            for query in self._queries:
                query.restarts = query.restarts or query.cluster in {old, new}
        one.cluster, one.left_at = None, one.last_commit
        wait = self._random.random() * self._costs.look_s + self._costs.query_s
        self._at(now + wait + (0 if runs else self._costs.idle_application_s), self._start, one)

    def _start(self, now: float, one: _Consumer) -> None:
        one.cluster = one.target
        self._join(now, one)

    def _retarget(self, _now: float, what: tuple[_Consumer, str]) -> None:
        one, target = what
        one.target = target

    # The coordinator

    def _look(self, now: float, _: None) -> None:
        for one in self._consumers:
            self.run.lag_by_second[one.number].append(self._lag(one, now))
        self._at(now + 5.0, self._look, None)

    @staticmethod
    def _lag(one: _Consumer, now: float) -> float:
        return max(0.0, now - one.came_at(one.read)) if one.written(now) > one.read else 0.0

    def _sample(self, one: _Consumer, now: float) -> LoadSample:
        batches, events, core_s = one.since_look
        one.since_look = [0, 0, 0.0]
        written, lag = one.written(now), self._lag(one, now)
        return LoadSample(
            one.team, now, 1, written, one.read, lag, int(batches), int(events), core_s
        )

    def _coordinate(self, now: float, _: None) -> None:
        for one in self._consumers:
            samples = self._samples[one.number]
            samples.append(self._sample(one, now))
            del samples[:-60]
        self._at(now + 60.0, self._coordinate, None)
        if self._policy is None or len(self._samples[0]) < 3:
            return
        loads = [team_load(self._samples[one.number]) for one in self._consumers]
        before = self._assignment
        after = assign(before, loads, self._clusters, {}, now_s=now, policy=self._policy)
        self.run.problems |= set(after.problems)
        if before is None or after.version == before.version:
            return
        self._assignment = after
        for move in after.moves:
            self.run.moves.append((now, move.team, move.old, move.new, move.kind))
            one = self._consumers[int(move.team[4:])]
            heard = now + self._random.random() * self._costs.look_s
            self._at(heard, self._retarget, (one, move.new))


# What comes in


def homogeneous(fleet: Fleet, seconds: int) -> Rates:
    """Each team's rate is constant, give or take what counting gives."""
    made = np.random.default_rng(fleet.seed + 3)
    return made.poisson(np.repeat(fleet.base_rates()[:, None], seconds, axis=1)).astype(float)


def bursty(fleet: Fleet, seconds: int) -> Rates:
    """Each team has five times its rate for 20 to 90 seconds, every quarter of an hour or so."""
    rates = homogeneous(fleet, seconds)
    made = np.random.default_rng(fleet.seed + 4)
    for row in rates:
        at = made.exponential(900)
        while at < seconds:
            length = made.uniform(20, 90)
            row[int(at) : int(at + length)] *= 5
            at += length + made.exponential(900)
    return rates


def seasonal(fleet: Fleet, seconds: int, period_s: float) -> Rates:
    """Each team goes up to 1.8 times its rate and down to 0.2; all peaks within half a period."""
    made = np.random.default_rng(fleet.seed + 5)
    phases = made.uniform(0, np.pi, fleet.teams)[:, None]
    swing = 1 + 0.8 * np.sin(2 * np.pi * np.arange(seconds)[None, :] / period_s + phases)
    return homogeneous(fleet, seconds) * swing


def storm(fleet: Fleet, seconds: int, *, team: int, at_s: int, times: float = 10.0) -> Rates:
    """One team has ten times its rate from a moment on; all else is as in ``homogeneous``."""
    rates = homogeneous(fleet, seconds)
    rates[team, at_s:] *= times
    return rates


def storm_team(fleet: Fleet, times: float = 10.0) -> int:
    """Return the team whose load, times ten, is closest to three quarters of a cluster."""
    demand = fleet.base_rates() * fleet.event_costs() * times
    return int(np.argmin(np.abs(demand - 0.75 * fleet.cores)))


def recovery_s(run: Run, team: int, *, at_s: float, objective_s: float) -> float | None:
    """Return how long after a step a team's lag was within the objective for good; None: never.

    For good: for the five minutes after, and to the end of the run.
    """
    lags = run.lag_by_second[team]
    over = [place for place, lag in enumerate(lags) if lag > objective_s]
    if not over:
        return 0.0
    ended = (over[-1] + 2) * 5.0
    return ended - at_s if ended + 300 <= run.seconds else None
