"""``waybill clusters list|show|create|set|drain|…``: virtual clusters and their applications."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waybill.cli.options import AsJson, Reason, Who, decision, takes
from waybill.cli.output import counted, plain, print_folded, print_json, print_line
from waybill.cli.tables import Column, Table, clock, print_table
from waybill.clusters import (
    SET_BY_WAYBILL,
    ClusterRequest,
    DrainRequest,
    PlaceRequest,
    application_state,
    held_words,
    process_place,
    serving_words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from waybill.access import Decision
    from waybill.clusters import Application, Assignment, ClusterLine, ClusterStatus
    from waybill.settings import Settings

app = typer.Typer(
    no_args_is_help=True, help="Virtual clusters: which Spark application serves which team."
)

Team = Annotated[str, typer.Argument(help="The team.")]
Cluster = Annotated[str, typer.Argument(help="The cluster.")]
SparkConf = Annotated[
    list[str] | None,
    typer.Option(help="More of Spark's configuration: spark.<name>=<value>; no value removes it."),
]


@app.command("list")
def list_(*, as_json: AsJson = False) -> None:
    """List clusters: teams, cores, lag, and what the coordinator could not do."""
    from waybill.services import cluster_status
    from waybill.settings import Settings

    found = cluster_status(Settings())
    if as_json:
        print_json(found.to_json())
        return
    print_table(_cluster_table(found.clusters))
    for one in found.clusters:
        for application in one.applications:
            if application.serving and application.serving.held:
                print_folded(_serving(application, f"{one.cluster.name}, "))
    _print_hot(found.clusters)
    for problem in found.problems:
        print_line(problem)


@app.command()
def show(name: Cluster, *, as_json: AsJson = False) -> None:
    """Show one cluster: settings, its teams and why they are there, and its last decisions."""
    from waybill.services import cluster_status
    from waybill.settings import Settings

    found = cluster_status(Settings(), name)
    if as_json:
        print_json(found.to_json())
        return
    [one] = found.clusters
    for line in _settings(one):
        print_line(line)
    for application in one.applications:
        print_line(_application(application))
        print_folded([*_serving(application), *_followed(application), *_end_of(application)])
    print_folded([""])
    print_table(_team_table(one))
    _print_hot(found.clusters)
    _print_decisions(found)


@app.command()
@takes(ClusterRequest, argument="name", without={"spark_conf"})
def create(
    request: ClusterRequest,
    spark_conf: SparkConf = None,
    who: Who = None,
    why: Reason = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Create a cluster; the coordinator moves teams into it as they need it."""
    from waybill.services import create_cluster
    from waybill.settings import Settings

    asked = request.model_copy(update={"spark_conf": spark_conf or []})
    made = create_cluster(Settings(), asked, decision(who, why))
    _told(made.to_json(), f"{made.name}: created", as_json=as_json)


