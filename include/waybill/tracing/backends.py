"""Which backend answers, as it is configured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waybill.storage import open_owned_objects
from waybill.tracing.athena_traces import AthenaRunner, AthenaTraces
from waybill.tracing.duckdb_traces import DuckDbTraces

if TYPE_CHECKING:
    from waybill.settings import Settings
    from waybill.tracing.query import TraceQuery


def open_traces(settings: Settings) -> TraceQuery:
    """Return the configured way to look traces up; nothing is sent yet."""
    store = open_owned_objects(settings)
    spool_dir = settings.traces.spool_dir
    if settings.traces.backend == "athena":
        return AthenaTraces(AthenaRunner(settings), store, spool_dir=spool_dir)
    return DuckDbTraces(store, settings.s3, spool_dir=spool_dir)
