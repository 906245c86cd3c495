"""Which cluster serves which team: a pure function of what was, what is measured and what is asked.

A move costs its team a pause, so teams stay where they are unless something is wrong there:

1. A pin puts a team where a person wants it. Pins come before everything else.
2. A team whose cluster is gone, and a new one, goes where the smallest share of the cores is taken.
3. A team whose cluster is drained goes the same way, a few a round.
4. A hot team (over ``hot`` of its cluster's cores) that has company goes into an empty cluster, if
   there is one; teams that are placed or moved avoid clusters with a hot team.
5. From a cluster over its limits (over ``over`` of its cores; over ``fill``, if its lag is over its
   objective) teams are moved away, until it is filled to ``fill``: as few as possible, and only
   into clusters that stay below ``fill`` with them (below ``over``, where the one that they leave
   does not keep up). Where nothing fits, nothing is moved, and ``problems`` says what would help.

Between ``fill`` and ``over`` nothing happens, and a team that was moved for load rests for a while,
and does not come back for longer: so a load that goes up and down moves nobody to and fro. Moving
the smallest load that is enough to the emptiest place, within a budget of moves and with a
threshold on either side, is what online balancers do (Slicer: Adya et al., OSDI 2016,
"weighted-move"); packing bins anew each round would use fewer clusters and move many teams.

No team comes into a cluster without an application at work; who is there stays, as applications
come up again. Where none serves anybody (Kafka is away), new teams and those whose cluster is gone
are placed where applications are at work all the same, else in `default`, and no other is moved.

Limits: a cluster's ``max_consumers`` is never exceeded by a team that is placed or moved, except
by pins, which `check_pin` holds against the limits when they are made; a running team that got a
topic more than there is room for is not stopped. Cores are a limit of what the cluster takes, so a
load above them lags, and is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from waybill.clusters.model import (
    DEFAULT_CLUSTER,
    NO_ASSIGNMENT,
    Assignment,
    Move,
    MoveKind,
    Placement,
    TeamLoad,
    VirtualCluster,
)
from waybill.errors import InputError, NotFoundError
from waybill.nearest_name import hint


@dataclass(frozen=True, slots=True)
class PackingPolicy:
    """Thresholds, as shares of a cluster's cores, and how much changes at once."""

    fill: float = 0.7
    """Up to which a cluster is filled."""
    over: float = 0.85
    """Above which teams are moved away."""
    hot: float = 0.5
    """Above which one team is hot."""
    cooled: float = 0.35
    """Below which it is so no longer."""
    rest_s: float = 1800.0
    """For so long a team that was moved for load stays,"""
    return_s: float = 3600.0
    """and for so long it is not moved back for load."""
    moves: int = 3
    """Most moves of a round, apart from pins, new teams and clusters that are gone."""


DEFAULT_POLICY = PackingPolicy()
_FOR_LOAD = ("load", "hot", "asked")
"""Kinds of moves after which a team rests."""
_MOST_NAMED = 10
"""Topics without figures that are named."""
_EVERYTHING_AT_ONCE = replace(DEFAULT_POLICY, moves=1_000_000, rest_s=0.0, return_s=0.0)


def assign(
    previous: Assignment | None,
    loads: Sequence[TeamLoad],
    clusters: Sequence[VirtualCluster],
    pins: Mapping[str, str],
    *,
    now_s: float,
    policy: PackingPolicy = DEFAULT_POLICY,
) -> Assignment:
    """Return where each team is served from now on.

    Args:
        previous: the assignment in force; None: there is none.
        loads: of every team that is to be served; a team that is not there leaves the assignment.
        clusters: at least one.
        pins: {team: name of its cluster}; of teams without a load nothing is said.
        now_s: seconds since the epoch.
        policy: thresholds.

    Returns:
        The assignment with the next version; ``previous`` itself, with the problems of now, where
        nothing is to be changed.

    Raises:
        InputError: there is no cluster, two have one name, or a pin names none of them.

    Cost: O(teams x clusters) and, for each cluster that is over its limits, teams x clusters again.
    """
    before = previous or NO_ASSIGNMENT
    packing = _Packing(before, loads, _by_name(clusters), policy, now_s)
    packing.pin({team: name for team, name in pins.items() if team in packing.loads})
    packing.keep()
    packing.place()
    packing.drain()
    packing.set_hot_teams_apart()
    packing.relieve()
    packing.mark_hot()
    after = Assignment(
        before.version + 1,
        packing.placements,
        tuple(packing.moves.values()),
        packing.waiting(),
        tuple(packing.problems()),
    )
    if previous is not None and after.same_places(before):
        return replace(before, problems=after.problems)
    return after


