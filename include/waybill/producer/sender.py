"""Hand records to librdkafka, in lsn order, each with its stamp and its epoch's callable.

``Sender.send_first``, or its short form in ``LosslessProducer.produce``, runs under the append lock
right after the append, so that the order of the log is the order of the queue. A full queue
(``BufferError``) is waited out there: the record is in the log already and is handed over again,
never appended again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from waybill.errors import StopError
from waybill.producer.client import HEADER, pack_stamp, stamp_prefix
from waybill.producer.delivery import (
    EPOCH_RECORDS,
    Callbacks,
    Deliveries,
    Epoch,
    OnDelivery,
    Poller,
    Reporter,
)
from waybill.producer.retry_queue import Report, RetryQueue
from waybill.producer.wal import HeaderList, WalRecord, WriteAheadLog

_POLL_EVERY = 256
_POLL_S = 0.05
_DRAIN_MOST_S = 1.0
_ANSWER_MOST_S = 2.0


class HandOver(NamedTuple):
    """A record on its first way to librdkafka; headers are without the stamp."""

    lsn: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: HeaderList | None
    partition: int
    timestamp_ms: int


class Sender:
    """One librdkafka producer and the epochs of what it was given.

    Args:
        client: a ``confluent_kafka.Producer``.
        gate: the append lock; held while a record is tried alone.
        closing: set when nothing needs to be waited for any more.
        callbacks: where the caller's ``on_delivery`` callables are noted.
    """

    def __init__(
        self,
        client: Any,
        log: WriteAheadLog,
        deliveries: Deliveries,
        gate: threading.Lock,
        closing: threading.Event,
        callbacks: Callbacks,
    ) -> None:
        from confluent_kafka import KafkaException

        self._client = client
        self.produce: Callable[..., None] = client.produce
        """Of librdkafka. The seven below are for the producer's fast path."""
        self.step_lsn = 0
        """From this lsn on a first hand-over is no longer simple: see ``send_first``."""
        self.prefix = b""
        """Of the stamps of the open epoch."""
        self.report: Report
        """Of the open epoch."""
        self.reporter: Reporter | None = None
        """Of the open epoch, for the ``on_delivery`` that was given last; it names that."""
        self.reporter_of: dict[int, Reporter] = {}
        """Of the open epoch: of each record with an ``on_delivery``, before it is handed over."""
        self.held: dict[tuple[str, bytes], int] = {}
        """Keys that a record waits for: none of theirs may be handed over."""
        self.while_waiting: Callable[[int], None] = lambda _mark: None
        """Called while a first hand-over waits for room; what it raises ends the wait."""
        self._refused: type[Exception] = KafkaException
        self._log = log
        self._wal_id = log.wal_id
        self._deliveries = deliveries
        self._callbacks = callbacks
        self._gate = gate
        self._closing = closing
        self.poller = Poller(client.poll)
        self._epoch_end = self._segment_id = 0
        self._epoch: Epoch
        self._retry_queue: RetryQueue

    def connect(self, retry_queue: RetryQueue) -> None:
        """Say who takes the records that librdkafka refuses."""
        self._retry_queue = retry_queue
        self.held = retry_queue.held

    def place(self, lsn: int, segment_id: int) -> None:
        """Begin a new epoch at ``lsn`` when the open one is full or of another segment."""
        if lsn >= self._epoch_end or segment_id != self._segment_id:
            self._epoch = self._deliveries.open_next(lsn)
            self.reporter, self.reporter_of = None, self._epoch.reporter_of
            self.report = self._epoch.report
            self._epoch_end = lsn + EPOCH_RECORDS
            self._segment_id = segment_id
            self.prefix = stamp_prefix(self._wal_id, segment_id)
            self._log.note_position()
        self.step_lsn = min(self._epoch_end, lsn + _POLL_EVERY)

    def new_segment(self) -> None:
        """Say that the log has begun a new segment: the next record begins an epoch."""
        self.step_lsn = 0

    def reporter_for(self, on_delivery: OnDelivery) -> Reporter:
        """Return what counts reports of the open epoch's records with that ``on_delivery``."""
        self.reporter = reporter = self._epoch.reporter(on_delivery, self._callbacks)
        return reporter

    def send_first(self, record: HandOver, on_delivery: OnDelivery | None = None) -> None:
        """Hand a record over for the first time in this process, or have it wait behind its key.

        Its place was taken (``place``), or it was just appended.
        """
        lsn, topic, key, value, headers, partition, timestamp_ms = record
        if lsn >= self.step_lsn:
            self.place(lsn, max(self._segment_id, self._log.segment_id))
            self.poller.poll()
        if on_delivery is not None:
            self.reporter_of[lsn] = self.reporter_for(on_delivery)
        if self.held and key is not None and (topic, key) in self.held:
            self._retry_queue.hold(lsn, self._epoch, topic, key)
            return
        report = self._epoch.reporter_of.get(lsn, self.report)
        stamped = [*(headers or ()), (HEADER, pack_stamp(self.prefix, lsn))]
        try:
            self.produce(topic, value, key, partition, report, report, timestamp_ms, stamped)
        except BufferError:
            self.wait_and_produce(record)
        except self._refused as error:
            self.took_refusal(lsn, topic, key, error)

    def took_refusal(self, lsn: int, topic: str, key: bytes | None, error: BaseException) -> bool:
        """Take note when ``error`` is librdkafka's refusal of a record; else return False."""
        if not isinstance(error, self._refused):
            return False
        self._retry_queue.refuse(lsn, self._epoch, topic, key, error.args[0])
        return True

    def wait_and_produce(self, record: HandOver) -> None:
        """Hand a record over once librdkafka's queue has room; it is in the log already.

        Raises:
            StopError: the producer is being closed meanwhile.
            Exception: what ``while_waiting`` raised.
        """
        lsn, topic, key, value, headers, partition, timestamp_ms = record
        report = self._epoch.reporter_of.get(lsn, self.report)
        stamped = [*(headers or ()), (HEADER, pack_stamp(self.prefix, lsn))]
        while True:
            if self._closing.is_set():
                raise StopError(f"closed while record {lsn} waited; it is in the log")
            self.while_waiting(lsn)
            self.poller.poll(_POLL_S)
            try:
                self.produce(topic, value, key, partition, report, report, timestamp_ms, stamped)
            except BufferError:
                continue
            except self._refused as error:
                self.took_refusal(lsn, topic, key, error)
            return

    def mark_found(self, lsn: int, segment_id: int) -> None:
        """Count a record of the log that the topic holds already as settled."""
        self.place(lsn, segment_id)
        self._epoch.unhanded += 1
        self._epoch.aside.add(lsn)
        self._deliveries.settle_aside(self._epoch)

    def resend(self, record: WalRecord, report: Report) -> None:
        """Hand a record over again, with a callback of its own.

        Raises:
            KafkaException: librdkafka refused it.
            StopError: the producer is being closed.
        """
        prefix = stamp_prefix(self._wal_id, record.segment_id)
        stamped = [*record.headers, (HEADER, pack_stamp(prefix, record.lsn))]
        while True:
            try:
                self.produce(
                    record.topic,
                    record.value,
                    record.key,
                    record.partition,
                    report,
                    report,
                    record.timestamp_ms,
                    stamped,
                )
            except BufferError:
                if self._closing.is_set():
                    raise StopError("the producer is being closed") from None
                self.poller.poll(_POLL_S)
            else:
                return

    def send_alone(self, record: WalRecord, report: Report) -> bool | None:
        """Hand a record over with nothing else on its way.

        New records wait for as long as that takes, three seconds at most.

        Returns:
            True: it was answered, alone. False: it was handed over, and may have got company since.
            None: what was on its way before did not arrive in a second; it was not handed over.
        """
        answered = threading.Event()

        def answer(error: Any, message: Any) -> None:
            report(error, message)
            answered.set()

        with self._gate:
            if not self._poll_until(lambda: not len(self._client), _DRAIN_MOST_S):
                return None
            self.resend(record, answer)
            return self._poll_until(answered.is_set, _ANSWER_MOST_S)

    def _poll_until(self, done: Callable[[], bool], most_s: float) -> bool:
        limit = time.monotonic() + most_s
        while not done():
            if time.monotonic() >= limit or self._closing.is_set():
                return False
            self.poller.poll(_POLL_S)
        return True

    def sync(self) -> None:
        """Have the disk keep the log up to now."""
        self._log.sync(self._gate)

    def drop(self) -> None:
        """Throw away what librdkafka still has (the log has it too), and end its threads."""
        self.poller.end()
        self._client.purge(in_queue=True, in_flight=True, blocking=False)
        self._client.close()
