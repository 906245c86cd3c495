"""The coordinator: measures, decides, writes the decision down, and asks for capacity.

What it does takes effect in two transactions, the measurement and the decision, and one for each
topic that grows; so it may be killed anywhere: the next minute starts from what is there. Two at
once take turns.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from sqlalchemy import Connection

from waybill.clusters.capacity import CapacityDemand, InfraCoordinator, capacity
from waybill.clusters.growth import GrowthPolicy, TopicGrowth, TopicLoad, decide_growth
from waybill.clusters.loads import LoadSample, cluster_activity, team_load
from waybill.clusters.measurement import (
    BatchSums,
    Measurement,
    TopicLog,
    count_consumers,
    measure,
    read_batches,
    team_topics,
)
from waybill.clusters.model import Assignment, Move, TeamLoad, VirtualCluster
from waybill.clusters.packing import assign
from waybill.clusters.records import (
    COORDINATOR,
    lock_assignment,
    now_s,
    read_assignment,
    read_clusters,
    read_demand_history,
    read_pins,
    read_samples,
    write_assignment,
    write_capacities,
    write_samples,
    write_topic_looks,
)
from waybill.errors import AwayError, InputError, RetryError, StopError
from waybill.ledger import TopicGeneration, all_generations
from waybill.pipelines import base_topic
from waybill.storage import TrackerStore

_LOG = logging.getLogger(__name__)
_LATELY_S = 600.0
"""Over so long the core seconds of topics are summed up: some batches, however long they are."""
_NOBODY_GROWS = GrowthPolicy(limit=0)

Grow = Callable[[TopicGrowth], int]
"""Begins the next generation of a topic, or raises why it cannot; returns its partitions, which are
those of the topic that a killed growth left, if it did."""


@dataclass(frozen=True, slots=True)
class CoordinatorReport:
    """What one round did."""

    version: int
    """Of the assignment in force."""
    moves: tuple[Move, ...]
    """That this round made."""
    problems: tuple[str, ...]
    """What could not be done, or looked at, and what would help."""
    demand: CapacityDemand
    growths: tuple[TopicGrowth, ...] = ()
    """Topics to which it gave more partitions."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "version": self.version,
            "moves": [
                {"team": m.team, "old": m.old, "new": m.new, "kind": m.kind, "reason": m.reason}
                for m in self.moves
            ],
            "growths": [growth.to_json() for growth in self.growths],
            "problems": list(self.problems),
            "capacity": self.demand.to_json(),
        }


def coordinate(
    tracker: TrackerStore,
    log: TopicLog,
    infra: InfraCoordinator,
    grow: Grow | None = None,
    *,
    policy: GrowthPolicy = _NOBODY_GROWS,
) -> CoordinatorReport:
    """Run one round.

    Args:
        tracker: the books.
        log: where the topics are.
        infra: whom the cores are asked of.
        grow: gives a topic more partitions; None: no topic is looked at for that.
        policy: when topics grow.

    Raises:
        RetryError: the tracker, Kafka, or the infra coordinator does not answer; what was decided
            before stands.

    Cost: see ``measure``, ``read_samples`` and ``read_demand_history``; where a topic is far
    behind, the batches of ten minutes.
    """
    measured = measure(tracker, log)
    with tracker.transaction() as connection:
        write_samples(connection, measured.samples)
        write_topic_looks(connection, measured.topics)
    with tracker.transaction() as connection:
        lock_assignment(connection)
        before = read_assignment(connection)
        samples = read_samples(connection)
        loads = current_loads(connection, samples)
        clusters = read_clusters(connection)
        after = decide(connection, before, loads, clusters, made_by=COORDINATOR)
        demand = _demand(connection, after, loads, clusters)
        teams = Counter(at.cluster for at in after.placements.values())
        write_capacities(connection, demand, teams, cluster_activity(before or after, samples))
    infra.request(demand)
    moves = () if before is not None and after.version == before.version else after.moves
    for move in moves:
        _LOG.info("team %s: %s -> %s: %s", move.team, move.old, move.new, move.reason)
    growths: list[TopicGrowth] = []
    problems: list[str] = []
    if grow is not None:
        with tracker.transaction() as connection:  # its own: what was decided stands
            behind = list(_topic_loads(connection, measured, after, clusters, policy))
        growths, problems = _grow(behind, policy, grow)
    problems = [*after.problems, *_unserved(after, clusters), *problems]
    return CoordinatorReport(after.version, moves, tuple(problems), demand, tuple(growths))


def _grow(
    loads: Sequence[TopicLoad], policy: GrowthPolicy, grow: Grow
) -> tuple[list[TopicGrowth], list[str]]:
    """Grow the topics that need it; return which did, and why others do not.

    What keeps one from it keeps no other, but of many some are tried next minute; and so is a
    server that does not answer.
    """
    decided = [decide_growth(load, policy) for load in loads]
    problems = [one for one in decided if isinstance(one, str)]
    grown: list[TopicGrowth] = []
    wanted = [one for one in decided if isinstance(one, TopicGrowth)]
    for one in wanted[: policy.attempts]:
        if len(grown) == policy.growths:
            break
        try:
            made = replace(one, partitions=grow(one))
        except (InputError, StopError, RetryError) as error:
            problems.append(f"topic {one.topic} needs {one.partitions} partitions, and: {error}")
            if isinstance(error, AwayError):
                break
        else:
            grown.append(made)
            _LOG.info("topic %s", made)
    return grown, problems


