"""One run of either producer, the append alone, and the bytes of a log: what the benchmark measures.

A run sends prepared values to a topic of its own. Its clock runs from the first ``produce`` until
``flush`` returned 0; the thread's CPU is that of the produce loop, and apart from it that of loop
and flush. Reports that are served inside the loop (``poll``) count in both producers.
"""

from __future__ import annotations

import gc
import os
import shutil
import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from waybill.producer import LosslessProducer
from waybill.producer.wal import DATA, WriteAheadLog
from waybill.settings import WalSettings

POLL_EVERY = 256
FLUSH_S = 120.0
BATCH = 500
"""Messages of one ``produce_batch`` or ``produce_values``."""
_DISTINCT = 1000
_BESIDE_EVERY = 1024


@dataclass(frozen=True, slots=True)
class Run:
    """What one run took. CPU in seconds."""

    messages: int
    seconds: float
    thread_cpu_s: float
    """Of the producing thread, in the produce loop."""
    flushed_cpu_s: float
    """Of the producing thread, until the flush returned."""
    process_cpu_s: float
    """Of all threads of the process, librdkafka's too."""

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.thread_cpu_s / self.messages * 1e6

    @property
    def flushed_cpu_us(self) -> float:
        return self.flushed_cpu_s / self.messages * 1e6

    @property
    def process_cpu_us(self) -> float:
        return self.process_cpu_s / self.messages * 1e6


def values_of(size_bytes: int, count: int) -> list[bytes]:
    """Return ``count`` values that do not compress; 1,000 different ones, in turn."""
    distinct = [os.urandom(size_bytes) for _ in range(_DISTINCT)]
    return [distinct[number % _DISTINCT] for number in range(count)]


