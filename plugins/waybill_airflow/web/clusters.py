"""Routes of virtual clusters: which serves which team, how each is, and what was decided and why.

Who may view a team's parked events sees where the team is and why; other teams, a cluster's Spark
configuration, names of hosts and what the coordinator could not do are for who may view every team.
To stop, start and replace a cluster's applications reaches every team in it: it needs the
permission `replay` for all of them, and Airflow's right to change the DAG that supervises the
applications. All other decisions are made on the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from fastapi import APIRouter, HTTPException, Path, Query, status
from pydantic import BaseModel, Field

from waybill.access import Decision
from waybill.clusters import (
    MOST_TEAMS,
    ApplicationKind,
    ClusterLine,
    ClusterStatus,
    HistorySpan,
    cluster_history,
    cluster_status,
    restart_cluster,
    start_cluster,
    stop_cluster,
    team_history,
)
from waybill.errors import InputError
from waybill.services import stream_dag
from waybill_airflow.airflow_internals import may_change_dag
from waybill_airflow.web.guard import UserDep, Viewer, absent, require
from waybill_airflow.web.models import ClusterBody, problems
from waybill_airflow.web.services import parked_events

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

    from waybill.access import Access
    from waybill.storage import TrackerStore

T = TypeVar("T")
router = APIRouter(prefix="/api", tags=["clusters"])
SpanOf = Annotated[HistorySpan, Query(description="How far back.")]
Teams = Annotated[
    list[Annotated[str, Field(pattern=r"^[^\x00]{1,300}$")]],
    Query(min_length=1, max_length=MOST_TEAMS, description="Names of teams, one by one."),
]
ClusterName = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$", description="The cluster's name.")
]


class HotPartitionOut(BaseModel):
    """A partition with most of what waits for its team."""

    topic: str
    partition: int
    waiting: int
    share: float = Field(description="Of all that waits for the team.")


class TeamOut(BaseModel):
    """A team in its cluster, as measured last."""

    team: str
    consumers: int = Field(description="Its topics.")
    arrival_per_s: float = Field(description="Events that come in; what lasts, no burst.")
    processed_per_s: float
    demand_cores: float = Field(description="Cores that what comes in keeps busy.")
    waiting: int = Field(description="Events that are not processed yet.")
    lag_s: float = Field(description="For how long the oldest of them waits.")
    pinned_by: str | None
    reason: str = Field(description="Why it is in this cluster.")
    since: str | None = Field(description="null: no version of the assignment names it yet.")
    hot: bool = Field(description="It takes so much that no team is moved in beside it.")
    hot_partitions: list[HotPartitionOut]


class HeldOut(BaseModel):
    """A topic, or destination, that is not served."""

    name: str
    kind: str = Field(description="waits, stopped or fails.")
    why: str


class ServingOut(BaseModel):
    """What an application serves, as it said last."""

    version: int = Field(description="Of the assignment that it follows.")
    wanted: int = Field(description="Topics, or destinations, that it is to serve,")
    running: int = Field(description="those that are served,")
    failing: int = Field(description="those that fail,")
    stopped: int = Field(description="and those that are stopped; others wait.")
    held: list[HeldOut] = Field(
        description="The first of those that are not served; for who may view every team."
    )


class EndOut(BaseModel):
    """Why a start of an application ended."""

    epoch: int = Field(description="Number of the start.")
    at: str
    why: str = Field(description="For who may view every team.")


class ApplicationOut(BaseModel):
    """A Spark application of a cluster, as its row in the tracker says."""

    kind: Literal["processing", "loading"]
    state: str = Field(
        description="at work, starting, stopping, stopped, waits for its start, ended, "
        "not heard of."
    )
    epoch: int = Field(description="Number of its newest start; 0: it was never started.")
    backend: str = Field(description="What it runs on.")
    external_id: str | None = Field(
        description="What the backend knows it by; for who may view every team."
    )
    code_version: str = Field(description="Version of Waybill that it runs.")
    wanted: Literal["running", "stopped"]
    wanted_by: str = Field(description="Who said so.")
    failures: int = Field(description="Deaths in a row, each soon after its start.")
    started_at: str | None
    heartbeat_at: str | None = Field(description="When it reported last; null: not yet.")
    serving: ServingOut | None = Field(description="null: it does not run, or did not say yet.")
    last_end: EndOut | None = Field(
        description="Of this start, or the one before; null: neither said why it ended."
    )


class ClusterOut(BaseModel):
    """A virtual cluster."""

    name: str
    state: Literal["active", "draining"]
    is_served: bool = Field(description="An application of it serves teams; else none comes in.")
    unserved: str = Field(description="Why not; for who may view every team.")
    max_consumers: int | None = Field(description="null: no limit.")
    cores: int | None = Field(description="null: as the settings say.")
    needed_cores: int | None = Field(
        description="For its lag objective; null: the coordinator did not look lately."
    )
    demand_cores: float
    forecast_cores: float | None = Field(description="Within a quarter of an hour.")
    lag_objective_s: float
    lag_s: float
    consumers: int
    applications: list[ApplicationOut]
    teams: list[TeamOut] = Field(description="The user's.")
    spark_conf: dict[str, str] | None = Field(description="For who may view every team.")
    may_operate: bool = Field(description="You may stop, start and replace its applications.")

    @classmethod
    def of(cls, line: ClusterLine, teams: tuple[str, ...] | None, *, may_operate: bool) -> Self:
        """Return a cluster with these teams; None: all."""
        said = line.to_json()
        own = [one for one in said["teams"] if teams is None or one["team"] in teams]
        known = {name: said[name] for name in cls.model_fields if name != "may_operate"}
        known["may_operate"] = may_operate
        if teams is not None:
            hidden = [_without_names(one) for one in said["applications"]]
            known |= {"applications": hidden, "spark_conf": None, "unserved": ""}
        return cls(**known | {"teams": own})


def _without_names(application: dict[str, Any]) -> dict[str, Any]:
    """Return an application without hosts, topics and words of errors: they may be any team's."""
    serving, end = application["serving"], application["last_end"]
    return application | {
        "external_id": None,
        "serving": serving and serving | {"held": []},
        "last_end": end and end | {"why": ""},
    }


