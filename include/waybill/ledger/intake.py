"""The commit of ingestion: a page of a source, its cursor and its counts, in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select, update
from sqlalchemy.dialects.postgresql import insert

from waybill.ledger.commit import OffsetsMovedError, PackedCounts, next_commit_number, write_counts
from waybill.ledger.watermarks import PageMark, move_watermark
from waybill.storage.tracker import TrackerStore
from waybill.storage.tracker.tables import connector_positions


@dataclass(frozen=True, slots=True)
class Position:
    """Where a pipeline's connector stands."""

    sequence: int
    """Pages committed so far; 0: none."""
    cursor: dict[str, Any] | None
    rows_read: int


@dataclass(frozen=True, slots=True)
class IntakeCommit:
    """One page that is whole in the write-ahead log."""

    pipeline_id: str
    sequence: int
    """This page's number: one more than the position's."""
    cursor: dict[str, Any]
    rows: int
    counts: PackedCounts
    watermark: PageMark | None = None
    """Where the pipeline's watermark is moved to; None: it is not."""


def intake_scope(pipeline_id: str) -> str:
    """Return the scope of commit numbers for what is parked at ingestion."""
    return f"ingestion/{pipeline_id}"


def read_position(tracker: TrackerStore, pipeline_id: str) -> Position:
    """Return where the connector of a pipeline stands."""
    query = select(connector_positions).where(connector_positions.c.pipeline_id == pipeline_id)
    with tracker.transaction() as connection:
        row = connection.execute(query).first()
    if row is None:
        return Position(0, None, 0)
    return Position(int(row.sequence), row.cursor, int(row.rows_read))


def note_run(tracker: TrackerStore, pipeline_id: str) -> None:
    """Note that a run of a pipeline's ingestion ended, whether or not it found anything new."""
    changed = update(connector_positions).where(connector_positions.c.pipeline_id == pipeline_id)
    with tracker.transaction() as connection:
        connection.execute(changed.values(updated_at=func.clock_timestamp()))


def commit_intake(
    tracker: TrackerStore, commit: IntakeCommit, record_parked: Callable[[Connection, int], None]
) -> bool:
    """Move the cursor past a page and write its counts; False when that was done before.

    Raises:
        OffsetsMovedError: the cursor is not at the page before; nothing was written.
    """
    with tracker.transaction() as connection:
        if not _move_cursor(connection, commit):
            return False
        reference = f"intake:{commit.pipeline_id}:{commit.sequence}"
        write_counts(connection, reference, commit.counts)
        number = next_commit_number(connection, intake_scope(commit.pipeline_id))
        record_parked(connection, number)
        if commit.watermark is not None:
            move_watermark(connection, commit.pipeline_id, commit.watermark)
    return True


def _move_cursor(connection: Connection, commit: IntakeCommit) -> bool:
    table = connector_positions
    connection.execute(
        insert(table)
        .values(pipeline_id=commit.pipeline_id, sequence=0, cursor={}, rows_read=0)
        .on_conflict_do_nothing()
    )
    moved = connection.execute(
        update(table)
        .where(table.c.pipeline_id == commit.pipeline_id, table.c.sequence == commit.sequence - 1)
        .values(
            sequence=commit.sequence,
            cursor=commit.cursor,
            rows_read=table.c.rows_read + commit.rows,
            updated_at=func.clock_timestamp(),
        )
    )
    if moved.rowcount == 1:
        return True
    query = select(table.c.sequence).where(table.c.pipeline_id == commit.pipeline_id)
    stands = int(connection.execute(query).scalar_one())
    if stands >= commit.sequence:
        return False
    raise OffsetsMovedError(
        f"connector of {commit.pipeline_id!r} stands at page {stands}, not at {commit.sequence - 1}"
    )
