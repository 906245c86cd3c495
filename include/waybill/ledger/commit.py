"""The two commits of streaming: a processed micro-batch, and a load.

Each is one tracker transaction. What a SIGKILL leaves behind: before it, objects that no row names
(``refresh_tracker`` removes them); after it, a position that the next start reads. What a process
that is frozen amid it leaves behind: locks, until the tracker ends its transaction
(``waybill.storage.tracker.engine``); of the commit number only for the last statements.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from json import dumps
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, BigInteger, Connection, ScalarSelect, cast, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError

from waybill.back_off import BackOff
from waybill.errors import RetryError, StopError, WaybillError
from waybill.ledger.positions import LastRead
from waybill.ledger.replay_entries import ReplayEntry, add_entries
from waybill.storage.tracker import (
    COUNT_COLUMNS,
    TrackerStore,
    add_outcomes,
    batches,
    commit_sequences,
    ledger,
    load_positions,
    loaded_tables,
    segments,
    staged_objects,
    topic_offsets,
)

_LOG = logging.getLogger(__name__)
PackedCounts = Sequence[tuple[str, list[list[Any]]]]
"""(pipeline id, rows of [event name, stage, minute, counters])."""
RecordParked = Callable[[Connection, int], Iterable[str] | None]
"""Writes parked segments under a commit number, in the commit's own transaction; returns the keys
of the objects that hold them, None without any."""
# As texts: SQLAlchemy would take several times as long to put them together as to send them.
_CHECK_LEASE = text(
    "UPDATE consumers SET seen_at = clock_timestamp() WHERE name = :name AND epoch = :epoch"
)
_MOVE = text("""
UPDATE topic_offsets SET next_offset = moves.end_offset,
  last_read = coalesce(CAST(moves.last_read AS jsonb), topic_offsets.last_read)
FROM unnest(CAST(:numbers AS integer[]), CAST(:starts AS bigint[]), CAST(:ends AS bigint[]),
  CAST(:lasts AS text[])) AS moves (partition, start_offset, end_offset, last_read)
WHERE cluster_id = :cluster_id AND topic_id = :topic_id
  AND topic_offsets.partition = moves.partition AND next_offset = moves.start_offset
RETURNING topic_offsets.partition
""")
_LAST_NUMBER = text("SELECT last FROM commit_sequences WHERE destination = :scope")
_NEXT_NUMBER = text("""
INSERT INTO commit_sequences (destination, last) VALUES (:scope, 1)
ON CONFLICT (destination) DO UPDATE SET last = commit_sequences.last + 1
RETURNING last
""")
STAGED = "waybill_staged"
"""The channel on which destinations are named that commits have rows for."""
_TELL = text("SELECT pg_notify(:channel, name) FROM unnest(CAST(:names AS text[])) AS name")
_COMMIT_TRIES = 5
_BACK_OFF = BackOff(0.2)
"""Before the second try, twice as long before each later one: 3 s in all."""


class FencedError(StopError):
    """Another process took this consumer over; this one must stop."""


class OffsetsMovedError(StopError):
    """A position is not where this batch started: somebody else moved it."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The records of one topic partition that a batch read: from start, before end."""

    partition: int
    start: int
    end: int
    count: int
    """Records seen; with ``absent`` it must equal end - start: a log has no other holes."""
    absent: int = 0
    """Offsets of it without a record, that somebody settled as such."""
    last: LastRead | None = None
    """The last record seen; None: the one that the ledger knows stays."""


@dataclass(frozen=True, slots=True)
class StagedObject:
    """One staged object that a batch wrote."""

    key: str
    rows: int
    bytes: int
    offsets: Sequence[Sequence[Any]] | None = None
    """[topic, partition, first offset, offset after the last]: where its events are in Kafka."""
    row_bytes: int | None = None
    """Of its rows in memory; None: not known."""


@dataclass(frozen=True, slots=True)
class BatchCommit:
    """All that one processed micro-batch changes."""

    batch_id: UUID
    consumer: str
    epoch: int
    cluster_id: str
    topic_id: str
    topic: str
    destination: str
    ranges: Sequence[OffsetRange]
    counts: PackedCounts
    staged: Sequence[StagedObject] = ()
    replayed: Mapping[ReplayEntry, int] = field(default_factory=dict)
    """How many of its messages came of which replay."""
    took_ms: int | None = None
    """From the batch's start to this commit; ``None``: not known."""
    tasks_ms: int | None = None
    """The sum of what its tasks took, each on a core; ``None``: not known."""


