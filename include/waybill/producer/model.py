"""What the producer hands to its caller."""

from __future__ import annotations

from dataclasses import dataclass, field

from waybill.producer.wal.record import HeaderList, WalRecord


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


@dataclass(slots=True)
class Recovery:
    """What was found in the log when it was opened, and what was done about it."""

    replayed: int = 0
    """Records produced again, and acknowledged."""
    found: int = 0
    """Records in doubt that the topic held already: not produced again."""
    quarantined: int = 0
    """Records (or a checkpoint) lost to damage; the files are kept in ``quarantine/``."""
    torn: int = 0
    """1 when the log ended in a broken frame above all that was synced (a power cut)."""
    unreadable: list[str] = field(default_factory=list)
    """Topics whose tail may not be read: all their records in doubt were produced again."""
    marks: list[tuple[int, bytes]] = field(default_factory=list)
    """Marks not confirmed, (lsn, payload), in order."""
    unmarked: list[WalRecord] = field(default_factory=list)
    """Data records after the last mark, in order; empty where marks are not used."""


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """Counts since the producer was opened, and sizes now."""

    appended: int
    delivered: int
    """Acknowledged by Kafka (recovered ones included)."""
    in_doubt: int
    """Appended or recovered, neither acknowledged nor taken by ``on_undeliverable``."""
    retried: int
    """Hand-overs of a record after a failure."""
    undeliverable: int
    recovered: int
    """Records produced again when the log was opened."""
    wal_bytes: int
    checkpoint_age_s: float
