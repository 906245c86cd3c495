"""Reads ranges of a log's records with one consumer that is kept from one reading to the next.

librdkafka asks each broker once for all its partitions, in threads of its own, while what it gave
is worked on. Make it in the process that reads: no consumer outlives a fork.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import groupby, repeat
from operator import ge, itemgetter
from typing import Any, NamedTuple

from waybill.errors import RetryError, StopError
from waybill.settings import KafkaSettings
from waybill.storage.log import client_config

_MOST_MESSAGES = 8_192
"""Of one topic that are given at once, or taken from the client."""
_STEP = 64
"""Messages that one call takes, fewer if the last was large: what they hold is only known then."""
_MOST_BYTES = 8 * 1024**2
"""Of the values that are given at once, or taken from the client; more by one step's."""
_MOST_WAITING_BYTES = 32 * 1024**2
"""Of the values of all topics that wait for more of theirs; then all are given."""
_SILENCE_S = 20.0
"""How long nothing may come of what is still to be read: a new leader is there in a few seconds."""
_PASSING = {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE"}
"""Errors that librdkafka tells of and tries again behind."""
_LASTING = {"_BAD_COMPRESSION", "_BAD_MSG", "INVALID_MSG", "_UNSUPPORTED_FEATURE"}
"""Errors of what is in the log: it is the same at every reading."""
_CONFIG: dict[str, Any] = {
    "group.id": "waybill-tasks",  # no member of it: partitions are assigned, nothing is committed
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",  # every offset has a record, or the log has a hole
    "check.crcs": True,
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 8 * 1024,
    # of a partition, and of an answer, as they are in the log: the client unpacks an answer whole
    "fetch.message.max.bytes": 256 * 1024,
    "fetch.max.bytes": 4 * 1024**2,
    # a fetch at the log's end waits for this, and so does the next reading behind it
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 100,
    "fetch.queue.backoff.ms": 10,
}


class PartitionRange(NamedTuple):
    """Offsets of one partition that are to be read."""

    topic: str
    partition: int
    start: int
    end: int
    """After the last."""


@dataclass(slots=True)
class Records:
    """Records of one topic; those of a partition in the order of their offsets."""

    topic: str
    partitions: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    times_ms: list[int] = field(default_factory=list)
    size_bytes: int = 0
    """Of the values."""

    def joined(self, others: Records) -> Records:
        """Return these, with records of the same topic that were read later behind them."""
        self.partitions += others.partitions
        self.values += others.values
        self.offsets += others.offsets
        self.times_ms += others.times_ms
        self.size_bytes += others.size_bytes
        return self


class Unread(NamedTuple):
    """A partition whose range could not be read to its end."""

    topic: str
    partition: int
    error: StopError | RetryError


class _Reading:
    """How far a range was read."""

    def __init__(self, wanted: PartitionRange) -> None:
        self._wanted = wanted
        self._next = wanted.start
        self.place = wanted.topic, wanted.partition
        self.is_over = False
        self.error: StopError | RetryError | None = None
        """Why nothing more will come."""

    def take(self, messages: Sequence[Any], found: Records) -> None:
        """Take messages of the partition, or an error of it, to what was found of the topic."""
        try:
            if messages[0].error() is None:
                self._take(messages, found)
            else:
                self.is_over = _is_end(messages[0], self._wanted)
        except (StopError, RetryError) as error:
            self.error, self.is_over = error, True

    def _take(self, messages: Sequence[Any], found: Records) -> None:
        from confluent_kafka import Message

        end = self._wanted.end
        offsets = list(map(Message.offset, messages))
        if any(map(ge, offsets, offsets[1:])):
            topic, number = self.place
            raise RetryError(f"{topic}/{number}: records came out of their order")
        self.is_over = offsets[-1] >= end - 1
        if offsets[0] < self._next or offsets[-1] >= end:
            inside = slice(bisect_left(offsets, self._next), bisect_left(offsets, end))
            messages, offsets = messages[inside], offsets[inside]
        if offsets:
            self._next = offsets[-1] + 1
        values = list(map(Message.value, messages))
        if None in values:
            values = [b"" if value is None else value for value in values]
        found.partitions += [self._wanted.partition] * len(values)
        found.values += values
        found.offsets += offsets
        found.times_ms += map(itemgetter(1), map(Message.timestamp, messages))
        found.size_bytes += sum(map(len, values))


class RangeReader:
    """Reads ranges of any topics.

    Args:
        settings: where Kafka is.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._client: Any = None

    def read(
        self, ranges: Sequence[PartitionRange], unwanted: Set[str] = frozenset()
    ) -> Generator[Records | Unread]:
        """Yield all records of some ranges, those of a topic together as far as they come so.

        Offsets that have no record are passed over: who reads counts. Each partition is in
        ``ranges`` once. What could not be read is yielded as well, and keeps nothing else from
        being read: with a StopError where the log does not reach back, or up, to the range, or has
        what nobody can unpack; with a RetryError where Kafka refused, or was silent until all else
        was read, and for 20 s more. Close it before the next reading begins.

        Cost: 1 to 2 µs of CPU a record of 400 B, librdkafka's threads included.

        Args:
            ranges: that are wanted.
            unwanted: topics of which no more is wanted; the caller may add some while it reads.
        """
        from confluent_kafka import TopicPartition

        wanted = [one for one in ranges if one.start < one.end]
        left = {(one.topic, one.partition): _Reading(one) for one in wanted}
        found = {one.topic: Records(one.topic) for one in wanted}
        consumer = self._consumer()
        consumer.assign([TopicPartition(one.topic, one.partition, one.start) for one in wanted])
        try:
            while left:
                messages = _next(consumer)
                over = _take(messages, left, found) if messages else self._silent(left)
                _let_go(consumer, left, [one.place for one in over])
                for topic in _enough(found, {topic for topic, _ in left}):
                    yield found[topic]
                    found[topic] = Records(topic)
                yield from (Unread(*one.place, one.error) for one in over if one.error is not None)
                _let_go(consumer, left, [place for place in left if place[0] in unwanted])
        finally:
            consumer.unassign()
            consumer.poll(0)  # lets go of what was fetched ahead

    def _silent(self, left: Mapping[tuple[str, int], _Reading]) -> list[_Reading]:
        """Give up all that is left; return it."""
        for (topic, number), one in left.items():
            one.error = RetryError(
                f"nothing came of {topic}/{number} for {_SILENCE_S:.0f} s from Kafka at "
                f"{self._settings.bootstrap_servers} (WAYBILL_KAFKA__BOOTSTRAP_SERVERS)"
            )
            one.is_over = True
        return list(left.values())

    def close(self) -> None:
        """Close the consumer, if one was made."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _consumer(self) -> Any:
        from confluent_kafka import Consumer

        if self._client is None:
            self._client = Consumer({**client_config(self._settings), **_CONFIG})
        return self._client


def _next(consumer: Any) -> list[Any]:
    """Wait for messages, and return those that are there; none after a long silence."""
    deadline = time.monotonic() + _SILENCE_S
    while (first := consumer.poll(1.0)) is None:
        if time.monotonic() > deadline:
            return []
    messages, size_bytes = [first], len(first)
    while size_bytes < _MOST_BYTES and len(messages) < _MOST_MESSAGES:
        step = max(1, min(_STEP, _MOST_BYTES // max(1, len(messages[-1]))))
        more = consumer.consume(step, timeout=0)
        messages += more
        size_bytes += sum(map(len, more))
        if len(more) < step:
            break
    return messages


def _let_go(
    consumer: Any, left: dict[tuple[str, int], _Reading], places: Sequence[tuple[str, int]]
) -> None:
    """Have nothing more fetched of partitions."""
    from confluent_kafka import TopicPartition

    for place in places:
        del left[place]
    if places and left:
        consumer.incremental_unassign([TopicPartition(*place) for place in places])


def _take(
    messages: Sequence[Any],
    left: Mapping[tuple[str, int], _Reading],
    found: Mapping[str, Records],
) -> list[_Reading]:
    """Sort messages into their readings; return those that are over with it."""
    over = list[_Reading]()
    for run in _runs(messages):
        reading = left.get((run[0].topic(), run[0].partition()))
        if reading is not None and not reading.is_over:
            reading.take(run, found[reading.place[0]])
            over += [reading] if reading.is_over else []
    return over


def _enough(found: Mapping[str, Records], left: Set[str]) -> list[str]:
    """Return the topics of which enough waits to be given, or all that will come."""
    all_of_it = sum(one.size_bytes for one in found.values()) > _MOST_WAITING_BYTES
    return [
        topic
        for topic, one in found.items()
        if one.values
        and (
            all_of_it
            or topic not in left
            or len(one.values) >= _MOST_MESSAGES
            or one.size_bytes >= _MOST_BYTES
        )
    ]


def _runs(messages: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield the runs of messages of one partition; an error is a run of its own."""
    from confluent_kafka import Message

    faults: Iterable[Any] = repeat(None)
    if any(errors := list(map(Message.error, messages))):
        faults = (place if error else None for place, error in enumerate(errors))
    places = zip(
        map(Message.topic, messages), map(Message.partition, messages), faults, strict=False
    )
    start = 0
    for _, run in groupby(places):
        end = start + len([*run])
        yield messages[start:end]
        start = end


def _is_end(message: Any, wanted: PartitionRange) -> bool:
    """Tell whether an error says that nothing more will come of a range.

    Raises:
        StopError: the log does not have it.
        RetryError: Kafka refused for another reason.
    """
    from confluent_kafka import KafkaError

    error = message.error()
    place = f"{wanted.topic}/{wanted.partition}"
    if error.code() == KafkaError._PARTITION_EOF:  # the last offsets may have no record
        return bool(message.offset() >= wanted.end)
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        raise StopError(f"{place}: the log does not have offsets {wanted.start:,} on: {error}")
    if error.name() in _PASSING:  # the client goes on by itself
        return False
    if error.name() in _LASTING:
        raise StopError(f"{place}: nobody can read what is at offset {message.offset():,}: {error}")
    raise RetryError(f"reading {place} at {wanted.start}: {error}")