@dataclass(frozen=True, slots=True)
class LoadCommit:
    """All that one load changes: commits ``after`` + 1 to ``until`` are in the destination."""

    consumer: str
    epoch: int
    destination: str
    after: int
    until: int
    counts: Mapping[int, PackedCounts] = field(default_factory=dict)
    """Commit number to its counts."""
    replays: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Replay id to outcome to rows, over all these commits."""
    taken: Sequence[int] = ()
    """Those that the destination itself took: its own books have them."""
    tables: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(schema, table) to the newest of them with its rows, where books are per table."""


def commit_batch(tracker: TrackerStore, commit: BatchCommit, record_parked: RecordParked) -> int:
    """Commit a micro-batch and return its commit number.

    Raises:
        FencedError: the lease is no longer this process's.
        OffsetsMovedError: a partition does not stand where the batch began; nothing was written.
        RetryError: the tracker stayed away for all tries; whether it committed is not known, and
            the next start reads it from the ledger.
    """
    for number in range(_COMMIT_TRIES):
        try:
            return _commit_batch_once(tracker, commit, record_parked)
        except RetryError:
            if (done := _read_back(tracker, commit.batch_id)) is not None:
                return done
            if number == _COMMIT_TRIES - 1:
                raise
            time.sleep(_BACK_OFF.wait_s(number + 1))
        except OffsetsMovedError:
            # A try before may have been committing still when it was read back.
            if number and (done := _read_back(tracker, commit.batch_id)) is not None:
                return done
            raise
    raise AssertionError("unreachable")


def tell_staged(tracker: TrackerStore, destinations: Collection[str]) -> None:
    """Tell those who load these destinations that commits may have rows for them.

    A hint, behind the commits of a whole batch: who notifies takes one lock of the server until its
    transaction is on disk, and each commit would begin a load of its own. What nobody was told of
    is looked for.

    Cost: a transaction that waits for no disk, 1 ms.
    """
    try:
        with tracker.transaction() as connection:
            connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
            connection.execute(_TELL, {"channel": STAGED, "names": sorted(destinations)})
    except (WaybillError, SQLAlchemyError) as error:  # the commits are there
        _LOG.info("nobody was told of commits, they are looked for: %s", error)


def _read_back(tracker: TrackerStore, batch_id: UUID) -> int | None:
    query = select(batches.c.commit_number).where(batches.c.id == batch_id)
    try:
        with tracker.transaction() as connection:
            number = connection.execute(query).scalar()
    except RetryError:
        return None
    return None if number is None else int(number)


def _commit_batch_once(
    tracker: TrackerStore, commit: BatchCommit, record_parked: RecordParked
) -> int:
    with tracker.transaction() as connection:
        check_lease(connection, commit.consumer, commit.epoch)
        _move_offsets(connection, commit)
        write_counts(connection, str(commit.batch_id), commit.counts)
        add_entries(connection, "came_in", commit.replayed)
        number = write_numbered(connection, commit.destination, record_parked)
        if commit.staged:
            connection.execute(
                staged_objects.insert(),
                [
                    {
                        "key": item.key,
                        "destination": commit.destination,
                        "commit_number": number,
                        "rows": item.rows,
                        "bytes": item.bytes,
                        "offsets": item.offsets,
                        "row_bytes": item.row_bytes,
                    }
                    for item in commit.staged
                ],
            )
        connection.execute(
            batches.insert(),
            {
                "id": commit.batch_id,
                "consumer": commit.consumer,
                "epoch": commit.epoch,
                "destination": commit.destination,
                "commit_number": number,
                "offsets": [
                    [commit.topic, item.partition, item.start, item.end, item.count]
                    + ([item.absent] if item.absent else [])
                    for item in commit.ranges
                ],
                "took_ms": commit.took_ms,
                "tasks_ms": commit.tasks_ms,
            },
        )
    return number


def check_lease(connection: Connection, consumer: str, epoch: int) -> None:
    """Refuse unless this epoch still holds the consumer; holds the row until the commit."""
    changed = connection.execute(_CHECK_LEASE, {"name": consumer, "epoch": epoch})
    if changed.rowcount != 1:
        raise FencedError(f"consumer {consumer!r} was taken over: epoch {epoch} is not current")


