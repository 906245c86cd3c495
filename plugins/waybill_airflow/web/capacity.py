"""Routes of capacity: how long tasks wait, nodes and their workers, decisions and their reasons.

Who may view a team's parked events sees how long its tasks wait; waits of other teams and names of
nodes are for who may view every team. How many nodes there are, and why, is everybody's.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, HTTPException, Query, status
from pydantic import BaseModel, Field

from waybill.capacity import CapacityStatus, HistorySpan, capacity_history, capacity_status
from waybill.settings import source_pool
from waybill_airflow.airflow_internals import may_change_pool
from waybill_airflow.dag_defaults import INGEST_POOL
from waybill_airflow.slot_shares import share_ingest_slots
from waybill_airflow.web.guard import UserDep, Viewer
from waybill_airflow.web.services import OPENED, parked_events

router = APIRouter(prefix="/api", tags=["capacity"])
SpanOf = Annotated[HistorySpan, Query(description="How far back.")]
_DECISIONS = 50


class WaitsOut(BaseModel):
    """How long tasks of a team wait that may run."""

    team: str = Field(description="Empty: of no pipeline.")
    connector: str = Field(description="Kind of its source; of no pipeline: the DAG.")
    queue: str
    waiting: int
    started: int = Field(description="Within the last minute.")
    p50_s: float
    p95_s: float
    oldest_s: float = Field(description="Of those that wait.")


class SharesOut(BaseModel):
    """How the slots of ingestion were shared among teams."""

    waiting: int = Field(description="Runs that wait for a slot,")
    first: int = Field(description="those of them that go before all others,")
    leaving: int = Field(description="and runs that were asked to give theirs to another team.")


class NodeOut(BaseModel):
    """A node that declared its capacity."""

    name: str
    kind: Literal["ingestion", "spark"]
    state: Literal["active", "draining"]
    is_heard: bool = Field(description="It reported within two minutes.")
    units: int = Field(description="Workers or cores, as configured.")
    workers: int | None = Field(description="That it has now; null: it did not say.")
    running: int | None = Field(description="Tasks.")
    cpu: float | None = Field(description="0 to 1.")
    io_wait: float | None
    memory: float | None
    why: str = Field(description="What its enhancer did last.")


class CapacityDecisionOut(BaseModel):
    """What was decided about nodes of a kind."""

    at: str
    kind: Literal["ingestion", "spark"]
    action: Literal["grow", "shrink", "hold"]
    before: int = Field(description="Nodes that worked or started,")
    after: int = Field(description="and those that there were to be.")
    wanted: int = Field(description="Without limits and cool-downs.")
    reasons: list[str]


class FollowerOut(BaseModel):
    """An application that follows the announced nodes."""

    name: str
    version: int = Field(description="That it acknowledged last; 0: none.")
    at: str | None = Field(description="When it did.")
    waits_s: float = Field(description="So long ago the newest version was announced to it.")
    is_late: bool = Field(description="It should have acknowledged that by now.")


class CapacityOut(BaseModel):
    """How capacity is."""

    version: int = Field(description="Of the announced nodes; 0: none.")
    followers: int = Field(description="Applications that are to acknowledge it.")
    behind: list[FollowerOut] = Field(
        description="Those that have not acknowledged it; for who may view every team."
    )
    waiting: int | None = Field(description="Tasks of all teams; null: not measured lately.")
    running: int | None
    p95_s: float | None
    oldest_s: float | None
    waits: list[WaitsOut] = Field(description="Of the user's teams, the longest first.")
    nodes: list[NodeOut] = Field(description="For who may view every team.")
    last: list[CapacityDecisionOut] = Field(description="The newest of each kind.")
    decisions: list[CapacityDecisionOut] = Field(
        description="That changed the number of nodes, the newest first."
    )

    @classmethod
    def of(cls, found: CapacityStatus, teams: tuple[str, ...] | None) -> Self:
        """Return it for who may view these teams; None: every one."""
        said = found.to_json()
        waits = said["waits"]
        groups = waits["groups"] if waits else []
        return cls(
            version=said["version"],
            followers=len(found.followers),
            behind=[FollowerOut(**one.to_json()) for one in found.behind] if teams is None else [],
            waiting=waits and waits["waiting"] + waits["unseen"],
            running=waits and waits["busy"],
            p95_s=waits and waits["p95_s"],
            oldest_s=waits and waits["oldest_s"],
            waits=[WaitsOut(**one) for one in groups if teams is None or one["team"] in teams],
            nodes=[_node(one) for one in said["nodes"]] if teams is None else [],
            last=[_decision(one) for one in said["last"].values()],
            decisions=[_decision(one) for one in said["decisions"]],
        )


class SeriesOut(BaseModel):
    """A number for each step; null: nobody looked."""

    p95_s: list[float | None] = Field(description="The longest.")
    oldest_s: list[float | None]
    waiting: list[float | None] = Field(description="The most.")
    running: list[float | None] = Field(description="The mean.")


class NodeSeriesOut(BaseModel):
    """Nodes of a kind, a number for each step; null: nothing was decided."""

    ready: list[float | None] = Field(description="Nodes that worked.")
    wanted: list[float | None] = Field(description="Without limits and cool-downs.")
    units: list[float | None] = Field(description="Workers or cores.")
    busy: list[float | None] = Field(description="Of these.")
    utilisation: list[float | None] = Field(description="CPU, 0 to 1.")


class CapacityHistoryOut(BaseModel):
    """Capacity over time."""

    since: str = Field(description="Where the first step begins.")
    step_s: int = Field(description="Length of a step.")
    steps: int
    waits: SeriesOut
    nodes: dict[str, NodeSeriesOut] = Field(description="By kind.")


def _node(one: dict[str, Any]) -> NodeOut:
    report = one["report"] or {}
    names = ("workers", "running", "cpu", "io_wait", "memory")
    own = {name: one[name] for name in ("name", "kind", "state", "is_heard", "units")}
    shown = {name: report.get(name) for name in names}
    return NodeOut(**own, **shown, why=report.get("why", ""))


def _decision(one: dict[str, Any]) -> CapacityDecisionOut:
    return CapacityDecisionOut(**{name: one[name] for name in CapacityDecisionOut.model_fields})


@router.get("/capacity", summary="Waits, nodes and decisions")
def capacity(access: Viewer) -> CapacityOut:
    """Return how long tasks wait, which nodes there are, and what was decided."""
    found = capacity_status(parked_events().tracker, decisions=_DECISIONS)
    return CapacityOut.of(found, access.teams("view"))


@router.post(
    "/ingest-slots/share",
    summary="Share the slots of ingestion among teams",
)
def share(_access: Viewer, user: UserDep) -> SharesOut:
    """Say which runs that wait go first, and which are to give their slots to another team.

    It needs Airflow's right to change the pools. Who asks chooses nothing: the job `share_slots`
    of upkeep asks, again and again.
    """
    settings = OPENED.settings()
    pools = {INGEST_POOL, *map(source_pool, settings.airflow.source_slots)}
    for pool in sorted(pools):
        if not may_change_pool(user, pool):
            raise HTTPException(
                status.HTTP_403_FORBIDDEN,
                f"Airflow does not let {user.get_name()!r} change the pool {pool!r}",
            )
    shared = share_ingest_slots(parked_events().tracker, pools)
    return SharesOut(**shared._asdict())


@router.get("/capacity-history", summary="Capacity over time")
def history(_access: Viewer, span: SpanOf = "6h") -> CapacityHistoryOut:
    """Return waits, tasks, nodes and workers in equal steps."""
    found = capacity_history(parked_events().tracker, span)
    return CapacityHistoryOut(**found.to_json())


__all__ = ["router"]
