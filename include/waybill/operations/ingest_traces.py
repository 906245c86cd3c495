"""The traces of one page: an event that was taken in, and how it is found by its primary key.

A page's traces are on disk before its mark, so before its commit. A run that died between the two
left some; the next run writes them again. Both name the same batch and the same record of the log
(``kafka_offset`` holds its lsn, there being no Kafka partition yet), so they are one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pyarrow as pa

from waybill.events import key_id
from waybill.tracing import traces


@dataclass(slots=True)
class PageTraces:
    """Collects the events of one page; columns."""

    ids: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    minutes: list[int] = field(default_factory=list)
    """Of intake."""
    lsns: list[int] = field(default_factory=list)
    """In the write-ahead log."""

    def add(self, event_id: str, key: str, minute: int, lsn: int) -> None:
        """Add one event; ``key`` is its ordering key."""
        self.ids.append(event_id)
        self.keys.append(key)
        self.minutes.append(minute)
        self.lsns.append(lsn)

    def batches(
        self, pipeline_id: str, event_name: str, *, topic: str, sequence: int
    ) -> list[pa.RecordBatch]:
        """Return the traces of the page with this number. Cost: about 2 µs an event."""
        if not self.ids:
            return []
        minutes = pa.array(self.minutes, pa.int32())
        ids = pa.array(self.ids, pa.string())
        at_us, batch = time.time_ns() // 1000, f"intake:{pipeline_id}:{sequence}"
        taken = traces(
            ids,
            pipeline_id=pipeline_id,
            event_name=event_name,
            phase="ingestion",
            outcome="accepted",
            at_us=at_us,
            topic=topic,
            kafka_offset=self.lsns,
            batch=batch,
            intake_minute=minutes,
        )
        found_by = traces(
            [key_id(pipeline_id, event_name, key) for key in self.keys],
            pipeline_id=pipeline_id,
            event_name=event_name,
            phase="key",
            outcome="accepted",
            at_us=at_us,
            batch=batch,
            intake_minute=minutes,
            refers_to=ids,
        )
        return [taken, found_by]
