"""Where everything stands: leases, topic offsets, commit numbers, load positions.

What a consumer of a topic got done lately, told from its committed batches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Connection,
    Float,
    Select,
    Text,
    Uuid,
    and_,
    any_,
    cast,
    func,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from waybill.errors import StopError
from waybill.storage.tracker import (
    TrackerStore,
    batches,
    commit_sequences,
    consumers,
    load_positions,
    staged_objects,
    topic_offsets,
)

WAITING_COUNTS = """
waiting AS (
  SELECT sequence.destination, batch.commit_number, batch.committed_at, counted.*
  FROM commit_sequences AS sequence
  LEFT JOIN load_positions AS loaded USING (destination)
  CROSS JOIN LATERAL (
    SELECT id, commit_number, committed_at FROM batches
    WHERE destination = sequence.destination AND commit_number > coalesce(loaded.last_commit, 0)
    ORDER BY commit_number LIMIT CAST(:most AS bigint)) AS batch
  CROSS JOIN LATERAL (
    SELECT pipeline_id, counts FROM ledger WHERE reference = batch.id::text OFFSET 0) AS counted
  WHERE sequence.last > coalesce(loaded.last_commit, 0)
    AND sequence.destination <> ALL (CAST(:leave_out AS text[])))
"""
"""The counts of the commits that wait to be loaded, a row for each pipeline, for a WITH.

A destination at a time, so that the index of (destination, commit number) is all that is read:
with ``batches LEFT JOIN load_positions WHERE number > coalesce(…)`` each batch ever made is. For
the same reason OFFSET 0: each reference is looked up."""
_UNLOADED = text("""
SELECT sequence.destination, sequence.last - coalesce(loaded.last_commit, 0) AS commits
FROM commit_sequences AS sequence
LEFT JOIN load_positions AS loaded USING (destination)
WHERE sequence.last > coalesce(loaded.last_commit, 0) AND EXISTS (
  SELECT FROM batches
  WHERE destination = sequence.destination AND commit_number = sequence.last)
""")
"""Ingestion numbers what it parks as well; it makes no batches."""


def waiting_asked(*, most: int | None = None, leave_out: Collection[str] = ()) -> dict[str, object]:
    """Return the parameters of ``WAITING_COUNTS``.

    Args:
        most: commits of each destination, the oldest first; None: all.
        leave_out: destinations whose commits are not read.
    """
    return {"most": most, "leave_out": sorted(leave_out)}


def unloaded_commits(connection: Connection) -> dict[str, int]:
    """Return {destination: commits that wait to be loaded}, of those where any do.

    Cost: a row for each destination and pipeline, however many commits wait.
    """
    return {str(row.destination): int(row.commits) for row in connection.execute(_UNLOADED)}


@dataclass(frozen=True, slots=True)
class LastRead:
    """The last record that was read of a topic partition: what a log that was cut is known by.

    A log that lost its tail and grew again has another record at this offset, of a later leader
    epoch, however long it is by now.
    """

    offset: int
    at_ms: int
    """The record's timestamp: the broker's clock when it was appended."""
    digest: str
    """``waybill.storage.digest_of`` its value."""
    leader_epoch: int = -1
    """The partition's epoch from before it was read until after: no record up to here, nor up to
    ``log_end``, is of a later one. -1: unknown."""
    log_end: int = 0
    """Where the log ended then; unread records below were acknowledged. 0: unknown."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> LastRead | None:
        """Read what ``to_json`` gave; of nothing (an older release): None."""
        return cls(**value) if value else None


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """Where the ledger stands in a topic partition."""

    next_offset: int
    last_read: LastRead | None = None
    """None: nothing was read, or by an older release."""

    @property
    def deletable_before(self) -> int:
        """Return the offset before which Kafka may delete records.

        The last record that was read stays: by it a log that was cut is known.
        """
        if self.last_read is not None:
            return min(self.last_read.offset, self.next_offset)
        return max(0, self.next_offset - 1)


_ROW_BYTES = func.coalesce(staged_objects.c.row_bytes, staged_objects.c.bytes * 8)
"""Of rows in memory; where an older release staged them, some 4 to 8 times what zstd leaves."""


@dataclass(frozen=True, slots=True)
class StagedReference:
    """One staged object that waits to be loaded."""

    commit_number: int
    key: str
    rows: int
    bytes: int
    """Of the object."""
    row_bytes: int
    """Of its rows in memory."""
    batch: str = ""
    """Id of the micro-batch that wrote it; empty: the tracker does not have it any more."""


@dataclass(frozen=True, slots=True)
class StagedSum:
    """What one commit brings."""

    commit_number: int
    rows: int
    row_bytes: int
    """Of the rows in memory."""


