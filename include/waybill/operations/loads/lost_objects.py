"""Staged objects that are gone from the store, or damaged: set apart, told, made again from Kafka.

A load that comes to one goes on without it: the row's state is ``lost`` from the transaction that
acknowledges the load, with a notice and a line in the audit log. Its events are still in Kafka:
they are processed again and staged under a commit number of their own, which is loaded like any
other. Their rows were counted when they were processed, so that the new commit counts only what is
on its way to the destination. See docs/adr/0010.

Invariants
  I1  A lost object is made again once: one transaction moves its row from ``lost`` to ``deleted``
      by compare-and-set and names the new object. A SIGKILL before it leaves an object that no row
      names.
  I2  Only what gives the same number of rows again is taken: the pipeline may have another version
      by now, and events that parked then would be there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, func, select, update

from waybill.access import Decision
from waybill.errors import InputError, StopError, WaybillError
from waybill.ledger.commit import next_commit_number, write_counts
from waybill.notices import write_notice
from waybill.operations.loads.states import audit_destination, pipelines_into
from waybill.operations.topic_stops import stops_in
from waybill.stages import ChainResult
from waybill.storage import KafkaLog, ObjectStore, TrackerStore
from waybill.storage.tracker.columns import text_value
from waybill.storage.tracker.tables import batches, staged_objects, topic_offsets

Run = Callable[[Sequence[bytes], datetime], ChainResult]
"""Runs events, in order, through the stages as they were at a time."""
_LOADER = "loading"
_RECOVERY = "recovery"
_LONGEST = 2000


@dataclass(frozen=True, slots=True)
class LostObject:
    """One staged object that is lost."""

    key: str
    destination: str
    commit_number: int
    rows: int
    problem: str
    """Why it is lost; why it could not be made again."""
    committed_at: datetime
    offsets: list[list[Any]] | None
    """[topic, partition, first offset, offset after the last]; None: of an older release."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self) | {"committed_at": self.committed_at.isoformat()}


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a run made again."""

    recovered: int = 0
    rows: int = 0
    left: int = 0
    """Lost objects that stay so; their ``problem`` says why."""

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
    for key, problem in sorted(lost.items()):
        moved = connection.execute(
            update(staged_objects)
            .where(staged_objects.c.key == key, staged_objects.c.state == "staged")
            .values(state="lost", problem=text_value(problem, longest=_LONGEST))
            .returning(staged_objects.c.commit_number, staged_objects.c.rows)
        ).first()
        if moved is None:
            continue
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


def lost_objects(tracker: TrackerStore, destination: str | None = None) -> list[LostObject]:
    """Return the staged objects that are lost, in order of their commits."""
    table = staged_objects.c
    query = select(*[table[name] for name in LostObject.__slots__]).where(table.state == "lost")
    if destination is not None:
        query = query.where(table.destination == destination)
    with tracker.transaction() as connection:
        rows = connection.execute(query.order_by(table.destination, table.commit_number))
        return [LostObject(*row) for row in rows]


def recover(tracker: TrackerStore, objects: ObjectStore, log: KafkaLog, run: Run) -> Recovery:
    """Make lost staged objects again from their events in Kafka. Safe to run twice at once.

    Raises:
        RetryError: Kafka, the store or the tracker is away.
    """
    recovered = rows = left = 0
    for item in lost_objects(tracker):
        try:
            result = run(_values(tracker, log, item), item.committed_at)
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
    return Recovery(recovered, rows, left)


class LeftError(WaybillError):
    """It cannot be made again."""


class WaitingError(LeftError):
    """It cannot be made again before its topic is settled."""


def _values(tracker: TrackerStore, log: KafkaLog, item: LostObject) -> list[bytes]:
    if not item.offsets:
        raise LeftError("it is of an older release: its offsets are not known")
    check_in_log(tracker, log, item.offsets, item.committed_at)
    values: list[bytes] = []
    for topic, partition, start, end in item.offsets:
        values += log.read(topic, {partition: (start, end)})
    return values


def check_in_log(
    tracker: TrackerStore, log: KafkaLog, offsets: Sequence[Sequence[Any]], committed_at: datetime
) -> None:
    """Check that Kafka still has the records that a commit was made of.

    Args:
        tracker: knows since when a topic has the log that it has.
        log: Kafka.
        offsets: [topic, partition, first offset, offset after the last, ...] each.
        committed_at: of that commit.

    Raises:
        WaitingError: a topic is stopped.
        LeftError: it has not; the log was cut, or made anew, since: others stand there now.
        RetryError: Kafka or the tracker is away.
    """
    _check_same_log(tracker, offsets, committed_at)
    for topic, partition, start, end, *_ in offsets:
        try:
            info = log.describe(topic)
        except StopError as error:
            raise LeftError(f"{error}: Kafka does not have its events any more") from error
        low, high = log.watermarks(info).get(partition, (0, 0))
        if low > start or high < end:
            raise LeftError(
                f"{topic}/{partition} has offsets {low} to {high}, it was made of {start} to "
                f"{end}: Kafka does not have its events any more"
            )


def _check_same_log(
    tracker: TrackerStore, offsets: Sequence[Sequence[Any]], committed_at: datetime
) -> None:
    table = topic_offsets.c
    with tracker.transaction() as connection:
        for topic, partition, *_ in offsets:
            if stops_in(connection, topic):
                raise WaitingError(f"{topic} is stopped: `waybill topics settle {topic}` first")
            newer = select(table.known_since).where(
                table.topic == topic,
                table.partition == partition,
                table.known_since > committed_at,
            )
            if since := connection.execute(newer).scalar():
                raise LeftError(
                    f"{topic}/{partition} has another log since {since:%Y-%m-%d %H:%M} UTC, when "
                    "it was settled: Kafka does not have its events any more"
                )


def _note_problem(tracker: TrackerStore, item: LostObject, problem: str) -> None:
    if item.problem.endswith(problem):
        return
    with tracker.transaction() as connection:
        connection.execute(
            update(staged_objects)
            .where(staged_objects.c.key == item.key, staged_objects.c.state == "lost")
            .values(problem=text_value(f"{item.problem}; {problem}", longest=_LONGEST))
        )
        audit_destination(
            connection, _RECOVERY, "not_recovered", item.destination,
            object_key=item.key, problem=problem,
        )  # fmt: skip


def _replace(
    tracker: TrackerStore, objects: ObjectStore, item: LostObject, result: ChainResult
) -> bool:
    counts = [
        (pipeline_id, [row for row in packed if row[1] == "staged"])
        for pipeline_id, packed in result.counts.by_pipeline()
    ]
    batch_id, body = uuid4(), result.staged.finish()
    key = f"{item.key.rpartition('/')[0]}/{batch_id}.wbs"
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
        number = next_commit_number(connection, item.destination)
        connection.execute(
            staged_objects.insert().values(
                key=key,
                destination=item.destination,
                commit_number=number,
                rows=item.rows,
                bytes=len(body),
                offsets=item.offsets,
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


def settle_lost(tracker: TrackerStore, destination: str, decision: Decision) -> list[LostObject]:
    """Give lost objects up by name: their rows were had otherwise, or are not wanted.

    Raises:
        InputError: none is lost.
    """
    why = decision.require_why()
    found = lost_objects(tracker, destination)
    if not found:
        raise InputError(f"destination {destination!r} has no lost object")
    with tracker.transaction() as connection:
        connection.execute(
            update(staged_objects)
            .where(
                staged_objects.c.key.in_([one.key for one in found]),
                staged_objects.c.state == "lost",
            )
            .values(state="deleted", loaded_at=func.clock_timestamp())
        )
        said = {"why": why, **decision.beside_who()}
        audit_destination(
            connection, decision.who, "settle_lost_objects", destination,
            keys=[one.key for one in found], rows=sum(one.rows for one in found), **said,
        )  # fmt: skip
    return found


__all__ = [
    "LeftError",
    "LostObject",
    "Recovery",
    "Run",
    "WaitingError",
    "check_in_log",
    "lost_objects",
    "note_lost",
    "recover",
    "settle_lost",
]
