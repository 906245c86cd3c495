"""Generations of topics: a topic of Kafka each, so that more partitions break no key's order.

A key's messages are in one partition of a generation, in order. All of generation n is read before
any of n + 1, and no log goes back to a lower one, so a key's order is that in which it was sent:

    I1  At most one generation of a topic is ``writing``, the highest, and at most one ``draining``,
        the one below. All others are ``ended``.
    I2  A write-ahead log writes to the one generation that its row names. The row is written before
        the first message of that generation, in a transaction that holds the generation's row
        shared and has seen that it is ``writing``; it is changed only once Kafka has all messages
        of the log, and what they say is committed.
    I3  A generation ends in one transaction that holds its row alone: no ``open`` log names it, and
        processing stands at the ends that Kafka has *then*. It takes the consumer's lease with it,
        so that no batch of the generation is committed later.
    I4  What fenced logs (taken over, settled by name) send later is behind those ends, and no book
        has it: who counts or marks what such a log has sent holds the generation's row shared, and
        counts no further than its ends.

Processing reads the lowest generation that has not ended. What the log of a dead process holds for
a draining generation is sent there by its next run, before it moves on; until then, or until the
log is taken over or settled, the generation drains. The cost of that is waiting: the next one is
not read meanwhile.

The first functions are pure: the property test runs them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from sqlalchemy import Connection, RowMapping, bindparam, func, select, text, update
from sqlalchemy.dialects.postgresql import JSONB, insert

from waybill.errors import RetryError, StopError
from waybill.ledger.commit import FencedError, last_commit_of_topic
from waybill.pipelines import base_topic, generation_name
from waybill.storage.tracker import TrackerStore, topic_generations

GenerationState = Literal["writing", "draining", "ended"]
Offsets = Mapping[int, int]
"""{partition: offset}."""
_ENDED_LOGS = frozenset({"taken_over", "ended"})


@dataclass(frozen=True, slots=True)
class TopicGeneration:
    """One generation of a topic."""

    topic: str
    """events.<team>.<destination>."""
    number: int
    partitions: int = 0
    """0: nobody has looked yet."""
    state: GenerationState = "writing"
    ends: Offsets = field(default_factory=dict)
    """Of one that ended: where processing stood. What is behind them is not read."""
    created_at: datetime | None = None
    draining_since: datetime | None = None
    ended_at: datetime | None = None
    deleted_at: datetime | None = None
    """When its topic was deleted in Kafka."""
    last_commit: int = 0
    """Of one that ended: no commit of its destination with a higher number has any of it."""

    @property
    def name(self) -> str:
        """Return its name in Kafka."""
        return generation_name(self.topic, self.number)


@dataclass(frozen=True, slots=True)
class LogBefore:
    """A write-ahead log as its row has it, before it is opened."""

    name: str
    """The generation that it wrote to, as Kafka names it."""
    state: str


# Decisions


def writing_generation(generations: Sequence[TopicGeneration]) -> TopicGeneration:
    """Return the generation that new messages go to."""
    return next(one for one in generations if one.state == "writing")


def reading_generation(generations: Sequence[TopicGeneration]) -> TopicGeneration:
    """Return the generation that is read: the lowest that has not ended."""
    left = [one for one in generations if one.state != "ended"]
    return min(left, key=lambda one: one.number)


def generation_of_log(
    generations: Sequence[TopicGeneration],
    before: LogBefore | None,
    *,
    empty: bool,
    written: str = "",
) -> TopicGeneration | None:
    """Return which generation a log that is being opened writes to, until it moves on.

    Args:
        generations: of its topic.
        before: the log's row; None: there is none.
        empty: it holds no record.
        written: the generation that its newest record is for, as Kafka names it, where that is to
            decide when there is no row. All that may have to be sent is for that one (I2).

    Returns:
        None: it must not be opened. It holds records, and nobody knows for which generation, or
        it was fenced.
    """
    writing = writing_generation(generations)
    if before is None and written:
        return next((g for g in generations if g.name == written and g.state != "ended"), None)
    if before is None:
        return writing if empty or writing.number == 1 else None
    if before.state in _ENDED_LOGS:
        return None
    if before.state == "closed":  # Kafka has all of it
        return writing
    own = next((one for one in generations if one.name == before.name), writing if empty else None)
    return None if own is None or own.state == "ended" else own


def is_drained(
    generation: TopicGeneration, *, open_logs: int, positions: Offsets, ends: Offsets
) -> bool:
    """Tell whether a generation may end.

    Args:
        generation: which.
        open_logs: that write to it.
        positions: where processing stands.
        ends: of its partitions in Kafka, asked for after the other two can change no more.
    """
    return (
        generation.state == "draining"
        and not open_logs
        and all(positions.get(number, 0) == end for number, end in ends.items())
    )


# In the tracker

_COLUMNS = (
    "topic, generation, partitions, state, ends, created_at, draining_since, ended_at, deleted_at, "
    "last_commit"
)
_FIRST = text(
    "INSERT INTO topic_generations (topic, generation, name) VALUES (:topic, 1, :topic) "
    "ON CONFLICT DO NOTHING"
)
_OF_TOPIC = f"SELECT {_COLUMNS} FROM topic_generations WHERE topic = :topic ORDER BY generation"
_SHARED = text("SELECT FROM topic_generations WHERE topic = :topic ORDER BY generation FOR SHARE")
_ALONE = text("SELECT FROM topic_generations WHERE topic = :topic ORDER BY generation FOR UPDATE")
_SHARED_ONE = text(f"SELECT {_COLUMNS} FROM topic_generations WHERE name = :name FOR SHARE")
_OF_LOG = text("""
SELECT generations.state FROM write_ahead_logs AS logs
JOIN topic_generations AS generations ON generations.name = logs.topic
WHERE logs.wal_id = :wal_id FOR SHARE OF generations
""")
_FOLLOW = text("""
UPDATE write_ahead_logs SET topic = :topic, offsets = :offsets, counted_to = '{}'::jsonb,
  seen_at = clock_timestamp()
