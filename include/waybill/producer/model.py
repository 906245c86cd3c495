"""What the producer hands to its caller."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from waybill.producer.wal import HeaderList, WalRecord


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A record that Kafka will never take as it is."""

    lsn: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: HeaderList
    code: str
    """Kafka's name of the error, such as ``MSG_SIZE_TOO_LARGE``."""
    message: str
    wal_id: str = ""
    """Id of the log; with ``lsn`` it names the record for ever."""
    segment_id: int = 0
    partition: int = -1
    """As the caller gave it; -1: the partitioner's choice."""
    timestamp_ms: int = 0


def undelivered(record: WalRecord, wal_id: str, code: str, message: str) -> Undelivered:
    """Return a record as it is handed to the caller, and why."""
    return Undelivered(
        lsn=record.lsn,
        topic=record.topic,
        key=record.key,
        value=record.value,
        headers=record.headers,
        code=code,
        message=message,
        wal_id=wal_id,
        segment_id=record.segment_id,
        partition=record.partition,
        timestamp_ms=record.timestamp_ms,
    )


@dataclass(frozen=True, slots=True)
class FoundLog:
    """A log that is about to be opened; nothing of it was sent by this process yet."""

    wal_id: str
    """32 hex digits; of a new log too."""
    directory: Path
    confirmed_lsn: int
    """Of the last mark that was confirmed; 0: none."""
    empty: bool
    """It holds no record."""
    offsets: Mapping[str, Mapping[int, int]]
    """{topic: {partition: offset}} before which nothing in doubt stands, where known."""
    held: int = 0
    """Records behind the last confirmed mark."""
    topic: str = ""
    """Of the newest record that may have to be sent; empty: there is none."""


@dataclass(slots=True)
class Recovery:
    """What was found in the log when it was opened, and what was done about it."""

    replayed: int = 0
    """Records produced again, and acknowledged."""
    found: int = 0
    """Records in doubt that the topic held already: not produced again."""
    retrying: int = 0
    """Records in the retry log: tried again in the background."""
    quarantined: int = 0
    """Records (or a checkpoint) lost to damage; the files are kept in ``quarantine/``."""
    torn: int = 0
    """1 when the log ended in a broken frame above all that was synced (a power cut)."""
    superseded: int = 0
    """Records behind the last confirmed mark of a log that was not this caller's any more: they
    were moved to ``quarantine/`` and not sent."""
    unreadable: list[str] = field(default_factory=list)
    """Topics whose tail may not be read: all their records in doubt were produced again."""
    marks: list[tuple[int, bytes]] = field(default_factory=list)
    """Marks not confirmed, (lsn, payload), in order."""
    unmarked: list[WalRecord] = field(default_factory=list)
    """Data records after the last mark, in order; empty where marks are not used."""

    def add(self, other: Recovery) -> None:
        """Count in what was found in the log of a dead fork."""
        self.replayed += other.replayed
        self.found += other.found
        self.retrying += other.retrying
        self.quarantined += other.quarantined
        self.torn += other.torn
        self.unreadable += [t for t in other.unreadable if t not in self.unreadable]


class Histogram:
    """Counts of durations in powers of two of a microsecond; one thread adds at a time."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * len(BUCKETS_US)
        """How many were at most ``BUCKETS_US[n]`` and above the bound before it; the last bound is
        infinite."""
        self.sum_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one duration."""
        self.counts[min((max(0, duration_ns - 1) // 1000).bit_length(), _LAST)] += 1
        self.sum_ns += duration_ns

    @property
    def count(self) -> int:
        """How many were counted."""
        return sum(self.counts)

    def at_most_us(self, share: float) -> float:
        """Return the bound in µs that ``share`` (0 to 1) of the durations are at or below."""
        wanted = share * self.count
        seen = 0
        for bound, count in zip(BUCKETS_US, self.counts, strict=True):
            seen += count
            if seen >= wanted:
                return bound
        return BUCKETS_US[-1]

    def copy(self) -> Histogram:
        """Return the counts of now."""
        other = Histogram()
        other.counts, other.sum_ns = list(self.counts), self.sum_ns
        return other


BUCKETS_US = (*(float(2**n) for n in range(18)), math.inf)
"""Upper bounds, 1 µs to 131 ms, then all above."""
_LAST = len(BUCKETS_US) - 1


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """Counts since the producer was opened, and sizes now."""

    appended: int
    delivered: int
    """Acknowledged by Kafka (recovered ones included)."""
    in_doubt: int
    """Appended or recovered, neither acknowledged nor taken by ``on_undeliverable``."""
    retrying: int
    """Of these: in the retry log."""
    retried: int
    """Hand-overs of a record after a failure."""
    undeliverable: int
    """Given to ``on_undeliverable``, and taken."""
    parked: int
    """Messages in the producer's own parking place now."""
    recovered: int
    """Records produced again when the log was opened."""
    poisoned: int
    """Segments rewritten elsewhere since the disk refused a sync."""
    wal_bytes: int
    """Allocated on disk: log, retry log, parking place; quarantine not."""
    checkpoint_age_s: float
    append_latency: Histogram
    """Of ``produce`` until the log had the message, one call in 64."""
