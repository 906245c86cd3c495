"""Records whose delivery failed: sorted out, tried again, or given to the caller; never dropped.

A failed report names no record. Once all reports of an epoch are in, its failures are matched with
its records in the log by topic, key and value. Where more records match than failed, or where a
failed one may be in the topic all the same, the topic's tail is read first; what stands there is
settled.

  transient      tried again every ``retry_interval_ms`` (doubling up to 30 s) until it works
  too large      a broker refuses a whole batch for its size: tried once more, alone
  permanent      to ``on_undeliverable``; settled when that returns

Order. While a record waits here, later records of its topic and key are held behind it. Records of
the key that were with librdkafka already when it failed may have gone before it. With the default
``message.timeout.ms=0`` nothing transient ever fails: librdkafka retries in order.

Kill. Nothing here is stored: until it is settled a record holds the low watermark, so the next
opening finds it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from waybill.errors import StopError
from waybill.producer.checkpoint import Offsets
from waybill.producer.client import Failure, sort_failure
from waybill.producer.delivery import Deliveries, Epoch, FailedReport
from waybill.producer.model import Undelivered
from waybill.producer.tail import Tail, UnreachableError
from waybill.producer.wal import DATA, WalRecord, WriteAheadLog

_LOG = logging.getLogger(__name__)
_BACK_OFF_MOST_S = 30.0

OnUndeliverable: TypeAlias = Callable[[Undelivered], None]
Report: TypeAlias = Callable[[Any, Any], None]
Fingerprint: TypeAlias = tuple[str, bytes | None, bytes | None]


@dataclass(slots=True)
class _Group:
    """Records of which ``owed`` are not settled, without knowing which."""

    epoch: Epoch
    owed: int
    left: int


@dataclass(slots=True)
class _Entry:
    lsn: int
    topic: str
    key: bytes | None
    group: _Group
    failure: Failure | None = None
    """None: held for an earlier record of its key, or not handed over yet."""
    code: str = ""
    message: str = ""
    unsure: bool = False
    """It may be in the topic: look first."""
    alone: bool = False
    """It was tried alone."""
    tries: int = 0


class Redo:
    """The waiting room.

    ``hold`` and ``refuse`` are called under the log's append lock, ``serve`` by one thread.

    Args:
        send: hands a record to librdkafka with a callback of its own; may raise ``KafkaException``.
        send_alone: the same while nothing else is on its way; returns when the report is in.
    """

    def __init__(  # noqa: PLR0913 - the parts it works between
        self,
        log: WriteAheadLog,
        deliveries: Deliveries,
        tail: Tail,
        *,
        send: Callable[[WalRecord, Report], None],
        send_alone: Callable[[WalRecord, Report], None],
        on_undeliverable: OnUndeliverable | None,
        interval_s: float,
    ) -> None:
        self._log = log
        self._deliveries = deliveries
        self._tail = tail
        self._send = send
        self._send_alone = send_alone
        self._on_undeliverable = on_undeliverable
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._waiting: dict[int, _Entry] = {}
        self._due = 0.0
        self.held: dict[tuple[str, bytes], int] = defaultdict(int)
        """Topics and keys of which a record waits; later ones must ``hold``."""
        self.retried = 0
        self.undeliverable = 0
        self.delivered = 0
        """Records acknowledged when they were tried again, or found in the topic."""

    # What comes in

    def hold(self, lsn: int, epoch: Epoch, topic: str, key: bytes | None) -> None:
        """Take a record that was appended and not handed over."""
        self._unhanded(_Entry(lsn, topic, key, _Group(epoch, 1, 1)))

    def refuse(self, lsn: int, epoch: Epoch, topic: str, key: bytes | None, error: Any) -> None:  # noqa: ANN401
        """Take a record that librdkafka refused at once."""
        entry = _Entry(lsn, topic, key, _Group(epoch, 1, 1))
        self._note(entry, error)
        entry.unsure = False
        self._unhanded(entry)

    def _unhanded(self, entry: _Entry) -> None:
        entry.group.epoch.unhanded += 1
        entry.group.epoch.aside.add(entry.lsn)
        self._put(entry)

    def _put(self, entry: _Entry) -> None:
        with self._lock:
            if entry.key is not None:
                self.held[entry.topic, entry.key] += 1
            self._waiting[entry.lsn] = entry

    # What is done about it

    def serve(self, failed: list[Epoch], next_lsn: int) -> None:
        """Sort out new failures, and try again what is due.

        Args:
            failed: of ``Deliveries.failed(next_lsn)``, asked under the append lock.
            next_lsn: of that moment.

        Raises:
            StopError: this client is beyond repair, or a record cannot be delivered and nobody
                takes it.
        """
        for epoch in failed:
            self._sort_out(epoch, next_lsn)
        if self._waiting and time.monotonic() >= self._due:
            self._round()

    def _sort_out(self, epoch: Epoch, next_lsn: int) -> None:
        failures = list(epoch.failures)
        kinds = {sort_failure(failure.error) for failure in failures}
        if Failure.PURGED in kinds:
            return
        by_print: dict[Fingerprint, list[FailedReport]] = defaultdict(list)
        for failure in failures:
            by_print[failure.topic, failure.key, failure.value].append(failure)
        for print_, lsns in self._candidates(epoch, next_lsn, by_print).items():
            self._enter(epoch, lsns, by_print[print_])
        epoch.reported += len(failures)
        del epoch.failures[: len(failures)]
        self._later(1)

    def _candidates(
        self, epoch: Epoch, next_lsn: int, wanted: dict[Fingerprint, list[FailedReport]]
    ) -> dict[Fingerprint, list[int]]:
        found: dict[Fingerprint, list[int]] = defaultdict(list)
        first_lsn = max(epoch.first_lsn, self._deliveries.low)  # those below are settled
        end_lsn = min(next_lsn, epoch.end_lsn or next_lsn)
        for record in self._log.records(first_lsn, end_lsn):
            print_ = (record.topic, record.key, record.value)
            if record.kind == DATA and print_ in wanted and record.lsn not in epoch.aside:
                found[print_].append(record.lsn)
        return found

    def _enter(self, epoch: Epoch, lsns: list[int], failures: list[FailedReport]) -> None:
        group = _Group(epoch, len(failures), len(lsns))
        first = failures[0]
        for lsn in lsns:
            entry = _Entry(lsn, first.topic, first.key, group)
            self._note(entry, first.error)
            entry.unsure |= len(lsns) != len(failures)
            epoch.aside.add(lsn)
            self._put(entry)

    def _round(self) -> None:
        with self._lock:
            entries = [self._waiting[lsn] for lsn in sorted(self._waiting)]
        try:
            self._look(entries)
        except UnreachableError as error:
            _LOG.warning("%d records wait for Kafka: %s", len(entries), error)
            self._due = time.monotonic() + self._interval_s
            return
        for entry in entries:
            if entry.lsn in self._waiting:
                self._treat(entry)

    def _look(self, entries: list[_Entry]) -> None:
        unsure = {entry.lsn: entry for entry in entries if entry.unsure}
        if not unsure:
            return
        topics = sorted({entry.topic for entry in unsure.values()})
        found = self._tail.find(
            lambda segment, lsn: lsn in unsure and self._log.holds(segment, lsn),
            len(unsure),
            topics,
            self._offsets(),
        )
        for entry in unsure.values():
            entry.unsure = False
            if entry.lsn in found:
                self._finish(entry)

    def _offsets(self) -> Offsets:
        return {topic: dict(at) for topic, at in list(self._deliveries.offsets.items())}

    def _treat(self, entry: _Entry) -> None:
        if entry.failure is Failure.FATAL:
            raise StopError(
                f"the Kafka client cannot go on ({entry.code}: {entry.message}); "
                "close the producer and open it again: its records are in the log"
            )
        if entry.failure is Failure.PERMANENT or (
            entry.failure is Failure.TOO_LARGE and entry.alone
        ):
            self._give_up(entry)
        else:
            self._again(entry, alone=entry.failure is Failure.TOO_LARGE)

    def _again(self, entry: _Entry, *, alone: bool) -> None:
        from confluent_kafka import KafkaException

        record = self._record(entry)
        with self._lock:
            self._waiting.pop(entry.lsn)
        self.retried += entry.failure is not None
        entry.tries += 1
        entry.alone = alone
        send = self._send_alone if alone else self._send
        try:
            send(record, lambda error, _message: self._answer(entry, error))
        except KafkaException as error:
            self._answer(entry, error.args[0])
            entry.unsure = False
        except BaseException:  # closing, or an interrupt: it waits on
            with self._lock:
                self._waiting[entry.lsn] = entry
            raise
        if alone and entry.lsn in self._waiting:
            self._treat(entry)

    def _answer(self, entry: _Entry, error: Any) -> None:  # noqa: ANN401 - a KafkaError
        """Take the report of a record tried again. Runs inside ``poll``: no raising, no polling."""
        if error is None:
            self._finish(entry)
            return
        self._note(entry, error)
        if entry.failure is Failure.PURGED:
            return
        with self._lock:
            self._waiting[entry.lsn] = entry
        self._later(entry.tries)

    def _later(self, tries: int) -> None:
        wait_s = min(_BACK_OFF_MOST_S, self._interval_s * 2 ** min(tries - 1, 10))
        self._due = time.monotonic() + wait_s

    def _note(self, entry: _Entry, error: Any) -> None:  # noqa: ANN401 - a KafkaError
        entry.failure = sort_failure(error)
        entry.code, entry.message = str(error.name()), str(error.str())
        entry.unsure = entry.failure is Failure.UNCERTAIN

    def _give_up(self, entry: _Entry) -> None:
        record = self._record(entry)
        what = f"record {record.lsn} for topic {record.topic!r}: {entry.code}: {entry.message}"
        if self._on_undeliverable is None:
            raise StopError(f"Kafka refuses {what}; it stays in the log (no on_undeliverable)")
        undelivered = Undelivered(
            record.lsn,
            record.topic,
            record.key,
            record.value,
            record.headers,
            entry.code,
            entry.message,
        )
        try:
            self._on_undeliverable(undelivered)
        except Exception as error:
            raise StopError(f"on_undeliverable failed for {what}; it stays in the log") from error
        self.undeliverable += 1
        self._finish(entry, delivered=False)

    def _finish(self, entry: _Entry, *, delivered: bool = True) -> None:
        with self._lock:
            self._waiting.pop(entry.lsn, None)
            if entry.key is not None:
                self._let_go((entry.topic, entry.key))
            group = entry.group
            group.left -= 1
            settled = max(0, group.owed - group.left)
            group.owed -= settled
            self.delivered += settled if delivered else 0
        self._deliveries.settle_aside(group.epoch, settled)

    def _let_go(self, key: tuple[str, bytes]) -> None:
        self.held[key] -= 1
        if self.held[key] <= 0:
            del self.held[key]

    def _record(self, entry: _Entry) -> WalRecord:
        return next(self._log.records(entry.lsn, entry.lsn + 1))
