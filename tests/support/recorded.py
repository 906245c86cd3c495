"""The traces that are in a node's spool, and those of them that count."""

from __future__ import annotations

from collections import Counter

from waybill.events import STAGES
from waybill.ledger import committed
from waybill.services import balance
from waybill.settings import Settings
from waybill.storage import open_tracker
from waybill.tracing import Trace, trace_spool
from waybill.tracing.parquet import read_whole
from waybill.tracing.trace import to_traces


def recorded(settings: Settings) -> list[Trace]:
    """Return all traces of the spool, oldest first."""
    files = trace_spool(settings.traces.spool_dir).files()
    return [trace for file in files for trace in to_traces(read_whole(file.path))]


def counting(settings: Settings) -> list[Trace]:
    """Return the traces of committed batches, of several with one place the latest."""
    found = recorded(settings)
    with open_tracker(settings.tracker) as tracker:
        done = committed(tracker, {trace.batch for trace in found})
    last = {trace.place: trace for trace in sorted(found, key=lambda t: t.at)}
    return [trace for trace in last.values() if trace.batch in done]


def assert_traces_agree_with_the_books(settings: Settings) -> None:
    """Compare what the traces that count say with what the books do, stage by stage."""
    said = Counter(
        (trace.pipeline_id, trace.phase, _COUNTED.get(trace.outcome, trace.outcome))
        for trace in counting(settings)
        if trace.phase in STAGES
    )
    books: Counter[tuple[str, str, str]] = Counter()
    for pipeline in balance(settings).pipelines:
        for stage, counts in pipeline.stages.items():
            for name in ("passed", "parked", "filtered", "superseded", "duplicate"):
                books[pipeline.pipeline_id, stage, name] += getattr(counts, name)
    assert said == +books


_COUNTED = {"accepted": "passed", "delivered": "passed"}
