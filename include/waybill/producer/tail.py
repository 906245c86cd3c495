"""Look into the end of topics for records of this log.

A request of a dead process may still be on its way when its successor reads, so that a record is
seen neither in the tail nor as delivered, is produced again and stands in the topic twice. Against
that, when records are missing, the reader waits ``SETTLE_S`` and reads on to the end as it is then.
What is left is a request that reached a broker and was held there (a paused or overloaded broker)
longer than that: duplicates, never loss, and consumers know them by event id.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from waybill.errors import RetryError
from waybill.producer.checkpoint import Offsets
from waybill.producer.client import HEADER, consumer_config, read_stamp
from waybill.producer.forks import check_inherited_locks

_LOG = logging.getLogger(__name__)
SETTLE_S = 0.5
_CALL_S = 5.0
_BATCH = 1000
_BATCH_S = 0.1
"""A batch that is not full is waited for so long."""
_DENIED = (
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
)
_UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "TOPIC_EXCEPTION")


Wanted: TypeAlias = Callable[[int, int], bool]


class TailReader(Protocol):
    """Looks into the end of topics; see ``Tail``."""

    unreadable: list[str]

    def find(self, wanted: Wanted, count: int, topics: list[str], offsets: Offsets) -> set[int]:
        """Return the lsns of the wanted records that the topics hold."""


class UnreachableError(RetryError):
    """Kafka does not answer now; nothing was found out."""


@dataclass(frozen=True, slots=True)
class _Look:
    """One topic to be read, and what for."""

    topic: str
    starts: Mapping[int, int]
    wanted: Wanted
    count: int
    found: set[int]


class Tail:
    """Reads the ends of topics. Blocks while Kafka is away, with a warning every 30 s.

    Args:
        kafka: the caller's Kafka settings.
        wal_id: whose records to look for.
        keep_waiting: asked while Kafka is away; False ends the look with ``UnreachableError``.
    """

    def __init__(
        self, kafka: Mapping[str, object], wal_id: bytes, keep_waiting: Callable[[], bool]
    ) -> None:
        self._kafka = kafka
        self._wal_id = wal_id
        self._keep_waiting = keep_waiting
        self.unreadable: list[str] = []
        """Topics that exist and may not be read by this user."""

    def find(self, wanted: Wanted, count: int, topics: list[str], offsets: Offsets) -> set[int]:
        """Return the lsns of the wanted records that the topics hold.

        Args:
            wanted: tells whether the record of (segment id, lsn) is looked for.
            count: how many are looked for; when all are found there is no waiting.
            topics: where they were sent to.
            offsets: where to begin; a partition that is not named is read from its beginning.

        Raises:
            UnreachableError: Kafka does not answer, and ``keep_waiting`` said no.

        Cost: reads all messages behind ``offsets``, about 100,000/s.
        """
        found: set[int] = set()
        for topic in topics:
            look = _Look(topic, offsets.get(topic, {}), wanted, count, found)
            self._patiently(look)
        return found

    def _patiently(self, look: _Look) -> None:
        warn_at = time.monotonic()
        while True:
            try:
                self._look(look)
            except UnreachableError as error:
                if not self._keep_waiting():
                    raise
                if time.monotonic() >= warn_at:
                    _LOG.warning("waiting for Kafka to read the tail of %s: %s", look.topic, error)
                    warn_at = time.monotonic() + 30
                time.sleep(0.2)
            else:
                return

    def _look(self, look: _Look) -> None:
        from confluent_kafka import Consumer, KafkaException

        check_inherited_locks()
        consumer = Consumer(consumer_config(self._kafka, self._wal_id))
        try:
            reader = _Reader(consumer, look, self._wal_id)
            reader.start(self._partitions(consumer, look.topic))
            reader.read_to_end()
            if len(look.found) < look.count:
                time.sleep(SETTLE_S)
                reader.read_to_end()
        except KafkaException as error:
            if error.args[0].name() in _DENIED:
                if look.topic not in self.unreadable:
                    self.unreadable.append(look.topic)
            elif error.args[0].name() not in _UNKNOWN:
                raise UnreachableError(str(error.args[0])) from error
        finally:
            consumer.close()

    def _partitions(self, consumer: Any, topic: str) -> list[int]:
        from confluent_kafka import KafkaException

        known = consumer.list_topics(topic, timeout=_CALL_S).topics[topic]
        if known.error is not None:
            raise KafkaException(known.error)
        return sorted(known.partitions)


class _Reader:
    """One topic, read forward."""

    def __init__(self, consumer: Any, look: _Look, wal_id: bytes) -> None:
        self._consumer = consumer
        self._look = look
        self._wal_id = wal_id
        self._at: dict[int, int] = {}

    def start(self, partitions: list[int]) -> None:
        """Begin where the look says, moved into what each partition holds."""
        from confluent_kafka import TopicPartition

        for partition in partitions:
            low, high = self._watermarks(partition)
            start = self._look.starts.get(partition, low)
            self._at[partition] = start if low <= start <= high else low
        self._consumer.assign(
            [TopicPartition(self._look.topic, p, at) for p, at in self._at.items()]
        )

    def read_to_end(self) -> None:
        """Read until every partition's end as it is at the time of the call."""
        ends = {partition: self._watermarks(partition)[1] for partition in self._at}
        quiet_since = time.monotonic()
        while any(self._at[partition] < end for partition, end in ends.items()):
            first = self._consumer.poll(_BATCH_S)
            # consume() alone waits its whole time, unless as many come as it may return
            messages = [first, *self._consumer.consume(_BATCH, timeout=0)] if first else []
            for message in messages:
                self._take(message)
            if messages:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > _CALL_S:
                raise UnreachableError("no message and no end of partition arrived")

    def _watermarks(self, partition: int) -> tuple[int, int]:
        from confluent_kafka import TopicPartition

        at = TopicPartition(self._look.topic, partition)
        low, high = self._consumer.get_watermark_offsets(at, timeout=_CALL_S)
        return low, high

    def _take(self, message: Any) -> None:
        from confluent_kafka import KafkaException

        error = message.error()
        if error is None:
            self._at[message.partition()] = message.offset() + 1
            self._match(message.headers() or ())
        elif error.name() == "_PARTITION_EOF":
            at = self._at[message.partition()]
            self._at[message.partition()] = max(at, message.offset())
        else:
            raise KafkaException(error)

    def _match(self, headers: Any) -> None:
        for name, value in headers:
            stamp = read_stamp(value) if name == HEADER else None
            if stamp and stamp[0] == self._wal_id and self._look.wanted(stamp[1], stamp[2]):
                self._look.found.add(stamp[2])
