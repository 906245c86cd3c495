"""What a consumer of a topic got done lately, told from its committed batches."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text

from waybill.storage.tracker import TrackerStore

_LOOK_BACK = 2000
"""Commits of a destination that are looked through for those of one consumer."""
_NEWEST = """
SELECT batches.commit_number, extract(epoch FROM batches.committed_at)::float AS committed_s,
  batches.took_ms,
  (SELECT sum((part->>4)::bigint) FROM jsonb_array_elements(batches.offsets) AS part) AS events,
  (SELECT sum((row->3->>0)::bigint)
   FROM ledger, jsonb_array_elements(ledger.counts) AS row
   WHERE ledger.reference = batches.id::text AND row->>1 = 'transformation') AS live
FROM batches
WHERE destination = :destination AND consumer = :consumer AND commit_number > :after
  AND commit_number > (SELECT last FROM commit_sequences WHERE destination = :destination) - :back
ORDER BY commit_number DESC LIMIT :limit
"""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One committed batch."""

    commit_number: int
    committed_s: float
    """Since the epoch, by the tracker's clock."""
    took_s: float | None
    """From its start to its commit; ``None``: an older release did not write it down."""
    events: int
    """All that it read."""
    live: int
    """Events on their first pass; the others are replays, or never were taken in."""


@dataclass(frozen=True, slots=True)
class ConsumerProgress:
    """What one consumer got done lately."""

    now_s: float
    """Since the epoch, by the tracker's clock."""
    batches: tuple[BatchProgress, ...]
    """The oldest first."""


def consumer_progress(
    tracker: TrackerStore, consumer: str, destination: str, *, after: int, limit: int
) -> ConsumerProgress:
    """Return a consumer's newest batches, of those with a commit number above ``after``.

    Cost: one indexed query over at most 2,000 commits.

    Raises:
        RetryError: the tracker does not answer.
    """
    asked = {
        "consumer": consumer,
        "destination": destination,
        "after": after,
        "limit": limit,
        "back": _LOOK_BACK,
    }
    with tracker.transaction() as connection:
        now = connection.execute(text("SELECT extract(epoch FROM clock_timestamp())::float"))
        now_s = float(now.scalar_one())
        rows = connection.execute(text(_NEWEST), asked).all()
    found = [
        BatchProgress(
            commit_number=int(row.commit_number),
            committed_s=float(row.committed_s),
            took_s=None if row.took_ms is None else row.took_ms / 1000,
            events=int(row.events or 0),
            live=int(row.live or 0),
        )
        for row in reversed(rows)
    ]
    return ConsumerProgress(now_s, tuple(found))
