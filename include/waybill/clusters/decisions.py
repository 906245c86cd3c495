"""What people decide about virtual clusters; each change is in the audit log with its transaction.

A decision takes effect at once: teams are packed anew in the same transaction, with the loads that
the coordinator measured last, and applications are notified when it is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from waybill.access import Decision, write_audit
from waybill.clusters.applications import (
    KINDS,
    ApplicationKind,
    Wanted,
    ask_restart,
    kinds_at_work,
    read_application,
    retire_applications,
    want_application,
)
from waybill.clusters.coordinator import current_loads, decide
from waybill.clusters.model import (
    DEFAULT_CLUSTER,
    NO_ASSIGNMENT,
    SET_BY_WAYBILL,
    Assignment,
    ClusterState,
    Move,
    Placement,
    TeamLoad,
    VirtualCluster,
)
from waybill.clusters.packing import check_pin
from waybill.clusters.records import (
    Pin,
    delete_pin,
    lock_assignment,
    now_s,
    read_assignment,
    read_clusters,
    read_pins,
    remove_cluster,
    write_assignment,
    write_cluster,
    write_pin,
)
from waybill.clusters.request import ClusterRequest, DrainRequest, PlaceRequest
from waybill.errors import InputError, NotFoundError
from waybill.nearest_name import hint
from waybill.storage import TrackerStore

_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class _Standing:
    """What a decision is made on."""

    connection: Connection
    assignment: Assignment | None
    clusters: dict[str, VirtualCluster]
    loads: list[TeamLoad]
    pins: dict[str, Pin]

    def cluster(self, name: str) -> VirtualCluster:
        """Return one cluster.

        Raises:
            InputError: there is none of this name.
        """
        if name not in self.clusters:
            known = ", ".join(sorted(self.clusters)) + hint(name, self.clusters)
            raise NotFoundError(
                f"there is no cluster {name[:120]!r}; there are {known}. "
                "`waybill clusters create` makes one"
            )
        return self.clusters[name]

    def check(self, team: str, cluster: str) -> None:
        """Refuse a team a cluster that cannot serve it."""
        pins = {one: pin.cluster for one, pin in self.pins.items()}
        check_pin(team, cluster, self.assignment, self.loads, list(self.clusters.values()), pins)

    def pack(
        self, decision: Decision, clusters: Mapping[str, VirtualCluster] | None = None
    ) -> Assignment:
        """Pack the teams anew, with the clusters and pins as they are now."""
        known = list((clusters or self.clusters).values())
        return decide(self.connection, self.assignment, self.loads, known, made_by=decision.who)


def create_cluster(
    tracker: TrackerStore, request: ClusterRequest, decision: Decision
) -> VirtualCluster:
    """Make a virtual cluster.

    Raises:
        InputError: there is one of this name, or a setting is wrong.
    """
    cluster = _with_settings(VirtualCluster(request.name, is_served=False), request)
    with _deciding(tracker) as standing:
        connection = standing.connection
        if request.name in standing.clusters:
            raise InputError(
                f"there is a cluster {request.name!r} already; `waybill clusters set "
                f"{request.name}` changes it"
            )
        write_cluster(connection, cluster)
        for kind in KINDS:
            want_application(connection, kind, cluster.name, "running", by=decision.who)
        _note(
            connection, decision, "create_cluster", f"cluster {cluster.name}", **cluster.to_json()
        )
        standing.pack(decision, standing.clusters | {cluster.name: cluster})
    return cluster


def set_cluster(
    tracker: TrackerStore, request: ClusterRequest, decision: Decision
) -> VirtualCluster:
    """Change settings of a virtual cluster; applications follow at their next start.

    Raises:
        InputError: there is no such cluster, nothing is to be changed, or a setting is wrong.
    """
    with _deciding(tracker) as standing:
        connection = standing.connection
        before = standing.cluster(request.name)
        after = _with_settings(before, request)
        if after == before:
            raise InputError(
                f"nothing of cluster {request.name!r} would change: `waybill clusters set --help` "
                "lists what can be set"
            )
        write_cluster(connection, after)
        was, now = before.to_json(), after.to_json()
        changed = {
            name: {"before": was[name], "after": now[name]}
            for name in now
            if now[name] != was[name]
        }
        _note(connection, decision, "set_cluster", f"cluster {after.name}", changed=changed)
        standing.pack(decision, standing.clusters | {after.name: after})
    return after


def drain_cluster(tracker: TrackerStore, request: DrainRequest, decision: Decision) -> Assignment:
    """Have a cluster's teams leave, a few a minute; or, with ``undo``, let it take teams in again.

    Raises:
        InputError: there is no such cluster, it is drained already (or is not), a team is pinned to
            it, or it is the only one that takes teams in.
    """
    state: ClusterState = "active" if request.undo else "draining"
    with _deciding(tracker) as standing:
        connection = standing.connection
        before = standing.cluster(request.name)
        if before.state == state:
            words = "is not being drained" if request.undo else "is being drained already"
            raise InputError(f"cluster {request.name!r} {words}")
        if not request.undo:
            _refuse_drain(standing, request.name)
        after = replace(before, state=state)
        write_cluster(connection, after)
        action = "undrain_cluster" if request.undo else "drain_cluster"
        _note(connection, decision, action, f"cluster {after.name}")
        return standing.pack(decision, standing.clusters | {after.name: after})


def _refuse_drain(standing: _Standing, name: str) -> None:
    _refuse_pinned(standing, name, "drain")
    others = [
        one for one in standing.clusters.values() if one.name != name and one.state == "active"
    ]
    if not others:
        raise InputError(
            f"cluster {name!r} is the only one that takes teams in; `waybill clusters create` "
            "makes another one first"
        )


def _refuse_pinned(standing: _Standing, name: str, action: str) -> None:
    pinned = sorted(team for team, pin in standing.pins.items() if pin.cluster == name)
    if pinned:
        raise InputError(
            f"teams are pinned to cluster {name!r}: {_named(pinned)}; pin them elsewhere, or "
            f"`waybill clusters unpin` them, then {action} it"
        )


def delete_cluster(tracker: TrackerStore, name: str, decision: Decision) -> bool:
    """Take a virtual cluster away that serves nobody.

    Returns:
        False: there is no such cluster, and nothing is changed.

    Raises:
        InputError: teams are pinned to it, or in it, an application of it is at work, or it is
            ``default``.
    """
    with _deciding(tracker) as standing:
        if name not in standing.clusters:
            return False
        _refuse_delete(standing, name)
        remove_cluster(standing.connection, name)
        retire_applications(standing.connection, name)
        was = standing.clusters[name].to_json()
        _note(standing.connection, decision, "delete_cluster", f"cluster {name}", **was)
    return True


def _refuse_delete(standing: _Standing, name: str) -> None:
    if name == DEFAULT_CLUSTER:
        raise InputError(
            f"cluster {name!r} stays: it serves the teams that are in no other one yet"
        )
    _refuse_pinned(standing, name, "delete")
    teams = sorted((standing.assignment or NO_ASSIGNMENT).teams_of(name))
    if teams:
        raise InputError(
            f"cluster {name!r} serves {_named(teams)}: `waybill clusters drain {name}` moves its "
            "teams out, three a minute; delete it once `waybill clusters list` shows none in it"
        )
    if kinds := kinds_at_work(standing.connection, name):
        raise InputError(
            f"cluster {name!r} has applications at work ({', '.join(kinds)}): `waybill clusters "
            f"stop {name}` ends them; delete it once `waybill clusters show {name}` shows none"
        )


def _named(teams: Sequence[str]) -> str:
    more = len(teams) - _MOST_NAMED
    return ", ".join(teams[:_MOST_NAMED]) + (f" and {more} more teams" if more > 0 else "")


def stop_cluster(tracker: TrackerStore, name: str, decision: Decision) -> bool:
    """Have both applications of a cluster end, and be kept so; each reads it within five seconds.

    Returns:
        False: the same person had them stopped already.

    Raises:
        InputError: there is no such cluster.
    """
    return _want(tracker, name, "stop_cluster", "stopped", decision)


def start_cluster(tracker: TrackerStore, name: str, decision: Decision) -> bool:
    """Have both applications of a cluster run again, by the DAG that supervises them.

    Returns:
        False: the same person had them run already.

    Raises:
        InputError: there is no such cluster.
    """
    return _want(tracker, name, "start_cluster", "running", decision)


def restart_cluster(tracker: TrackerStore, name: str, decision: Decision) -> list[ApplicationKind]:
    """Have the applications of a cluster that run be replaced by new ones: settings, code.

    Returns:
        Which are replaced.

    Raises:
        InputError: there is no such cluster.
    """
    with _deciding(tracker) as standing:
        connection = standing.connection
        standing.cluster(name)
        asked = [
            kind
            for kind in KINDS
            if ask_restart(connection, read_application(connection, kind, name))
        ]
        _note(connection, decision, "restart_cluster", f"cluster {name}", applications=asked)
    return asked


def _want(
    tracker: TrackerStore, name: str, action: str, wanted: Wanted, decision: Decision
) -> bool:
    with _deciding(tracker) as standing:
        standing.cluster(name)
        changed = [
            want_application(standing.connection, kind, name, wanted, by=decision.who)
            for kind in KINDS
        ]
        if any(changed):
            _note(standing.connection, decision, action, f"cluster {name}")
    return any(changed)


def pin_team(tracker: TrackerStore, request: PlaceRequest, decision: Decision) -> Assignment:
    """Put a team into a cluster for good.

    Raises:
        InputError: there is no such team or cluster, or the cluster is drained or full.
    """
    with _placing(tracker, "pin_team", request, decision) as standing:
        write_pin(
            standing.connection, request.team, request.cluster, who=decision.who, why=decision.why
        )
        return standing.pack(decision)


def unpin_team(tracker: TrackerStore, team: str, decision: Decision) -> Assignment:
    """Let the coordinator place a team again; it stays where it is until there is a reason to move.

    Raises:
        InputError: the team is not pinned.
    """
    with _deciding(tracker) as standing:
        connection = standing.connection
        if team not in standing.pins:
            pinned = ", ".join(sorted(standing.pins)) or "none"
            raise NotFoundError(f"team {team[:120]!r} is not pinned; pinned are: {pinned}")
        delete_pin(connection, team)
        _note_place(connection, decision, "unpin_team", team, standing.pins[team].cluster)
        return standing.pack(decision)


def move_team(tracker: TrackerStore, request: PlaceRequest, decision: Decision) -> Assignment:
    """Move a team now; the coordinator leaves it there for half an hour at least.

    Raises:
        InputError: as ``pin_team``; or the team is pinned, or is there already.
    """
    with _placing(tracker, "move_team", request, decision, _refuse_move) as standing:
        before = standing.assignment or NO_ASSIGNMENT
        moved = _moved(before, request, decision, now_s(standing.connection))
        write_assignment(standing.connection, moved, made_by=decision.who)
        return replace(standing, assignment=moved).pack(decision)


@contextmanager
def _placing(
    tracker: TrackerStore,
    action: str,
    request: PlaceRequest,
    decision: Decision,
    refuse: Callable[[_Standing, PlaceRequest], None] = lambda *_: None,
) -> Iterator[_Standing]:
    """Decide that a team goes into a cluster: refused where that cannot be, and audited."""
    with _deciding(tracker) as standing:
        refuse(standing, request)
        standing.check(request.team, request.cluster)
        _note_place(standing.connection, decision, action, request.team, request.cluster)
        yield standing


def _refuse_move(standing: _Standing, request: PlaceRequest) -> None:
    pin = standing.pins.get(request.team)
    if pin is not None:
        raise InputError(
            f"team {request.team!r} is pinned to {pin.cluster} by {pin.who}; pin it to "
            f"{request.cluster}, or `waybill clusters unpin {request.team}` first"
        )
    at = (standing.assignment or NO_ASSIGNMENT).placements.get(request.team)
    if at is not None and at.cluster == request.cluster:
        raise InputError(f"team {request.team!r} is in cluster {request.cluster} already")


def _moved(before: Assignment, request: PlaceRequest, decision: Decision, now: float) -> Assignment:
    reason = f"moved by {decision.who}" + (f": {decision.why}" if decision.why else "")
    was = before.placements.get(request.team)
    old = DEFAULT_CLUSTER if was is None else was.cluster
    placed = {request.team: Placement(request.cluster, now, "asked", reason, old=old)}
    move = Move(request.team, old, request.cluster, "asked", reason)
    return Assignment(before.version + 1, {**before.placements, **placed}, (move,))


@contextmanager
def _deciding(tracker: TrackerStore) -> Iterator[_Standing]:
    """One transaction, with what a decision is made on; nobody else decides until it ends."""
    with tracker.transaction() as connection:
        lock_assignment(connection)
        yield _Standing(
            connection,
            read_assignment(connection),
            {one.name: one for one in read_clusters(connection)},
            current_loads(connection),
            read_pins(connection),
        )


def _note(
    connection: Connection, decision: Decision, action: str, target: str, **detail: Any
) -> None:
    write_audit(
        connection,
        who=decision.who,
        action=action,
        target=target,
        why=decision.why,
        **detail,
        **decision.beside_who(),
    )


def _note_place(
    connection: Connection, decision: Decision, action: str, team: str, cluster: str
) -> None:
    _note(connection, decision, action, f"team {team}", team=team, cluster=cluster)


def _with_settings(cluster: VirtualCluster, request: ClusterRequest) -> VirtualCluster:
    """Return the cluster with the settings that are given; 0 takes a limit away."""
    changes: dict[str, Any] = {}
    for name in ("max_consumers", "cores", "memory_mb"):
        given = getattr(request, name)
        if given is not None:
            changes[name] = given or None
    for name in ("lag_objective_s", "scheduler_pool"):
        if (given := getattr(request, name)) is not None:
            changes[name] = given
    if request.spark_conf:
        changes["spark_conf"] = _spark_conf(cluster.spark_conf, request.spark_conf)
    return replace(cluster, **changes)


def _spark_conf(before: Mapping[str, str], given: Sequence[str]) -> dict[str, str]:
    after = dict(before)
    for one in given:
        name, equals, value = one.partition("=")
        name = name.strip()
        if not equals or not name.startswith("spark."):
            raise InputError(f"--spark-conf {one[:120]!r}: write spark.<name>=<value>")
        if not value:
            after.pop(name, None)
            continue
        if name in SET_BY_WAYBILL:
            instead = SET_BY_WAYBILL[name]
            rest = f": use {instead}" if instead else ", for every cluster alike: leave it out"
            raise InputError(f"--spark-conf {name} is set by Waybill{rest}")
        after[name] = value
    return after