def _move_offsets(connection: Connection, commit: BatchCommit) -> None:
    for item in commit.ranges:
        if item.count + item.absent != item.end - item.start:
            raise StopError(
                f"{commit.topic}/{item.partition}: {item.count} records between offsets "
                f"{item.start} and {item.end}: the log has a hole"
            )
    left = _not_moved(connection, commit, commit.ranges)
    if left:  # not known yet, or not where the batch began
        first = insert(topic_offsets).on_conflict_do_nothing()
        since = connection.execute(select(last_commit_of_topic(commit.topic))).scalar()
        row = {
            "cluster_id": commit.cluster_id,
            "topic_id": commit.topic_id,
            "topic": commit.topic,
            "next_offset": 0,
            "known_since_commit": since,
        }
        connection.execute(first, [{**row, "partition": item.partition} for item in left])
        left = _not_moved(connection, commit, left)
    for item in left:
        raise OffsetsMovedError(
            f"{commit.topic}/{item.partition} does not stand at offset {item.start}"
        )


def _not_moved(
    connection: Connection, commit: BatchCommit, ranges: Sequence[OffsetRange]
) -> list[OffsetRange]:
    """Move each partition that stands where its range begins to its end; return the others.

    Cost: one statement. Who commits the topic holds its lease's row, so nobody moves others first.
    """
    lasts = [None if item.last is None else dumps(item.last.to_json()) for item in ranges]
    given = {
        "cluster_id": commit.cluster_id,
        "topic_id": commit.topic_id,
        "numbers": [item.partition for item in ranges],
        "starts": [item.start for item in ranges],
        "ends": [item.end for item in ranges],
        "lasts": lasts,
    }
    numbers = set(connection.execute(_MOVE, given).scalars())
    return [item for item in ranges if item.partition not in numbers]


def last_commit_of_topic(topic: str) -> ScalarSelect[int]:
    """Return the last commit number of a topic's destination, 0 before the first.

    What is committed of the topic from now on has a higher one.
    """
    ends_so = func.right(topic, func.length(commit_sequences.c.destination) + 1)
    query = select(func.coalesce(func.max(commit_sequences.c.last), 0))
    return query.where(
        ends_so == func.concat(".", commit_sequences.c.destination)
    ).scalar_subquery()


def write_counts(connection: Connection, reference: str, counts: PackedCounts) -> None:
    """Write one ledger row per pipeline under a reference that is used once."""
    _write_ledger(connection, [(reference, counts)])


def _write_ledger(connection: Connection, entries: Iterable[tuple[str, PackedCounts]]) -> None:
    """Write one ledger row per reference and pipeline; a statement has up to 1,000 of them."""
    rows = [
        {"reference": reference, "pipeline_id": pipeline_id, "counts": packed}
        for reference, counts in entries
        for pipeline_id, packed in counts
    ]
    if rows:
        connection.execute(ledger.insert(), rows)


def write_copies(
    connection: Connection, reference: str, copies: Mapping[tuple[str, str, str, int], int]
) -> None:
    """Count events as duplicates that the counts of ``reference`` say were parked.

    Args:
        connection: the transaction of those counts.
        reference: of their rows; used once.
        copies: (pipeline id, event name, stage, intake minute) to how many.
    """
    packed: dict[str, list[list[Any]]] = {}
    for (pipeline_id, event_name, stage, minute), number in sorted(copies.items()):
        row = [0] * len(COUNT_COLUMNS)
        row[COUNT_COLUMNS.index("parked")] = -number
        row[COUNT_COLUMNS.index("duplicate")] = number
        packed.setdefault(pipeline_id, []).append([event_name, stage, minute, row])
    write_counts(connection, f"{reference}:copies", list(packed.items()))


