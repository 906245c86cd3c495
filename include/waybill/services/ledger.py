"""The books."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from waybill.deployment import active_pipeline
from waybill.settings import Settings
from waybill.storage import open_log, open_owned_objects, open_tracker, refuse_foreign_bucket

if TYPE_CHECKING:
    from waybill.reconciliation import BalanceReport
    from waybill.tracing import CompactionReport


def balance(
    settings: Settings, *, pipeline: str | None = None, since: datetime | None = None
) -> BalanceReport:
    """Return the books of all pipelines, or of one."""
    from waybill.reconciliation import balance as read

    with open_tracker(settings.tracker) as tracker:
        pipeline_id = None if pipeline is None else active_pipeline(tracker, pipeline).id
        minute = None if since is None else int(since.timestamp() // 60)
        return read(tracker, open_log(settings.kafka), pipeline_id=pipeline_id, since_minute=minute)


def compact_traces(settings: Settings, *, hour: datetime | None = None) -> CompactionReport:
    """Compact the traces of every hour that has fresh ones, or of the hour that holds a moment."""
    from waybill.tracing import Compactor, Hour

    traces = settings.traces
    refuse_foreign_bucket(settings)
    compactor = Compactor(
        open_owned_objects(settings), after_s=traces.compact_after_s, kept_s=traces.compacted_kept_s
    )
    return compactor.run(None if hour is None else Hour.of(hour))


def trace_tables(settings: Settings, *, since_day: str | None = None) -> list[str]:
    """Return the statements that make the tables over the traces in Athena."""
    from waybill.tracing import table_statements

    return table_statements(settings, open_owned_objects(settings), since_day=since_day)