def _topic_loads(
    connection: Connection,
    measured: Measurement,
    assignment: Assignment,
    clusters: Sequence[VirtualCluster],
    policy: GrowthPolicy,
) -> Iterator[TopicLoad]:
    """Yield the topics that are far behind, the one that is behind most first."""
    late = [one for one in measured.backlogs if one.lag_s >= policy.late_s]
    if not late:
        return
    by_name = {cluster.name: cluster for cluster in clusters}
    batches = read_batches(connection, measured.at_s - _LATELY_S, measured.at_s)
    busy = _busy_cores(connection, assignment, batches)
    generations = all_generations(connection)
    for one in sorted(late, key=lambda one: (-one.lag_s, one.name)):
        cluster = by_name.get(assignment.cluster_of(one.team) or "")
        if cluster is None:
            continue
        topic = base_topic(one.name)
        cores, own = cluster.cores or policy.default_cores, _of(batches, one.name)
        yield TopicLoad(
            topic,
            one.team,
            cluster.name,
            cluster.lag_objective_s,
            cores,
            cores - busy.get(cluster.name, 0.0),
            one.partitions,
            one.arrival_per_s,
            own.events_per_s,
            core_s_per_event=own.core_s / own.events if own.events else 0.0,
            busy_cores=own.core_s / _LATELY_S,
            is_draining=any(g.state == "draining" for g in generations.get(topic, ())),
            rested_s=_rested_s(generations.get(topic, ()), measured.at_s),
        )


def _of(batches: Mapping[str, BatchSums], name: str) -> BatchSums:
    return batches.get(f"processing/{name}", BatchSums())


def _busy_cores(
    connection: Connection, assignment: Assignment, batches: Mapping[str, BatchSums]
) -> dict[str | None, float]:
    """Return {cluster: cores that the tasks of its topics kept busy over the last minutes}."""
    busy: dict[str | None, float] = {}
    for team, names in team_topics(connection).items():
        cluster = assignment.cluster_of(team)
        core_s = sum(_of(batches, name).core_s for name in names)
        busy[cluster] = busy.get(cluster, 0.0) + core_s / _LATELY_S
    return busy


def _rested_s(generations: Sequence[TopicGeneration], now: float) -> float:
    """Return how long ago the last older generation ended; infinite: there was none."""
    ended = [one.ended_at.timestamp() for one in generations if one.ended_at is not None]
    return now - max(ended, default=-inf)


def _unserved(assignment: Assignment, clusters: Sequence[VirtualCluster]) -> Iterator[str]:
    for cluster in clusters:
        teams = len(assignment.teams_of(cluster.name))
        if teams and not cluster.is_served:
            yield (
                f"cluster {cluster.name} has {teams} team{'s' * (teams != 1)} and serves none: "
                f"{cluster.unserved}; "
                f"see the DAG that supervises it, and `waybill clusters show {cluster.name}`"
            )


def decide(
    connection: Connection,
    before: Assignment | None,
    loads: Sequence[TeamLoad],
    clusters: Sequence[VirtualCluster],
    *,
    made_by: str,
) -> Assignment:
    """Pack the teams anew and write the next version, if it is another one.

    Args:
        connection: a transaction under ``lock_assignment``.
        before: the assignment in force.
        loads: of all teams.
        clusters: all.
        made_by: ``coordinator``, or whose decision led to it.
    """
    pins = {team: pin.cluster for team, pin in read_pins(connection).items()}
    after = assign(before, loads, clusters, pins, now_s=now_s(connection))
    if before is None or after.version != before.version:
        write_assignment(connection, after, made_by=made_by)
    return after


def current_loads(
    connection: Connection, samples: Mapping[str, Sequence[LoadSample]] | None = None
) -> list[TeamLoad]:
    """Return the load of each team that has a deployed pipeline, of the last hour's looks.

    A team that was not looked at yet is there without a load, with as many consumers as it has
    topics.

    Args:
        connection: a transaction.
        samples: as ``read_samples`` gives them, where the caller has them.
    """
    if samples is None:
        samples = read_samples(connection)
    topics = sorted(team_topics(connection).items())
    return [_load(team, count_consumers(names), samples) for team, names in topics]


def _load(team: str, consumers: int, samples: Mapping[str, Sequence[LoadSample]]) -> TeamLoad:
    own = samples.get(team)
    return replace(team_load(own), consumers=consumers) if own else TeamLoad(team, consumers)


def _demand(
    connection: Connection,
    assignment: Assignment,
    loads: Sequence[TeamLoad],
    clusters: Sequence[VirtualCluster],
) -> CapacityDemand:
    history = read_demand_history(connection)
    found = []
    for cluster in clusters:
        teams = assignment.teams_of(cluster.name)
        own = [load for load in loads if load.team in teams]
        found.append(capacity(cluster, own, history.get(cluster.name, [])))
    return CapacityDemand(tuple(found))
