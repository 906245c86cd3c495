"""Staged objects that are missing or damaged: set aside, reported, made again from Kafka.

A load that comes to one goes on without it: the row's state is ``lost`` from the transaction that
acknowledges the load, with a notice and a line in the audit log. Its events are still in Kafka:
they are processed again and staged under a commit number of their own, which is loaded like any
other. Their rows were counted when they were processed, so that the new commit counts only what is
on its way to the destination. What cannot be made again is ``unrecoverable`` in the balance, also
after it was given up by name. See docs/adr/0010.

Invariants
  I1  A lost object is made again once: one transaction moves its row from ``lost`` to ``deleted``
      by compare-and-set and names the new object. A SIGKILL before it leaves an object that no row
      names; its key says of which lost one it is made, and while that is lost the refresh does not
      delete it: who froze between the two names an object that is there.
  I2  Only what gives the same number of rows again is taken: the pipeline may have another version
      by now, and events that parked then would be there twice.
  I3  The ledger's rows ``lost`` are what commits staged less what came in at the destination, and
      less what was made again: each is written in the transaction that moves the object's row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import uuid4

from sqlalchemy import Connection, func, or_, select, text, update

from waybill.access import Decision
from waybill.errors import InputError, StopError, WaybillError
from waybill.ledger import LOST, PackedCounts, next_commit_number, read_minutes, write_counts
from waybill.loading.states import audit_destination, pipelines_into
from waybill.notices import write_notice
from waybill.parking import new_staged_again_key
from waybill.processing import ChainResult
from waybill.storage import KafkaLog, ObjectStore, TrackerStore
from waybill.storage.tracker import (
    COUNT_COLUMNS,
    batches,
    staged_objects,
    text_value,
    topic_offsets,
    topic_stops,
)
from waybill.topics import ALL_PARTITIONS, stops_in

Run = Callable[[Sequence[bytes], str, datetime], ChainResult]
"""Runs events, in order, through the stages as they were at a time."""
_LOADER = "loading"
_RECOVERY = "recovery"
_LONGEST = 2000
_LEFT_OUT = text("""
WITH rows AS (
  SELECT ledger.pipeline_id, row->>0 AS event_name, (row->>2)::int AS minute,
    CASE row->>1 WHEN 'staged' THEN 1 ELSE -1 END AS sign,
    (row->3->>0)::bigint AS in_first, (row->3->>1)::bigint AS in_replayed
  FROM batches JOIN ledger
    ON reference IN (batches.id::text, 'load:' || destination || ':' || commit_number),
    jsonb_array_elements(counts) AS row
  WHERE destination = :destination AND commit_number = :number
    AND row->>1 IN ('staged', 'destination'))
SELECT pipeline_id, event_name, minute, sum(sign * in_first), sum(sign * in_replayed)
FROM rows GROUP BY 1, 2, 3
HAVING sum(sign * in_first) <> 0 OR sum(sign * in_replayed) <> 0 ORDER BY 1, 2, 3
""")


@dataclass(frozen=True, slots=True)
class LostObject:
    """One staged object that is lost."""

    key: str
    destination: str
    commit_number: int
    rows: int
    problem: str
    """Why it is lost."""
    not_recovered: str
    """Why it cannot be made again; empty: that was not tried yet, or waits."""
    committed_at: datetime
    offsets: list[list[Any]] | None
    """[topic, partition, first offset, offset after the last]; None: of an older release."""

    @property
    def unrecoverable(self) -> int:
        """How many rows cannot be made again."""
        return self.rows if self.not_recovered else 0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        more = {"committed_at": self.committed_at.isoformat(), "unrecoverable": self.unrecoverable}
        return asdict(self) | more


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a run made again."""

    recovered: int = 0
    rows: int = 0
    left: int = 0
    """Lost objects that stay so; their ``not_recovered`` says why, where they do not wait."""

    def to_json(self) -> dict[str, int]:
        """Return it as JSON."""
        return asdict(self)