WHERE wal_id = :wal_id AND state = 'open'
""").bindparams(bindparam("offsets", type_=JSONB))
_FLIP = text("""
UPDATE topic_generations SET state = 'draining', draining_since = clock_timestamp()
WHERE topic = :topic AND generation = :generation AND state = 'writing'
""")
_OPEN_LOGS = text("""
SELECT count(*) FROM write_ahead_logs WHERE topic = :name AND state = 'open'
""")
_HOLD_CONSUMER = text("SELECT epoch FROM consumers WHERE name = :consumer FOR UPDATE")
_FENCE_CONSUMER = text("""
UPDATE consumers SET epoch = epoch + 1, holder = '' WHERE name = :consumer
""")
_POSITIONS = text("""
SELECT partition, next_offset FROM topic_offsets
WHERE topic = :name AND cluster_id = :cluster_id AND topic_id = :topic_id
""")


def lock_generations(
    connection: Connection, topic: str, *, alone: bool = False
) -> list[TopicGeneration]:
    """Hold a topic's generations until the commit, and return them, the first one first.

    Args:
        connection: a transaction.
        topic: events.<team>.<destination>; one that was never asked about has its first generation.
        alone: nobody else may hold them.
    """
    connection.execute(_FIRST, {"topic": topic})
    connection.execute(_ALONE if alone else _SHARED, {"topic": topic})
    return generations_of(connection, topic)  # what was waited for may have added one


def generations_of(connection: Connection, topic: str) -> list[TopicGeneration]:
    """Return a topic's generations, the first one first; one that is not known has one."""
    rows = connection.execute(text(_OF_TOPIC), {"topic": topic}).mappings()
    return [_generation(row) for row in rows] or [TopicGeneration(topic, 1)]


def all_generations(connection: Connection) -> dict[str, list[TopicGeneration]]:
    """Return {topic: its generations} of the topics of which any were written down."""
    query = text(f"SELECT {_COLUMNS} FROM topic_generations ORDER BY topic, generation")
    found: dict[str, list[TopicGeneration]] = {}
    for row in connection.execute(query).mappings():
        found.setdefault(row["topic"], []).append(_generation(row))
    return found