def check_pin(
    team: str,
    cluster: str,
    previous: Assignment | None,
    loads: Sequence[TeamLoad],
    clusters: Sequence[VirtualCluster],
    pins: Mapping[str, str],
) -> None:
    """Refuse a team a cluster that could not serve it, whichever teams without a pin left it.

    Args:
        team: that is to be pinned, or moved.
        cluster: where to.
        previous: the assignment in force.
        loads: of all teams.
        clusters: all.
        pins: those that there are.

    Raises:
        InputError: there is no such team or cluster, it is drained, no application of it
            serves anybody, or it is full.
    """
    known = _by_name(clusters)
    _refuse_unknown(cluster, known)
    teams = {load.team for load in loads}
    if team not in teams:
        raise NotFoundError(
            f"no deployed pipeline is of team {team[:120]!r}; `waybill clusters show` lists teams"
            f"{hint(team, teams)}"
        )
    target = known[cluster]
    if target.state == "draining":
        raise InputError(
            f"cluster {cluster!r} is being drained; choose another one, or end that with "
            f"`waybill clusters drain {cluster} --undo`"
        )
    if not target.is_served and (cluster != DEFAULT_CLUSTER or any(c.is_served for c in clusters)):
        why = f": {target.unserved}" if target.unserved else ""
        raise InputError(
            f"no application of cluster {cluster!r} serves anybody, so nobody would process the "
            f"team's events there{why}. See to it first: `waybill clusters show {cluster}`"
        )
    trial = assign(
        previous,
        loads,
        clusters,
        {**pins, team: cluster},
        now_s=float("inf"),
        policy=_EVERYTHING_AT_ONCE,
    )
    there = [load for load in loads if load.team in trial.teams_of(cluster)]
    _refuse_full(team, target, there, _pinned_to(cluster, pins))


def _pinned_to(cluster: str, pins: Mapping[str, str]) -> int:
    return sum(1 for name in pins.values() if name == cluster)


def _refuse_full(team: str, target: VirtualCluster, there: Sequence[TeamLoad], pinned: int) -> None:
    consumers = sum(load.consumers for load in there)
    demand = sum(load.demand_cores for load in there)
    others = f"{pinned} pinned to it" if pinned else "none pinned to it"
    if not target.has_room(consumers):
        raise InputError(
            f"cluster {target.name!r} is full: with team {team!r} it would serve {consumers} "
            f"consumers of at most {target.max_consumers} ({len(there)} teams, {others}, and no "
            "other cluster has room for more of them). Raise its limit with `waybill clusters set "
            f"{target.name} --max-consumers {consumers}`, unpin a team, or create a cluster"
        )
    if target.share(demand) > 1:
        raise InputError(
            f"cluster {target.name!r} is full: with team {team!r} its load would be {demand:.1f} "
            f"of its {target.cores} cores ({len(there)} teams, {others}, and no other cluster has "
            f"room for more of them). Give it more with `waybill clusters set {target.name} "
            f"--cores N`, unpin a team, or create a cluster"
        )


def _by_name(clusters: Sequence[VirtualCluster]) -> dict[str, VirtualCluster]:
    known = {cluster.name: cluster for cluster in clusters}
    if not known:
        raise NotFoundError("there is no cluster; `waybill clusters create` makes one")
    if len(known) < len(clusters):
        raise InputError("two clusters have the same name")
    return known