def note_lost(connection: Connection, destination: str, lost: Mapping[str, str]) -> None:
    """Set staged objects apart, in the transaction that acknowledges their commits without them.

    Args:
        connection: of the loader, under its lease.
        destination: whose objects.
        lost: key to what is wrong with it.
    """
    numbers = set[int]()
    for key, problem in sorted(lost.items()):
        moved = connection.execute(
            update(staged_objects)
            .where(staged_objects.c.key == key, staged_objects.c.state == "staged")
            .values(state="lost", problem=text_value(problem, longest=_LONGEST))
            .returning(staged_objects.c.commit_number, staged_objects.c.rows)
        ).first()
        if moved is None:
            continue
        numbers.add(int(moved[0]))
        detail = {"object_key": key, "commit": int(moved[0]), "rows": int(moved[1])}
        audit_destination(
            connection, _LOADER, "staged_object_lost", destination, problem=problem, **detail
        )
        for pipeline_id in pipelines_into(connection, destination):
            write_notice(
                connection,
                kind="missing",
                pipeline_id=pipeline_id,
                partition_id=None,
                **detail,
                destination=destination,
                message=problem,
                see="waybill destination lost",
            )
    for number in sorted(numbers):
        write_counts(
            connection, f"lost:{destination}:{number}", _left_out(connection, destination, number)
        )


def _left_out(connection: Connection, destination: str, number: int) -> PackedCounts:
    """Return what a commit staged, and what did not come in with its load."""
    packed: dict[str, list[list[Any]]] = {}
    asked = {"destination": destination, "number": number}
    for pipeline_id, name, minute, *counts in connection.execute(_LEFT_OUT, asked):
        packed.setdefault(pipeline_id, []).append(_lost_row(name, minute, *map(int, counts)))
    return list(packed.items())


def _lost_row(event_name: str, minute: int, in_first: int, in_replayed: int) -> list[Any]:
    counts = [0] * len(COUNT_COLUMNS)
    counts[COUNT_COLUMNS.index("in_first")] = in_first
    counts[COUNT_COLUMNS.index("in_replayed")] = in_replayed
    return [event_name, LOST, minute, counts]


def lost_objects(tracker: TrackerStore, destination: str | None = None) -> list[LostObject]:
    """Return the staged objects that are lost, in order of their commits."""
    table = staged_objects.c
    query = select(*[table[name] for name in LostObject.__slots__]).where(table.state == "lost")
    if destination is not None:
        query = query.where(table.destination == destination)
    with tracker.transaction() as connection:
        rows = connection.execute(query.order_by(table.destination, table.commit_number))
        return [LostObject(*row) for row in rows]


def recover_lost(
    tracker: TrackerStore, objects: ObjectStore, log: KafkaLog, run: Run, *, again: bool = False
) -> RecoveryReport:
    """Make lost staged objects again from their events in Kafka. Safe to run twice at once.

    Args:
        tracker: the books.
        objects: the bucket.
        log: Kafka.
        run: runs events through the stages as they were.
        again: try also those that could not be made again before.

    Raises:
        RetryError: Kafka, the store or the tracker is away.
    """
    recovered = rows = left = 0
    for item in lost_objects(tracker):
        if item.not_recovered and not again:
            left += 1
            continue
        try:
            values, topic = _values(tracker, log, item)
            result = run(values, topic, item.committed_at)
        except WaitingError:
            left += 1
            continue
        except LeftError as error:
            _note_problem(tracker, item, str(error))
            left += 1
            continue
        if result.staged.rows != item.rows:
            _note_problem(
                tracker,
                item,
                f"its events give {result.staged.rows} rows now, not {item.rows}: the pipeline or "
                "its mapping is another one",
            )
            left += 1
        elif _replace(tracker, objects, item, result):
            recovered, rows = recovered + 1, rows + item.rows
    return RecoveryReport(recovered, rows, left)


class LeftError(WaybillError):
    """It cannot be made again."""


class WaitingError(LeftError):
    """It cannot be made again before its topic is settled."""


def _values(tracker: TrackerStore, log: KafkaLog, item: LostObject) -> tuple[list[bytes], str]:
    """Return the messages of a staged object, in order, and the topic that they stood in."""
    if not item.offsets:
        raise LeftError("it is of an older release: its offsets are not known")
    check_in_log(tracker, log, item.offsets, item.committed_at, item.commit_number)
    values: list[bytes] = []
    for topic, partition, start, end in item.offsets:
        values += log.read(topic, {partition: (start, end)})
    return values, str(item.offsets[0][0])


