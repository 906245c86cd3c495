"""Routes of campaigns: how far each is; pause, resume, cancel.

A campaign is of all teams whose groups it has: who sees it, or decides about it, may do so for each
of them. It is begun by the DAG ``replay_parked_partitions``, where Airflow says who may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Depends, HTTPException, Path, Query, status
from pydantic import BaseModel, Field

from waybill.access import Access, Decision
from waybill.errors import InputError
from waybill.replay import (
    Campaign,
    CampaignResult,
    cancel_campaign,
    pause_campaign,
    read_campaign,
    read_campaign_groups,
    read_campaign_results,
    read_campaigns,
    resume_campaign,
)
from waybill.settings import Permission
from waybill_airflow.web import models
from waybill_airflow.web.guard import AccessDep, Viewer, absent, require, require_anywhere
from waybill_airflow.web.services import parked_events

router = APIRouter(prefix="/api", tags=["campaigns"])
_RECENT = timedelta(days=1)
_MOST_READ = 10_000
"""Launched groups, over all campaigns of a list, whose results are read: 0.3 s."""
_NONE = models.problems(_404="There is no such campaign.")
_OVER = _NONE | models.problems(_409="It is over.")


class CampaignResultOut(BaseModel):
    """What became of the events so far, by the books."""

    sent: int = Field(description="Events that are in the log again.")
    delivered: int = Field(description="Rows: an event may become several, or none.")
    superseded: int
    duplicate: int
    held: int = Field(description="Events that wait, as their pipeline was held meanwhile.")
    parked_again: dict[str, int] = Field(description="Stage to events.")
    tried: int = Field(description="Events that a dry run has tried; of them")
    would_pass: int
    would_filter: int
    would_park_again: int

    @classmethod
    def of(cls, found: CampaignResult) -> Self:
        """Return a result as the API gives it."""
        return cls(**found.to_json())


class CampaignOut(BaseModel):
    """A campaign, and how far it is."""

    id: int
    run_id: str = Field(description="Run of the DAG `replay_parked_partitions`.")
    asked_by: str
    asked_at: str
    request: dict[str, Any] = Field(description="Filter and options, as they were asked for.")
    teams: list[str]
    max_unfinished: int = Field(description="Most runs that wait or run at a time.")
    groups_per_run: int = Field(description="Most groups that one run replays.")
    proposed_groups_per_run: int | None = Field(
        description="How many there should be, as the campaign is large; null: it is well, or over."
    )
    state: Literal["running", "paused", "cancelled", "done"]
    changed_by: str = Field(description="Who paused, resumed or cancelled it last.")
    changed_at: str | None
    groups: int = Field(description="Parked groups to replay.")
    waiting: int = Field(description="Of them, those to be launched,")
    launched: int = Field(description="those that were,")
    unfinished: int = Field(description="of which these have not ended,")
    ended: int = Field(description="and these have;")
    failed: int = Field(description="the runs of so many failed, or were deleted.")
    cancelled: int = Field(description="Groups that were never launched, as it was cancelled.")
    left_out: dict[str, int] = Field(description="Groups that are not replayed, by reason.")
    rate_per_min: float = Field(description="Groups that end in a minute.")
    eta_s: int | None = Field(description="Seconds left at this rate.")
    looked_at: str | None = Field(description="When its task was at work on it last.")
    ended_at: str | None = Field(description="null: it goes on.")
    result: CampaignResultOut | None = Field(
        description="null: in a list, of one that ended over a day ago, or of so many groups that "
        "to read it takes long, and where it was paused, resumed or cancelled just now; "
        "`GET /campaigns/{id}` always has it."
    )

    @classmethod
    def of(cls, found: Campaign, result: CampaignResult | None) -> Self:
        """Return a campaign as the API gives it."""
        return cls(**found.to_json(), result=result and CampaignResultOut.of(result))


class CampaignsOut(BaseModel):
    """Campaigns, the newest first."""

    campaigns: list[CampaignOut]


class CampaignGroupOut(BaseModel):
    """A parked group of a campaign."""

    partition_id: int
    pipeline: str
    event_name: str
    stage: str
    error_type: str
    state: Literal["waiting", "launched", "ended", "left_out"]
    outcome: str = Field(
        description="Why it is left out; or failed, gone, success; parked_again: its run "
        "succeeded, and some of its events parked again; would_park_again: the same of a dry run."
    )
    run_id: str = Field(description="Run of the DAG `replay`; empty: it was not launched.")
    launched_at: str | None
    ended_at: str | None
    report: dict[str, Any] | None = Field(
        description="Of its replay, or `error`, where groups share a run; null: its run has it."
    )
    result: CampaignResultOut


class CampaignGroupsOut(BaseModel):
    """A page of a campaign's groups, by id."""

    groups: list[CampaignGroupOut]
    next: int | None = Field(description="What to give as `after` for those that follow.")


