"""Traces in memory, looked up as a backend does: watched, cancelled, an event with its children."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

from waybill.errors import RetryError
from waybill.tracing import QueryCancelledError, Searched, Trace

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
_TEXTS = ("error_type", "host", "topic", "object_key", "batch", "replay_id", "refers_to")
_NUMBERS = ("kafka_partition", "kafka_offset", "commit_number", "attempt", "intake_minute")


def made(event_id: str, phase: str, outcome: str, after_s: float = 0.0, **more: Any) -> Trace:
    """Return a trace of pipeline ``pl-1``, event name ``flight``, some seconds after START."""
    given = dict.fromkeys(_TEXTS, "") | dict.fromkeys(_NUMBERS) | more
    given.setdefault("pipeline_id", "pl-1")
    given.setdefault("event_name", "flight")
    at = START + timedelta(seconds=after_s)
    return Trace(event_id=event_id, phase=phase, outcome=outcome, at=at, **given)


class MemoryTraces:
    """Holds traces; may be made to wait until it is cancelled, or to be away."""

    def __init__(self, *traces: Trace) -> None:
        self.traces = list(traces)
        self.asked: list[str] = []
        self.waits = False
        self.away = False
        self.began = threading.Event()
        self.closed = False

    def trails(self, event_ids, *, since=None, until=None, watch=None) -> dict[str, list[Trace]]:
        self.asked += event_ids
        if watch is not None:
            watch.searching(Searched("duckdb", since, until, hours=2, objects=3, spool_files=1))
            watch.started("execution-1")
        self.began.set()
        while self.waits:
            if watch.cancelled():
                raise QueryCancelledError("the query was cancelled")
            threading.Event().wait(0.01)
        if self.away:
            raise RetryError("the object store is away")
        if watch is not None:
            watch.progress(objects_read=3, bytes_scanned=1000)
        return {one: self._of(one, since, until) for one in event_ids}

    def close(self) -> None:
        self.closed = True

    def _of(self, event_id, since, until) -> list[Trace]:
        own = (
            t
            for t in self.traces
            if t.event_id == event_id or t.event_id.startswith(f"{event_id}/")
        )
        inside = (
            t for t in own if (since is None or t.at >= since) and (until is None or t.at <= until)
        )
        return sorted(inside, key=lambda trace: trace.order)
