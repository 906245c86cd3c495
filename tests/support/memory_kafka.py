"""A Kafka in memory: one broker that goes away, loses reports and refuses; and a producer's world.

A client's messages wait in its queue, in order for each partition. ``transmit`` decides what
becomes of the first of a partition; the client's ``poll`` hands the reports out. A poll that waits
for something while nothing is decided lets the clock go on; after a few of these the broker is
there again and takes what waits, in ways that ``fates`` says: so whatever blocks comes to an end.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from waybill.producer.client import HEADER, read_stamp
from waybill.producer.components import Environment
from waybill.producer.forks import ProducerBusyError
from waybill.producer.tail import UnreachableError
from waybill.producer.wal.memory_disk import MemoryDisk

PARTITIONS = 2
_PATIENCE = 3
_THERE = frozenset(("ok", "timed out, there"))
_ERRORS = {
    "timed out, there": KafkaError._MSG_TIMED_OUT,
    "timed out, lost": KafkaError._MSG_TIMED_OUT,
    "too large": KafkaError.MSG_SIZE_TOO_LARGE,
    "unknown": KafkaError.UNKNOWN_TOPIC_OR_PART,
    "denied": KafkaError.TOPIC_AUTHORIZATION_FAILED,
    "purged, there": KafkaError._PURGE_INFLIGHT,
    "purged, lost": KafkaError._PURGE_QUEUE,
}
OPERATIONS = ("make", "sync", "write", "rename", "sync_directory", "link", "remove", "mkdir")
FAILURES = [fate for fate in _ERRORS if not fate.startswith("purged")]


class Clock:
    """Stands in for the ``time`` module; goes on by itself a little, else when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        self.now += 1e-6
        return self.now

    def time_ns(self) -> int:
        return int(self.monotonic() * 1e9)


@dataclass(frozen=True)
class Stored:
    """A message as its client gave it, and as the topic holds it."""

    name: str
    place: int
    key_bytes: bytes | None
    value_bytes: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    report: Callable[[Any, Any], None] = field(compare=False)
    at: int = -1

    def topic(self) -> str:
        return self.name

    def partition(self) -> int:
        return self.place

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.key_bytes

    def value(self) -> bytes | None:
        return self.value_bytes

    def header(self, name: str) -> bytes | None:
        return dict(self.headers).get(name)