def live_names(connection: Connection, topics: Collection[str]) -> dict[str, list[str]]:
    """Return {topic: names of its generations that have not ended}, the one that is read first.

    Cost: one statement.
    """
    table = topic_generations.c
    query = select(table.topic, table.name).where(
        table.topic.in_(set(topics)), table.state != "ended"
    )
    found: dict[str, list[str]] = {}
    for row in connection.execute(query.order_by(table.topic, table.generation)):
        found.setdefault(row.topic, []).append(row.name)
    return {topic: found.get(topic, [topic]) for topic in topics}


def names_that_exist(connection: Connection, topics: Collection[str]) -> dict[str, list[str]]:
    """Return {topic: names of its generations that were not deleted in Kafka}."""
    table = topic_generations.c
    query = select(table.topic, table.name).where(
        table.topic.in_(set(topics)), table.deleted_at.is_(None)
    )
    found: dict[str, list[str]] = {}
    for row in connection.execute(query.order_by(table.topic, table.generation)):
        found.setdefault(row.topic, []).append(row.name)
    return {topic: found.get(topic, [topic]) for topic in topics}


def writing_name(tracker: TrackerStore, topic: str) -> str:
    """Return the name of the generation that new messages of a topic go to now."""
    with tracker.transaction() as connection:
        return writing_generation(generations_of(connection, topic)).name


def note_partitions(tracker: TrackerStore, name: str, partitions: int) -> None:
    """Write down how many partitions a topic has, the first time that it is seen.

    More, later, that nobody asked for here: somebody altered it in Kafka.
    """
    topic = base_topic(name)
    with tracker.transaction() as connection:
        table = topic_generations
        connection.execute(_FIRST, {"topic": topic})
        connection.execute(
            update(table)
            .where(table.c.name == name, table.c.partitions == 0)
            .values(partitions=partitions)
        )


def claim_generation(
    connection: Connection,
    topic: str,
    before: LogBefore | None,
    *,
    empty: bool,
    written: str = "",
) -> TopicGeneration | None:
    """Do ``generation_of_log`` in a transaction that writes the log's row (I2)."""
    generations = lock_generations(connection, topic)
    return generation_of_log(generations, before, empty=empty, written=written)


def is_left(tracker: TrackerStore, name: str) -> bool:
    """Tell whether the generation of this name is not the one that is written to any more.

    Cost: one indexed statement.
    """
    query = select(topic_generations.c.state).where(topic_generations.c.name == name)
    with tracker.transaction() as connection:
        return connection.execute(query).scalar() in {"draining", "ended"}


def follow_generation(
    tracker: TrackerStore, wal_id: str, topic: str, ends: Mapping[str, Offsets]
) -> str:
    """Have a log write to the generation that is written to now; return its name.

    To be called once Kafka has all messages of the log, and what they say is committed.

    Args:
        tracker: the books.
        wal_id: of the log.
        topic: any of its generations.
        ends: {name: where it ends}; nothing of the log stands before, in one new to it.

    Raises:
        FencedError: the log was taken over, or settled by name.
    """
    with tracker.transaction() as connection:
        writing = writing_generation(lock_generations(connection, base_topic(topic)))
        offsets = {str(number): end for number, end in ends.get(writing.name, {}).items()}
        asked = {"wal_id": wal_id, "topic": writing.name, "offsets": offsets}
        if connection.execute(_FOLLOW, asked).rowcount != 1:
            raise FencedError(
                f"log {wal_id} was taken over, or settled by name, so it cannot go on with "
                f"{writing.name}; the next run sends what it did not"
            )
    return writing.name


def flip_generation(
    connection: Connection, generations: Sequence[TopicGeneration], *, partitions: int
) -> TopicGeneration:
    """Begin the next generation: the one that is written to drains from now on.

    Args:
        connection: a transaction that holds ``generations`` alone; none of them drains.
        generations: of the topic.
        partitions: of the next one, whose topic is in Kafka already.
    """
    writing = writing_generation(generations)
    made = TopicGeneration(writing.topic, writing.number + 1, partitions)
    connection.execute(_FLIP, {"topic": writing.topic, "generation": writing.number})
    connection.execute(
        insert(topic_generations).values(
            topic=made.topic, generation=made.number, name=made.name, partitions=partitions
        )
    )
    return made