def acquire_lease(
    tracker: TrackerStore,
    consumer: str,
    *,
    holder: str,
    check: Callable[[Connection], None] | None = None,
) -> int:
    """Take a consumer over and return the new epoch; every earlier holder's commits now fail.

    Args:
        tracker: the books.
        consumer: its name.
        holder: who takes it over.
        check: raises, in the transaction of the lease, if its application may take nothing over any
            more; None: nobody could have replaced it.
    """
    first = insert(consumers).values(name=consumer, epoch=1, holder=holder)
    statement = first.on_conflict_do_update(
        index_elements=[consumers.c.name],
        set_={
            "epoch": consumers.c.epoch + 1,
            "holder": holder,
            "acquired_at": func.clock_timestamp(),
            "seen_at": func.clock_timestamp(),
        },
    ).returning(consumers.c.epoch)
    with tracker.transaction() as connection:
        if check is not None:
            check(connection)
        return int(connection.execute(statement).scalar_one())


def release_lease(tracker: TrackerStore, consumer: str, epoch: int) -> None:
    """Let go of a consumer, if it still is this epoch's: whoever takes it over need not wait."""
    mine = (consumers.c.name == consumer, consumers.c.epoch == epoch)
    with tracker.transaction() as connection:
        connection.execute(update(consumers).where(*mine).values(holder=""))


def lease_holder(tracker: TrackerStore, consumer: str) -> str:
    """Return who holds a consumer; empty: nobody."""
    query = select(consumers.c.holder).where(consumers.c.name == consumer)
    with tracker.transaction() as connection:
        return str(connection.execute(query).scalar() or "")


def read_positions(
    tracker: TrackerStore, topic: str
) -> dict[tuple[str, str], dict[int, TopicPosition]]:
    """Return {(cluster id, topic id): {partition: position}} of all topics of this name.

    More than one: the topic was deleted and made again, or this is another cluster.
    """
    found: dict[tuple[str, str], dict[int, TopicPosition]] = {}
    with tracker.transaction() as connection:
        rows = connection.execute(select(topic_offsets).where(topic_offsets.c.topic == topic)).all()
    for row in rows:
        position = TopicPosition(int(row.next_offset), LastRead.from_json(row.last_read))
        found.setdefault((row.cluster_id, row.topic_id), {})[int(row.partition)] = position
    return found


def topic_positions(
    tracker: TrackerStore, *, cluster_id: str, topic_id: str, topic: str
) -> dict[int, int]:
    """Return {partition: next offset} of a topic; empty when the ledger does not know it yet.

    Raises:
        StopError: the ledger knows a topic of this name under another id: it was deleted and made
            again, and what was unread in the old one is gone.
    """
    known = read_positions(tracker, topic)
    if others := sorted(known.keys() - {(cluster_id, topic_id)}):
        raise StopError(
            f"topic {topic!r} is not the one the ledger knows (id {topic_id}, ledger {others}): it "
            "was deleted and created again, or this is another cluster. "
            f"`waybill topics settle {topic}` says what to do"
        )
    own = known.get((cluster_id, topic_id), {})
    return {number: position.next_offset for number, position in own.items()}


def last_commit_number(tracker: TrackerStore, destination: str) -> int:
    """Return the newest commit number of a destination; 0 when there is none."""
    query = select(commit_sequences.c.last).where(commit_sequences.c.destination == destination)
    with tracker.transaction() as connection:
        return int(connection.execute(query).scalar() or 0)


def load_position(tracker: TrackerStore, destination: str) -> int:
    """Return the newest commit number that is loaded; 0 when none is."""
    query = select(load_positions.c.last_commit).where(load_positions.c.destination == destination)
    with tracker.transaction() as connection:
        return int(connection.execute(query).scalar() or 0)


def staged_after(
    tracker: TrackerStore, destination: str, *, after: int, until: int | None = None
) -> list[StagedReference]:
    """Return the staged objects of commits after a number, in commit order."""
    query = staged_references().where(
        staged_objects.c.destination == destination, staged_objects.c.commit_number > after
    )
    if until is not None:
        query = query.where(staged_objects.c.commit_number <= until)
    query = query.order_by(staged_objects.c.commit_number, staged_objects.c.key)
    with tracker.transaction() as connection:
        rows = connection.execute(query).all()
    return [StagedReference(*row) for row in rows]


def staged_references() -> Select[Any]:
    """Return the query of staged objects as ``StagedReference`` has them."""
    table = staged_objects.c
    batch = func.coalesce(cast(batches.c.id, Text), "")
    columns = (table.commit_number, table.key, table.rows, table.bytes, _ROW_BYTES, batch)
    return select(*columns).outerjoin_from(
        staged_objects,
        batches,
        and_(
            batches.c.destination == table.destination,
            batches.c.commit_number == table.commit_number,
        ),
    )


