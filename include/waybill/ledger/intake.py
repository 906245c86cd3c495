"""The commit of ingestion: a page of a source, its cursor and its counts, in one transaction.

The commit of a refusal: a message that Kafka will never take is parked, exactly once.

Such a message is known by its log and its lsn; the producer may hand it over again after a kill.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import JSON, Connection, func, null, select, update
from sqlalchemy.dialects.postgresql import insert

from waybill.access import write_audit
from waybill.errors import InputError
from waybill.events import dumps
from waybill.ledger.commit import (
    OffsetsMovedError,
    PackedCounts,
    RecordParked,
    write_counts,
    write_numbered,
)
from waybill.ledger.replay_entries import ReplayEntry, add_entries
from waybill.ledger.watermarks import PageMark, move_watermark
from waybill.ledger.write_ahead_logs import LogProgress, move_lease, refuse_when_taken_over
from waybill.storage.tracker import (
    TrackerStore,
    connector_positions,
    cursor_resets,
    refused_messages,
    text_value,
)

_LONGEST_AUDITED = 2_000
"""Bytes of a cursor."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a pipeline's connector stands."""

    sequence: int
    """Pages committed so far; 0: none."""
    cursor: dict[str, Any] | None
    rows_read: int


@dataclass(frozen=True, slots=True)
class IntakeCommit:
    """One page whose events Kafka has acknowledged, or that are parked."""

    pipeline_id: str
    sequence: int
    """This page's number: one more than the position's."""
    cursor: dict[str, Any] | None
    """Behind the page; None: nothing of the source is read yet."""
    rows: int
    counts: PackedCounts
    watermark: PageMark | None = None
    """Where the pipeline's watermark is moved to; None: it is not."""
    progress: LogProgress | None = None
    """The lease that the page is committed under, and how far its log is; None: under none."""
    reference: str = ""
    """Of its counts and traces; empty: ``intake:<pipeline id>:<sequence>``."""


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


def ask_reread(connection: Connection, pipeline_id: str) -> bool:
    """Have the next run of ingestion read a source from its beginning; False: it never read it.

    A run that goes on now is not disturbed: it is the next one that begins anew.
    """
    changed = update(connector_positions).where(connector_positions.c.pipeline_id == pipeline_id)
    asked = connection.execute(changed.values(reread_asked_at=func.clock_timestamp()))
    return asked.rowcount == 1


@dataclass(frozen=True, slots=True)
class CursorReset:
    """A request to have a source read from elsewhere than where its connector stands."""

    request: str
    """Names it: what was asked once is done once, however often its run is tried."""
    who: str
    why: str
    cursor: dict[str, Any] | None = None
    """Where to begin; None: at the beginning. Ranges that are still to be read again stay."""
    put_back: bool = False
    """Begin where the connector stood before the last reset, whatever ``cursor`` is."""
    reread: dict[str, Any] | None = None
    """A range to be read again: the connector stays where it stands, whatever ``cursor`` is, and
    its cursor has the range at the end of its list ``rereads``."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """What the audit log has beside that."""


def begin_position(
    tracker: TrackerStore, progress: LogProgress, reset: CursorReset | None = None
) -> Position:
    """Return where a run begins: where the connector stands, or, if that was asked for, elsewhere.

    Pages keep their numbers. To be called once the pages that a dead run left are committed: they
    would set the cursor forward again. The reset, the cursor that stood there before and the entry
    of the audit log are one transaction, under the lease of the source.

    Raises:
        FencedError: another run has the source.
        InputError: there is no reset to be put back.
    """
    pipeline_id = progress.lease.pipeline_id
    with tracker.transaction() as connection:
        move_lease(connection, progress)
        if reset is None:
            reset = _asked_before(connection, pipeline_id)
        if reset is not None:
            _reset(connection, pipeline_id, reset)
    return read_position(tracker, pipeline_id)


def is_reset(tracker: TrackerStore, pipeline_id: str, request: str) -> bool:
    """Tell whether a request to read a source from elsewhere is done."""
    with tracker.transaction() as connection:
        return _is_done(connection, pipeline_id, request)


def _is_done(connection: Connection, pipeline_id: str, request: str) -> bool:
    resets = cursor_resets
    query = select(resets.c.number).where(
        resets.c.pipeline_id == pipeline_id, resets.c.request == request
    )
    return connection.execute(query).first() is not None


def _asked_before(connection: Connection, pipeline_id: str) -> CursorReset | None:
    """Return the reset that ``ask_reread`` left; its audit entry has who asked, and why."""
    table = connector_positions
    query = select(table.c.reread_asked_at).where(table.c.pipeline_id == pipeline_id)
    asked = connection.execute(query).scalar()
    return None if asked is None else CursorReset(f"reread {asked.isoformat()}", "", "")


def _reset(connection: Connection, pipeline_id: str, reset: CursorReset) -> None:
    """Move a connector's cursor by request; once done, again changes nothing."""
    resets, table = cursor_resets, connector_positions
    of_pipeline = resets.c.pipeline_id == pipeline_id
    if _is_done(connection, pipeline_id, reset.request):
        return
    stood = connection.execute(
        select(table.c.cursor, table.c.rows_read).where(table.c.pipeline_id == pipeline_id)
    ).first()
    old, old_rows = (None, 0) if stood is None else (stood.cursor, int(stood.rows_read))
    cursor, rows_read = _with_rereads_of(old, reset.cursor), 0
    if reset.reread is not None:
        cursor, rows_read = _with_reread(old, reset.reread), old_rows
    if reset.put_back:
        newest = select(resets).where(of_pipeline).order_by(resets.c.number.desc()).limit(1)
        before = connection.execute(newest).first()
        if before is None:
            raise InputError("no reset of this source's cursor is known that could be put back")
        cursor, rows_read = before.old_cursor, int(before.old_rows_read)
    values: dict[str, Any] = {
        "cursor": JSON.NULL if cursor is None else cursor,
        "rows_read": rows_read,
    }
    if cursor is None:  # else who asked to begin at the beginning is served by the next run
        values["reread_asked_at"] = None
    connection.execute(
        insert(table)
        .values(pipeline_id=pipeline_id, sequence=0, **values)
        .on_conflict_do_update(index_elements=[table.c.pipeline_id], set_=values)
    )
    connection.execute(
        resets.insert().values(
            pipeline_id=pipeline_id,
            request=reset.request,
            who=text_value(reset.who),
            old_cursor=null() if old is None else old,
            old_rows_read=old_rows,
            new_cursor=null() if cursor is None else cursor,
        )
    )
    if reset.who:  # else it was audited when it was asked for
        write_audit(
            connection,
            who=reset.who,
            action="reset_cursor",
            target=pipeline_id,
            why=reset.why,
            pipeline_id=pipeline_id,
            before=_shown(old),
            after=_shown(cursor),
            **reset.detail,
        )