class DecisionOut(BaseModel):
    """A team was moved, or a topic of it got more partitions (`grow`)."""

    version: int | None = Field(description="Of the assignment; null: of a topic that grew.")
    at: str
    made_by: str = Field(description="coordinator, or who decided.")
    team: str
    old: str | None = Field(description="Its cluster before; null: none.")
    new: str | None = Field(description="Its cluster since then; null: none.")
    kind: Literal["new", "pin", "gone", "drain", "hot", "load", "asked", "grow"]
    reason: str
    problems: list[str] = Field(
        description="What could not be done, or was not known, when it was made; for who may view "
        "every team."
    )


class MinuteOut(BaseModel):
    """What a cluster needed in a minute."""

    at: str
    teams: int
    cores: int | None
    needed_cores: int
    demand_cores: float
    forecast_cores: float
    lag_s: float


class _Steps(BaseModel):
    since: str = Field(description="Where the first step begins.")
    step_s: int = Field(description="Length of a step.")
    steps: int


class ClusterSeries(BaseModel):
    """What a cluster was like, a number for each step; null: the coordinator did not look."""

    lag_s: list[float | None] = Field(description="The longest.")
    demand_cores: list[float | None] = Field(description="Busy cores; the mean.")
    needed_cores: list[float | None] = Field(description="For its lag objective; the most.")
    cores: list[float | None] = Field(description="Its limit; null also: it had none.")
    arrival_per_s: list[float | None] = Field(description="Events that came in; the mean.")
    processed_per_s: list[float | None] = Field(description="Events processed; the mean.")


class HotSpotOut(BaseModel):
    """A team that took much of its cluster, or a partition with most of what waited for a team."""

    step: int = Field(description="When; the first step is 0.")
    team: str
    topic: str | None = Field(description="null: the team itself.")
    partition: int | None


class ClusterHistory(_Steps):
    """Clusters over time."""

    series: dict[str, ClusterSeries] = Field(description="By cluster.")
    hot: dict[str, list[HotSpotOut]] = Field(description="Of the user's teams, by cluster.")


class TeamSeries(BaseModel):
    """What a team was like, a number for each step; null: the coordinator did not look."""

    lag_s: list[float | None] = Field(description="The longest.")


class TeamHistory(_Steps):
    """Teams over time."""

    series: dict[str, TeamSeries] = Field(description="By team.")


class Clusters(BaseModel):
    """Virtual clusters and the newest decisions about them."""

    version: int = Field(description="Of the assignment; 0: the coordinator has not run yet.")
    clusters: list[ClusterOut]
    decisions: list[DecisionOut] = Field(description="About the user's teams, the newest first.")
    problems: list[str] = Field(
        description="What the coordinator could not do; for who may view every team."
    )


class ClusterDetail(Clusters):
    """One cluster with its last day."""

    history: list[MinuteOut] = Field(description="The oldest first.")


def _said(found: ClusterStatus, access: Access, user: BaseUser) -> dict[str, Any]:
    teams = access.teams("view")
    decisions = [one.to_json() for one in found.decisions]
    if teams is not None:
        decisions = [one | {"problems": []} for one in decisions if one["team"] in teams]
    return {
        "version": found.version,
        "clusters": [
            ClusterOut.of(one, teams, may_operate=not _refusal(access, user, one))
            for one in found.clusters
        ],
        "decisions": decisions,
        "problems": list(found.problems) if teams is None else [],
    }


