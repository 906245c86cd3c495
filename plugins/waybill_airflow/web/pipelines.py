"""Routes of pipelines: a line each, and events by minute.

Who may view a team's parked events sees its pipelines. What parked last is told by its type; its
message, which may hold personal values, is on the page of parked events.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Self

from fastapi import APIRouter, HTTPException, Query, status
from pydantic import BaseModel, Field

from waybill.events import rfc3339
from waybill.inspection import (
    MOST_PIPELINES,
    PipelineFilter,
    PipelineLine,
    pipeline_page,
    pipeline_rates,
)
from waybill_airflow.web.guard import Viewer
from waybill_airflow.web.models import problems
from waybill_airflow.web.services import parked_events

router = APIRouter(prefix="/api", tags=["pipelines"])
_TEXT = r"^[^\x00]{0,300}$"


class LastErrorOut(BaseModel):
    """What parked last."""

    partition_id: int
    event_name: str
    stage: str
    error_type: str
    at: str


class PipelineOut(BaseModel):
    """A pipeline."""

    id: str
    name: str
    team: str
    destination: str | None = Field(description="null: no version is deployed.")
    lag_s: float | None = Field(
        description="For how long the oldest unread event of its topic waits; null: not known."
    )
    lag_at: str | None = Field(description="When the coordinator saw that.")
    parked: int
    replaying: int
    held_at: str | None = Field(description="Since when all its events are parked at once.")
    hold_kind: str | None = Field(description="storm, or by hand.")
    last_error: LastErrorOut | None

    @classmethod
    def of(cls, line: PipelineLine) -> Self:
        """Return a pipeline."""
        error = line.last_error
        return cls(
            id=line.id,
            name=line.name,
            team=line.team,
            destination=line.destination,
            lag_s=None if line.lag_s is None else round(line.lag_s, 3),
            lag_at=None if line.lag_at is None else rfc3339(line.lag_at),
            parked=line.parked,
            replaying=line.replaying,
            held_at=None if line.held_at is None else rfc3339(line.held_at),
            hold_kind=line.hold_kind,
            last_error=None
            if error is None
            else LastErrorOut(
                partition_id=error.partition_id,
                event_name=error.event_name,
                stage=error.stage,
                error_type=error.error_type,
                at=rfc3339(error.at),
            ),
        )


class Pipelines(BaseModel):
    """A page of pipelines, by name."""

    pipelines: list[PipelineOut]
    next: str | None = Field(description="`after` of the next page; null: this was the last.")
    total: int = Field(description="All that match.")
    held: int = Field(description="Those of them that are held.")


class RatesOut(BaseModel):
    """A pipeline's events by minute."""

    came_in: list[int]
    delivered: list[int] = Field(
        description="Delivered then, whenever they came in; replayed ones as well."
    )


class Rates(BaseModel):
    """Events of the last hour but the last two minutes."""

    since: str = Field(description="Where the first minute begins.")
    pipelines: dict[str, RatesOut] = Field(description="By pipeline id.")


@router.get("/pipelines", summary="Pipelines")
def pipelines(
    access: Viewer,
    words: Annotated[
        str, Query(pattern=_TEXT, description="In the name of the pipeline, or of its team.")
    ] = "",
    attention: Annotated[bool, Query(description="Only held ones, or with events parked.")] = False,  # noqa: FBT002 - a query parameter
    limit: Annotated[int, Query(ge=1, le=MOST_PIPELINES, description="Most pipelines.")] = 50,
    after: Annotated[
        str | None, Query(pattern=_TEXT, description="`next` of the page before.")
    ] = None,
) -> Pipelines:
    """Return a page of the user's teams' pipelines."""
    wanted = PipelineFilter(access.teams("view"), words, attention)
    page = pipeline_page(parked_events().tracker, wanted, limit=limit, after=after)
    lines = [PipelineOut.of(line) for line in page.pipelines]
    return Pipelines(pipelines=lines, next=page.next, total=page.total, held=page.held)


@router.get(
    "/pipeline-rates",
    responses=problems(_404="There is no such pipeline."),
    summary="Events of pipelines by minute",
)
def rates(
    access: Viewer,
    pipeline: Annotated[
        list[Annotated[str, Field(pattern=r"^[^\x00]{1,300}$")]],
        Query(min_length=1, max_length=MOST_PIPELINES, description="Their ids, one by one."),
    ],
) -> Rates:
    """Return how many events came in, and how many were delivered, minute by minute."""
    seen = {one["id"] for one in parked_events().names(access.teams("view"))}
    if unknown := [one for one in pipeline if one not in seen]:
        raise HTTPException(
            status.HTTP_404_NOT_FOUND,
            f"there is no pipeline {unknown[0][:80]!r}; /names gives the ids that there are",
        )
    found = pipeline_rates(parked_events().tracker, pipeline, now=datetime.now(UTC))
    return Rates(
        since=rfc3339(found.since),
        pipelines={
            one: RatesOut(came_in=list(found.came_in[one]), delivered=list(found.delivered[one]))
            for one in pipeline
        },
    )


__all__ = ["router"]