@app.command("set")
@takes(ClusterRequest, argument="name", without={"spark_conf"})
def set_(
    request: ClusterRequest,
    spark_conf: SparkConf = None,
    who: Who = None,
    why: Reason = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Change a cluster's settings; its applications take them at their next start: `restart`."""
    from waybill.services import set_cluster
    from waybill.settings import Settings

    asked = request.model_copy(update={"spark_conf": spark_conf or []})
    made = set_cluster(Settings(), asked, decision(who, why))
    _told(made.to_json(), f"{made.name}: changed", as_json=as_json)


@app.command()
@takes(DrainRequest, argument="name", flags={"undo": ("--undo",)})
def drain(
    request: DrainRequest, who: Who = None, why: Reason = "", *, as_json: AsJson = False
) -> None:
    """Move all teams out of a cluster, a few a minute; --undo lets teams come in again."""
    from waybill.services import drain_cluster
    from waybill.settings import Settings

    after = drain_cluster(Settings(), request, decision(who, why))
    left = counted(len(after.teams_of(request.name)), "team")
    words = "takes teams in again" if request.undo else f"is being drained; {left} left in it"
    _told(after.to_json(), f"{request.name}: {words}", as_json=as_json)


@app.command()
def delete(name: Cluster, who: Who = None, why: Reason = "", *, as_json: AsJson = False) -> None:
    """Delete a cluster that serves no team any more; again changes nothing."""
    from waybill.services import delete_cluster
    from waybill.settings import Settings

    deleted = delete_cluster(Settings(), name, decision(who, why))
    words = "deleted" if deleted else "there is no such cluster; nothing changed"
    _told({"name": name, "deleted": deleted}, f"{name}: {words}", as_json=as_json)


@app.command()
def stop(name: Cluster, who: Who = None, why: Reason = "", *, as_json: AsJson = False) -> None:
    """End both applications of a cluster, and keep them so; each reads it within five seconds."""
    from waybill.services import stop_cluster
    from waybill.settings import Settings

    changed = stop_cluster(Settings(), name, decision(who, why))
    words = "its applications end" if changed else "its applications were to be stopped already"
    _told({"name": name, "changed": changed}, f"{name}: {words}", as_json=as_json)


@app.command()
def start(name: Cluster, who: Who = None, why: Reason = "", *, as_json: AsJson = False) -> None:
    """Have the applications of a cluster run again; the DAG that supervises them starts them."""
    from waybill.services import start_cluster
    from waybill.settings import Settings

    changed = start_cluster(Settings(), name, decision(who, why))
    words = "its applications are to run" if changed else "its applications were to run already"
    _told({"name": name, "changed": changed}, f"{name}: {words}", as_json=as_json)


@app.command()
def restart(name: Cluster, who: Who = None, why: Reason = "", *, as_json: AsJson = False) -> None:
    """Replace a cluster's applications by new ones, with its settings and code as they are now."""
    from waybill.services import restart_cluster
    from waybill.settings import Settings

    asked = restart_cluster(Settings(), name, decision(who, why))
    words = f"{' and '.join(asked)} start anew" if asked else "no application runs"
    _told({"name": name, "applications": list(asked)}, f"{name}: {words}", as_json=as_json)


@app.command()
def pin(
    team: Team, cluster: Cluster, who: Who = None, why: Reason = "", *, as_json: AsJson = False
) -> None:
    """Pin a team to a cluster: the coordinator does not move it."""
    from waybill.services import pin_team

    placed = _placed(pin_team, team, cluster, decision(who, why))
    _told(placed.to_json(), f"{team}: pinned to {cluster}", as_json=as_json)


@app.command()
def unpin(
    team: Team,
    who: Who = None,
    why: Reason = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Let the coordinator place a team; it stays where it is until there is a reason to move it."""
    from waybill.services import unpin_team
    from waybill.settings import Settings

    after = unpin_team(Settings(), team, decision(who, why))
    _told(after.to_json(), f"{team}: not pinned any more; {_place(after, team)}", as_json=as_json)


@app.command()
def move(
    team: Team, cluster: Cluster, who: Who = None, why: Reason = "", *, as_json: AsJson = False
) -> None:
    """Move a team to a cluster now; the coordinator leaves it there for half an hour."""
    from waybill.services import move_team

    placed = _placed(move_team, team, cluster, decision(who, why))
    _told(placed.to_json(), f"{team}: {_place(placed, team)}", as_json=as_json)


def _placed(
    place: Callable[[Settings, PlaceRequest, Decision], Assignment],
    team: str,
    cluster: str,
    by: Decision,
) -> Assignment:
    """Have a team placed."""
    from waybill.settings import Settings

    return place(Settings(), PlaceRequest.of({"team": team, "cluster": cluster}), by)


@app.command()
def coordinate(*, as_json: AsJson = False) -> None:
    """Run one round of the coordinator, as upkeep does each minute."""
    from waybill.services import run_coordinator
    from waybill.settings import Settings

    report = run_coordinator(Settings())
    if as_json:
        print_json(report.to_json())
        return
    print_line(f"version {report.version}: {counted(len(report.moves), 'move')}")
    for one in report.moves:
        print_line(f"  {one.team}: {one.old or 'nowhere'} -> {one.new}: {one.reason}")
    for growth in report.growths:
        print_line(f"  {growth}")
    for problem in report.problems:
        print_line(problem)
    for cluster in report.demand.clusters:
        limit = "no limit" if cluster.cores is None else counted(cluster.cores, "core")
        print_line(
            f"{cluster.cluster}: needs {counted(cluster.needed_cores, 'core')} for a lag of "
            f"{cluster.lag_objective_s:.0f} s ({limit})"
        )


def _told(value: dict[str, Any], words: str, *, as_json: bool) -> None:
    if as_json:
        print_json(value)
    else:
        print_line(words)


def _place(after: Assignment, team: str) -> str:
    at = after.placements.get(team)
    return "in no cluster" if at is None else f"in cluster {at.cluster}"


def _cluster_table(clusters: Sequence[ClusterLine]) -> Table:
    rows = []
    for one in clusters:
        cluster = one.cluster
        limit = "" if cluster.max_consumers is None else f"/{cluster.max_consumers:,}"
        rows.append(
            (
                cluster.name,
                cluster.state if cluster.is_served else f"{cluster.state}, {_unserved(one)}",
                len(one.teams),
                f"{one.consumers:,}{limit}",
                f"{one.demand_cores:,.1f}",
                cluster.cores,
                one.needed_cores,
                f"{one.lag_s:,.0f} / {cluster.lag_objective_s:,.0f}",
            )
        )
    return Table(
        (
            Column("cluster"),
            Column("state", "words", least=14),
            *(Column(head, "number") for head in ("teams", "topics")),
            Column("busy", "number", spare=1),
            *(Column(head, "number") for head in ("cores", "needs", "lag s / goal")),
        ),
        rows,
        "there is no cluster: `waybill clusters create` makes one",
    )


def _team_table(one: ClusterLine) -> Table:
    return Table(
        (
            Column("team"),
            *(Column(head, "number") for head in ("topics", "in/s", "out/s")),
            Column("cores", "number", spare=1),
            *(Column(head, "number") for head in ("waiting", "lag s")),
            Column("pinned by", spare=2),
        ),
        [
            (
                team.load.team,
                team.load.consumers,
                round(team.load.arrival_per_s),
                round(team.processed_per_s),
                f"{team.load.demand_cores:.2f}",
                team.load.waiting,
                round(team.load.lag_s),
                team.pin.who if team.pin else None,
            )
            for team in one.teams
        ],
        "no team is in it: the coordinator moves teams into it as they need it, `waybill clusters "
        "move` at once",
    )


_BACKENDS = {"process": "as a process of a worker's machine"}
"""Where an application runs, in words; another backend is called by its name."""


def _settings(one: ClusterLine) -> list[str]:
    cluster = one.cluster
    most = "" if cluster.max_consumers is None else f" of at most {cluster.max_consumers:,}"
    cores = "no limit of cores" if cluster.cores is None else counted(cluster.cores, "core")
    needs = "" if one.needed_cores is None else f", {one.needed_cores} needed"
    topics = f"{counted(one.consumers, 'topic')}{most}"
    lines = [
        f"{cluster.name}: {cluster.state}; {cores}{needs}; {topics}; "
        f"lag {one.lag_s:.0f} s, objective {cluster.lag_objective_s:.0f} s"
    ]
    if cluster.memory_mb:
        lines.append(f"executors have {cluster.memory_mb} MiB")
    if cluster.scheduler_pool:
        lines.append(f"scheduler pool {cluster.scheduler_pool}")
    for name, value in sorted(cluster.spark_conf.items()):
        note = " (of no effect: Waybill sets it)" if name in SET_BY_WAYBILL else ""
        lines.append(f"{name}={value}{note}")
    return lines


def _unserved(one: ClusterLine) -> str:
    """Return why no team comes in, in two words: who has the application says the rest."""
    serving = [its.serving for its in one.applications if its.kind == "processing"]
    return "reads nothing" if any(s and s.is_unable for s in serving) else "no application"


def _application(one: Application) -> str:
    """Return a line of one application."""
    words = [f"{one.kind}: {application_state(one)}"]
    if one.epoch:
        version = f", Waybill {one.code_version}" if one.code_version else ""
        where = _BACKENDS.get(one.backend, one.backend or "an unknown place")
        words.append(f"start number {one.epoch:,}, {where}{version}")
    if one.external_id and one.ended_s is None:
        words.append(process_place(one.external_id))
    if one.heartbeat_s is not None:
        words.append(f"heard of {max(0.0, one.now_s - one.heartbeat_s):.0f} s ago")
    if one.wanted == "stopped" and one.wanted_by:
        words.append(f"stopped by {one.wanted_by}")
    if one.failures:
        words.append(f"{counted(one.failures, 'start')} in a row ended early")
    return plain("; ".join(words))


def _serving(one: Application, before: str = "") -> list[str]:
    """Return what an application serves, and a line for each consumer that does not run."""
    serving = one.serving
    if serving is None:
        return []
    noun = "topic" if one.kind == "processing" else "destination"
    more = serving.wanted - serving.running - len(serving.held)
    lines = [f"{before}{one.kind}: {serving_words(serving, noun)}"]
    lines += [f"  {held_words(held)}" for held in serving.held]
    return lines + [f"  and {more:,} more"] * (more > 0)


def _followed(one: Application) -> list[str]:
    serving = one.serving
    return [] if serving is None else [f"  follows version {serving.version} of the assignment"]


def _end_of(one: Application) -> list[str]:
    """Return why an application ended, unless it is well since."""
    end = one.last_end
    if end is None or (application_state(one) == "at work" and not one.failures):
        return []
    at = datetime.fromtimestamp(end.at_s, UTC)
    return [f"{one.kind}: start number {end.epoch:,} ended {clock(at)} UTC: {end.why}"]


def _print_hot(clusters: Sequence[ClusterLine]) -> None:
    for team in [team for one in clusters for team in one.teams]:
        if team.hot:
            print_line(f"hot: team {team.load.team} takes {team.load.demand_cores:.2f} cores")
        for hot in team.hot_partitions:
            print_line(
                f"hot: {hot.topic}, partition {hot.partition}: {counted(hot.waiting, 'event')}, "
                f"{hot.share:.0%} of what waits for team {team.load.team}"
            )


def _print_decisions(found: ClusterStatus) -> None:
    for one in found.decisions[:10]:
        moved = f"{one.team} from {one.old} to {one.new}" if one.old else f"{one.team} to {one.new}"
        words = f"team {one.team}" if one.kind == "grow" else moved
        print_line(f"{clock(one.at)} UTC, {one.made_by}: {words}: {one.reason}")
