"""Campaigns: many parked groups replayed by one request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waybill import replay
from waybill.deployment import deployed_id
from waybill.services.environment import opened_parking
from waybill.settings import Settings
from waybill.storage import open_tracker

if TYPE_CHECKING:
    from waybill.access import Decision
    from waybill.replay import (
        Campaign,
        CampaignForecast,
        CampaignGroup,
        CampaignRequest,
        ReplayRuns,
    )


def freeze_campaign(
    settings: Settings, request: CampaignRequest, *, who: str, run_id: str
) -> Campaign:
    """Write down the parked groups of a campaign; the same DAG run has the same one.

    Raises:
        InputError: the request names a pipeline, event name, stage or error type that there is not.
    """
    pipeline_id = _pipeline_id(settings, request)
    with open_tracker(settings.tracker) as tracker:
        return replay.freeze_campaign(tracker, request, pipeline_id, who=who, run_id=run_id)


def foresee_campaign(settings: Settings, request: CampaignRequest) -> CampaignForecast:
    """Return what a campaign would have if it began now.

    Raises:
        InputError: the request names a pipeline, event name, stage or error type that there is not.
    """
    pipeline_id = _pipeline_id(settings, request)
    with open_tracker(settings.tracker) as tracker:
        return replay.foresee_campaign(tracker, request, pipeline_id)


def campaign_of_run(settings: Settings, run_id: str) -> Campaign | None:
    """Return the campaign that a DAG run works on; None: it has not begun it."""
    with open_tracker(settings.tracker) as tracker:
        return replay.campaign_of_run(tracker, run_id)


def _pipeline_id(settings: Settings, request: CampaignRequest) -> str | None:
    """Return the id of the pipeline that is named, if one is; all names are checked."""
    with opened_parking(settings) as parking:
        parking.require_names(request.stage, request.error_type, request.event_name)
    if request.pipeline is None:
        return None
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        return deployed_id(connection, request.pipeline)


def has_open_campaigns(settings: Settings) -> bool:
    """Tell whether there is a campaign that has not ended."""
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        return bool(replay.read_open_campaigns(connection))


def advance_campaign(settings: Settings, campaign_id: int, runs: ReplayRuns) -> Campaign:
    """Settle the runs of a campaign that have ended, and launch the next ones."""
    with open_tracker(settings.tracker) as tracker:
        return replay.advance_campaign(tracker, campaign_id, runs)


def replay_campaigns(settings: Settings, *, limit: int) -> list[Campaign]:
    """Return the newest campaigns, the newest first."""
    with open_tracker(settings.tracker) as tracker:
        return replay.read_campaigns(tracker, limit=limit)


def replay_campaign(settings: Settings, campaign_id: int) -> Campaign:
    """Return a campaign."""
    with open_tracker(settings.tracker) as tracker:
        return replay.read_campaign(tracker, campaign_id)


def campaign_groups(
    settings: Settings, campaign_id: int, *, state: str, limit: int
) -> list[CampaignGroup]:
    """Return groups of a campaign that are in a state, or whose runs ``failed``."""
    with open_tracker(settings.tracker) as tracker:
        return replay.read_campaign_groups(tracker, campaign_id, state=state, limit=limit)


def pause_campaign(settings: Settings, campaign_id: int, decision: Decision) -> Campaign:
    """Have a campaign launch nothing more until it is resumed."""
    with open_tracker(settings.tracker) as tracker:
        return replay.pause_campaign(tracker, campaign_id, decision)


def resume_campaign(settings: Settings, campaign_id: int, decision: Decision) -> Campaign:
    """Have a campaign go on."""
    with open_tracker(settings.tracker) as tracker:
        return replay.resume_campaign(tracker, campaign_id, decision)


def cancel_campaign(settings: Settings, campaign_id: int, decision: Decision) -> Campaign:
    """End a campaign; what it has launched goes on."""
    with open_tracker(settings.tracker) as tracker:
        return replay.cancel_campaign(tracker, campaign_id, decision)