def _with_reread(cursor: dict[str, Any] | None, reread: dict[str, Any]) -> dict[str, Any]:
    if cursor is None:
        raise InputError("nothing of this source was read yet: nothing can be read again")
    return {**cursor, "rereads": [*cursor.get("rereads", []), reread]}


def _with_rereads_of(
    old: dict[str, Any] | None, cursor: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Return a cursor with the ranges that were asked for before, and are not read to their end.

    From the beginning on, they are read as well.
    """
    if cursor is None or not (old or {}).get("rereads"):
        return cursor
    return {**cursor, "rereads": [*cursor.get("rereads", []), *(old or {})["rereads"]]}


def _shown(cursor: dict[str, Any] | None) -> Any:
    """Return a cursor as the audit log has it: a long one stands in ``cursor_resets`` alone."""
    long = len(dumps(cursor)) > _LONGEST_AUDITED
    return "a cursor of some length: see the table cursor_resets" if long else cursor


def note_run(tracker: TrackerStore, pipeline_id: str) -> None:
    """Note that a run of a pipeline's ingestion ended, whether or not it found anything new."""
    changed = update(connector_positions).where(connector_positions.c.pipeline_id == pipeline_id)
    with tracker.transaction() as connection:
        connection.execute(changed.values(updated_at=func.clock_timestamp()))


def commit_intake(tracker: TrackerStore, commit: IntakeCommit, record_parked: RecordParked) -> bool:
    """Move the cursor past a page and write its counts; False when that was done before.

    Raises:
        FencedError: another run has the source; nothing was written.
        OffsetsMovedError: the cursor is not at the page before; nothing was written.
    """
    with tracker.transaction() as connection:
        if commit.progress is not None:
            move_lease(connection, commit.progress)
        if not _move_cursor(connection, commit):
            return False
        reference = commit.reference or f"intake:{commit.pipeline_id}:{commit.sequence}"
        write_counts(connection, reference, commit.counts)
        if commit.watermark is not None:
            move_watermark(connection, commit.pipeline_id, commit.watermark)
        write_numbered(connection, intake_scope(commit.pipeline_id), record_parked)
    return True


def _move_cursor(connection: Connection, commit: IntakeCommit) -> bool:
    table = connector_positions
    connection.execute(
        insert(table)
        .values(pipeline_id=commit.pipeline_id, sequence=0, cursor=JSON.NULL, rows_read=0)
        .on_conflict_do_nothing()
    )
    moved = connection.execute(
        update(table)
        .where(table.c.pipeline_id == commit.pipeline_id, table.c.sequence == commit.sequence - 1)
        .values(
            sequence=commit.sequence,
            cursor=JSON.NULL if commit.cursor is None else commit.cursor,
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
