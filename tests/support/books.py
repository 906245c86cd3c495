"""Commits for the tests of the ledger, small enough to be counted by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from sqlalchemy import text
from tests.servers import wait_for

from waybill.ledger import BatchCommit, OffsetRange
from waybill.ledger.commit import PackedCounts, StagedObject
from waybill.processing import Counts
from waybill.settings import TrackerSettings
from waybill.storage import TrackerStore

MINUTE = 29_000_000
TABLES = (
    "topic_offsets", "commit_sequences", "batches", "ledger", "staged_objects",
    "load_positions", "connector_positions", "audit_log",
)  # fmt: skip


def open_books(postgres: Any, name: str, *, pool_size: int = 4) -> TrackerStore:
    """Return a migrated tracker in a fresh database."""
    tracker = TrackerStore(TrackerSettings(dsn=postgres.tracker(name), pool_size=pool_size))
    tracker.migrate()
    return tracker


@contextmanager
def sessions_ended(tracker: TrackerStore) -> Iterator[None]:
    """Wait, behind the block, until the server has ended all sessions that began in it.

    That of a process that was killed holds its rows for a moment, and what takes the rows that
    are free would leave them to the next time.
    """
    before = _sessions(tracker)
    yield
    wait_for(lambda: _sessions(tracker) <= before)


def _sessions(tracker: TrackerStore) -> set[int]:
    asked = text(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
        "AND backend_type = 'client backend'"
    )
    with TrackerStore.transaction(tracker) as connection:
        return set(connection.execute(asked).scalars())


def counts(
    stage: str, *, pipeline: str = "p", event: str = "order", minute: int = MINUTE, **numbers: int
) -> PackedCounts:
    """Return packed counts of one stage."""
    table = Counts()
    for name, number in numbers.items():
        table.add((pipeline, event, stage, minute), name, number)
    return list(table.by_pipeline())


def joined(*parts: PackedCounts) -> PackedCounts:
    """Return several packed counts as one; one row a pipeline, as the ledger wants them."""
    by_pipeline: dict[str, list[list[Any]]] = {}
    for part in parts:
        for pipeline, rows in part:
            by_pipeline.setdefault(pipeline, []).extend(rows)
    return list(by_pipeline.items())


def batch(epoch: int, *ranges: tuple[int, int, int], **changes: Any) -> BatchCommit:
    """Return a batch of (partition, start, end) ranges of topic ``events.t.w``."""
    values: dict[str, Any] = {
        "batch_id": uuid4(),
        "consumer": "processing/events.t.w",
        "epoch": epoch,
        "cluster_id": "c1",
        "topic_id": "t1",
        "topic": "events.t.w",
        "destination": "w",
        "ranges": [OffsetRange(p, start, end, end - start) for p, start, end in ranges],
        "counts": (),
        "staged": (),
    }
    return BatchCommit(**{**values, **changes})


def staged(*keys: str) -> list[StagedObject]:
    """Return staged objects of five rows each."""
    return [StagedObject(key, 5, 500) for key in keys]


def nothing_parked(*_: Any) -> None:
    """Record no parked object."""


def everything(tracker: TrackerStore) -> dict[str, list[Any]]:
    """Return all rows of the books, but for what is only a time."""
    with tracker.transaction() as connection:
        return {
            name: [
                {k: v for k, v in row.items() if not k.endswith("_at")}
                for row in connection.execute(
                    text(f"SELECT * FROM {name} ORDER BY 1, 2")
                ).mappings()
            ]
            for name in TABLES
        }