def staged_sums(
    tracker: TrackerStore, destination: str, *, after: int, most: int
) -> list[StagedSum]:
    """Return the sums of the first commits after a number that have staged objects.

    Args:
        tracker: the books.
        destination: whose commits.
        after: commits up to this one are left out.
        most: commits that are returned at most.
    """
    table = staged_objects.c
    query = (
        select(
            table.commit_number,
            cast(func.sum(table.rows), BigInteger),
            cast(func.sum(_ROW_BYTES), BigInteger),
        )
        .where(table.destination == destination, table.commit_number > after)
        .group_by(table.commit_number)
        .order_by(table.commit_number)
        .limit(most)
    )
    with tracker.transaction() as connection:
        return [StagedSum(*row) for row in connection.execute(query)]


def commit_age_s(tracker: TrackerStore, destination: str, commit_number: int) -> float:
    """Return how long ago a batch was committed, in seconds, by the tracker's clock."""
    age = func.extract("epoch", func.clock_timestamp() - batches.c.committed_at)
    query = select(cast(age, Float)).where(
        batches.c.destination == destination, batches.c.commit_number == commit_number
    )
    with tracker.transaction() as connection:
        return float(connection.execute(query).scalar_one())


def committed(tracker: TrackerStore, texts: Iterable[str]) -> set[str]:
    """Return which batches of traces were committed; what a trace says counts only then.

    Args:
        tracker: the books.
        texts: as traces name their batches. ``<uuid>``: a micro-batch.
            ``intake:<pipeline id>:<page>``, in traces of earlier releases.
            ``intake:<pipeline id>:<log id>:<page>``: the reference of a page's counts.
            ``load:<destination>:<commit number>``.
            ``replay:<replay id>:<first segment of what went under one mark>``.
            ``refused:<log id>:<lsn>``. Any other text was never committed.

    Cost: one statement a kind, whose rows are found by their primary keys.
    """
    kinds: dict[str, list[tuple[str, str, int]]] = {}
    micro_batches: list[UUID] = []
    for text_ in set(texts):
        if (number := _uuid(text_)) is not None:
            micro_batches.append(number)
        elif (found := _NUMBERED.fullmatch(text_)) is not None:
            kinds.setdefault(found[1], []).append((text_, found[2], int(found[3])))
    with tracker.transaction() as connection:
        done = _micro_batches(connection, micro_batches)
        for kind, given in kinds.items():
            values = [list(column) for column in zip(*given, strict=True)]
            rows = connection.execute(
                _COMMITTED[kind], dict(zip(("texts", "names", "numbers"), values, strict=True))
            )
            done.update(str(row[0]) for row in rows)
    return done


def _micro_batches(connection: Connection, wanted: Sequence[UUID]) -> set[str]:
    if not wanted:
        return set()
    among = any_(cast(list(wanted), ARRAY(Uuid)))
    rows = connection.execute(select(batches.c.id).where(batches.c.id == among))
    return {str(row.id) for row in rows}


def _uuid(text_: str) -> UUID | None:
    return UUID(text_) if _IS_UUID.fullmatch(text_) else None


_IS_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBERED = re.compile(r"(intake|load|replay|refused):(.+):(\d{1,18})", re.DOTALL)
_GIVEN = (
    "FROM unnest(CAST(:texts AS text[]), CAST(:names AS text[]), CAST(:numbers AS bigint[])) "
    "AS given (text, name, number)"
)
_COMMITTED = {
    "intake": text(
        f"SELECT given.text {_GIVEN} JOIN connector_positions p "
        "ON p.pipeline_id = given.name AND p.sequence >= given.number "
        f"UNION SELECT given.text {_GIVEN} JOIN ledger l ON l.reference = given.text"
    ),
    "load": text(
        f"SELECT given.text {_GIVEN} JOIN load_positions p "
        "ON p.destination = given.name AND p.last_commit >= given.number"
    ),
    "refused": text(
        f"SELECT given.text {_GIVEN} JOIN refused_messages r "
        "ON r.wal_id = given.name AND r.lsn = given.number"
    ),
    "replay": text(
        f"""WITH RECURSIVE sent (text, name, id) AS (
          SELECT given.text, given.name, given.number {_GIVEN}
          UNION SELECT sent.text, sent.name, s.id FROM sent
          JOIN segments s ON s.source_id = sent.id)
        SELECT DISTINCT sent.text FROM sent JOIN segments s ON s.id = sent.id
        WHERE s.replay_id::text = sent.name AND s.state IN ('replayed', 'deleted')"""
    ),
}
"""A segment that was cut or rewritten is marked where it is now; one that is replayed keeps the
replay's id when its object is deleted."""


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