class MemoryKafka:
    """Topics, and what the broker does next."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.topics: dict[str, list[list[Stored]]] = {}
        self.up = True
        self.readable = True
        self.fates: deque[str] = deque()
        """Of messages that are sent because somebody waits; then all are taken."""
        self.refusals: deque[int] = deque()
        """Codes of what the next calls of ``produce`` raise."""
        self.failed: list[tuple[str, Stored]] = []

    def partition(self, name: str, place: int) -> list[Stored]:
        return self.topics.setdefault(name, [[] for _ in range(PARTITIONS)])[place]

    def take(self, message: Stored) -> Stored:
        log = self.partition(message.name, message.place)
        kept = Stored(
            message.name, message.place, message.key_bytes, message.value_bytes,
            message.headers, message.report, len(log),
        )  # fmt: skip
        log.append(kept)
        return kept

    @property
    def messages(self) -> list[Stored]:
        return [m for name in sorted(self.topics) for log in self.topics[name] for m in log]


class MemoryClient:
    """What the producer uses of a ``confluent_kafka.Producer``."""

    def __init__(self, kafka: MemoryKafka, capacity: int) -> None:
        self._kafka = kafka
        self._capacity = capacity
        self._queues: dict[tuple[str, int], deque[Stored]] = {}
        self._reports: deque[tuple[Stored, KafkaError | None]] = deque()
        self._idle = 0

    def produce(
        self, topic, value, key, partition, callback, on_delivery, timestamp, headers
    ) -> None:
        assert callback is on_delivery
        assert timestamp > 0
        if len(self) >= self._capacity:
            raise BufferError("Local: Queue full")
        if self._kafka.refusals:
            raise KafkaException(KafkaError(self._kafka.refusals.popleft()))
        place = partition if partition >= 0 else sum(key or b"") % PARTITIONS
        message = Stored(topic, place, key, value, tuple(headers), callback)
        self._queues.setdefault((topic, place), deque()).append(message)

    def __len__(self) -> int:
        return len(self._reports) + sum(map(len, self._queues.values()))

    @property
    def waiting(self) -> list[tuple[str, int]]:
        """Topics and partitions for which something is queued."""
        return [place for place, queue in self._queues.items() if queue]

    def transmit(self, place: tuple[str, int], count: int, fate: str) -> None:
        """Decide about the first ``count`` messages of a partition."""
        queue = self._queues[place]
        for _ in range(min(count, len(queue))):
            message = queue.popleft()
            if fate in _THERE or fate == "purged, there":
                message = self._kafka.take(message)
            if fate == "ok":
                self._reports.append((message, None))
            else:
                self._kafka.failed.append((fate, message))
                self._reports.append((message, KafkaError(_ERRORS[fate])))

    def poll(self, timeout_s: float = 0.0) -> int:
        if timeout_s > 0 and not self._reports:
            self._kafka.clock.now += timeout_s
            self._idle += 1
            if self._idle >= _PATIENCE:
                self._kafka.up = True
                for place in self.waiting:
                    fates = self._kafka.fates
                    self.transmit(place, 2, fates.popleft() if fates else "ok")
        count = 0
        while self._reports:
            message, error = self._reports.popleft()
            message.report(error, message)
            self._idle = 0
            count += 1
        return count

    def die(self, coin: Callable[[int], int]) -> None:
        """End: of each partition's queue ``coin(size)`` messages reach the topic all the same."""
        for place in self.waiting:
            self.transmit(place, coin(len(self._queues[place])), "ok")
            self._queues[place].clear()
        self._reports.clear()

    def purge(self, *, in_queue: bool, in_flight: bool, blocking: bool) -> None:
        assert in_queue
        assert in_flight
        assert not blocking
        for place in self.waiting:
            self.transmit(place, len(self._queues[place]) // 2, "purged, there")
            self.transmit(place, len(self._queues[place]), "purged, lost")

    def close(self) -> None:
        self.poll()


class MemoryTail:
    """What ``Tail`` does, over the same topics."""

    def __init__(self, kafka: MemoryKafka, wal_id: bytes, keep_waiting: Callable[[], bool]) -> None:
        self._kafka = kafka
        self._wal_id = wal_id
        self._keep_waiting = keep_waiting
        self.unreadable: list[str] = []

    def find(self, wanted, count, topics, offsets) -> set[int]:
        if not self._kafka.up:
            if not self._keep_waiting():
                raise UnreachableError("the broker is away")
            self._kafka.up = True
        if not self._kafka.readable:
            self.unreadable += topics
            return set()
        found = set()
        for name in topics:
            for place in range(PARTITIONS):
                start = offsets.get(name, {}).get(place, 0)
                for message in self._kafka.partition(name, place)[start:]:
                    wal_id, segment, lsn = read_stamp(message.header(HEADER))
                    if wal_id == self._wal_id and wanted(segment, lsn):
                        found.add(lsn)
        return found


class Steps:
    """A ``Background`` whose steps are done when the test says so."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []
        self.is_current = False

    def start(self, name: str, step: Callable[[], None], every_s: float) -> None:
        assert name
        assert every_s > 0
        self._steps.append(step)

    def join(self) -> None:
        self._steps.clear()

    def run(self) -> None:
        """Do each step once."""
        self.is_current = True
        try:
            for step in self._steps:
                step()
        finally:
            self.is_current = False


class MemoryWorld:
    """One machine and its Kafka; ``client`` and ``steps`` are of the producer opened last."""

    def __init__(self, disk: MemoryDisk, kafka: MemoryKafka, capacity: int) -> None:
        self.disk = disk
        self.kafka = kafka
        self._capacity = capacity
        self.locked = False

    def release(self) -> None:
        self.locked = False

    def _lock(self, directory):
        if self.locked:
            raise ProducerBusyError(directory, None)
        self.locked = True
        return self

    def _client(self, config):
        assert config["enable.idempotence"]
        self.client = MemoryClient(self.kafka, self._capacity)
        return self.client

    def _tail(self, kafka, wal_id, keep_waiting):
        assert kafka["bootstrap.servers"]
        return MemoryTail(self.kafka, wal_id, keep_waiting)

    def _background(self, closing):
        assert not closing.is_set()
        self.steps = Steps()
        return self.steps

    def bring_peace(self) -> None:
        """Have nothing go wrong any more."""
        for operation in OPERATIONS:
            self.disk.refuse(operation, 0)
        self.disk.capacity_bytes = 2**40
        self.kafka.fates.clear()
        self.kafka.refusals.clear()
        self.kafka.up = True

    def settle(self, producer) -> None:
        """Go on in peace until nothing is in doubt."""
        for _ in range(60):
            for place in self.client.waiting:
                self.client.transmit(place, 1000, "ok")
            self.kafka.clock.now += 60
            self.steps.run()
            producer.poll()
            if not len(producer) and not self.client.waiting:
                return
        raise AssertionError(f"{len(producer)} stay in doubt")

    @property
    def seam(self) -> Environment:
        return Environment(self.disk, self._lock, self._client, self._tail, self._background)
