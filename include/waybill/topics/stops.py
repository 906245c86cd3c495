"""Topics that processing does not read until a person settles them.

A topic is held against the ledger at each start of its consumer, and whenever a leader changed
while a batch was read. Where the log is not the one that the ledger knows, the stop is written into
the tracker: it stays, whatever the log does next, until ``settle`` ends it by name.

recreated  the topic has another id, or this is another cluster
deleted    the log begins above the ledger: events were deleted unread
cut        the log lost its tail, and may have grown again since
hole       offsets without a record, amid those that were read

How a cut log is known: the last record that was read is another one (its timestamp and the digest
of its value differ), or a record below where the log had ended is of a later leader epoch than that
log. Where no record stands there (a transaction's marker, or it was compacted), the leader is asked
how far the log of that epoch reaches. Where it was cut: the first record of a later epoch, or,
below the ledger, with a timestamp after that of the last record that was read.

Settling moves positions in the transaction that ends the stop and writes the audit log. What dies
before it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from waybill.access import Decision, write_audit
from waybill.deployment import active_heads
from waybill.errors import InputError, SettleError
from waybill.ledger import LastRead, TopicPosition, last_commit_of_topic, read_positions
from waybill.notices import write_notice
from waybill.pipelines import base_topic, topic_of
from waybill.storage import KafkaLog, LogRecord, RecordReader, TopicInfo, TrackerStore
from waybill.storage.tracker import topic_offsets, topic_stops
from waybill.topics.request import SettleRequest

ALL_PARTITIONS = -1
"""As a partition: all of the topic's."""


@dataclass(frozen=True, slots=True)
class LogFault:
    """One way in which a log is not the one that the ledger knows."""

    kind: str
    """recreated, deleted, cut or hole."""
    partition: int
    words: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    """Of a cut: ``cut_at`` (None: cannot be told), ``unread`` (the events that were lost unread);
    of ``deleted``: ``begins_at``, ``unread``; of a hole: ``missing``, [first, after] pairs; of
    ``recreated``: ``ledger``, the rows that the ledger has."""


@dataclass(frozen=True, slots=True)
class TopicStop:
    """A topic, or one of its partitions, that is not read."""

    id: int
    topic: str
    partition: int
    kind: str
    words: str
    detail: Mapping[str, Any]
    found_at: datetime
    settled_at: datetime | None
    settled_by: str
    settlement: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        moments = {
            name: moment and moment.isoformat()
            for name in ("found_at", "settled_at")
            for moment in [getattr(self, name)]
        }
        return {**asdict(self), **moments}