def write_replayed_earlier(
    connection: Connection,
    reference: str,
    pipeline_id: str,
    rows: Sequence[tuple[str, str, int, int]],
) -> bool:
    """Write what a replay sent to an earlier stage than the one that parked; again adds nothing.

    Args:
        connection: the transaction that marks the events replayed.
        reference: of the replay's mark.
        pipeline_id: whose events.
        rows: (event name, "earlier/<stage>", intake minute, events): at the stage that parked,
            events that will not come in there again; at the stage of entry, parents that will.

    Returns:
        False when it was written before.
    """
    packed = []
    for event_name, stage, minute, number in rows:
        row = [0] * len(COUNT_COLUMNS)
        row[COUNT_COLUMNS.index("in_replayed")] = number
        packed.append([event_name, stage, minute, row])
    values = {"reference": reference, "pipeline_id": pipeline_id, "counts": packed}
    once = insert(ledger).values(values).on_conflict_do_nothing().returning(ledger.c.id)
    return connection.execute(once).first() is not None


def write_numbered(connection: Connection, scope: str, record_parked: RecordParked) -> int:
    """Write what is parked, then take the next number of a sequence without holes; return it.

    The number's row stays locked until the commit, and all other commits of the scope wait for it:
    so it is taken last. Segments are written under the number that comes next as it looks; when
    another commit was faster they are given the right one, in one statement.
    """
    expected = int(connection.execute(_LAST_NUMBER, {"scope": scope}).scalar() or 0) + 1
    keys = list(record_parked(connection, expected) or ())
    number = next_commit_number(connection, scope)
    if number != expected and keys:
        connection.execute(
            update(segments)
            .where(segments.c.object_key.in_(keys), segments.c.commit_number == expected)
            .values(commit_number=number)
        )
    return number


def next_commit_number(connection: Connection, scope: str) -> int:
    """Return the next number of a sequence; its row stays locked until the commit."""
    return int(connection.execute(_NEXT_NUMBER, {"scope": scope}).scalar_one())


def commit_load(
    tracker: TrackerStore, commit: LoadCommit, record_parked: Callable[[Connection], None]
) -> None:
    """Acknowledge a load: position, counts, parked segments, staged objects, in one transaction.

    A repeat of the same load whose answer was lost finds the position moved and changes nothing.

    Raises:
        FencedError: the lease is no longer this process's.
        OffsetsMovedError: the position is neither at ``after`` nor at ``until``.
    """
    taken = list(commit.taken)
    with tracker.transaction() as connection:
        check_lease(connection, commit.consumer, commit.epoch)
        if not _move_load_position(connection, commit):
            return
        counts = sorted(commit.counts.items())
        _write_ledger(connection, ((f"load:{commit.destination}:{n}", own) for n, own in counts))
        record_parked(connection)
        add_outcomes(connection, commit.replays)
        connection.execute(
            update(staged_objects)
            .where(
                staged_objects.c.destination == commit.destination,
                staged_objects.c.commit_number > commit.after,
                staged_objects.c.commit_number <= commit.until,
                staged_objects.c.state == "staged",
            )
            .values(
                state="loaded",
                loaded_at=func.clock_timestamp(),
                taken=staged_objects.c.commit_number == func.any(cast(taken, ARRAY(BigInteger))),
            )
        )
        _note_tables(connection, commit)


def _note_tables(connection: Connection, commit: LoadCommit) -> None:
    """Note the newest commit of each table."""
    rows = [
        {
            "destination": commit.destination,
            "table_schema": place[0],
            "table_name": place[1],
            "last_commit": number,
        }
        for place, number in sorted(commit.tables.items())
    ]
    if rows:
        first = insert(loaded_tables)
        keys = ["destination", "table_schema", "table_name"]
        newest = {"last_commit": first.excluded.last_commit}
        connection.execute(first.on_conflict_do_update(index_elements=keys, set_=newest), rows)


def _move_load_position(connection: Connection, commit: LoadCommit) -> bool:
    connection.execute(
        insert(load_positions)
        .values(destination=commit.destination, last_commit=0)
        .on_conflict_do_nothing()
    )
    moved = connection.execute(
        update(load_positions)
        .where(
            load_positions.c.destination == commit.destination,
            load_positions.c.last_commit == commit.after,
        )
        .values(
            last_commit=commit.until,
            last_taken=func.greatest(
                load_positions.c.last_taken, cast(max(commit.taken, default=None), BigInteger)
            ),
        )
    )
    if moved.rowcount == 1:
        return True
    query = select(load_positions.c.last_commit).where(
        load_positions.c.destination == commit.destination
    )
    stands = connection.execute(query).scalar_one()
    if stands == commit.until:
        return False
    raise OffsetsMovedError(
        f"destination {commit.destination!r} stands at commit {stands}, not at {commit.after}"
    )
