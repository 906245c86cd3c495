"""The commit of a refusal: a message that Kafka will never take is parked, exactly once.

Such a message is known by its log and its lsn; the producer may hand it over again after a kill.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from waybill.ledger.commit import PackedCounts, RecordParked, write_counts, write_numbered
from waybill.ledger.intake import intake_scope
from waybill.ledger.replay_entries import ReplayEntry, add_entries
from waybill.ledger.write_ahead_logs import refuse_when_taken_over
from waybill.storage.tracker import TrackerStore, refused_messages


@dataclass(frozen=True, slots=True)
class Refusal:
    """One message that Kafka refused for good, and what that changes in the books."""

    wal_id: str
    """Of the write-ahead log: 32 hex digits."""
    lsn: int
    pipeline_id: str
    object_key: str
    """The parked object that holds it."""
    counts: PackedCounts
    """Counters to add; negative where ingestion counted the event as passed on."""
    replayed: Mapping[ReplayEntry, int] = field(default_factory=dict)
    """The message, if a replay sent it."""


def knows_refusal(tracker: TrackerStore, wal_id: str, lsn: int) -> bool:
    """Tell whether the refusal of this message is committed."""
    query = select(refused_messages.c.lsn).where(
        refused_messages.c.wal_id == wal_id, refused_messages.c.lsn == lsn
    )
    with tracker.transaction() as connection:
        return connection.execute(query).first() is not None


def refused_lsns(tracker: TrackerStore, wal_id: str, from_lsn: int) -> set[int]:
    """Return the lsns of a log, from one on, of which the refusal is committed."""
    query = select(refused_messages.c.lsn).where(
        refused_messages.c.wal_id == wal_id, refused_messages.c.lsn >= from_lsn
    )
    with tracker.transaction() as connection:
        return set(connection.execute(query).scalars())


def commit_refusal(tracker: TrackerStore, refusal: Refusal, record_parked: RecordParked) -> bool:
    """Park a refused message and write its counts; False when that was done before.

    Raises:
        FencedError: the log was taken over; nothing was written.
        RetryError: the tracker is away; whether it committed is told by ``knows_refusal``.
    """
    row = insert(refused_messages).values(
        wal_id=refusal.wal_id, lsn=refusal.lsn, object_key=refusal.object_key
    )
    once = row.on_conflict_do_nothing().returning(refused_messages.c.lsn)
    with tracker.transaction() as connection:
        refuse_when_taken_over(connection, refusal.wal_id)
        if connection.execute(once).first() is None:
            return False
        reference = f"refused:{refusal.wal_id}:{refusal.lsn}"
        write_counts(connection, reference, refusal.counts)
        add_entries(connection, "came_in", refusal.replayed)
        write_numbered(connection, intake_scope(refusal.pipeline_id), record_parked)
    return True