@dataclass(frozen=True, slots=True)
class CampaignAccess:
    """A user, and a campaign with which they may do what the route does."""

    access: Access
    campaign: Campaign

    def decision(self, body: models.CampaignBody | None) -> Decision:
        """Return the user's decision."""
        return Decision(self.access.user, body.why if body else "")


def _at_campaign(permission: Permission) -> Callable[..., CampaignAccess]:
    def allowed(
        access: AccessDep,
        campaign_id: Annotated[int, Path(ge=1, lt=2**63, description="The campaign's id.")],
    ) -> CampaignAccess:
        require_anywhere(access, permission)
        missing = absent(f"campaign {campaign_id}")
        try:
            found = read_campaign(parked_events().tracker, campaign_id)
        except InputError as error:
            raise missing from error
        if not all(access.may("view", team) for team in found.teams):
            raise missing
        for team in found.teams:
            require(access, permission, team, missing)
        return CampaignAccess(access, found)

    return allowed


CampaignViewer = Annotated[CampaignAccess, Depends(_at_campaign("view"))]
CampaignReplayer = Annotated[CampaignAccess, Depends(_at_campaign("replay"))]


@router.get("/campaigns", summary="Campaigns")
def campaigns(
    access: Viewer,
    limit: Annotated[int, Query(ge=1, le=500, description="Look at so many.")] = 50,
) -> CampaignsOut:
    """Return the newest campaigns, as far as all teams in them are the user's.

    Pages ask for it each 15 s, so results are read of those alone that go on or ended within a
    day, the newest first, as far as they have 10,000 launched groups together.
    """
    found = read_campaigns(parked_events().tracker, limit=limit)
    seen = [one for one in found if all(access.may("view", team) for team in one.teams)]
    results = read_campaign_results(parked_events().tracker, _recent(seen))
    return CampaignsOut(campaigns=[CampaignOut.of(one, results.get(one.id)) for one in seen])


def _recent(found: Sequence[Campaign]) -> list[int]:
    """Return the ids of campaigns whose results a list has."""
    since, room, ids = datetime.now(UTC) - _RECENT, _MOST_READ, []
    for one in found:
        if (one.ended_at is None or one.ended_at > since) and one.launched <= room:
            room -= one.launched
            ids.append(one.id)
    return ids


@router.get("/campaigns/{campaign_id}", responses=_NONE, summary="One campaign")
def campaign(here: CampaignViewer) -> CampaignOut:
    """Return a campaign: what was asked for, progress, rate, time left."""
    found = here.campaign
    results = read_campaign_results(parked_events().tracker, [found.id])
    return CampaignOut.of(found, results[found.id])


@router.get("/campaigns/{campaign_id}/groups", responses=_NONE, summary="A campaign's groups")
def groups(
    here: CampaignViewer,
    state: Annotated[
        Literal["waiting", "launched", "ended", "left_out", "failed", "parked_again"],
        Query(
            description="`failed`: ended, but not well; `parked_again`: some of its events did, or "
            "would by a dry run."
        ),
    ] = "failed",
    limit: Annotated[int, Query(ge=1, le=500, description="Most groups.")] = 100,
    after: Annotated[int, Query(ge=0, lt=2**63, description="`next` of the page before.")] = 0,
) -> CampaignGroupsOut:
    """Return the parked groups of a campaign that are in a state, with their runs."""
    found = read_campaign_groups(
        parked_events().tracker, here.campaign.id, state=state, limit=limit, after=after
    )
    rows = [CampaignGroupOut(**one.to_json()) for one in found]
    return CampaignGroupsOut(
        groups=rows, next=rows[-1].partition_id if len(rows) == limit else None
    )


@router.post("/campaigns/{campaign_id}/pause", responses=_OVER, summary="Pause a campaign")
def pause(here: CampaignReplayer, body: models.CampaignBody | None = None) -> CampaignOut:
    """Launch no more of its runs until it is resumed; those that were launched go on."""
    return _changed(pause_campaign, here, body)


@router.post("/campaigns/{campaign_id}/resume", responses=_OVER, summary="Resume a campaign")
def resume(here: CampaignReplayer, body: models.CampaignBody | None = None) -> CampaignOut:
    """Launch its runs again."""
    return _changed(resume_campaign, here, body)


@router.post("/campaigns/{campaign_id}/cancel", responses=_OVER, summary="Cancel a campaign")
def cancel(here: CampaignReplayer, body: models.CampaignBody | None = None) -> CampaignOut:
    """Launch no more of its runs, for good; those that were launched go on to their ends."""
    return _changed(cancel_campaign, here, body)


def _changed(
    change: Callable[..., Campaign], here: CampaignAccess, body: models.CampaignBody | None
) -> CampaignOut:
    try:
        found = change(parked_events().tracker, here.campaign.id, here.decision(body))
    except InputError as error:
        raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error
    return CampaignOut.of(found, None)