def end_generation(
    connection: Connection,
    generation: TopicGeneration,
    *,
    place: tuple[str, str],
    ends: Offsets,
) -> bool:
    """End a generation, if it is drained; False: it is not yet.

    Args:
        connection: a transaction that holds the topic's generations alone.
        generation: as they were read there.
        place: (cluster id, topic id), by which the ledger knows it.
        ends: of its partitions, asked for since.
    """
    asked = {"name": generation.name, "cluster_id": place[0], "topic_id": place[1]}
    consumer = {"consumer": f"processing/{generation.name}"}
    connection.execute(_HOLD_CONSUMER, consumer)  # waits for a batch that commits
    open_logs = int(connection.execute(_OPEN_LOGS, asked).scalar_one())
    rows = connection.execute(_POSITIONS, asked)
    positions = {int(row.partition): int(row.next_offset) for row in rows}
    if not is_drained(generation, open_logs=open_logs, positions=positions, ends=ends):
        return False
    connection.execute(_FENCE_CONSUMER, consumer)
    table = topic_generations
    asked_of = (table.c.name == generation.name, table.c.state == "draining")
    ended = (
        update(table)
        .where(*asked_of)
        .values(
            state="ended",
            ended_at=func.clock_timestamp(),
            ends={str(number): end for number, end in ends.items()},
            last_commit=last_commit_of_topic(generation.topic),
        )
    )
    if connection.execute(ended).rowcount != 1:
        raise StopError(f"{generation.name} was not held while it was ended")
    return True


def ended_at(tracker: TrackerStore, name: str) -> Offsets | None:
    """Return where a generation ended, by its name; None: it has not, or is not known."""
    query = select(topic_generations.c.ends).where(topic_generations.c.name == name)
    with tracker.transaction() as connection:
        ends = connection.execute(query).scalar()
    return None if ends is None else {int(number): int(end) for number, end in ends.items()}


def refuse_beyond(connection: Connection, name: str, counted_to: Offsets) -> None:
    """Refuse to count what was sent to a generation behind its end (I4); holds its row shared.

    Raises:
        RetryError: it has ended meanwhile, and no further than these offsets.
    """
    row = connection.execute(_SHARED_ONE, {"name": name}).mappings().first()
    if row is None or row["state"] != "ended":
        return
    ends = _generation(row).ends
    if any(end > ends.get(number, 0) for number, end in counted_to.items()):
        raise RetryError(f"{name} ended meanwhile; what was sent there is counted anew")


def refuse_when_left_behind(connection: Connection, wal_id: str) -> None:
    """Refuse to mark what a fenced log has sent, if nobody reads it any more (I4).

    Raises:
        FencedError: the generation that it wrote to has ended.
    """
    if connection.execute(_OF_LOG, {"wal_id": wal_id}).scalar() == "ended":
        raise FencedError(
            f"log {wal_id} was settled by name, and the generation of the topic that it wrote to "
            "has ended since: what it sent last is not marked, and the next run sends it again"
        )


def mark_deleted(tracker: TrackerStore, generation: TopicGeneration) -> None:
    """Write down that a generation's topic is gone from Kafka."""
    table = topic_generations
    own = (table.c.topic == generation.topic, table.c.generation == generation.number)
    with tracker.transaction() as connection:
        connection.execute(update(table).where(*own).values(deleted_at=func.clock_timestamp()))


def _generation(row: RowMapping) -> TopicGeneration:
    times = ("created_at", "draining_since", "ended_at", "deleted_at")
    return TopicGeneration(
        row["topic"],
        int(row["generation"]),
        int(row["partitions"]),
        row["state"],
        {int(number): int(end) for number, end in (row["ends"] or {}).items()},
        **{name: row[name] for name in times},
        last_commit=int(row["last_commit"]),
    )
