"""A page: the events of a log between two marks, which are counted and traced together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from waybill.ingestion import PageTraces
from waybill.ledger import CollectedPage
from waybill.processing import Counts

_COUNTED = ("in_first", "passed", "out")


@dataclass(slots=True)
class OpenPage:
    """What the log has taken since its last mark. One thread adds to it."""

    began_s: float = 0.0
    """By the monotonic clock, of its first event."""
    first_lsn: int = 0
    events: int = 0
    size_bytes: int = 0
    least_minute: int | None = None
    traced: bool = False
    """Its traces are on disk: nothing may be added any more."""
    _traces: dict[str, PageTraces] = field(default_factory=dict)

    def add(self, name: str, identity: str, key: str, stamp: tuple[int, int, int]) -> None:
        """Add an event.

        Args:
            name: event name.
            identity: its id.
            key: its ordering key.
            stamp: its lsn, its intake minute, and when it was taken in, in µs since 1970.
        """
        lsn, minute, taken_us = stamp
        if not self.events:
            self.first_lsn = lsn
        self.events += 1
        if self.least_minute is None or minute < self.least_minute:
            self.least_minute = minute
        traces = self._traces.get(name)
        if traces is None:
            traces = self._traces[name] = PageTraces()
        traces.add(identity, key, minute, lsn, taken_us)

    def reference(self, pipeline_id: str, wal_id: str) -> str:
        """Return the name of its counts and traces: the same when a dead process left it."""
        return f"intake:{pipeline_id}:{wal_id}:{self.first_lsn}"

    def batches(self, pipeline_id: str, *, topic: str, reference: str) -> list[pa.RecordBatch]:
        """Return its traces."""
        return [
            batch
            for name, traces in self._traces.items()
            for batch in traces.batches(pipeline_id, name, topic=topic, batch=reference)
        ]

    def mark(self, pipeline_id: str, reference: str, last_version: int) -> dict[str, Any]:
        """Return the payload of its mark."""
        counts = Counts()
        for name, traces in self._traces.items():
            for minute in traces.minutes:
                for counter in _COUNTED:
                    counts.add((pipeline_id, name, "ingestion", minute), counter)
        return {
            "reference": reference,
            "counts": list(counts.by_pipeline()),
            "events": self.events,
            "least_minute": self.least_minute,
            "last_version": last_version,
        }


@dataclass(frozen=True, slots=True)
class MarkedPage:
    """A page that is in the log up to its mark, and not committed."""

    page: CollectedPage
    events: int
    least_minute: int
    last_version: int
    offsets: dict[int, int]
    """Of the topic: nothing behind the mark stands before them."""

    @classmethod
    def of(cls, lsn: int, payload: bytes, offsets: dict[int, int]) -> MarkedPage:
        """Return the page of a mark."""
        mark = orjson.loads(payload)
        page = CollectedPage(lsn, mark["reference"], mark["counts"])
        minute, version = mark["least_minute"], mark["last_version"]
        return cls(page, mark["events"], minute, version, offsets)


def least_of(minutes: Iterable[int | None], now: int) -> int:
    """Return the least minute that is not settled; ``now`` where all is."""
    return min((minute for minute in minutes if minute is not None), default=now)