@contextmanager
def fresh_topic(servers: str) -> Iterator[str]:
    """A topic of one partition; deleted at the end, its files a second later."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})
    name = f"bench-{uuid.uuid4().hex[:10]}"
    new = NewTopic(name, 1, 1, config={"file.delete.delay.ms": "1000"})
    admin.create_topics([new])[name].result(30)
    try:
        yield name
    finally:
        admin.delete_topics([name])[name].result(30)


class _Clock:
    """Wall and CPU from its making on."""

    def __init__(self) -> None:
        self._process = time.process_time()
        self._thread = time.thread_time()
        self._began = time.perf_counter()

    def thread_s(self) -> float:
        return time.thread_time() - self._thread

    def run(self, messages: int, loop_cpu_s: float) -> Run:
        seconds = time.perf_counter() - self._began
        process_s = time.process_time() - self._process
        return Run(messages, seconds, loop_cpu_s, self.thread_s(), process_s)


class _Counter:
    """The one callback that all messages of the bare producer share."""

    def __init__(self) -> None:
        self.delivered = self.failed = 0

    def report(self, error: Any, _message: Any) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.failed += 1


def run_bare(servers: str, topic: str, values: Sequence[bytes], warm: int) -> Run:
    """Send the values with ``confluent_kafka.Producer``, in the configuration that ours has."""
    from confluent_kafka import Producer

    settings = WalSettings()
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "enable.idempotence": True,
            "queue.buffering.max.messages": settings.max_in_flight,
            "queue.buffering.max.kbytes": 256 * 1024,
            "message.max.bytes": 2 * 1024**2,
            "message.timeout.ms": 0,
            "log_level": 3,
        }
    )
    counter = _Counter()
    produce, poll, report = producer.produce, producer.poll, counter.report

    def send(some: Sequence[bytes]) -> None:
        for part in _parts(some):
            for value in part:
                while True:
                    try:
                        produce(topic, value, on_delivery=report)
                        break
                    except BufferError:
                        poll(0.05)
            poll(0)

    send(_repeated(values, warm))
    assert producer.flush(FLUSH_S) == 0
    gc.collect()
    clock = _Clock()
    send(values)
    loop_cpu_s = clock.thread_s()
    left = producer.flush(FLUSH_S)
    run = clock.run(len(values), loop_cpu_s)
    assert left == counter.failed == 0, (left, counter.failed)
    assert counter.delivered == len(values) + warm, counter.delivered
    producer.close()
    return run


def _send_each(producer: LosslessProducer, topic: str, values: Sequence[bytes]) -> None:
    produce = producer.produce
    for value in values:
        produce(topic, value)


def _send_batches(producer: LosslessProducer, topic: str, rows: Sequence[dict[str, bytes]]) -> None:
    for at in range(0, len(rows), BATCH):
        producer.produce_batch(topic, rows[at : at + BATCH])


def _send_columns(producer: LosslessProducer, topic: str, values: Sequence[bytes]) -> None:
    for at in range(0, len(values), BATCH):
        producer.produce_values(topic, values[at : at + BATCH])


_WAYS: dict[str, Callable[..., None]] = {
    "lossless": _send_each,
    "batch": _send_batches,
    "values": _send_columns,
}


def run_lossless(
    servers: str,
    topic: str,
    values: Sequence[bytes],
    folder: Path,
    warm: int,
    way: str = "lossless",
) -> Run:
    """Send the values with the lossless producer in its default settings; its log is deleted.

    Before, ``warm`` messages that are not measured: as in a service, the log has its segments.

    Args:
        way: ``lossless`` calls ``produce`` for each, ``batch`` ``produce_batch`` with dicts that
            are made before the clock starts, ``values`` ``produce_values``; BATCH a call.
    """
    settings = WalSettings(dir=folder)
    producer = LosslessProducer(settings, {"bootstrap.servers": servers}, name="bench")
    send = partial(_WAYS[way], producer, topic)
    given = [{"value": value} for value in values] if way == "batch" else values
    _send_each(producer, topic, _repeated(values, warm))
    assert producer.flush(FLUSH_S) == 0
    gc.collect()
    clock = _Clock()
    send(given)
    loop_cpu_s = clock.thread_s()
    left = producer.flush(FLUSH_S)
    run = clock.run(len(values), loop_cpu_s)
    stats = producer.stats
    assert left == stats.in_doubt == 0, (left, stats)
    assert stats.delivered == stats.appended == len(values) + warm, stats
    assert producer.close() == 0
    shutil.rmtree(folder)
    return run


def _repeated(values: Sequence[bytes], count: int) -> list[bytes]:
    return [values[number % len(values)] for number in range(count)]


def _parts(values: Sequence[bytes]) -> list[Sequence[bytes]]:
    return [values[at : at + POLL_EVERY] for at in range(0, len(values), POLL_EVERY)]


def append_alone(size_bytes: int, count: int, folder: Path) -> array[int]:
    """Return how long each of ``count`` appends took, in ns, after half as many for warming up.

    Default settings, real files. What the producer's own thread does beside the caller (give
    settled segments free, have one ready) is done between two appends, so that segments are the
    recycled ones. The making of a segment belongs to its append. The timer's own cost is in.
    """
    values = values_of(size_bytes, _DISTINCT)
    folder.mkdir(parents=True)
    log = WriteAheadLog(folder, WalSettings(dir=folder))
    took = array("q", bytes(8 * count))
    now, append, topic = time.perf_counter_ns, log.append, b"bench-0123456789"
    timestamp_ms = int(time.time() * 1000)
    gc.collect()
    for number in range(-(count // 2), count):
        value = values[number % _DISTINCT]
        began = now()
        append(DATA, timestamp_ms, topic, None, value, b"")
        ended = now()
        if number >= 0:
            took[number] = ended - began
        if not number % _BESIDE_EVERY:
            log.recycle(log.next_lsn)
            log.prepare()
    log.close(log.next_lsn)
    shutil.rmtree(folder)
    return took


def timer_ns(count: int = 100_000) -> float:
    """Return the median of what two readings of the clock, one after the other, are apart."""
    now = time.perf_counter_ns
    apart = array("q", (-now() + now() for _ in range(count)))
    return float(sorted(apart)[count // 2])


def wal_bytes_per_message(servers: str, topic: str, values: Sequence[bytes], folder: Path) -> float:
    """Return what a message takes of the files of a closed log.

    A log with a mark that nobody confirms keeps all its segments; closed, each ends with the page
    of its last frame. So frames, what is left over at a segment's end, and up to 4 KiB a segment
    are in. The checkpoint is not: it has one size whatever the number of messages.
    """
    settings = WalSettings(dir=folder)
    kafka = {"bootstrap.servers": servers}
    with LosslessProducer(settings, kafka, name="bench", marks=True) as producer:
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(FLUSH_S) == 0
    size = sum(path.stat().st_size for path in (folder / "bench").glob("*.wal"))
    shutil.rmtree(folder)
    return size / len(values)


def opening_s_per_gib(size_bytes: int, log_bytes: int, folder: Path, times: int = 3) -> float:
    """Return how long a log of values of one size takes to open: s per GiB, median of ``times``.

    ``WriteAheadLog`` alone: every frame is read, its checksum too. The log is in the page cache.
    """
    (value,) = values_of(size_bytes, 1)
    folder.mkdir(parents=True)
    settings = WalSettings(dir=folder)
    log = WriteAheadLog(folder, settings)
    append, timestamp_ms = log.append, int(time.time() * 1000)
    append(DATA, timestamp_ms, b"bench-0123456789", None, value, b"")
    for _ in range(log_bytes // log.writer.end - 1):
        append(DATA, timestamp_ms, b"bench-0123456789", None, value, b"")
    log.close()
    took = []
    for _ in range(times):
        gc.collect()
        began = time.perf_counter()
        log = WriteAheadLog(folder, settings)
        took.append(time.perf_counter() - began)
        read_bytes = log.size_bytes
        assert not log.damage
        log.close()
    shutil.rmtree(folder)
    return sorted(took)[times // 2] / read_bytes * 1024**3
