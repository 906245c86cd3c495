"""Virtual clusters as people see them: teams, load, lag, hot spots, decisions and their reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Connection

from waybill.clusters.applications import Application, read_applications
from waybill.clusters.coordinator import current_loads
from waybill.clusters.loads import HotPartition, LoadSample, last_rates
from waybill.clusters.model import (
    NO_ASSIGNMENT,
    Assignment,
    MoveKind,
    TeamLoad,
    VirtualCluster,
)
from waybill.clusters.packing import assign
from waybill.clusters.records import (
    GrownTopic,
    Pin,
    now_s,
    read_assignment,
    read_capacities,
    read_clusters,
    read_growths,
    read_moves,
    read_pins,
    read_samples,
)
from waybill.errors import NotFoundError
from waybill.events import rfc3339
from waybill.nearest_name import hint
from waybill.storage import TrackerStore

_LATEST_S = 600.0
"""A measurement that is older than this is not shown as how things are."""
_DRAWN_S = 86_400.0
_DECISIONS = 50


@dataclass(frozen=True, slots=True)
class TeamLine:
    """One team in its cluster."""

    load: TeamLoad
    processed_per_s: float
    """Events that were processed in a second, between the last two looks."""
    pin: Pin | None
    reason: str
    """Why it is where it is."""
    since: datetime | None
    """Since when; None: no version names it yet."""
    hot: bool
    hot_partitions: tuple[HotPartition, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        load = self.load
        return {
            "team": load.team,
            "consumers": load.consumers,
            "arrival_per_s": round(load.arrival_per_s, 3),
            "processed_per_s": round(self.processed_per_s, 3),
            "demand_cores": round(load.demand_cores, 4),
            "waiting": load.waiting,
            "lag_s": round(load.lag_s, 3),
            "pinned_by": None if self.pin is None else self.pin.who,
            "reason": self.reason,
            "since": None if self.since is None else rfc3339(self.since),
            "hot": self.hot,
            "hot_partitions": [
                {"topic": h.topic, "partition": h.partition, "waiting": h.waiting, "share": h.share}
                for h in self.hot_partitions
            ],
        }


@dataclass(frozen=True, slots=True)
class ClusterLine:
    """One cluster."""

    cluster: VirtualCluster
    teams: tuple[TeamLine, ...]
    """The largest load first."""
    needed_cores: int | None
    """For its lag objective; None: the coordinator did not look lately."""
    forecast_cores: float | None
    applications: tuple[Application, ...] = ()
    """Those that were ever started, or are to be."""

    @property
    def consumers(self) -> int:
        """Return the topics that it serves."""
        return sum(one.load.consumers for one in self.teams)

    @property
    def demand_cores(self) -> float:
        """Return the cores that what comes in keeps busy."""
        return sum(one.load.demand_cores for one in self.teams)

    @property
    def lag_s(self) -> float:
        """Return for how long its oldest unread event waits."""
        return max((one.load.lag_s for one in self.teams), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return self.cluster.to_json() | {
            "consumers": self.consumers,
            "demand_cores": round(self.demand_cores, 4),
            "forecast_cores": self.forecast_cores,
            "needed_cores": self.needed_cores,
            "lag_s": round(self.lag_s, 3),
            "applications": [one.to_json() for one in self.applications],
            "teams": [one.to_json() for one in self.teams],
        }


DecisionKind = Literal[MoveKind, "grow"]
"""Why a team was moved; ``grow``: a topic of it got more partitions, where the team is."""


@dataclass(frozen=True, slots=True)
class DecisionLine:
    """One decision: a team was moved, or a topic of it got more partitions."""

    version: int | None
    """Of the assignment; None: it made none."""
    at: datetime
    made_by: str
    team: str
    old: str | None
    """Cluster that the team left; None: it was in none."""
    new: str | None
    """The one that it is in since then; None: none serves it."""
    kind: DecisionKind
    reason: str
    problems: tuple[str, ...] = ()
    """What could not be done, or was not known, when it was made."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self) | {"at": rfc3339(self.at), "problems": list(self.problems)}


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """All clusters, or one, and what was decided about them."""

    version: int
    """Of the assignment in force; 0: the coordinator has not run yet."""
    clusters: tuple[ClusterLine, ...]
    decisions: tuple[DecisionLine, ...]
    """The newest first."""
    problems: tuple[str, ...]
    """What a round of the coordinator could not do, as things are."""
    history: tuple[Mapping[str, Any], ...] = ()
    """What one cluster needed in each minute of the last day; of all clusters: not read."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "version": self.version,
            "clusters": [one.to_json() for one in self.clusters],
            "decisions": [one.to_json() for one in self.decisions],
            "problems": list(self.problems),
            "history": [{**row, "at": rfc3339(row["at"])} for row in self.history],
        }


def cluster_status(tracker: TrackerStore, name: str | None = None) -> ClusterStatus:
    """Return how clusters are, by what the coordinator measured last.

    Args:
        tracker: the books.
        name: only this one, with its history of a day.

    Raises:
        InputError: there is no such cluster.
        RetryError: the tracker does not answer.
    """
    with tracker.transaction() as connection:
        clusters = read_clusters(connection)
        if name is not None and name not in {one.name for one in clusters}:
            known = ", ".join(one.name for one in clusters)
            near = hint(name, (one.name for one in clusters))
            raise NotFoundError(f"there is no cluster {name[:120]!r}; there are {known}{near}")
        assignment = read_assignment(connection) or NO_ASSIGNMENT
        samples, pins = read_samples(connection), read_pins(connection)
        loads = current_loads(connection, samples)
        lines = _lines(connection, clusters, assignment, loads, (pins, samples))
        pinned = {team: pin.cluster for team, pin in pins.items()}
        now = assign(assignment, loads, clusters, pinned, now_s=now_s(connection))
        decisions = _decisions(connection, assignment)
        drawn = read_capacities(connection, name, since_s=_DRAWN_S) if name else []
    return ClusterStatus(
        assignment.version,
        tuple(one for one in lines if name in {None, one.cluster.name}),
        tuple(one for one in decisions if name in {None, one.old, one.new}),
        now.problems,
        tuple(drawn),
    )


def _lines(
    connection: Connection,
    clusters: Sequence[VirtualCluster],
    assignment: Assignment,
    loads: Sequence[TeamLoad],
    known: tuple[Mapping[str, Pin], Mapping[str, Sequence[LoadSample]]],
) -> list[ClusterLine]:
    pins, samples = known
    running = read_applications(connection)
    newest = {row["cluster"]: row for row in read_capacities(connection, since_s=_LATEST_S)}
    teams: dict[str | None, list[TeamLine]] = {}
    for load in sorted(loads, key=lambda one: (-one.demand_cores, one.team)):
        line = _team_line(load, assignment, pins, samples.get(load.team, []))
        teams.setdefault(assignment.cluster_of(load.team), []).append(line)
    found = []
    for cluster in clusters:
        row = newest.get(cluster.name)
        needed = None if row is None else int(row["needed_cores"])
        foreseen = None if row is None else round(float(row["forecast_cores"]), 4)
        own = tuple(teams.get(cluster.name, ()))
        its = tuple(one for (name, _), one in sorted(running.items()) if name == cluster.name)
        found.append(ClusterLine(cluster, own, needed, foreseen, its))
    return found


def _team_line(
    load: TeamLoad,
    assignment: Assignment,
    pins: Mapping[str, Pin],
    samples: Sequence[LoadSample],
) -> TeamLine:
    at, rates = assignment.placements.get(load.team), last_rates(samples)
    return TeamLine(
        load,
        0.0 if rates is None else rates[1],
        pins.get(load.team),
        "no version names it yet" if at is None else at.reason,
        None if at is None else datetime.fromtimestamp(at.since_s, UTC),
        hot=at is not None and at.hot,
        hot_partitions=samples[-1].hot_partitions if samples else (),
    )


def _decisions(connection: Connection, assignment: Assignment) -> list[DecisionLine]:
    """Return the newest moves of teams and growths of topics, the newest first."""
    found = [
        DecisionLine(one.version, one.made_at, one.made_by, **asdict(move), problems=one.problems)
        for one in read_moves(connection, limit=_DECISIONS)
        for move in one.moves
    ]
    found += [_growth(one, assignment) for one in read_growths(connection, limit=_DECISIONS)]
    return sorted(found, key=lambda one: one.at, reverse=True)


def _growth(one: GrownTopic, assignment: Assignment) -> DecisionLine:
    """Return the growth of a topic; its cluster is the one that the team is in now."""
    cluster = assignment.cluster_of(one.team)
    why = f": {one.why}" if one.why else ""
    reason = f"{one.topic} has {one.partitions} partitions in place of {one.before}{why}"
    return DecisionLine(None, one.at, one.made_by, one.team, cluster, cluster, "grow", reason)
