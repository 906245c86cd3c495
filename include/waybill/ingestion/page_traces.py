"""The traces of one page: an event that was taken in, and how it is found by its primary key.

A page's traces are on disk before its mark, so before its commit. A run that died between the two
left some; the next run writes them again. Both name the same batch and the same record of the log
(``kafka_offset`` holds its lsn, there being no Kafka partition yet), so they are one. Their time is
that of the event's intake stamp, which is before it is in the log, so before all that follows;
rounded down to a tenth of a second (``INTAKE_STEP_US``).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from waybill.events import EventIds
from waybill.tracing import INTAKE_STEP_US, traces


@dataclass(slots=True)
class PageTraces:
    """Collects the events of one page; columns."""

    ids: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    minutes: list[int] = field(default_factory=list)
    """Of intake."""
    lsns: list[int] = field(default_factory=list)
    """In the write-ahead log."""
    taken_us: list[int] = field(default_factory=list)
    """When each was taken in, in microseconds since 1970."""

    def add(self, event_id: str, key: str, minute: int, lsn: int, taken_us: int) -> None:
        """Add one event; ``key`` is its ordering key, ``taken_us`` when it was taken in."""
        self.ids.append(event_id)
        self.keys.append(key)
        self.minutes.append(minute)
        self.lsns.append(lsn)
        self.taken_us.append(taken_us)

    def batches(
        self, pipeline_id: str, event_name: str, *, topic: str, batch: str
    ) -> list[pa.RecordBatch]:
        """Return the traces of a page; ``batch`` is the reference of its counts. 2 µs an event."""
        if not self.ids:
            return []
        minutes = pa.array(self.minutes, pa.int32())
        ids = pa.array(self.ids, pa.string())
        tenths = pc.divide(pa.array(self.taken_us, pa.int64()), INTAKE_STEP_US)
        at_us = pc.multiply(tenths, INTAKE_STEP_US)
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
            EventIds(pipeline_id, event_name).keys(self.keys),
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


class TracesByName(defaultdict[str, PageTraces]):
    """Collects the events of one page by event name."""

    def __init__(self) -> None:
        super().__init__(PageTraces)

    def batches(self, pipeline_id: str, *, topic: str, batch: str) -> list[pa.RecordBatch]:
        """Return the traces of a page; ``batch`` is the reference of its counts."""
        return [
            one
            for name, passed in self.items()
            for one in passed.batches(pipeline_id, name, topic=topic, batch=batch)
        ]
