"""What a campaign of 500,000 parked groups costs; in the short form, of 50,000.

They are frozen, on a real tracker, by a process of its own, which then looks once; a second campaign
finds the first one's. The process's memory is its peak, libraries and all.
"""

from __future__ import annotations

import resource
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

GROUPS, QUICK_GROUPS = 500_000, 50_000
PARK = """
INSERT INTO parked_partitions
  (pipeline_id, event_name, stage, error_type, parked, first_event_at, last_event_at)
SELECT 'pl-' || number % 5000, 'event ' || number, 'mapping', 'null_value', 5, now(), now()
FROM generate_series(1, :number) AS number
"""
WORDS = {
    "campaign_groups": "parked groups",
    "campaign_freeze_500k_s": "s to freeze them",
    "campaign_freeze_cpu_s": "s of it in this process",
    "campaign_second_freeze_s": "s to find that another campaign has them",
    "campaign_look_s": "s for the first look, which launches 8",
    "campaign_list_s": "s for its progress",
    "campaign_rss_mb": "MB of this process at most",
}


class Nowhere:
    """Takes every run, which goes on for ever."""

    def start(self, run_id: str, conf: Any) -> None:
        """Take it."""

    def state(self, run_id: str) -> str | None:
        """Say that it goes on."""
        return "running"


def run(home: Path, *, quick: bool) -> dict[str, Any]:
    """Return the figures; starts and stops a tracker of its own under ``home``."""
    from sqlalchemy import text
    from tests import servers

    from waybill.settings import TrackerSettings
    from waybill.storage import TrackerStore

    number = QUICK_GROUPS if quick else GROUPS
    with servers.started(servers.start_postgres, home) as postgres:
        dsn = postgres.database("bench")
        with TrackerStore(TrackerSettings(dsn=dsn)) as tracker:
            tracker.migrate()
            with tracker.transaction(long_statements=True) as connection:
                connection.execute(text(PARK), {"number": number})
        with get_context("spawn").Pool(1) as pool:
            return {"campaign_groups": number, **pool.apply(measured, (dsn,))}


def measured(dsn: str) -> dict[str, Any]:
    """Freeze, look, and freeze again; return the figures."""
    from waybill.replay import (
        CampaignRequest,
        advance_campaign,
        freeze_campaign,
        read_campaigns,
    )
    from waybill.settings import TrackerSettings
    from waybill.storage import TrackerStore

    figures: dict[str, Any] = {}
    began = time.monotonic()

    def lap(key: str) -> None:
        nonlocal began
        figures[key] = round(time.monotonic() - began, 3)
        began = time.monotonic()

    with TrackerStore(TrackerSettings(dsn=dsn)) as tracker:
        request, cpu_s = CampaignRequest(), time.process_time()
        began = time.monotonic()
        first = freeze_campaign(tracker, request, None, who="bench", run_id="first")
        lap("campaign_freeze_500k_s")
        figures["campaign_freeze_cpu_s"] = round(time.process_time() - cpu_s, 3)
        advance_campaign(tracker, first.id, Nowhere())
        lap("campaign_look_s")
        read_campaigns(tracker, limit=100)
        lap("campaign_list_s")
        second = freeze_campaign(tracker, request, None, who="bench", run_id="second")
        lap("campaign_second_freeze_s")
    if first.groups and not second.groups:
        figures["campaign_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        return figures
    raise SystemExit(f"{first.groups} groups, then {second.groups} once more")
