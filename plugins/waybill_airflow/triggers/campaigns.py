"""Wait until a campaign's task has something to do: runs have ended, or somebody has decided."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import BaseTrigger, TriggerEvent

from waybill_airflow.replay_runs import count_unfinished
from waybill_airflow.triggers.shared_rows import SharedRows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sqlalchemy import Connection

    from waybill.replay import OpenCampaign

_LOG = logging.getLogger(__name__)
_LATE_S = 60.0
"""After so long the task looks for a single run that has ended: else for several at a time."""


def _read_rows(connection: Connection) -> Mapping[int, OpenCampaign]:
    from waybill.replay import read_open_campaigns

    return read_open_campaigns(connection)


ROWS = SharedRows(_read_rows)


class CampaignTrigger(BaseTrigger):
    """Fire once when a campaign is to be looked at. The event is ``{"campaign_id": …}``.

    While the tracker, or Airflow's API, does not answer it waits.

    :param campaign_id: which one.
    :param poll_s: seconds between two looks.
    """

    def __init__(self, campaign_id: int, poll_s: float) -> None:
        super().__init__()
        self.campaign_id = campaign_id
        self.poll_s = poll_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return where this class is, and its arguments."""
        where = "waybill_airflow.triggers.campaigns.CampaignTrigger"
        return where, {"campaign_id": self.campaign_id, "poll_s": self.poll_s}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and fire once."""
        began_s = time.monotonic()
        while not await self._is_due(time.monotonic() - began_s):
            await asyncio.sleep(self.poll_s)
        yield TriggerEvent({"campaign_id": self.campaign_id})

    async def _is_due(self, waited_s: float) -> bool:
        # What was read before the task deferred does not have what it launched.
        rows = await ROWS.read(min(self.poll_s, waited_s))
        if rows is None:
            return False
        campaign = rows.get(self.campaign_id)
        if campaign is None:
            return True  # it has ended
        unfinished = 0
        if campaign.run_ids:
            try:
                unfinished = await asyncio.to_thread(count_unfinished, campaign.run_ids)
            except AirflowRuntimeError as error:
                _LOG.warning("campaign %d waits for Airflow's API: %s", self.campaign_id, error)
                return False
        return campaign.is_due(unfinished, late=waited_s >= _LATE_S)


__all__ = ["ROWS", "CampaignTrigger"]
