"""Replay: parked events back to their topic.

What may go (eligibility), as which messages (messages), how fast (throttle, canary), what became of
it (outcome), what would (dry_run), what has to be changed first (remedies), what goes by itself
(auto_replay, probing), by which runs (launches), and many groups by one request (campaigns).

Invariants
  I1  A segment is whole in the write-ahead log, with its mark, before the tracker hears of it; a
      crash between the two is finished from the mark by the next run.
  I2  A run that finds the beginning of an unfinished segment in the log appends only the rest.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.replay.auto_replay import AutoLaunch as AutoLaunch
    from waybill.replay.auto_replay import answering as answering
    from waybill.replay.auto_replay import due_auto_replays as due_auto_replays
    from waybill.replay.auto_replay import launched as launched
    from waybill.replay.auto_replay import mark_for_auto_replay as mark_for_auto_replay
    from waybill.replay.campaign_batches import Batch as Batch
    from waybill.replay.campaign_batches import BatchGroup as BatchGroup
    from waybill.replay.campaign_batches import BatchReport as BatchReport
    from waybill.replay.campaign_batches import Send as Send
    from waybill.replay.campaign_results import CampaignResult as CampaignResult
    from waybill.replay.campaign_results import read_campaign_results as read_campaign_results
    from waybill.replay.campaigns import UNFINISHED as UNFINISHED
    from waybill.replay.campaigns import Campaign as Campaign
    from waybill.replay.campaigns import CampaignForecast as CampaignForecast
    from waybill.replay.campaigns import CampaignGroup as CampaignGroup
    from waybill.replay.campaigns import OpenCampaign as OpenCampaign
    from waybill.replay.campaigns import ReplayRuns as ReplayRuns
    from waybill.replay.campaigns import advance_campaign as advance_campaign
    from waybill.replay.campaigns import campaign_of_run as campaign_of_run
    from waybill.replay.campaigns import cancel_campaign as cancel_campaign
    from waybill.replay.campaigns import foresee_campaign as foresee_campaign
    from waybill.replay.campaigns import foresee_groups as foresee_groups
    from waybill.replay.campaigns import freeze_campaign as freeze_campaign
    from waybill.replay.campaigns import left_out_words as left_out_words
    from waybill.replay.campaigns import note_failure as note_failure
    from waybill.replay.campaigns import pause_campaign as pause_campaign
    from waybill.replay.campaigns import proposal_words as proposal_words
    from waybill.replay.campaigns import read_campaign as read_campaign
    from waybill.replay.campaigns import read_campaign_groups as read_campaign_groups
    from waybill.replay.campaigns import read_campaigns as read_campaigns
    from waybill.replay.campaigns import read_open_campaigns as read_open_campaigns
    from waybill.replay.campaigns import read_pipelines_of as read_pipelines_of
    from waybill.replay.campaigns import reason_words as reason_words
    from waybill.replay.campaigns import resume_campaign as resume_campaign
    from waybill.replay.campaigns import teams_of_campaign as teams_of_campaign
    from waybill.replay.canary_steps import STEPS as STEPS
    from waybill.replay.canary_steps import CanaryParts as CanaryParts
    from waybill.replay.canary_steps import CanaryReport as CanaryReport
    from waybill.replay.canary_steps import CanaryWait as CanaryWait
    from waybill.replay.canary_steps import CanaryWaitError as CanaryWaitError
    from waybill.replay.canary_steps import canary as canary
    from waybill.replay.dry_run import DryRunParts as DryRunParts
    from waybill.replay.dry_run import DryRunReport as DryRunReport
    from waybill.replay.dry_run import entry as entry
    from waybill.replay.dry_run import try_out as try_out
    from waybill.replay.eligibility import are_events as are_events
    from waybill.replay.eligibility import find_replayable as find_replayable
    from waybill.replay.eligibility import held_words as held_words
    from waybill.replay.eligibility import refuse_held as refuse_held
    from waybill.replay.eligibility import refuse_ingestion as refuse_ingestion
    from waybill.replay.eligibility import require_parked as require_parked
    from waybill.replay.launches import Launches as Launches
    from waybill.replay.launches import ReplayLauncher as ReplayLauncher
    from waybill.replay.launches import group_of as group_of
    from waybill.replay.launches import replay_run_id as replay_run_id
    from waybill.replay.messages import MAPPING as MAPPING
    from waybill.replay.messages import check_entry as check_entry
    from waybill.replay.messages import enters_earlier as enters_earlier
    from waybill.replay.outcome import AwaitedEnds as AwaitedEnds
    from waybill.replay.outcome import ReplayOutcome as ReplayOutcome
    from waybill.replay.outcome import ReplayWatch as ReplayWatch
    from waybill.replay.outcome import became as became
    from waybill.replay.outcome import ends_of as ends_of
    from waybill.replay.outcome import read_awaited as read_awaited
    from waybill.replay.probing import ProbeReport as ProbeReport
    from waybill.replay.probing import probe_held as probe_held
    from waybill.replay.recent_events import GoodReport as GoodReport
    from waybill.replay.remedies import Remedy as Remedy
    from waybill.replay.remedies import read_remedies as read_remedies
    from waybill.replay.request import BatchRequest as BatchRequest
    from waybill.replay.request import CampaignRequest as CampaignRequest
    from waybill.replay.request import DryRunRequest as DryRunRequest
    from waybill.replay.request import ReplayRequest as ReplayRequest
    from waybill.replay.run import ReplayParts as ReplayParts
    from waybill.replay.run import ReplayReport as ReplayReport
    from waybill.replay.run import ReplayRun as ReplayRun
    from waybill.replay.run import replay as replay
    from waybill.replay.throttle import ReplayThrottle as ReplayThrottle
    from waybill.replay.throttle import TopicWatch as TopicWatch

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "auto_replay": [
            "AutoLaunch",
            "answering",
            "due_auto_replays",
            "launched",
            "mark_for_auto_replay",
        ],
        "campaign_batches": ["Batch", "BatchGroup", "BatchReport", "Send"],
        "campaign_results": ["CampaignResult", "read_campaign_results"],
        "campaigns": [
            "Campaign",
            "CampaignForecast",
            "CampaignGroup",
            "OpenCampaign",
            "ReplayRuns",
            "UNFINISHED",
            "advance_campaign",
            "campaign_of_run",
            "cancel_campaign",
            "foresee_campaign",
            "foresee_groups",
            "freeze_campaign",
            "left_out_words",
            "note_failure",
            "pause_campaign",
            "proposal_words",
            "read_campaign",
            "read_campaign_groups",
            "read_campaigns",
            "read_open_campaigns",
            "read_pipelines_of",
            "reason_words",
            "resume_campaign",
            "teams_of_campaign",
        ],
        "canary_steps": [
            "CanaryParts",
            "CanaryReport",
            "CanaryWait",
            "CanaryWaitError",
            "STEPS",
            "canary",
        ],
        "dry_run": ["DryRunParts", "DryRunReport", "entry", "try_out"],
        "eligibility": [
            "are_events",
            "find_replayable",
            "held_words",
            "refuse_held",
            "refuse_ingestion",
            "require_parked",
        ],
        "launches": ["Launches", "ReplayLauncher", "group_of", "replay_run_id"],
        "messages": ["MAPPING", "check_entry", "enters_earlier"],
        "outcome": [
            "AwaitedEnds",
            "ReplayOutcome",
            "ReplayWatch",
            "became",
            "ends_of",
            "read_awaited",
        ],
        "probing": ["ProbeReport", "probe_held"],
        "recent_events": ["GoodReport"],
        "remedies": ["Remedy", "read_remedies"],
        "request": ["BatchRequest", "CampaignRequest", "DryRunRequest", "ReplayRequest"],
        "run": ["ReplayParts", "ReplayReport", "ReplayRun", "replay"],
        "throttle": ["ReplayThrottle", "TopicWatch"],
    },
)