@dataclass(frozen=True, slots=True)
class Step:
    """What settling does about one stop."""

    stop_id: int
    kind: str
    partition: int
    words: str
    """What it will do, for people."""
    move: tuple[int, int] | None = None
    """The position, from and to, alike where only ``last_read`` is written; None: it is left."""
    lost: int = 0
    """Events that Kafka had and that nobody read, as far as is known."""
    missing: tuple[tuple[int, int], ...] = ()
    """Offsets that are settled as having no record, as (first, after)."""
    last_read: LastRead | None = None
    """By what the log is known from then on."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """All that settling a topic would do."""

    topic: TopicInfo
    steps: tuple[Step, ...]
    pipelines: tuple[str, ...]
    """Names of the pipelines that write to the topic."""

    @property
    def lost(self) -> int:
        """Return the events that were lost unread, as far as is known."""
        return sum(step.lost for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "topic": self.topic.name,
            "lost": self.lost,
            "pipelines": list(self.pipelines),
            "steps": [asdict(step) for step in self.steps],
        }


def examine(
    topic: TopicInfo, known: Mapping[tuple[str, str], Mapping[int, TopicPosition]], log: KafkaLog
) -> list[LogFault]:
    """Hold a topic's log against the ledger; empty: it is the log that the ledger knows.

    Args:
        topic: as the cluster knows it now.
        known: as ``read_positions`` gives it.
        log: where it is.

    Cost: two requests, and one or two small reads a partition (20 ms each); half a second more
    where the log ended with a transaction's marker.

    Raises:
        RetryError: Kafka does not answer.
    """
    own = (topic.cluster_id, topic.topic_id)
    if others := {key: rows for key, rows in known.items() if key != own}:
        return [_recreated(topic, others)]
    positions = {n: TopicPosition(0) for n in range(topic.partitions)} | dict(known.get(own, {}))
    marks = log.watermarks(topic)
    reader = log.reader(topic.name)
    try:
        partitions = [
            _PartitionLog(topic.name, number, *marks[number], position, reader)
            for number, position in sorted(positions.items())
        ]
        return [
            fault for fault in (partition.fault() for partition in partitions) if fault is not None
        ]
    finally:
        reader.close()


def _recreated(
    topic: TopicInfo, others: Mapping[tuple[str, str], Mapping[int, TopicPosition]]
) -> LogFault:
    rows: list[list[Any]] = [
        [cluster, topic_id, number, at.next_offset, _unread(at)]
        for (cluster, topic_id), found in sorted(others.items())
        for number, at in sorted(found.items())
    ]
    ids = sorted({f"{topic_id} of cluster {cluster}" for cluster, topic_id in others})
    unread = sum(row[4] for row in rows)
    words = (
        f"topic {topic.name!r} is not the one the ledger knows: its id is {topic.topic_id} of "
        f"cluster {topic.cluster_id}, the ledger's is {', '.join(ids)}: it was deleted and created "
        "again, or this is another cluster. What was unread in the old one is gone"
    )
    if unread:
        words += f": {_events(unread)} at least"
    return LogFault("recreated", ALL_PARTITIONS, words, {"ledger": rows, "unread": unread})


def _events(number: int, one: str = "", many: str = "") -> str:
    """Return how many events, and the words that follow one of them, or many."""
    return f"{number:,} {f'event {one}' if number == 1 else f'events {many}'}".rstrip()


def _acknowledged(number: int) -> str:
    return _events(number, "that Kafka had acknowledged is", "that Kafka had acknowledged are")


def _unread(at: TopicPosition) -> int:
    return max(0, at.last_read.log_end - at.next_offset) if at.last_read else 0


@dataclass(frozen=True, slots=True)
class _PartitionLog:
    """One partition as it is, beside what the ledger says of it."""

    topic: str
    number: int
    low: int
    high: int
    at: TopicPosition
    reader: RecordReader

    def fault(self) -> LogFault | None:
        place, position = f"{self.topic}/{self.number}", self.at.next_offset
        if self.low > position:
            gone = self.low - position
            words = (
                f"{place} begins at offset {self.low:,}, the ledger stands at {position:,}: "
                f"{_events(gone, 'was', 'were')} deleted unread"
            )
            return LogFault("deleted", self.number, words, {"begins_at": self.low, "unread": gone})
        if not self._is_cut():
            return None
        cut_at = self._cut_at()
        unread = 0 if cut_at is None else max(0, self._end - max(cut_at, position))
        words = f"{place} was cut: {self._words(cut_at)}"
        if unread:
            words += f"; {_acknowledged(unread)} gone unread"
        return LogFault("cut", self.number, words, {"cut_at": cut_at, "unread": unread})

    @property
    def _end(self) -> int:
        """Return how far the log is known to have reached."""
        last = self.at.last_read
        return max(self.at.next_offset, last.log_end if last else 0)

    def _words(self, cut_at: int | None) -> str:
        stands = f"the ledger stands at {self.at.next_offset:,}, the log ends at {self.high:,}"
        if cut_at is None:
            return f"{stands}, and holds other records, from an unknown offset on"
        fresh = max(0, min(self.high, self.at.next_offset) - cut_at)
        words = f"{stands}; from offset {cut_at:,} on it lost what it held"
        return f"{words}, and {fresh:,} new events there were never read" if fresh else words

    def _is_cut(self) -> bool:
        last = self.at.last_read
        if self.high < self._end:
            return True
        if last is None:
            return False
        if last.offset >= self.low and self._is_other(
            last.offset, last, lambda record: not _is_same(record, last)
        ):
            return True
        tail = last.log_end - 1
        if last.leader_epoch < 0 or tail <= last.offset or tail < self.low:
            return False
        return self._is_other(tail, last, lambda record: record.leader_epoch > last.leader_epoch)

    def _is_other(self, offset: int, last: LastRead, differs: Callable[[LogRecord], bool]) -> bool:
        """Tell whether a log lost what it had at an offset.

        Where no record stands there, it is a transaction's marker, or was compacted, if the log of
        that time still reaches as far as it did.
        """
        record = self.reader.at(self.number, offset)
        if record is not None:
            return differs(record)
        epoch = last.leader_epoch
        return epoch < 0 or not self.reader.reaches(self.number, last.log_end, epoch)

    def _cut_at(self) -> int | None:
        """Return the first offset that lost its record; None: it cannot be told."""
        last = self.at.last_read
        if last is None:
            return min(self.high, self.at.next_offset)
        read_until = last.offset + 1

        def is_later(record: LogRecord) -> bool:
            return 0 <= last.leader_epoch < record.leader_epoch

        def is_new(record: LogRecord) -> bool:
            return is_later(record) or record.at_ms > last.at_ms

        found = self._first(self.low, min(self.high, read_until), is_new)
        if found is None and self.high < read_until:
            return self.high
        if found is None and _is_same(self.reader.at(self.number, last.offset), last):
            found = self._first(read_until, min(self.high, self._end), is_later)
            return self.high if found is None else found
        return found

    def _first(self, start: int, end: int, wanted: Callable[[LogRecord], bool]) -> int | None:
        """Return the first offset whose record is wanted, as all after it are; None: there is none.

        Cost: a small read for each halving of the range.
        """
        low, high = start, end
        while low < high:
            middle = (low + high) // 2
            record = self.reader.next(self.number, middle)
            if record is None or record.offset >= end or wanted(record):
                high = middle
            else:
                low = record.offset + 1
        record = self.reader.next(self.number, low) if low < end else None
        return low if record is not None and record.offset < end and wanted(record) else None


def _is_same(record: LogRecord | None, last: LastRead) -> bool:
    return (
        record is not None
        and (record.offset, record.at_ms) == (last.offset, last.at_ms)
        and record.digest == last.digest
    )


def read_stops(
    tracker: TrackerStore, topic: str | None = None, *, settled: bool = False
) -> list[TopicStop]:
    """Return stops, the oldest first.

    Args:
        tracker: the books.
        topic: only this one's.
        settled: those that are settled; False: those that are open.
    """
    with tracker.transaction() as connection:
        return stops_in(connection, topic, settled=settled)


def stops_in(
    connection: Connection, topic: str | None = None, *, settled: bool = False
) -> list[TopicStop]:
    """Return what ``read_stops`` does, in a transaction."""
    query = select(topic_stops).order_by(topic_stops.c.id)
    settled_at = topic_stops.c.settled_at
    query = query.where(settled_at.is_not(None) if settled else settled_at.is_(None))
    if topic is not None:
        query = query.where(topic_stops.c.topic == topic)
    return [TopicStop(**row) for row in connection.execute(query).mappings()]


def settled_holes(tracker: TrackerStore, topic: TopicInfo) -> dict[int, list[tuple[int, int]]]:
    """Return {partition: (first, after) of offsets that were settled as having no record}.

    They are in order and do not overlap. Where a log was cut and settled since, other records may
    stand there now: from where it was read on, nothing is known.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    stops = read_stops(tracker, topic.name, settled=True)
    for stop in sorted(stops, key=lambda one: (one.settled_at, one.id)):
        if stop.settlement.get("topic_id") != topic.topic_id:
            continue
        if stop.kind == "cut":
            for partition, _, to in stop.settlement.get("moves", ()):
                found[partition] = _before(found.get(partition, ()), to)
        for partition, first, after in stop.settlement.get("missing", ()):
            found.setdefault(partition, []).append((first, after))
    return {partition: _merged(pairs) for partition, pairs in found.items() if pairs}


