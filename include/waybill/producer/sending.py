"""Hand records to librdkafka, in lsn order, each with its stamp and its epoch's callable.

``Sender.first`` is called under the append lock right after the append, so that the order of the
log is the order of the queue. A full queue (``BufferError``) is waited out there: the record is in
the log already and is handed over again, never appended again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from waybill.errors import StopError
from waybill.producer.client import HEADER, pack_lsn, stamp_prefix
from waybill.producer.delivery import EPOCH_RECORDS, Deliveries, Epoch, Poller
from waybill.producer.redo import Redo, Report
from waybill.producer.wal import WalRecord, WriteAheadLog
from waybill.producer.wal.record import HeaderList

_POLL_MASK = 255
_POLL_S = 0.05
_DRAIN_MOST_S = 30.0


class Sender:
    """One librdkafka producer and the epochs of what it was given.

    Args:
        client: a ``confluent_kafka.Producer``.
        gate: the append lock; held while a record is tried alone.
        closing: set when nothing needs to be waited for any more.
    """

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - confluent_kafka has no types
        log: WriteAheadLog,
        deliveries: Deliveries,
        gate: threading.Lock,
        closing: threading.Event,
    ) -> None:
        from confluent_kafka import KafkaException

        self._client = client
        self._produce: Callable[..., None] = client.produce
        self._refused: type[Exception] = KafkaException
        self._log = log
        self._wal_id = log.wal_id
        self._deliveries = deliveries
        self._gate = gate
        self._closing = closing
        self.poller = Poller(client.poll)
        self._epoch_end = self._segment_id = 0
        self._epoch: Epoch
        self._report: Report
        self._prefix = b""

    def place(self, lsn: int, segment_id: int) -> None:
        """Begin a new epoch at ``lsn`` when the open one is full or of another segment."""
        if lsn >= self._epoch_end or segment_id != self._segment_id:
            self._epoch = self._deliveries.open_next(lsn)
            self._report = self._epoch.report
            self._epoch_end = lsn + EPOCH_RECORDS
            self._segment_id = segment_id
            self._prefix = stamp_prefix(self._wal_id, segment_id)

    def first(  # noqa: PLR0913, PLR0917 - the fields of a record
        self,
        redo: Redo,
        lsn: int,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: HeaderList,
        timestamp_ms: int,
    ) -> None:
        """Hand a record over for the first time in this process, or have it wait behind its key.

        Its place was taken (``place``), or it was just appended.
        """
        if lsn >= self._epoch_end or self._log.segment_id > self._segment_id:
            self.place(lsn, self._log.segment_id)
        if not lsn & _POLL_MASK:
            self.poller.poll()
        if redo.held and key is not None and (topic, key) in redo.held:
            redo.hold(lsn, self._epoch, topic, key)
            return
        stamped = [*headers, (HEADER, self._prefix + pack_lsn(lsn))]
        while True:
            try:
                self._produce(
                    topic,
                    value,
                    key,
                    on_delivery=self._report,
                    timestamp=timestamp_ms,
                    headers=stamped,
                )
            except BufferError:
                self.poller.poll(_POLL_S)
            except self._refused as error:
                redo.refuse(lsn, self._epoch, topic, key, error.args[0])
                return
            else:
                return

    def found(self, lsn: int, segment_id: int) -> None:
        """Count a record of the log that the topic holds already as settled."""
        self.place(lsn, segment_id)
        self._epoch.unhanded += 1
        self._epoch.aside.add(lsn)
        self._deliveries.settle_aside(self._epoch)

    def again(self, record: WalRecord, report: Report) -> None:
        """Hand a record over again, with a callback of its own.

        Raises:
            KafkaException: librdkafka refused it.
            StopError: the producer is being closed.
        """
        prefix = stamp_prefix(self._wal_id, record.segment_id)
        stamped = [*record.headers, (HEADER, prefix + pack_lsn(record.lsn))]
        while True:
            try:
                self._produce(
                    record.topic,
                    record.value,
                    record.key,
                    on_delivery=report,
                    timestamp=record.timestamp_ms,
                    headers=stamped,
                )
            except BufferError:
                if self._closing.is_set():
                    raise StopError("the producer is being closed") from None
                self.poller.poll(_POLL_S)
            else:
                return

    def alone(self, record: WalRecord, report: Report) -> None:
        """Hand a record over with nothing else on its way; return when its report is in.

        New records wait for as long as that takes. When what was on its way before does not arrive
        within 30 s the record goes with the others.
        """
        answered = threading.Event()

        def answer(error: Any, message: Any) -> None:  # noqa: ANN401 - librdkafka's callback
            report(error, message)
            answered.set()

        with self._gate:
            limit = time.monotonic() + _DRAIN_MOST_S
            while len(self._client) and time.monotonic() < limit and not self._closing.is_set():
                self.poller.poll(_POLL_S)
            self.again(record, answer)
            while not answered.is_set() and not self._closing.is_set():
                self.poller.poll(_POLL_S)

    def drop(self) -> None:
        """Throw away what librdkafka still has (the log has it too), and end its threads."""
        self._client.purge(in_queue=True, in_flight=True, blocking=False)
        self._client.close()
