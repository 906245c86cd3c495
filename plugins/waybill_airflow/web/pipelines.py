"""Routes of pipelines: a line each, with all that the page *Overview* shows.

Who may view a team's parked events sees its pipelines. What parked last is told by its type; its
message, which may hold personal values, is on the page of parked events.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from waybill.events import rfc3339
from waybill.inspection import (
    MOST_PIPELINES,
    PipelineFilter,
    PipelineLine,
    PipelineState,
    pipeline_page,
)
from waybill.ledger import SourceState
from waybill_airflow.web.guard import Viewer
from waybill_airflow.web.services import parked_events
from waybill_airflow.web.sparkline import sparkline

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
    state: PipelineState = Field(
        description="What holds it up the worst: held; stopped: its topic is not read; failed and "
        "silent: the last run of its source; away: its destination takes nothing. Else what its "
        "source does: running, stopping, waiting, listening (it sends by itself), idle."
    )
    state_since: str | None = Field(description="Of what holds it up.")
    lag_s: float | None = Field(
        description="For how long the oldest unread event of its topic waits; null: not known."
    )
    lag_at: str | None = Field(description="When the coordinator saw that.")
    parked: int = Field(description="Events, those among them that are held.")
    held: int = Field(description="Parked as they came, because the pipeline is held, or was.")
    replaying: int
    held_at: str | None = Field(description="Since when all its events are parked at once.")
    hold_kind: str | None = Field(description="storm, or by hand.")
    breaches: int = Field(description="That are open.")
    run_state: SourceState = Field(description="Of its source, as `/sources` has it.")
    run_at: str | None = Field(description="When the last run ended, or was heard of last.")
    run_outdated: bool = Field(
        description="It failed or fell silent with another source or destination than is deployed "
        "now, so `state` does not tell it."
    )
    last_error: LastErrorOut | None
    came_in: list[int] = Field(description="Events by minute: an hour's, from `since` on.")
    delivered: list[int] = Field(
        description="Delivered then, whenever they came in; replayed ones as well."
    )
    came_in_per_s: float = Field(description="A mean of five minutes and the one that is on.")
    delivered_per_s: float = Field(description="Likewise.")
    sparkline: str = Field(description="Events by minute as a drawing: an SVG element.")

    @classmethod
    def of(cls, line: PipelineLine, since: datetime) -> Self:
        """Return a pipeline; ``since``: where the first minute of its rates begins."""
        error = line.last_error
        return cls(
            id=line.id,
            name=line.name,
            team=line.team,
            destination=line.destination,
            state=line.state,
            state_since=_time(line.state_since),
            lag_s=None if line.lag_s is None else round(line.lag_s, 3),
            lag_at=_time(line.lag_at),
            parked=line.parked,
            held=line.held,
            replaying=line.replaying,
            held_at=_time(line.held_at),
            hold_kind=line.hold_kind,
            breaches=line.breaches,
            run_state=line.run_state,
            run_at=_time(line.run_at),
            run_outdated=line.run_outdated,
            last_error=None
            if error is None
            else LastErrorOut(
                partition_id=error.partition_id,
                event_name=error.event_name,
                stage=error.stage,
                error_type=error.error_type,
                at=rfc3339(error.at),
            ),
            came_in=list(line.came_in),
            delivered=list(line.delivered),
            came_in_per_s=line.came_in_per_s,
            delivered_per_s=line.delivered_per_s,
            sparkline=sparkline(since, line.came_in, line.delivered),
        )


def _time(at: datetime | None) -> str | None:
    return None if at is None else rfc3339(at)


class Pipelines(BaseModel):
    """A page of pipelines, by name."""

    pipelines: list[PipelineOut]
    next: str | None = Field(description="`after` of the next page; null: this was the last.")
    since: str = Field(description="Where the first minute of rates begins; the last one is on.")
    total: int = Field(description="All that match.")
    held: int = Field(description="Those of them that are held,")
    breaches: int = Field(description="their open breaches,")
    failed: int = Field(
        description="those whose source's last run failed, with the source and destination that "
        "they have now,"
    )
    silent: int = Field(description="those whose run is not heard of,")
    stopped: int = Field(description="those whose topic is not read,")
    away: int = Field(description="and those whose destination takes nothing.")


@router.get("/pipelines", summary="Pipelines")
def pipelines(
    access: Viewer,
    words: Annotated[
        str, Query(pattern=_TEXT, description="In the name of the pipeline, or of its team.")
    ] = "",
    attention: Annotated[  # noqa: FBT002 - a query parameter
        bool,
        Query(
            description="Only those that are held, have events parked or a breach open, whose last "
            "run failed or is not heard of, whose topic is stopped, or whose destination is away."
        ),
    ] = False,
    limit: Annotated[int, Query(ge=1, le=MOST_PIPELINES, description="Most pipelines.")] = 50,
    after: Annotated[
        str | None, Query(pattern=_TEXT, description="`next` of the page before.")
    ] = None,
) -> Pipelines:
    """Return a page of the user's teams' pipelines, with their events minute by minute."""
    wanted = PipelineFilter(access.teams("view"), words, attention)
    page = pipeline_page(parked_events().tracker, wanted, limit=limit, after=after)
    return Pipelines(
        pipelines=[PipelineOut.of(line, page.since) for line in page.pipelines],
        next=page.next,
        since=rfc3339(page.since),
        total=page.total,
        held=page.held,
        breaches=page.breaches,
        failed=page.failed,
        silent=page.silent,
        stopped=page.stopped,
        away=page.away,
    )


__all__ = ["router"]