def _before(pairs: Iterable[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    return [(first, min(after, end)) for first, after in pairs if first < end]


def _merged(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged = list[tuple[int, int]]()
    for first, after in sorted(pairs):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(after, merged[-1][1]))
        else:
            merged.append((first, after))
    return merged


def stop_error(stops: Sequence[TopicStop] | Sequence[LogFault], topic: str) -> SettleError:
    """Return what a consumer of a stopped topic says."""
    words = "; ".join(stop.words for stop in stops)
    return SettleError(
        f"{words}. Nothing is read until somebody settles it: `waybill topics settle {topic}` "
        "shows what it will do, and asks"
    )


def record_stops(tracker: TrackerStore, topic: str, faults: Iterable[LogFault]) -> None:
    """Write stops that are not open yet, and tell the owners of the topic's pipelines."""
    pipelines = [
        one for one in active_heads(tracker).values() if topic_of(one) == base_topic(topic)
    ]
    with tracker.transaction() as connection:
        for fault in faults:
            statement = (
                insert(topic_stops)
                .values(
                    topic=topic,
                    partition=fault.partition,
                    kind=fault.kind,
                    words=fault.words,
                    detail=dict(fault.detail),
                )
                .on_conflict_do_nothing(
                    index_elements=["topic", "partition", "kind"],
                    index_where=topic_stops.c.settled_at.is_(None),
                )
                .returning(topic_stops.c.id)
            )
            if connection.execute(statement).first() is None:
                continue
            for pipeline in pipelines:
                write_notice(
                    connection,
                    kind="topic",
                    pipeline_id=pipeline.id,
                    what=fault.words,
                    topic=topic,
                    settle=f"waybill topics settle {topic}",
                )


def plan_settlement(tracker: TrackerStore, log: KafkaLog, request: SettleRequest) -> Settlement:
    """Return what settling a topic's stops would do; the log is examined anew.

    Args:
        tracker: the books.
        log: where the topic is.
        request: which topic, and where it is read on.

    Raises:
        InputError: nothing is stopped; or where a log was cut cannot be told, and ``at`` is
            missing.
        RetryError: a server does not answer.
    """
    name, partition, at = request.topic, request.partition, request.at
    topic = log.describe(name)
    known = read_positions(tracker, name)
    faults = examine(topic, known, log)
    record_stops(tracker, name, faults)
    stops = [
        stop
        for stop in read_stops(tracker, name)
        if partition is None or stop.partition in (partition, ALL_PARTITIONS)
    ]
    if not stops:
        raise InputError(f"nothing of topic {name!r} is stopped; `waybill topics list` shows all")
    now = {(fault.kind, fault.partition): fault for fault in faults}
    own = known.get((topic.cluster_id, topic.topic_id), {})
    steps = list[Step]()
    moved: dict[int, int] = {}
    marks = log.watermarks(topic)
    reader = log.reader(name)
    try:
        for stop in sorted(stops, key=lambda one: one.kind == "deleted"):  # it goes on, others back
            position = own.get(stop.partition, TopicPosition(0))
            stands = moved.get(stop.partition, position.next_offset)
            position = replace(position, next_offset=min(stands, position.next_offset))
            fault = now.get((stop.kind, stop.partition))
            step = _STEPS[stop.kind](stop, position, fault, at)
            if step.move is not None:  # from where the stop before it moved the partition to
                moved[stop.partition] = to = step.move[1]
                step = replace(step, move=(stands, to))
            steps.append(_with_last_read(step, reader, marks))
    finally:
        reader.close()
    writing = sorted(
        one.name for one in active_heads(tracker).values() if topic_of(one) == base_topic(name)
    )
    return Settlement(topic, tuple(steps), tuple(writing))


def _with_last_read(step: Step, reader: RecordReader, marks: Mapping[int, tuple[int, int]]) -> Step:
    """Return a step with the record before the place where it reads on: the log is known by it."""
    if step.move is None:
        return step
    to = step.move[1]
    low, high = marks[step.partition]
    if not low < to <= high:
        return step
    record = reader.at(step.partition, to - 1)
    if record is None:
        return step
    epoch = record.leader_epoch
    last = LastRead(record.offset, record.at_ms, record.digest, epoch, to)
    return replace(step, last_read=last)


def _settle_recreated(
    stop: TopicStop, position: TopicPosition, fault: LogFault | None, at: int | None
) -> Step:
    del position, at
    if fault is None:
        words = "the topic is the one that the ledger knows: nothing changes, reading goes on"
        return Step(stop.id, stop.kind, stop.partition, words)
    lost = int(fault.detail.get("unread", 0))
    words = (
        f"{fault.words}. The ledger forgets the old topic's positions, and the new topic is read "
        "from its beginning"
    )
    return Step(stop.id, stop.kind, stop.partition, words, lost=lost)


def _settle_deleted(
    stop: TopicStop, position: TopicPosition, fault: LogFault | None, at: int | None
) -> Step:
    if fault is None and at is None:
        return _unchanged(stop, position)
    begins_at = int((fault or stop).detail["begins_at"]) if at is None else at
    lost = max(0, begins_at - position.next_offset)
    between = _events(lost, "between was", "between were")
    words = (
        f"partition {stop.partition} is read on at offset {begins_at:,} instead of "
        f"{position.next_offset:,}: the {between} deleted unread"
    )
    return Step(
        stop.id,
        stop.kind,
        stop.partition,
        words,
        move=(position.next_offset, begins_at),
        lost=lost,
    )


def _settle_cut(
    stop: TopicStop, position: TopicPosition, fault: LogFault | None, at: int | None
) -> Step:
    stands = position.next_offset
    if fault is None and position.last_read is not None and at is None:
        return _unchanged(stop, position)
    known = [one.detail.get("cut_at") for one in (stop, fault) if one is not None]
    offsets = [int(offset) for offset in known if offset is not None]
    if at is not None:
        offsets = [at]
    if not offsets:
        raise InputError(
            f"it is not known from which offset on {stop.topic}/{stop.partition} lost its records: "
            f"give it with --partition {stop.partition} --at OFFSET. The ledger stands at "
            f"{stands:,}. What is read twice is a duplicate at its destination"
        )
    cut_at = min(offsets)
    lost = max(int(one.detail.get("unread", 0)) for one in (stop, fault) if one is not None)
    words = f"partition {stop.partition} was cut at offset {cut_at:,}: "
    if cut_at < stands:
        words += (
            f"it is read on there instead of at {stands:,}. What stood there before was processed; "
            "what stands there now is new"
        )
    else:
        words += f"it is read on at {stands:,}, where the ledger stands"
    if lost:
        words += f". {_acknowledged(lost)} gone unread"
    move = (stands, min(cut_at, stands) if at is None else at)
    return Step(stop.id, stop.kind, stop.partition, words, move=move, lost=lost)


def _settle_hole(
    stop: TopicStop, position: TopicPosition, fault: LogFault | None, at: int | None
) -> Step:
    del position, fault, at
    missing = tuple((int(first), int(after)) for first, after in stop.detail.get("missing", ()))
    shown = ", ".join(f"{first:,} to {after - 1:,}" for first, after in missing[:5])
    number = sum(after - first for first, after in missing)
    words = (
        f"partition {stop.partition} is read on over {number:,} offsets without a record "
        f"({shown}{', …' if len(missing) > 5 else ''}): markers of a transaction, or records "  # noqa: PLR2004
        "that compaction deleted"
    )
    return Step(stop.id, stop.kind, stop.partition, words, missing=missing)


def _unchanged(stop: TopicStop, position: TopicPosition) -> Step:
    words = (
        f"partition {stop.partition} holds what the ledger knows again: it is read on at "
        f"{position.next_offset:,}"
    )
    return Step(stop.id, stop.kind, stop.partition, words)


_STEPS: dict[str, Callable[[TopicStop, TopicPosition, LogFault | None, int | None], Step]] = {
    "recreated": _settle_recreated,
    "deleted": _settle_deleted,
    "cut": _settle_cut,
    "hole": _settle_hole,
}


def apply_settlement(tracker: TrackerStore, plan: Settlement, decision: Decision) -> None:
    """Do what was planned, in one transaction with the audit log; consumers start by themselves.

    Raises:
        InputError: a position moved, or somebody else settled it, since the plan was made.
    """
    why = decision.require_why()
    topic = plan.topic
    with tracker.transaction() as connection:
        for step in plan.steps:
            _apply(connection, topic, step)
            settlement = {
                "topic_id": topic.topic_id,
                "words": step.words,
                "why": why,
                "lost": step.lost,
                "moves": [[step.partition, *step.move]] if step.move else [],
                "missing": [[step.partition, *pair] for pair in step.missing],
            }
            _end(connection, step.stop_id, decision.who, settlement)
        write_audit(
            connection,
            who=decision.who,
            action="settle_topic",
            target=f"topic {topic.name}",
            why=why,
            topic_id=topic.topic_id,
            lost=plan.lost,
            steps=[step.words for step in plan.steps],
            **decision.beside_who(),
        )


def _apply(connection: Connection, topic: TopicInfo, step: Step) -> None:
    table = topic_offsets.c
    if step.kind == "recreated":
        connection.execute(
            delete(topic_offsets).where(
                table.topic == topic.name,
                or_(table.cluster_id != topic.cluster_id, table.topic_id != topic.topic_id),
            )
        )
        return
    if step.move is None:
        return
    start, to = step.move
    at = {
        "cluster_id": topic.cluster_id,
        "topic_id": topic.topic_id,
        "partition": step.partition,
    }
    if start == 0:
        row = insert(topic_offsets).values(
            **at,
            topic=topic.name,
            next_offset=0,
            known_since_commit=last_commit_of_topic(topic.name),
        )
        connection.execute(row.on_conflict_do_nothing())
    moved = connection.execute(
        update(topic_offsets)
        .where(*[table[name] == value for name, value in at.items()], table.next_offset == start)
        .values(
            next_offset=to,
            last_read=None if step.last_read is None else step.last_read.to_json(),
            known_since=func.clock_timestamp(),  # offsets of older commits are another log's
            known_since_commit=last_commit_of_topic(topic.name),
        )
    )
    if moved.rowcount != 1:
        raise InputError(
            f"{topic.name}/{step.partition} does not stand at offset {start} any more: look again"
        )


def _end(connection: Connection, stop_id: int, who: str, settlement: Mapping[str, Any]) -> None:
    ended = connection.execute(
        update(topic_stops)
        .where(topic_stops.c.id == stop_id, topic_stops.c.settled_at.is_(None))
        .values(settled_at=func.clock_timestamp(), settled_by=who, settlement=dict(settlement))
    )
    if ended.rowcount != 1:
        raise InputError("somebody else has settled this topic meanwhile: look again")
