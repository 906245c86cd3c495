"""The books."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from waybill.operations.registry import active_pipeline
from waybill.settings import Settings
from waybill.storage import open_log, open_tracker

if TYPE_CHECKING:
    from waybill.operations.balancing import BalanceReport


def balance(
    settings: Settings, *, pipeline: str | None = None, since: datetime | None = None
) -> BalanceReport:
    """Return the books of all pipelines, or of one."""
    from waybill.operations.balancing import balance as read  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        pipeline_id = None if pipeline is None else active_pipeline(tracker, pipeline).id
        minute = None if since is None else int(since.timestamp() // 60)
        return read(tracker, open_log(settings.kafka), pipeline_id=pipeline_id, since_minute=minute)