@router.get("/clusters", summary="Virtual clusters")
def clusters(access: Viewer, user: UserDep) -> Clusters:
    """Return all clusters, each with the user's teams, and what was decided about these."""
    found = cluster_status(parked_events().tracker)
    return Clusters(**_said(found, access, user))


@router.get(
    "/clusters/{name}",
    responses=problems(_404="There is no such cluster."),
    summary="A virtual cluster and its last day",
)
def cluster(access: Viewer, user: UserDep, name: ClusterName) -> ClusterDetail:
    """Return one cluster, and what it needed in each minute of the last day."""
    try:
        found = cluster_status(parked_events().tracker, name)
    except InputError as error:
        raise HTTPException(status.HTTP_404_NOT_FOUND, str(error)) from error
    history = found.to_json()["history"]
    shown = [
        MinuteOut(**{field: row[field] for field in MinuteOut.model_fields}) for row in history
    ]
    return ClusterDetail(**_said(found, access, user), history=shown)


class ClusterOperation(BaseModel):
    """What came of a decision about a cluster's applications."""

    name: str
    changed: bool = Field(description="False: it was so already, or no application runs.")
    applications: list[ApplicationKind] = Field(description="Those that start anew.")


_OPERATE = problems(
    _403="The cluster serves teams whose events you may not replay, or Airflow does not let you "
    "change the DAG that supervises it.",
    _404="There is no such cluster.",
)


@router.post("/clusters/{name}/stop", responses=_OPERATE, summary="Stop a cluster's applications")
def stop(access: Viewer, user: UserDep, name: ClusterName, body: ClusterBody) -> ClusterOperation:
    """End its applications, and keep them so: its teams' events wait in Kafka, and in staging."""
    return _wanted(stop_cluster, access, user, name, body)


@router.post("/clusters/{name}/start", responses=_OPERATE, summary="Start a cluster's applications")
def start(access: Viewer, user: UserDep, name: ClusterName, body: ClusterBody) -> ClusterOperation:
    """Have its applications run again."""
    return _wanted(start_cluster, access, user, name, body)


@router.post(
    "/clusters/{name}/restart", responses=_OPERATE, summary="Replace a cluster's applications"
)
def restart(
    access: Viewer, user: UserDep, name: ClusterName, body: ClusterBody
) -> ClusterOperation:
    """Replace those that run by new ones, with settings and code as they are now."""
    kinds = _decided(restart_cluster, access, user, name, body)
    return ClusterOperation(name=name, changed=bool(kinds), applications=kinds)


def _wanted(
    decide: Callable[[TrackerStore, str, Decision], bool],
    access: Access,
    user: BaseUser,
    name: str,
    body: ClusterBody,
) -> ClusterOperation:
    changed = _decided(decide, access, user, name, body)
    return ClusterOperation(name=name, changed=changed, applications=[])


def _decided(
    decide: Callable[[TrackerStore, str, Decision], T],
    access: Access,
    user: BaseUser,
    name: str,
    body: ClusterBody,
) -> T:
    tracker = parked_events().tracker
    try:
        [line] = cluster_status(tracker, name).clusters
        if refusal := _refusal(access, user, line):
            raise HTTPException(status.HTTP_403_FORBIDDEN, refusal)
        return decide(tracker, name, Decision(access.user, body.why))
    except InputError as error:
        raise HTTPException(status.HTTP_404_NOT_FOUND, str(error)) from error


def _refusal(access: Access, user: BaseUser, line: ClusterLine) -> str:
    """Return why a user may not stop, start and replace a cluster's applications; "": they may."""
    all_teams = access.teams("replay") is None
    if not all_teams and not (
        line.teams and all(access.may("replay", one.load.team) for one in line.teams)
    ):
        return (
            f"{access.user!r} has no permission 'replay' for the events of all teams that cluster "
            f"{line.cluster.name!r} serves; for one that serves none it takes that of all"
        )
    dag_id = stream_dag(line.cluster.name)
    if not may_change_dag(user, dag_id):
        return (
            f"Airflow does not let {access.user!r} change the DAG {dag_id!r}, which supervises "
            "the applications"
        )
    return ""


@router.get("/cluster-history", summary="Virtual clusters over time")
def history(access: Viewer, span: SpanOf = "6h") -> ClusterHistory:
    """Return lag, cores, speed and hot spots of each cluster in equal steps."""
    found = cluster_history(parked_events().tracker, span, access.teams("view"))
    return ClusterHistory(**found.to_json())


@router.get(
    "/team-history",
    responses=problems(_404="A team that you may not see."),
    summary="Teams over time",
)
def teams(access: Viewer, team: Teams, span: SpanOf = "6h") -> TeamHistory:
    """Return the lag of some teams in equal steps."""
    for name in team:
        require(access, "view", name, absent(f"team {name[:80]!r}"))
    return TeamHistory(**team_history(parked_events().tracker, span, team).to_json())


__all__ = ["router"]