def _refuse_unknown(name: str, known: Mapping[str, VirtualCluster]) -> None:
    if name not in known:
        names = ", ".join(sorted(known))
        raise NotFoundError(
            f"there is no cluster {name[:120]!r}; there are {names}{hint(name, known)}. "
            "`waybill clusters create` makes one"
        )


class _Packing:
    """One round of packing, at work."""

    def __init__(
        self,
        before: Assignment,
        loads: Sequence[TeamLoad],
        clusters: Mapping[str, VirtualCluster],
        policy: PackingPolicy,
        now_s: float,
    ) -> None:
        self.loads = {load.team: load for load in loads}
        self.placements: dict[str, Placement] = {}
        self.moves: dict[str, Move] = {}
        """By team."""
        self._before = before.placements
        self._clusters = clusters
        served = {name for name, one in clusters.items() if one.is_served}
        unable = {name for name, one in clusters.items() if one.is_unable}
        # where all are down, who knows if others were up
        self._served = served or unable or {DEFAULT_CLUSTER}
        self._policy = policy
        self._now_s = now_s
        self._pinned: Mapping[str, str] = {}
        self._budget = policy.moves if served else 0
        self._demand = dict.fromkeys(clusters, 0.0)
        self._consumers = dict.fromkeys(clusters, 0)
        self._teams: dict[str, set[str]] = {name: set() for name in clusters}
        self._hot: dict[str, set[str]] = {name: set() for name in clusters}

    # What happens, in this order

    def pin(self, pins: Mapping[str, str]) -> None:
        """Put pinned teams where they are wanted."""
        self._pinned = pins
        for team, name in sorted(pins.items()):
            _refuse_unknown(name, self._clusters)
            was = self._before.get(team)
            if was is not None and was.cluster == name:
                self._put(team, replace(was, kind="pin", reason=f"pinned to {name}"))
            else:
                self._move(team, name, "pin", f"pinned to {name}")

    def keep(self) -> None:
        """Leave all others where they were."""
        for team, was in sorted(self._before.items()):
            if team in self.loads and team not in self.placements and was.cluster in self._clusters:
                self._put(team, was)

    def place(self) -> None:
        """Place those that are nowhere: new teams, and those whose cluster is gone."""
        for team in self._by_load(self.loads.keys() - self.placements.keys()):
            target = self._any_room(team)
            if target is None:
                continue
            words = f"{self._words(target, team)}, the smallest share of all"
            was = self._before.get(team)
            if was is None:
                self._move(team, target, "new", f"new team: {words}")
            else:
                self._move(team, target, "gone", f"cluster {was.cluster} is gone: {words}")

    def drain(self) -> None:
        """Move teams out of clusters that are drained."""
        for name in self._draining():
            for team in self._by_load(self._movable(name, resting=True)):
                target = self._any_room(team)
                if target is None:
                    continue
                if self._budget <= 0:
                    break
                self._budget -= 1
                self._move(team, target, "drain", f"cluster {name} is drained")

    def set_hot_teams_apart(self) -> None:
        """Give a hot team that has company a cluster of its own, where one is empty."""
        for team in self._by_load(self.placements):
            name = self.placements[team].cluster
            if len(self._teams[name]) == 1 or not self._is_hot(team) or self._is_asked(team):
                continue
            target = self._empty(team)
            if self._budget <= 0 or target is None:
                continue
            self._budget -= 1
            takes = f"{self.loads[team].demand_cores:.2f} of {self._clusters[name].cores} cores"
            self._move(team, target, "hot", f"hot: it took {takes} of {name}; alone in {target}")

    def relieve(self) -> None:
        """Move teams out of clusters that are over their limits, as few as possible."""
        for name in sorted(self._clusters, key=lambda one: (-self._share(one), one)):
            if not self._is_over(name):
                continue
            while self._budget > 0 and self._is_above_fill(name):
                if (found := self._relieving_move(name)) is None:
                    break
                team, target = found
                self._budget -= 1
                self._move(team, target, "load", f"{self._state(name)}: {name} is over its limits")

    def mark_hot(self) -> None:
        """Write down which teams are hot."""
        for team, at in self.placements.items():
            self.placements[team] = replace(at, hot=self._is_hot(team))

    def waiting(self) -> tuple[str, ...]:
        """Return the teams that no cluster has room for."""
        return tuple(sorted(self.loads.keys() - self.placements.keys()))

    def problems(self) -> Iterator[str]:
        """Yield what is wrong still, and what would help."""
        for team in self.waiting():
            yield (
                f"team {team} is served by no cluster: none has room for its "
                f"{self.loads[team].consumers} consumers; raise a limit (`waybill clusters set`) "
                "or create a cluster"
            )
        for name in sorted(self._clusters):
            if self._is_over(name) and self._teams[name] and self._budget > 0:
                yield (
                    f"cluster {name} is over its limits ({self._state(name)}) and no other one has "
                    f"room: give it more (`waybill clusters set {name}`), create a cluster, or "
                    "unpin a team"
                )
        yield from self._unseen()

    def _unseen(self) -> Iterator[str]:
        """Yield which topics are decided about by what was known of them last."""
        unseen = {topic: why for load in self.loads.values() for topic, why in load.unseen.items()}
        for topic in sorted(unseen)[:_MOST_NAMED]:
            yield f"topic {topic} did not answer, its last known figures are used: {unseen[topic]}"
        if (more := len(unseen) - _MOST_NAMED) > 0:
            yield f"and {more} more topics did not answer"

    # Choosing

    def _relieving_move(self, name: str) -> tuple[str, str] | None:
        """Return (team, its new cluster): the smallest that is enough, else the largest.

        Others are filled up to ``fill``; up to ``over`` where this one does not keep up.
        """
        teams = [one for one in self._by_load(self._movable(name)) if not self._is_hot(one)]
        enough = [team for team in reversed(teams) if self._suffices(name, team)]
        limits = [self._policy.fill, self._policy.over]
        for limit in limits if self._lags(name) else limits[:1]:
            for team in [*enough, *teams]:
                if (target := self._room(team, limit)) is not None:
                    return team, target
        return None

    def _suffices(self, name: str, team: str) -> bool:
        load = self.loads[team]
        cluster = self._clusters[name]
        return cluster.has_room(self._consumers[name] - load.consumers) and (
            cluster.share(self._demand[name] - load.demand_cores) <= self._policy.fill
        )

    def _movable(self, name: str, *, resting: bool = False) -> list[str]:
        """Return a cluster's teams that may leave; ``resting``: also those that came lately."""
        return [
            team
            for team in self._teams[name]
            if team not in self._pinned and (resting or not self._rests(team))
        ]

    def _is_asked(self, team: str) -> bool:
        """Tell whether a person wants a team where it is."""
        asked = self.placements[team].kind == "asked" and self._rests(team)
        return team in self._pinned or asked

    def _rests(self, team: str) -> bool:
        at = self.placements[team]
        return at.kind in _FOR_LOAD and self._now_s - at.since_s < self._policy.rest_s

    def _left_lately(self, team: str) -> str | None:
        """Return the cluster that a team was moved out of for load not long ago."""
        at = self.placements.get(team)
        if at is None or at.kind not in _FOR_LOAD:
            return None
        return at.old if self._now_s - at.since_s < self._policy.return_s else None

    def _room(self, team: str, limit: float) -> str | None:
        """Return the cluster that is emptiest with this team, of those that stay below a share."""
        return self._least(
            team,
            (
                name
                for name in self._open(team)
                if self._share(name, team) <= limit
                and not self._has_hot_team(name)
                and name != self._left_lately(team)
            ),
        )

    def _any_room(self, team: str) -> str | None:
        """Return a cluster for a team that must be served by some; only consumers are a limit."""
        calm = [name for name in self._open(team) if not self._has_hot_team(name)]
        room = self._room(team, self._policy.fill)
        return room or self._least(team, calm) or self._least(team, self._open(team))

    def _empty(self, team: str) -> str | None:
        """Return an empty cluster that the team does not overload; the smallest."""
        fits = [
            name
            for name in self._open(team)
            if not self._teams[name]
            and self._share(name, team) <= self._share_now(team)
            and name != self._left_lately(team)
        ]
        return min(fits, key=lambda name: (-self._share(name, team), name), default=None)

    def _open(self, team: str) -> list[str]:
        """Return the clusters that may take a team in."""
        return [
            name
            for name, cluster in self._clusters.items()
            if cluster.state == "active"
            and name in self._served
            and team not in self._teams[name]
            and cluster.has_room(self._consumers[name] + self.loads[team].consumers)
        ]

    def _least(self, team: str, names: Iterable[str]) -> str | None:
        return min(
            names,
            key=lambda name: (self._share(name, team), self._consumers[name], name),
            default=None,
        )

    # Where things stand

    def _share(self, name: str, more: str | None = None) -> float:
        extra = 0.0 if more is None else self.loads[more].demand_cores
        return self._clusters[name].share(self._demand[name] + extra)

    def _share_now(self, team: str) -> float:
        return self._share(self.placements[team].cluster)

    def _lags(self, name: str) -> bool:
        """Tell whether a cluster does not keep up: too few cores, or a lag over its objective."""
        lag_s = max((self.loads[team].lag_s for team in self._teams[name]), default=0.0)
        return self._share(name) > 1 or lag_s > self._clusters[name].lag_objective_s

    def _is_over(self, name: str) -> bool:
        """Tell whether teams are to leave: above ``over``, above ``fill`` if it lags."""
        return self._is_above(name, self._policy.fill if self._lags(name) else self._policy.over)

    def _is_above_fill(self, name: str) -> bool:
        """Tell whether more are to leave; a hot team that keeps up need not lose all company."""
        calm = self._has_hot_team(name) and not self._lags(name)
        return self._is_above(name, self._policy.over if calm else self._policy.fill)

    def _is_above(self, name: str, limit: float) -> bool:
        full = not self._clusters[name].has_room(self._consumers[name])
        return full or self._share(name) > limit

    def _is_hot(self, team: str) -> bool:
        at, was = self.placements[team], self._before.get(team)
        limit = self._policy.cooled if was is not None and was.hot else self._policy.hot
        return self._clusters[at.cluster].share(self.loads[team].demand_cores) > limit

    def _has_hot_team(self, name: str) -> bool:
        return bool(self._hot[name])

    def _draining(self) -> list[str]:
        return sorted(name for name, one in self._clusters.items() if one.state == "draining")

    def _by_load(self, teams: Iterable[str]) -> list[str]:
        """Return teams, the largest load first."""
        return sorted(
            teams,
            key=lambda team: (-self.loads[team].demand_cores, -self.loads[team].consumers, team),
        )

    def _state(self, name: str) -> str:
        cluster = self._clusters[name]
        words = [f"{self._demand[name]:.2f} of {cluster.cores} cores"] if cluster.cores else []
        if cluster.max_consumers is not None:
            words.append(f"{self._consumers[name]} of {cluster.max_consumers} consumers")
        return ", ".join(words)

    def _words(self, name: str, team: str) -> str:
        cluster = self._clusters[name]
        if cluster.cores is None:
            return f"cluster {name} has no limit of cores"
        return f"cluster {name} has {self._share(name, team):.0%} of its cores taken with it"

    # Changing

    def _put(self, team: str, at: Placement) -> None:
        self.placements[team] = at
        self._teams[at.cluster].add(team)
        self._demand[at.cluster] += self.loads[team].demand_cores
        self._consumers[at.cluster] += self.loads[team].consumers
        if self._is_hot(team):
            self._hot[at.cluster].add(team)

    def _move(self, team: str, target: str, kind: MoveKind, reason: str) -> None:
        was = self._before.get(team)
        at = self.placements.pop(team, None)
        if at is not None:
            self._teams[at.cluster].discard(team)
            self._demand[at.cluster] -= self.loads[team].demand_cores
            self._consumers[at.cluster] -= self.loads[team].consumers
            self._hot[at.cluster].discard(team)
        self.moves.pop(team, None)
        old = None if was is None else was.cluster
        if old != target:
            self.moves[team] = Move(team, old, target, kind, reason)
        self._put(team, Placement(target, self._now_s, kind, reason, old=old))
