"""Routes of sources: how the last run of each is, and stopping one at its next page.

Who may view a team's parked events sees its sources; who may replay them may stop a run. Names of
nodes are for who may view every team.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from fastapi import APIRouter, HTTPException, Query, status
from pydantic import BaseModel, Field

from waybill.access import Decision
from waybill.errors import InputError
from waybill.events import rfc3339
from waybill.ledger import SourceFilter, SourceLine, ask_stop, read_sources
from waybill_airflow.web.guard import PipelineReplayer, Viewer
from waybill_airflow.web.models import ReleaseBody, problems
from waybill_airflow.web.services import parked_events

router = APIRouter(prefix="/api", tags=["sources"])
_TEXT = r"^[^\x00]{0,300}$"
_MOST = 100


class SourceOut(BaseModel):
    """A pipeline's source, and its last run."""

    pipeline_id: str
    pipeline: str
    team: str
    connector: str = Field(description="Empty: no version is deployed.")
    schedule: str = Field(description="As declared; empty: by hand.")
    next_run_at: str | None = Field(
        description="By the schedule, were the DAG not paused; null: by hand."
    )
    state: Literal[
        "pushed",
        "never",
        "running",
        "stopping",
        "silent",
        "waiting",
        "success",
        "failed",
        "stopped",
    ] = Field(
        description="pushed: it sends by itself; silent: it runs, and was not heard of lately; "
        "waiting: it gave its slot back, and goes on later."
    )
    waits_for: Literal["", "share", "kafka"] = Field(
        description="share: its team is over its share of the slots; kafka: the log is full, and "
        "Kafka takes nothing; empty: it does not wait."
    )
    node: str | None = Field(description="null for who may not see all teams.")
    started_at: str | None
    told_at: str | None = Field(description="When the run was heard of last.")
    ended_at: str | None
    succeeded_at: str | None = Field(description="When a run succeeded last,")
    failed_at: str | None = Field(description="and when one failed last.")
    error: str = Field(description="Of the last failure; empty: none ever failed.")
    stop_asked_by: str
    rows_read: int = Field(
        description="By all runs since the source was begun, or begun again from elsewhere."
    )
    read: int = Field(description="Rows that the last run read,")
    settled: int = Field(description="events that it brought into Kafka,")
    parked: int = Field(description="and rows that it parked.")
    pages: int
    rate_per_s: float = Field(description="Rows, lately; of a run that ended, over all of it.")
    total: int | None = Field(description="Rows that the source has; null: it cannot say.")
    position: str = Field(description="Where the run stands in the source; empty: it cannot say.")
    behind: float | None = Field(description="How far that is behind the source's end, in `unit`.")
    unit: str

    @classmethod
    def of(cls, line: SourceLine, *, whole: bool) -> Self:
        """Return a source; ``whole``: with the name of its node."""
        shown = line.to_json()
        shown |= shown.pop("figures") | {"node": line.node if whole else None}
        return cls(**{name: shown[name] for name in cls.model_fields})


class Sources(BaseModel):
    """A page of sources, by the names of their pipelines."""

    sources: list[SourceOut]
    next: str | None = Field(description="`after` of the next page; null: this was the last.")
    total: int = Field(description="All that match.")
    running: int = Field(description="Those of them that run,")
    failed: int = Field(description="and those whose last run failed.")
    at: str = Field(description="When this was read.")


class StopOut(BaseModel):
    """A run that was asked to end."""

    pipeline_id: str
    asked: Literal[True] = True


@router.get("/sources", summary="Sources and their runs")
def sources(
    access: Viewer,
    words: Annotated[
        str,
        Query(pattern=_TEXT, description="In the name of the pipeline, or of its team."),
    ] = "",
    state: Annotated[
        Literal["", "running", "failed"], Query(description="Only these; empty: all.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=_MOST, description="Most sources.")] = 50,
    after: Annotated[
        str | None, Query(pattern=_TEXT, description="`next` of the page before.")
    ] = None,
) -> Sources:
    """Return a page of the sources of the user's teams."""
    teams = access.teams("view")
    wanted = SourceFilter(teams, words, state)
    page = read_sources(parked_events().tracker, wanted, limit=limit, after=after)
    return Sources(
        sources=[SourceOut.of(line, whole=teams is None) for line in page.sources],
        next=page.next,
        total=page.total,
        running=page.running,
        failed=page.failed,
        at=rfc3339(datetime.now(UTC)),
    )


@router.post(
    "/pipelines/{pipeline_id}/stop-source",
    responses=problems(_404="No such pipeline is deployed.", _409="No run of it can be stopped."),
    summary="Stop a source's run",
)
def stop(here: PipelineReplayer, body: ReleaseBody) -> StopOut:
    """Have the run of a pipeline's source end at its next page; what it read is delivered.

    Its task is skipped; the next run goes on from there.
    """
    decision = Decision(here.access.user, body.why)
    decision.require_why()
    try:
        ask_stop(parked_events().tracker, here.pipeline_id, decision)
    except InputError as error:
        raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error
    return StopOut(pipeline_id=here.pipeline_id)


__all__ = ["router"]
