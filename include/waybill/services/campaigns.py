"""Campaigns: many parked groups replayed by one request."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from waybill import replay
from waybill.deployment import deployed_id, keeps_source, pipeline_of
from waybill.errors import InputError
from waybill.services.environment import opened_parking
from waybill.services.replay import run_dry_run
from waybill.settings import Settings
from waybill.storage import open_log, open_tracker

if TYPE_CHECKING:
    from waybill.access import Decision
    from waybill.parking import ParkedGroup
    from waybill.pipelines import Pipeline
    from waybill.replay import (
        Campaign,
        CampaignForecast,
        CampaignGroup,
        CampaignRequest,
        CampaignResult,
        DryRunReport,
        DryRunRequest,
        ReplayRequest,
        ReplayRuns,
    )
    from waybill.storage import TrackerStore

_LOOK_S = 0.5
_MOST_LOOKED_AT = 100


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
        InputError: the request names a pipeline, event name, stage or error type that there is not,
            or no stage to enter at.
    """
    replay.check_entry(request.enter)
    pipeline_id = _pipeline_id(settings, request)
    with open_tracker(settings.tracker) as tracker:
        return replay.foresee_campaign(tracker, request, pipeline_id)


def entry_problems(settings: Settings, request: CampaignRequest) -> dict[str, str]:
    """Return groups that a campaign would have and that cannot enter, each with the reason.

    All that parked at mapping are looked at; the events of the first 100 as well.

    Raises:
        InputError, RetryError: as ``foresee_campaign``.

    Cost: a query for each pipeline; reads these events, where their pipeline keeps sources.
    """
    pipeline_id = _pipeline_id(settings, request)
    problems: dict[str, str] = {}
    with opened_parking(settings) as parking, open_tracker(settings.tracker) as tracker:
        found = parking.partitions_of(replay.foresee_groups(tracker, request, pipeline_id))
        at_mapping = [group for group in found if group.stage == replay.MAPPING]
        pipelines = {
            name: _enterable(tracker, request.enter, name)
            for name in {group.pipeline_id for group in at_mapping}
            if request.enter or keeps_source(tracker, name)
        }
        asked = [group for group in at_mapping if group.pipeline_id in pipelines]
        for number, group in enumerate(asked):
            pipeline = pipelines[group.pipeline_id]
            if isinstance(pipeline, InputError):
                problems[group.name] = str(pipeline)
            elif number < _MOST_LOOKED_AT:
                try:
                    replay.entry(parking, group, _replay_of(request, group), pipeline)
                except InputError as error:
                    problems[group.name] = str(error)
    return problems


def _enterable(tracker: TrackerStore, enter: str | None, pipeline_id: str) -> Pipeline | InputError:
    """Return a pipeline, or why nothing of it that parked at mapping can enter there."""
    try:
        pipeline = pipeline_of(tracker, pipeline_id)
        replay.enters_earlier(enter, replay.MAPPING, pipeline)
    except InputError as error:
        return error
    return pipeline


def _replay_of(request: CampaignRequest, group: ParkedGroup) -> ReplayRequest:
    """Return the replay of one group of a campaign."""
    names = {name: getattr(group, name) for name in ("event_name", "stage", "error_type")}
    return replay.ReplayRequest.of(request.of_group({"pipeline": group.pipeline_id, **names}))


def note_failed_replay(settings: Settings, run_id: str, reason: str) -> bool:
    """Write why a campaign's run of one group failed; False: it is none of a campaign."""
    with open_tracker(settings.tracker) as tracker:
        return replay.note_failure(tracker, run_id, reason)


def dry_run_campaign(
    settings: Settings,
    request: CampaignRequest,
    *,
    proposed: Path | None = None,
    sample: int | None = None,
) -> Iterator[tuple[ParkedGroup, DryRunReport | InputError]]:
    """Try the groups that a campaign would have now, one after the other; write nothing.

    With ``proposed``, recent good events are tried once for each event name.

    Yields:
        A group, and its report, or why it cannot be tried.

    Raises:
        InputError: as ``foresee_campaign``; or the folder is wrong.
        RetryError: something it stands on is away.

    Cost: reads each parked event, or a sample of each group; the groups are held in memory, their
    events are not.
    """
    from waybill.pipelines import load_pipeline

    if proposed is not None:
        load_pipeline(proposed)
    pipeline_id = _pipeline_id(settings, request)
    with opened_parking(settings) as parking, open_tracker(settings.tracker) as tracker:
        found = parking.partitions_of(replay.foresee_groups(tracker, request, pipeline_id))
    seen: set[tuple[str, str]] = set()
    for group in found:
        asked = _replay_of(request, group).as_dry_run(proposed=proposed)
        asked = asked.model_copy(update={"sample": sample})
        name = group.pipeline_id, group.event_name
        if name in seen:
            asked = asked.model_copy(update={"good": 0})
        seen.add(name)
        yield group, _tried(settings, asked)


def _tried(settings: Settings, asked: DryRunRequest) -> DryRunReport | InputError:
    try:
        return run_dry_run(settings, asked)
    except InputError as error:
        return error


def campaign_results(settings: Settings, campaign_ids: Sequence[int]) -> dict[int, CampaignResult]:
    """Return what became of the events of campaigns so far, by id."""
    with open_tracker(settings.tracker) as tracker:
        return replay.read_campaign_results(tracker, campaign_ids)


def await_campaign(settings: Settings, campaign_id: int, *, wait_s: float) -> bool:
    """Wait until a campaign has ended, and all that it sent is processed and loaded.

    Returns:
        Whether that is so; not: ``wait_s`` seconds were over before.

    Raises:
        InputError: there is none with this id.
        RetryError: Kafka or the tracker is away.
    """
    deadline = time.monotonic() + wait_s
    with open_tracker(settings.tracker) as tracker:
        while (found := replay.read_campaign(tracker, campaign_id)).ended_at is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_S)
        if replay.CampaignRequest.of(found.request).dry_run:
            return True
        log = open_log(settings.kafka)
        names = replay.read_pipelines_of(tracker, campaign_id)
        ends = {name: replay.ends_of(tracker, log, pipeline_of(tracker, name)) for name in names}
        while ends:
            with tracker.transaction() as connection:
                known = replay.read_awaited(connection, ends)
            ends = {name: awaited for name, (awaited, is_known) in known.items() if not is_known}
            if ends and time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_S if ends else 0)
        return True


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