def check_in_log(
    tracker: TrackerStore,
    log: KafkaLog,
    offsets: Sequence[Sequence[Any]],
    committed_at: datetime,
    commit_number: int,
) -> None:
    """Check that Kafka still has the records that a commit was made of.

    Args:
        tracker: knows since when a topic has the log that it has.
        log: Kafka.
        offsets: [topic, partition, first offset, offset after the last, ...] each.
        committed_at: of that commit.
        commit_number: its own, of the topic's destination.

    Raises:
        WaitingError: a topic is stopped.
        LeftError: it has not; the log was cut, or made anew, since: others stand there now.
        RetryError: Kafka or the tracker is away.
    """
    for kept in kept_ranges(tracker, log, offsets, committed_at, commit_number):
        if kept.problem:
            raise LeftError(kept.problem)


class KeptRange(NamedTuple):
    """What Kafka still has of a range of offsets that a commit was made of."""

    topic: str
    partition: int
    start: int
    end: int
    """After the last record that is there as it was; ``start``: none is."""
    problem: str
    """What of it is gone, and why; empty: nothing."""


def kept_ranges(
    tracker: TrackerStore,
    log: KafkaLog,
    offsets: Sequence[Sequence[Any]],
    committed_at: datetime,
    commit_number: int,
) -> list[KeptRange]:
    """Return what Kafka still has of what a commit was made of; arguments as `check_in_log`.

    Where a log was cut since, the records below the cut are what they were.

    Raises:
        WaitingError: a topic is stopped.
        RetryError: Kafka or the tracker is away.
    """
    ranges = []
    for topic, partition, start, end, *_ in offsets:
        changed = _changed(tracker, topic, partition, committed_at, commit_number)
        try:
            info = log.describe(topic)
        except StopError as error:
            words = f"{error}: Kafka does not have its events any more"
            ranges.append(KeptRange(topic, partition, start, start, words))
            continue
        below = end if changed is None else min(end, changed.same_below(info.topic_id))
        low, high = log.watermarks(info).get(partition, (0, 0))
        if low > start or high < below:
            words = (
                f"{topic}/{partition} has offsets {low} to {high}, it was made of {start} to "
                f"{end}: Kafka does not have its events any more"
            )
            ranges.append(KeptRange(topic, partition, start, start, words))
            continue
        words = ""
        if changed is not None and below < end:
            words = (
                f"{topic}/{partition} has another log since {changed.since:%Y-%m-%d %H:%M} UTC, "
                f"when it was settled, from offset {max(start, below)} on: Kafka does not have its "
                "events any more"
            )
        ranges.append(KeptRange(topic, partition, start, max(start, below), words))
    return ranges


class _Change(NamedTuple):
    """A partition's log was settled since a commit."""

    since: datetime
    stops: Sequence[Any]
    """All stops of it that were settled."""

    def same_below(self, topic_id: str) -> int:
        """Return the offset below which no settled stop says that records are others."""
        own = [stop for stop in self.stops if stop.settlement.get("topic_id") == topic_id]
        cuts = [stop.detail.get("cut_at") for stop in own if stop.kind == "cut"]
        if not cuts or None in cuts or any(stop.kind == "recreated" for stop in own):
            return 0
        return min(int(cut) for cut in cuts)


def _changed(
    tracker: TrackerStore, topic: str, partition: int, committed_at: datetime, commit_number: int
) -> _Change | None:
    """Return how a partition's log changed since a commit; None: it did not.

    Raises:
        WaitingError: the topic is stopped.
    """
    table, stops = topic_offsets.c, topic_stops.c
    newer = select(table.known_since).where(
        table.topic == topic,
        table.partition == partition,
        or_(table.known_since > committed_at, table.known_since_commit >= commit_number),
    )
    settled = select(stops.kind, stops.detail, stops.settlement).where(
        stops.topic == topic,
        stops.partition.in_((partition, ALL_PARTITIONS)),
        stops.settled_at.is_not(None),
    )
    with tracker.transaction() as connection:
        if stops_in(connection, topic):
            raise WaitingError(f"{topic} is stopped: `waybill topics settle {topic}` first")
        since = connection.execute(newer).scalar()
        if since is None:
            return None
        return _Change(since, connection.execute(settled).all())


