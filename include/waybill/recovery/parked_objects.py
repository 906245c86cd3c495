"""Parked events whose object is gone or damaged: made again from their records in Kafka.

What the look of each minute misses is quarantined; so is what a replay could not read. Quarantined
segments are gone through by the commit that parked them: its records are read from Kafka again and
run through the versions of that time, and of what fails then each segment gets the events that it
held, in a new object that takes its place (``parking.splits.swap``). See docs/adr/0010.

Invariants
  I1  A segment is made again once: one transaction moves it from ``quarantined`` to ``replaced`` by
      compare-and-set, and parks its successors. A SIGKILL before it leaves an object that no row
      names, which the refresh deletes.
  I2  Counts stay: the successors hold exactly the events of the segment, found by who they are
      (``segments.ids``); those without an id by what is left once all other events of the commit
      are known. What cannot be told apart stays in quarantine, and says why.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, cast, func, select, update

from waybill.access import Decision, write_audit
from waybill.events import HELD_ERROR, rfc3339
from waybill.loading import KeptRange, LeftError, WaitingError, kept_ranges
from waybill.notices import write_notice
from waybill.parking import (
    NAMES,
    NO_ID,
    Damage,
    Identity,
    Packer,
    ParkedEvent,
    ParkedGroupKey,
    Segment,
    fingerprint,
    park_made_again,
    park_mended,
    read_segment_events,
    segments_in_order,
    split_ids,
    storable,
)
from waybill.processing import Chunk, identity_of, parked_event
from waybill.recovery.past_stages import FindFailures
from waybill.storage import KafkaLog, ObjectStore, TrackerStore
from waybill.storage.tracker import batches, segments, text_value
from waybill.storage.tracker import parked_partitions as partitions

WHO = "recovery"
_LONGEST = 2000
_Event = tuple[ParkedEvent, Identity | None]


@dataclass(frozen=True, slots=True)
class LostParked:
    """Events of one partition in one parked object that is gone or damaged."""

    object_key: str
    pipeline_id: str
    event_name: str
    stage: str
    error_type: str
    commit_number: int
    kafka_partition: int
    """-1: they did not come from Kafka."""
    first_offset: int
    events: int
    problem: str
    """Why they cannot be made again; empty: that was not tried yet, or waits."""

    @property
    def unrecoverable(self) -> int:
        """How many events only a restored object brings back."""
        return self.events if self.problem else 0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self) | {"unrecoverable": self.unrecoverable}


@dataclass(frozen=True, slots=True)
class ParkedRecovery:
    """What a run did; numbers are of events."""

    recovered: int = 0
    mended: int = 0
    """Whose objects are back, as they were."""
    waiting: int = 0
    """Of topics that are stopped."""
    unrecoverable: int = 0
    """Found to be so by this run."""

    def to_json(self) -> dict[str, int]:
        """Return it as JSON."""
        return asdict(self)

    def __add__(self, other: ParkedRecovery) -> ParkedRecovery:
        """Return the sum."""
        pairs = ((getattr(self, one), getattr(other, one)) for one in self.__slots__)
        return ParkedRecovery(*(mine + its for mine, its in pairs))


class _Lost(NamedTuple):
    """A segment, and what its row says beyond it."""

    segment: Segment
    partition: ParkedGroupKey
    digests: tuple[bytes, ...]
    """Who its events are, without copies; empty: they have no ids."""

    @property
    def cause(self) -> str:
        return self.segment.fingerprint


class _Batch(NamedTuple):
    """The batch that parked them."""

    began_at: datetime
    committed_at: datetime
    offsets: list[list[Any]]


def lost_parked(tracker: TrackerStore) -> list[LostParked]:
    """Return what is quarantined, an object, partition and problem each."""
    own = segments.c
    names: list[Any] = [own.object_key, *[partitions.c[n] for n in NAMES], own.commit_number]
    numbers: list[Any] = [func.min(own.first_offset), cast(func.sum(own.count), BigInteger)]
    columns = [*names, own.kafka_partition, *numbers, own.problem]
    query = (
        select(*columns)
        .join_from(partitions, segments, own.partition_id == partitions.c.id)
        .where(partitions.c.quarantined > 0, own.state == "quarantined")
        .group_by(*names, own.kafka_partition, own.problem)
        .order_by(*names, own.kafka_partition)
    )
    with tracker.transaction() as connection:
        return [LostParked(*row) for row in connection.execute(query)]


def recover_parked(
    tracker: TrackerStore,
    objects: ObjectStore,
    log: KafkaLog,
    find: FindFailures,
    *,
    again: bool = False,
) -> ParkedRecovery:
    """Make quarantined events again from Kafka. Safe to kill, and to run twice at once.

    Args:
        tracker: the books.
        objects: the bucket.
        log: Kafka.
        find: runs messages through the stages as they were.
        again: try also what has a problem already.

    Cost: for each commit with such segments its records are read and processed once.

    Raises:
        RetryError: Kafka, the store or the tracker is away.
    """
    wanted = [segments.c.state == "quarantined", *([] if again else [segments.c.problem == ""])]
    done = ParkedRecovery()
    in_order = segments_in_order(tracker, *wanted)
    for _, some in groupby(in_order, key=lambda one: (one.commit_number, one.scope)):
        gone, mended = list[Segment](), 0
        for segment in some:
            events = park_mended(tracker, objects, segment, Decision(WHO))
            mended += events or 0
            if events is None:
                gone.append(segment)
        done += ParkedRecovery(mended=mended)
        if gone:
            done += _recover_commit(tracker, objects, log, find, gone)
    return done


def _recover_commit(
    tracker: TrackerStore,
    objects: ObjectStore,
    log: KafkaLog,
    find: FindFailures,
    some: Sequence[Segment],
) -> ParkedRecovery:
    """Make segments of one commit again."""
    lost = _described(tracker, some)
    try:
        batch = _batch(tracker, lost[0].segment)
        numbers = {one.segment.kafka_partition for one in lost}
        kept = kept_ranges(
            tracker,
            log,
            [row for row in batch.offsets if row[1] in numbers],
            batch.committed_at,
            lost[0].segment.commit_number,
        )
    except WaitingError:
        return ParkedRecovery(waiting=sum(one.segment.count for one in lost))
    except LeftError as error:
        return _note_problems(tracker, [(one, str(error)) for one in lost])
    events = _failed_again(log, find, batch, kept, lost)
    gone = {one.partition: one.problem for one in kept if one.problem}
    done = ParkedRecovery()
    for number in sorted(numbers):
        own = [one for one in lost if one.segment.kafka_partition == number]
        its = {key: [e for e in found if e[0].kafka_partition == number] for key, found in events}
        done += _put_back(tracker, objects, own, its, gone.get(number, ""))
    return done


def _put_back(
    tracker: TrackerStore,
    objects: ObjectStore,
    lost: Sequence[_Lost],
    events: Mapping[ParkedGroupKey, list[_Event]],
    gone: str,
) -> ParkedRecovery:
    """Park segments of one Kafka partition again, those that have all their events.

    ``gone`` says why some have not; empty: none was cut off.
    """
    found, problems = _chosen(tracker, objects, lost, events)
    recovered = 0
    for one, its in found:
        packer = Packer()
        for event, identity in its:
            packer.add(event, identity)
        recovered += park_made_again(tracker, objects, one.segment, packer.finish(), who=WHO)
    said = [(one, gone or problem) for one, problem in problems]
    return ParkedRecovery(recovered) + _note_problems(tracker, said)


def _described(tracker: TrackerStore, some: Sequence[Segment]) -> list[_Lost]:
    own = segments.c
    query = (
        select(own.id, own.ids, *[partitions.c[name] for name in NAMES])
        .join_from(segments, partitions, own.partition_id == partitions.c.id)
        .where(own.id.in_([one.id for one in some]))
    )
    with tracker.transaction() as connection:
        rows = {int(row[0]): row for row in connection.execute(query)}
    lost: list[_Lost] = []
    for segment in some:
        _, ids, *names = rows[segment.id]
        kept = tuple(split_ids(ids or b"", set(segment.copies)))
        a, b, c, d = names
        lost.append(_Lost(segment, (a, b, c, d), kept))
    return lost


def _failed_again(
    log: KafkaLog,
    find: FindFailures,
    batch: _Batch,
    kept: Sequence[KeptRange],
    lost: Sequence[_Lost],
) -> list[tuple[ParkedGroupKey, list[_Event]]]:
    """Return what fails of the records that are there, by parked partition, in log order."""
    held = {one.partition[0] for one in lost if one.partition[3] == HELD_ERROR}
    at = rfc3339(batch.committed_at)
    events: dict[ParkedGroupKey, list[_Event]] = defaultdict(list)
    for topic, ranges in _by_topic(kept).items():
        records = list(log.records(topic, ranges))
        chunk = Chunk(
            [record.value for _, record in records],
            [number for number, _ in records],
            [record.offset for _, record in records],
            [record.at_ms * 1000 for _, record in records],
        )
        for failure in find(chunk, topic, batch.began_at, held):
            event = parked_event(failure, topic, at)
            key = (event.pipeline_id, event.event_name, event.stage, event.error_type)
            a, b, c, d = map(storable, key)
            events[a, b, c, d].append((event, identity_of(failure)))
    return list(events.items())


def _batch(tracker: TrackerStore, segment: Segment) -> _Batch:
    if segment.kafka_partition < 0 or segment.scope.startswith(("load/", "ingestion/")):
        raise LeftError(
            f"they were not parked by processing but by {segment.scope}: Kafka does not have them "
            "as they were parked"
        )
    table = batches.c
    query = select(table.committed_at, table.took_ms, table.offsets).where(
        table.destination == segment.scope, table.commit_number == segment.commit_number
    )
    with tracker.transaction() as connection:
        row = connection.execute(query).first()
    if row is None or not row.offsets:
        raise LeftError(
            f"the offsets of commit {segment.commit_number} of {segment.scope} are no longer known"
        )
    took = timedelta(milliseconds=row.took_ms or 0)
    return _Batch(row.committed_at - took, row.committed_at, row.offsets)


def _by_topic(kept: Sequence[KeptRange]) -> Mapping[str, dict[int, tuple[int, int]]]:
    found: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    for one in kept:
        if one.start < one.end:
            found[one.topic][one.partition] = (one.start, one.end)
    return found


def _chosen(
    tracker: TrackerStore,
    objects: ObjectStore,
    lost: Sequence[_Lost],
    events: Mapping[ParkedGroupKey, list[_Event]],
) -> tuple[list[tuple[_Lost, list[_Event]]], list[tuple[_Lost, str]]]:
    """Give each segment its events; return those that have all, and the others with the reason."""
    found: list[tuple[_Lost, list[_Event]]] = []
    problems: list[tuple[_Lost, str]] = []
    by_id: dict[tuple[ParkedGroupKey, bytes], deque[_Event]] = defaultdict(deque)
    for key, its in events.items():
        for one in its:
            by_id[key, NO_ID if one[1] is None else one[1].digest].append(one)
    nameless: dict[tuple[ParkedGroupKey, str], list[_Lost]] = defaultdict(list)
    for item in lost:
        if not item.digests:
            nameless[item.partition, item.cause].append(item)
            continue
        queues = [by_id[item.partition, digest] for digest in item.digests if digest != NO_ID]
        its = [queue.popleft() for queue in queues if queue]
        if len(its) == item.segment.count:
            found.append((item, its))
        else:
            problems.append((item, _other(item.segment.count, len(its))))
    for (key, cause), some in nameless.items():
        known = _known_places(tracker, objects, some[0].segment, lost)
        left = [
            one
            for one in events.get(key, ())
            if (one[0].kafka_partition, one[0].kafka_offset) not in known
            and cause in ("", fingerprint(str(one[0].message), str(one[0].where)))
        ]
        needed = sum(one.segment.count for one in some)
        if len(left) == needed:
            found += _dealt(some, left)
        else:
            problems += [(one, _other(needed, len(left))) for one in some]
    return found, problems


def _other(had: int, now: int) -> str:
    return (
        f"of its records {now} fail now as they did, not {had}: the pipeline, its mapping or "
        "something they depend on has changed"
    )


def _known_places(
    tracker: TrackerStore, objects: ObjectStore, segment: Segment, lost: Sequence[_Lost]
) -> set[tuple[int, int]]:
    """Return where the events of a commit and partition are from that other segments hold."""
    own = segments.c
    others = segments_in_order(
        tracker,
        own.partition_id == segment.partition_id,
        own.scope == segment.scope,
        own.commit_number == segment.commit_number,
        own.state != "replaced",
        own.id.not_in([one.segment.id for one in lost]),
    )
    damage = Damage()  # what cannot be read stays among the candidates: the numbers will not match
    return {
        (event.kafka_partition, event.kafka_offset)
        for other in others
        for event in read_segment_events(tracker, objects, other, damage)
    }


def _dealt(some: Sequence[_Lost], events: Sequence[_Event]) -> Iterator[tuple[_Lost, list[_Event]]]:
    """Deal events, in log order, to segments, in log order."""
    at = 0
    for one in sorted(
        some, key=lambda one: (one.segment.kafka_partition, one.segment.first_offset)
    ):
        yield one, list(events[at : at + one.segment.count])
        at += one.segment.count


def _note_problems(tracker: TrackerStore, problems: Sequence[tuple[_Lost, str]]) -> ParkedRecovery:
    """Keep why segments cannot be made again, and have their owners told, once."""
    events = 0
    for one, problem in problems:
        segment, message = one.segment, text_value(problem, longest=_LONGEST)
        detail = {
            "segment": segment.id,
            "object_key": segment.object_key,
            "unrecoverable": segment.count,
            "kafka_partition": segment.kafka_partition,
            "first_offset": segment.first_offset,
            "ids": [digest.hex() for digest in one.digests[:100]],
        }
        with tracker.transaction() as connection:
            changed = connection.execute(
                update(segments)
                .where(
                    segments.c.id == segment.id,
                    segments.c.state == "quarantined",
                    segments.c.problem != message,
                )
                .values(problem=message)
            )
            if not changed.rowcount:
                continue
            target = f"partition {segment.partition_id}"
            write_audit(
                connection,
                who=WHO,
                action="not_recovered",
                target=target,
                problem=message,
                **detail,
            )
            write_notice(
                connection,
                kind="missing",
                pipeline_id=one.partition[0],
                partition_id=segment.partition_id,
                **{"object" if name == "object_key" else name: its for name, its in detail.items()},
                message=message,
                see="waybill parked lost",
            )
        events += segment.count
    return ParkedRecovery(unrecoverable=events)
