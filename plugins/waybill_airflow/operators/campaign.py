"""Replay many parked groups by one campaign, a few runs at a time.

The groups stand in the tracker, and so does how far each one is: nothing of them goes through XCom.
The task launches what there is room for, and defers; a trigger wakes it once runs have ended, or
somebody has resumed or cancelled the campaign. While it waits it has no slot of a worker.

A task that is killed, timed out or cleared goes on where the tables say that it was: see the
invariants of ``waybill.replay.campaigns``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator

from waybill_airflow.failures import as_task_failures, read_settings
from waybill_airflow.operators.replay import who_asked
from waybill_airflow.replay_runs import TaskReplayRuns, is_paused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context
    from pydantic import JsonValue

    from waybill.replay import Campaign, ReplayRuns


class ReplayCampaignOperator(BaseOperator):
    """Replay the parked groups that match, by runs of the DAG ``replay``, to the last one.

    The params of the DAG run are those of a ``waybill.replay.CampaignRequest``; they are taken as
    they are, never rendered: they may hold names that come from payloads.

    It succeeds when all groups have ended, however they did: how many failed is in its report and
    log. Paused, it waits.

    :param poll_s: seconds between two looks of the trigger.
    :raises AirflowFailException: a filter names what is not there, or a time that is none.
    :raises waybill.errors.RetryError: the tracker or Airflow's API did not answer. A retry goes on.
    :raises waybill.errors.StopError: Airflow refused a run. A retry tries again.
    :returns: the ``Campaign`` as a dict: id, state, groups, launched, ended, failed, left_out, ….
    """

    def __init__(self, *, poll_s: float = 3.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.poll_s = poll_s

    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Freeze the campaign, unless a try before has, and work on it."""
        with as_task_failures():
            from waybill.replay import CampaignRequest, left_out_words, proposal_words
            from waybill.services import freeze_campaign

            request = CampaignRequest.of(context["params"])
            campaign = freeze_campaign(
                read_settings(), request, who=who_asked(context), run_id=context["run_id"]
            )
        self.log.info(
            "campaign %d: %d parked groups to replay, %d a run, at most %d runs unfinished; "
            "`waybill campaigns show %d`, or pause, resume, cancel",
            campaign.id,
            campaign.groups,
            campaign.groups_per_run,
            campaign.max_unfinished,
            campaign.id,
        )
        for words in left_out_words(campaign.left_out):
            self.log.warning("%s", words)
        if words := proposal_words(campaign):
            self.log.warning("%s", words)
        if campaign.groups > campaign.ended and is_paused():
            self.log.warning("the DAG `replay` is paused: its runs wait until it is unpaused")
        return self._work_on(campaign.id)

    def go_on(self, context: Context, event: Mapping[str, Any]) -> dict[str, JsonValue]:
        """Work on the campaign again: the trigger fired, and says which one it is."""
        return self._work_on(int(event["campaign_id"]))

    def _work_on(self, campaign_id: int) -> dict[str, JsonValue]:
        with as_task_failures():
            from waybill.services import advance_campaign

            campaign = advance_campaign(read_settings(), campaign_id, self.runs())
        self._tell(campaign)
        if campaign.ended_at is not None:
            return campaign.to_json()
        self._wait(campaign_id)

    def runs(self) -> ReplayRuns:
        """Return the runs of the DAG ``replay``."""
        return TaskReplayRuns()

    def _wait(self, campaign_id: int) -> NoReturn:
        from waybill_airflow.triggers.campaigns import CampaignTrigger

        self.defer(trigger=CampaignTrigger(campaign_id, self.poll_s), method_name="go_on")
        raise AssertionError("unreachable: to defer raises")

    def _tell(self, campaign: Campaign) -> None:
        self.log.info(
            "campaign %d is %s: %d waiting, %d unfinished, %d ended, %d of these failed; %.1f "
            "groups a minute%s",
            campaign.id,
            campaign.state,
            campaign.waiting,
            campaign.unfinished,
            campaign.ended,
            campaign.failed,
            campaign.rate_per_min,
            "" if campaign.eta_s is None else f", {campaign.eta_s / 60:.0f} minutes left",
        )


__all__ = ["ReplayCampaignOperator"]