def _note_problem(tracker: TrackerStore, item: LostObject, problem: str) -> None:
    """Keep why an object cannot be made again, and have its owners told, once."""
    text = text_value(problem, longest=_LONGEST)
    detail = {"commit": item.commit_number, "unrecoverable": item.rows}
    with tracker.transaction() as connection:
        changed = connection.execute(
            update(staged_objects)
            .where(
                staged_objects.c.key == item.key,
                staged_objects.c.state == "lost",
                staged_objects.c.not_recovered != text,
            )
            .values(not_recovered=text)
        )
        if not changed.rowcount:
            return
        audit_destination(
            connection, _RECOVERY, "not_recovered", item.destination,
            object_key=item.key, problem=text, **detail,
        )  # fmt: skip
        for pipeline_id in pipelines_into(connection, item.destination):
            write_notice(
                connection,
                kind="missing",
                pipeline_id=pipeline_id,
                partition_id=None,
                object=item.key,
                **detail,
                destination=item.destination,
                message=text,
                see="waybill destination lost",
            )


def _replace(
    tracker: TrackerStore, objects: ObjectStore, item: LostObject, result: ChainResult
) -> bool:
    counts = [
        (pipeline_id, [row for row in packed if row[1] == "staged"])
        for pipeline_id, packed in result.counts.by_pipeline()
    ]
    batch_id, body = uuid4(), result.staged.finish()
    key = new_staged_again_key(item.key)
    objects.put(key, body)
    with tracker.transaction() as connection:
        moved = connection.execute(
            update(staged_objects)
            .where(staged_objects.c.key == item.key, staged_objects.c.state == "lost")
            .values(state="deleted", loaded_at=func.clock_timestamp())
        )
        if moved.rowcount != 1:
            return False  # somebody else did
        write_counts(connection, str(batch_id), counts)
        write_counts(connection, f"found:{item.key}", _found_again(connection, counts))
        number = next_commit_number(connection, item.destination)
        connection.execute(
            staged_objects.insert().values(
                key=key,
                destination=item.destination,
                commit_number=number,
                rows=item.rows,
                bytes=len(body),
                offsets=item.offsets,
                row_bytes=result.staged.row_bytes,
            )
        )
        connection.execute(
            batches.insert().values(
                id=batch_id,
                consumer=f"{_RECOVERY}/{item.destination}",
                epoch=0,
                destination=item.destination,
                commit_number=number,
                offsets=[],
            )
        )
        audit_destination(
            connection, _RECOVERY, "staged_object_recovered", item.destination,
            object_key=item.key, new_key=key, commit=item.commit_number, new_commit=number,
            rows=item.rows,
        )  # fmt: skip
    return True


def _found_again(connection: Connection, counts: PackedCounts) -> PackedCounts:
    """Return what takes staged rows out of what is lost: of each minute no more than there is.

    An earlier release did not count what was lost.
    """
    known = read_minutes(
        connection, {(one, row[0], row[2]) for one, packed in counts for row in packed}
    )
    found: list[tuple[str, list[list[Any]]]] = []
    for pipeline_id, packed in counts:
        rows = []
        for name, _, minute, numbers in packed:
            lost = known[pipeline_id, name, minute].stage("destination")
            least = (
                min(numbers[0], lost.unrecoverable),
                min(numbers[1], lost.unrecoverable_replayed),
            )
            if any(least):
                rows.append(_lost_row(name, minute, -least[0], -least[1]))
        if rows:
            found.append((pipeline_id, rows))
    return found


def settle_lost(tracker: TrackerStore, destination: str, decision: Decision) -> list[LostObject]:
    """Give lost objects up by name: their rows were had otherwise, or are not wanted.

    They stay unrecoverable in the balance.

    Raises:
        InputError: none is lost.
    """
    why = decision.require_why()
    lost = lost_objects(tracker, destination)
    if not lost:
        raise InputError(f"destination {destination!r} has no lost object")
    with tracker.transaction() as connection:
        connection.execute(
            update(staged_objects)
            .where(
                staged_objects.c.key.in_([one.key for one in lost]),
                staged_objects.c.state == "lost",
            )
            .values(state="deleted", loaded_at=func.clock_timestamp())
        )
        said = {"why": why, **decision.beside_who()}
        audit_destination(
            connection, decision.who, "settle_lost_objects", destination,
            keys=[one.key for one in lost], rows=sum(one.rows for one in lost), **said,
        )  # fmt: skip
    return lost


__all__ = [
    "KeptRange",
    "LeftError",
    "LostObject",
    "RecoveryReport",
    "Run",
    "WaitingError",
    "check_in_log",
    "kept_ranges",
    "lost_objects",
    "note_lost",
    "recover_lost",
    "settle_lost",
]
