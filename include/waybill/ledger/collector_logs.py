"""Write-ahead logs of the HTTP collector: what a log says of itself, and the commit of its pages.

What comes over HTTP can be had only once, so no log takes another's place: each worker of the
collector has a log of its own for a pipeline, and they stand beside each other. A page is known by
the lsn of its mark: it is committed exactly when the log's ``committed_lsn`` has reached it, in the
transaction that wrote its counts. So a commit whose answer was lost is seen when it is tried again.

Locks are taken in one order: the log's row, then the pipeline's watermark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, text

from waybill.ledger.commit import PackedCounts, write_counts
from waybill.ledger.watermarks import hold_watermark, share_watermark
from waybill.ledger.write_ahead_logs import LogProgress, move_lease
from waybill.storage.tracker import TrackerStore

_TELL = text("""
UPDATE write_ahead_logs SET open_from_minute = :minute, waiting = :waiting WHERE wal_id = :wal_id
""")
_OPEN = text("""
UPDATE write_ahead_logs SET open_from_minute = least(open_from_minute, :minute)
WHERE wal_id = :wal_id RETURNING open_from_minute, committed_lsn
""")
_COMMITTED = text("SELECT committed_lsn FROM write_ahead_logs WHERE wal_id = :wal_id")
_CLOSE = text("""
UPDATE write_ahead_logs SET state = 'closed', unsettled = 0, waiting = 0, open_from_minute = NULL,
  seen_at = clock_timestamp(), ended_at = clock_timestamp()
WHERE wal_id = :wal_id
""")


@dataclass(frozen=True, slots=True)
class LogMinute:
    """How far one log is settled; see ``waybill.ledger.watermarks``."""

    least: int
    """Least minute of an event that is counted and not acknowledged, or not counted."""
    now: int
    """By the clock that stamps events."""
    waiting: int
    """Events that Kafka has not acknowledged."""


@dataclass(frozen=True, slots=True)
class CollectedPage:
    """Events of a log up to a mark, all of which Kafka has acknowledged, or that are parked."""

    lsn: int
    """Of the mark."""
    reference: str
    """Of its counts and traces; used once."""
    counts: PackedCounts


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """Where a log stood when it was opened."""

    least_minute: int
    """Minutes from here on are not settled: a dead process left it so, or now."""
    committed_lsn: int
    """Of the last mark whose page is committed."""


def open_collector_log(tracker: TrackerStore, progress: LogProgress, *, minute: int) -> OpenedLog:
    """Open a log's part of the watermark before it takes its first event.

    Raises:
        FencedError: the log was settled by name.
    """
    lease = progress.lease
    with tracker.transaction() as connection:
        move_lease(connection, progress)
        hold_watermark(connection, lease.pipeline_id, minute=minute)
        row = connection.execute(_OPEN, {"wal_id": lease.wal_id, "minute": minute}).one()
        share_watermark(connection, lease.pipeline_id, minute=minute)
    return OpenedLog(int(row.open_from_minute), int(row.committed_lsn))


def commit_collected(
    tracker: TrackerStore, pages: Sequence[CollectedPage], progress: LogProgress, minute: LogMinute
) -> int:
    """Write the counts of pages, in order, that are not committed yet; return the committed lsn.

    Args:
        tracker: the books.
        pages: of one log, in the order of their marks; none: only tell how far the log is.
        progress: of the log; its ``committed_lsn`` is not looked at.
        minute: how far the log is settled once these pages are committed.

    Raises:
        FencedError: the log was settled by name; nothing was written.
        RetryError: the tracker is away; call again with these pages, or more.
    """
    lease = progress.lease
    with tracker.transaction() as connection:
        move_lease(connection, replace(progress, committed_lsn=None))
        committed = int(connection.execute(_COMMITTED, {"wal_id": lease.wal_id}).scalar_one())
        left = [page for page in pages if page.lsn > committed]
        for page in left:
            write_counts(connection, page.reference, page.counts)
        if left:
            committed = left[-1].lsn
            move_lease(connection, replace(progress, committed_lsn=committed))
        _tell(connection, progress, minute, pages=len(left))
    return committed


def _tell(connection: Connection, progress: LogProgress, minute: LogMinute, *, pages: int) -> None:
    lease = progress.lease
    hold_watermark(connection, lease.pipeline_id, minute=minute.now)
    told = {"wal_id": lease.wal_id, "minute": minute.least, "waiting": minute.waiting}
    connection.execute(_TELL, told)
    share_watermark(connection, lease.pipeline_id, minute=minute.now, pages=pages)


def close_collector_log(tracker: TrackerStore, progress: LogProgress, *, minute: int) -> None:
    """Give a log's part of the watermark back: all in it is settled and committed.

    Raises:
        FencedError: the log was settled by name.
    """
    lease = progress.lease
    with tracker.transaction() as connection:
        move_lease(connection, progress)
        hold_watermark(connection, lease.pipeline_id, minute=minute)
        connection.execute(_CLOSE, {"wal_id": lease.wal_id})
        share_watermark(connection, lease.pipeline_id, minute=minute)
