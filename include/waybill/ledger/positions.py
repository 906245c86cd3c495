"""Where everything stands: leases, topic offsets, commit numbers, load positions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Connection,
    Float,
    Uuid,
    any_,
    cast,
    func,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import insert

from waybill.errors import StopError
from waybill.storage.tracker import TrackerStore
from waybill.storage.tracker.tables import (
    batches,
    commit_sequences,
    consumers,
    load_positions,
    staged_objects,
    topic_offsets,
)


@dataclass(frozen=True, slots=True)
class StagedReference:
    """One staged object that waits to be loaded."""

    commit_number: int
    key: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StagedSum:
    """What one commit brings."""

    commit_number: int
    rows: int
    bytes: int


def acquire_lease(tracker: TrackerStore, consumer: str, *, holder: str) -> int:
    """Take a consumer over and return the new epoch; every earlier holder's commits now fail."""
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
        return int(connection.execute(statement).scalar_one())


def topic_positions(
    tracker: TrackerStore, *, cluster_id: str, topic_id: str, topic: str
) -> dict[int, int]:
    """Return {partition: next offset} of a topic; empty when the ledger does not know it yet.

    Raises:
        StopError: the ledger knows a topic of this name under another id: it was deleted and made
            again, and what was unread in the old one is gone.
    """
    with tracker.transaction() as connection:
        rows = connection.execute(select(topic_offsets).where(topic_offsets.c.topic == topic)).all()
    others = {(row.cluster_id, row.topic_id) for row in rows} - {(cluster_id, topic_id)}
    if others:
        raise StopError(
            f"topic {topic!r} is not the one the ledger knows (id {topic_id}, ledger "
            f"{sorted(others)}): it was deleted and created again, or this is another cluster. "
            "Find out what was lost, then remove its rows from topic_offsets to start anew"
        )
    return {int(row.partition): int(row.next_offset) for row in rows}


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
    query = select(staged_objects).where(
        staged_objects.c.destination == destination, staged_objects.c.commit_number > after
    )
    if until is not None:
        query = query.where(staged_objects.c.commit_number <= until)
    query = query.order_by(staged_objects.c.commit_number, staged_objects.c.key)
    with tracker.transaction() as connection:
        rows = connection.execute(query).all()
    return [StagedReference(r.commit_number, r.key, r.rows, r.bytes) for r in rows]


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
            cast(func.sum(table.bytes), BigInteger),
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


def committed_batches(tracker: TrackerStore, ids: Iterable[str]) -> set[str]:
    """Return which of these batch ids were committed (what a trace says counts only then)."""
    wanted = [UUID(text) for text in ids]
    with tracker.transaction() as connection:
        return _micro_batches(connection, wanted)


def committed(tracker: TrackerStore, texts: Iterable[str]) -> set[str]:
    """Return which batches of traces were committed; what a trace says counts only then.

    Args:
        tracker: the books.
        texts: as traces name their batches. ``<uuid>``: a micro-batch.
            ``intake:<pipeline id>:<page>``. ``load:<destination>:<commit number>``.
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
        "ON p.pipeline_id = given.name AND p.sequence >= given.number"
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
        WHERE s.replay_id::text = sent.name AND s.state IN ('replayed', 'deleted')"""  # noqa: S608
    ),
}
"""A segment that was cut or rewritten is marked where it is now; one that is replayed keeps the
replay's id when its object is deleted."""
