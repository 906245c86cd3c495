"""The coordinator: measures, decides, writes the decision down, and asks for capacity.

What it does takes effect in two transactions, the measurement and the decision, so that it may be
killed anywhere: the next minute starts from what is there. Two at once take turns.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from waybill.clusters.capacity import CapacityDemand, InfraCoordinator, capacity
from waybill.clusters.loads import LoadSample, cluster_activity, team_load
from waybill.clusters.measurement import TopicLog, measure, team_topics
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
from waybill.storage import TrackerStore

_LOG = logging.getLogger(__name__)


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

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "version": self.version,
            "moves": [
                {"team": m.team, "old": m.old, "new": m.new, "kind": m.kind, "reason": m.reason}
                for m in self.moves
            ],
            "problems": list(self.problems),
            "capacity": self.demand.to_json(),
        }


def coordinate(tracker: TrackerStore, log: TopicLog, infra: InfraCoordinator) -> CoordinatorReport:
    """Run one round.

    Args:
        tracker: the books.
        log: where the topics are.
        infra: whom the cores are asked of.

    Raises:
        RetryError: the tracker, Kafka, or the infra coordinator does not answer; what was decided
            before stands.

    Cost: see ``measure``, ``read_samples`` and ``read_demand_history``.
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
    problems = (*after.problems, *_unserved(after, clusters))
    return CoordinatorReport(after.version, moves, problems, demand)


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
    return [_load(team, len(names), samples) for team, names in topics]


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
