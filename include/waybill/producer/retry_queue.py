"""Records whose delivery failed: sorted out, tried again, or given to the caller; never dropped.

A failed report names no record. Once all reports of an epoch are in, its failures are matched with
its records in the log by topic, key, value and ``on_delivery``. Where more records match than
failed, or where a failed one may be in the topic all the same, the topic's tail is read first; what
stands there is settled.

  transient      set aside in the retry log, and tried again every ``retry_interval_ms`` (doubling
                 up to 30 s, each record by itself) until it works
  too large      a broker refuses a whole batch for its size: tried once more, alone
  permanent      to ``on_undeliverable``; settled when that returns. A RetryError of it is tried
                 again like a transient failure

Order. While a record waits here, later records of its topic and key are held behind it. Records of
the key that were with librdkafka already when it failed may have gone before it. With the default
``message.timeout.ms=0`` nothing transient ever fails: librdkafka retries in order.

Kill. A record that waits is in the main log above the watermark, or was put and synced in the retry
log before the watermark could pass it: the next opening finds it in one of them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from waybill.back_off import BackOff
from waybill.errors import RetryError, StopError
from waybill.producer.checkpoint import Offsets
from waybill.producer.client import MOST_HOPEFUL_FIRST, FailureKind, sort_failure
from waybill.producer.delivery import Deliveries, Epoch, FailedReport, Reporter
from waybill.producer.model import Undelivered, undelivered
from waybill.producer.retry_log import Note, RetryLog
from waybill.producer.tail import TailReader, UnreachableError
from waybill.producer.wal import DATA, WalRecord, WriteAheadLog


@dataclass(slots=True)
class Group:
    """Records of one epoch, alike, of which ``owed`` are not settled, without knowing which."""

    epoch: Epoch
    owed: int
    remaining: int

    @property
    def certain(self) -> bool:
        """Tell whether it is known which: all that remain."""
        return self.owed == self.remaining

    def take_one(self) -> int:
        """Take one record out; return how many are settled by that (0 or 1)."""
        self.remaining -= 1
        settled = max(0, self.owed - self.remaining)
        self.owed -= settled
        return settled


@dataclass(slots=True)
class Entry:
    """One record that waits."""

    lsn: int
    topic: str
    key: bytes | None
    group: Group | None
    """None once it is set aside: its epoch does not wait for it any more."""
    reporter: Reporter | None = None
    failure: FailureKind | None = None
    """None: held for an earlier record of its key, or not handed over yet."""
    error: Any = None
    code: str = ""
    message: str = ""
    segment_id: int = 0
    """In the main log; known of records set aside."""
    unsure: bool = False
    """It may be in the topic: look first."""
    alone: bool = False
    """It was tried alone."""
    tries: int = 0
    probing: bool = False
    """Its key is not known to work again: nothing of the key may follow before it is taken."""
    loose: bool = False
    """It was handed over and holds its key no more: what follows it may be handed over too."""
    gone: bool = False
    """It is settled."""
    failed_at: float = 0.0
    """When it failed last, and, below, when to try it again; both on the monotonic clock."""
    due: float = 0.0

    @property
    def set_aside(self) -> bool:
        """Tell whether it is in the retry log."""
        return self.group is None

    @property
    def movable(self) -> bool:
        """Tell whether it only waits, and it is known that it is this one: it may be set aside."""
        waits = self.failure is None or self.failure is FailureKind.UNCERTAIN
        return waits and self.group is not None and self.group.certain

    def note(self, error: Any) -> None:
        """Remember why it failed."""
        self.error = error
        self.failed_at = time.monotonic()
        self.failure = sort_failure(error)
        self.code, self.message = str(error.name()), str(error.str())
        self.unsure = self.failure is FailureKind.UNCERTAIN


class PendingRecords:
    """Records whose delivery failed, or that wait behind one, by lsn; not those on their way again.

    A record that failed blocks its key: only the first of a key is tried, and when it works the
    others of its key follow at once, in order.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, Entry] = {}
        self.held: dict[tuple[str, bytes], int] = defaultdict(int)
        """Topics and keys of which a record waits, or is on its way as a probe."""
        self._trying: set[tuple[str, bytes]] = set()
        """Keys of which a record that failed is on its way again."""
        self._stopped: set[tuple[str, bytes]] = set()
        """Keys of which a record failed since ``due`` was asked."""
        self._proved: dict[tuple[str, bytes], float] = {}
        """When a record of a key was taken by Kafka after one had failed."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, lsn: int) -> bool:
        return lsn in self._entries

    @property
    def entries(self) -> list[Entry]:
        """Those that wait, in lsn order."""
        with self._lock:
            return [self._entries[lsn] for lsn in sorted(self._entries)]

    def due(self, now: float) -> list[Entry]:
        """Return those that may be tried now, in lsn order: a new round begins."""
        due: list[Entry] = []
        with self._lock:
            self._stopped.clear()
            stopped = set(self._trying)
            for lsn in sorted(self._entries):
                entry = self._entries[lsn]
                place = None if entry.key is None else (entry.topic, entry.key)
                if place in stopped:
                    continue
                entry.probing = entry.failure is not None and not self._is_proved(entry, place)
                if not entry.probing or entry.due <= now:
                    due.append(entry)
                if entry.probing and place is not None:
                    stopped.add(place)
        return due

    def _is_proved(self, entry: Entry, place: tuple[str, bytes] | None) -> bool:
        return place is not None and self._proved.get(place, -1.0) > entry.failed_at

    def enter(self, entry: Entry) -> None:
        """Add a record for the first time: from now on it holds its key."""
        with self._lock:
            if entry.key is not None:
                self.held[entry.topic, entry.key] += 1
            self._entries[entry.lsn] = entry

    def send_off(self, entry: Entry) -> None:
        """Take a record out that is about to be handed over (again)."""
        with self._lock:
            self._entries.pop(entry.lsn)
            if entry.key is not None and entry.probing:
                self._trying.add((entry.topic, entry.key))

    def handed(self, entry: Entry) -> None:
        """Say that it was handed over: unless it is a probe, the next of its key may follow."""
        with self._lock:
            back = entry.lsn in self._entries
            if not (entry.key is None or entry.probing or entry.gone or back):
                entry.loose = True
                self._let_go((entry.topic, entry.key))

    def take_back(self, entry: Entry) -> None:
        """Add a record again whose further try failed."""
        with self._lock:
            self._entries[entry.lsn] = entry
            if entry.key is None:
                return
            place = (entry.topic, entry.key)
            self._stopped.add(place)
            if entry.probing:
                self._trying.discard(place)
            if entry.loose:
                entry.loose = False
                self.held[place] += 1

    def stop(self, entry: Entry) -> None:
        """Let no other record of its key be tried in this round."""
        with self._lock:
            if entry.key is not None:
                self._stopped.add((entry.topic, entry.key))

    def was_stopped(self, entry: Entry) -> bool:
        """Tell whether a record of its key failed since the round began."""
        with self._lock:
            return entry.key is not None and (entry.topic, entry.key) in self._stopped

    def leave(self, entry: Entry, now: float) -> None:
        """Take a record out for good and let its key go."""
        with self._lock:
            self._entries.pop(entry.lsn, None)
            entry.gone = True
            if entry.key is None:
                return
            place = (entry.topic, entry.key)
            if entry.probing:
                self._trying.discard(place)
            if not entry.loose:
                self._proved[place] = now
                self._let_go(place)

    def _let_go(self, place: tuple[str, bytes]) -> None:
        self.held[place] -= 1
        if self.held[place] <= 0:
            del self.held[place]
            self._proved.pop(place, None)


_LOG = logging.getLogger(__name__)
_BACK_OFF_MOST_S = 30.0

OnUndeliverable: TypeAlias = Callable[[Undelivered], None]
WasTaken: TypeAlias = Callable[[str, int], Iterable[int]]
"""(WAL id, lsn) -> the lsns from there on that ``on_undeliverable`` has taken."""
Report: TypeAlias = Callable[[Any, Any], None]
Fingerprint: TypeAlias = tuple[str, bytes | None, bytes | None, Reporter | None]


class Resender(Protocol):
    """What the queue uses of a ``Sender``."""

    def resend(self, record: WalRecord, report: Report) -> None:
        """Hand a record to librdkafka with a callback of its own; may raise KafkaException."""

    def send_alone(self, record: WalRecord, report: Report) -> bool | None:
        """Hand a record over with nothing else on its way."""

    def sync(self) -> None:
        """Have the disk keep the main log."""


class RetryQueue:
    """Tries failed records again, or gives them up.

    ``hold`` and ``refuse`` are called under the log's append lock, ``serve`` by one thread.

    Args:
        retry: where records are set aside.
        sender: hands a record to librdkafka again.
        on_undeliverable: takes what Kafka will never take.
    """

    def __init__(  # noqa: PLR0913 - the parts it works between
        self,
        log: WriteAheadLog,
        retry: RetryLog,
        deliveries: Deliveries,
        tail: TailReader,
        *,
        sender: Resender,
        on_undeliverable: OnUndeliverable,
        interval_s: float,
    ) -> None:
        self._log = log
        self._retry = retry
        self._deliveries = deliveries
        self._tail = tail
        self._sender = sender
        self._on_undeliverable = on_undeliverable
        self._back_off = BackOff(interval_s, _BACK_OFF_MOST_S)
        self._pending = PendingRecords()
        self.held = self._pending.held
        """Topics and keys of which a record waits; later ones must ``hold``."""
        self._look_at = 0.0
        self._done: deque[int] = deque()
        """Set aside, and settled since: to be struck from the retry log."""
        self._aside: Counter[str] = Counter()
        """Records set aside that are not settled, by topic."""
        self._count_lock = threading.Lock()
        self.moved = 0
        """Records that this process set aside."""
        self.retried = 0
        self.undeliverable = 0
        self.delivered = 0
        """Records acknowledged when they were tried again, or found in the topic."""

    @property
    def retrying(self) -> int:
        """Records set aside that are not settled."""
        with self._count_lock:
            return self._aside.total()

    # What comes in

    def adopt(self, taken: Set[int]) -> set[int]:
        """Take over what the retry log of a dead process holds, and return it.

        Args:
            taken: records that ``on_undeliverable`` took before that death: these are done.
        """
        adopted = set(self._retry.lsns)
        self._done.extend(adopted & taken)
        for lsn in sorted(adopted - taken):
            record, note = self._retry.get(lsn)
            entry = Entry(lsn, record.topic, record.key, None, segment_id=record.segment_id)
            entry.failure, entry.unsure = FailureKind.UNCERTAIN, True
            entry.code, entry.message = note.code, note.message
            self._aside[entry.topic] += 1
            self._deliveries.hold_offsets(entry.topic)  # the checkpoint may be older than its place
            self._pending.enter(entry)
        return adopted

    def hold(self, lsn: int, epoch: Epoch, topic: str, key: bytes | None) -> None:
        """Take a record that was appended and not handed over."""
        self._unhanded(Entry(lsn, topic, key, Group(epoch, 1, 1), epoch.reporter_of.get(lsn)))

    def refuse(self, lsn: int, epoch: Epoch, topic: str, key: bytes | None, error: Any) -> None:
        """Take a record that librdkafka refused at once."""
        entry = Entry(lsn, topic, key, Group(epoch, 1, 1), epoch.reporter_of.get(lsn))
        entry.note(error)
        entry.unsure = False
        self._unhanded(entry)

    def _unhanded(self, entry: Entry) -> None:
        if entry.group is not None:
            entry.group.epoch.unhanded += 1
            entry.group.epoch.aside.add(entry.lsn)
        self._pending.enter(entry)

    # What is done about it

    def serve(self, failed: list[tuple[Epoch, int]], next_lsn: int) -> None:
        """Sort out new failures, set aside what has to wait, and try again what is due.

        Args:
            failed: of ``Deliveries.failed(next_lsn)``, asked under the append lock.
            next_lsn: of that moment.

        Raises:
            StopError: this client is beyond repair, or ``on_undeliverable`` failed.
        """
        for epoch, count in failed:
            self._sort_out(epoch, count, next_lsn)
        if self._pending:
            self._set_aside([entry for entry in self._pending.entries if entry.movable])
            now = time.monotonic()
            if now >= self._look_at:
                self._round(self._pending.due(now))
        self.acknowledge()

    def acknowledge(self) -> None:
        """Strike what was settled from the retry log."""
        done = list(self._done)
        if not done:
            return
        try:
            self._retry.settle(done)
        except RetryError as error:
            _LOG.warning("the retry log keeps %d settled records for now: %s", len(done), error)
            return
        for _ in done:
            self._done.popleft()
        self._deliveries.release_offsets({topic for topic, count in self._aside.items() if count})

    def _sort_out(self, epoch: Epoch, count: int, next_lsn: int) -> None:
        failures = epoch.failures[:count]  # later ones may be of records from next_lsn on
        if any(sort_failure(failure.error) is FailureKind.PURGED for failure in failures):
            return
        by_fingerprint: dict[Fingerprint, list[FailedReport]] = defaultdict(list)
        for failure in failures:
            fingerprint = (failure.topic, failure.key, failure.value, failure.reporter)
            by_fingerprint[fingerprint].append(failure)
        for fingerprint, lsns in self._candidates(epoch, next_lsn, by_fingerprint).items():
            self._enter(epoch, lsns, by_fingerprint[fingerprint])
        epoch.reported += len(failures)
        del epoch.failures[: len(failures)]

    def _candidates(
        self, epoch: Epoch, next_lsn: int, wanted: dict[Fingerprint, list[FailedReport]]
    ) -> dict[Fingerprint, list[int]]:
        lsns: dict[Fingerprint, list[int]] = defaultdict(list)
        first_lsn = max(epoch.first_lsn, self._deliveries.low)  # those below are settled
        end_lsn = min(next_lsn, epoch.end_lsn or next_lsn)
        for record in self._log.records(first_lsn, end_lsn):
            reporter = epoch.reporter_of.get(record.lsn)
            fingerprint = (record.topic, record.key, record.value, reporter)
            if record.kind == DATA and fingerprint in wanted and record.lsn not in epoch.aside:
                lsns[fingerprint].append(record.lsn)
        return lsns

    def _enter(self, epoch: Epoch, lsns: list[int], failures: list[FailedReport]) -> None:
        group = Group(epoch, len(failures), len(lsns))
        chosen = min(
            failures, key=lambda failure: MOST_HOPEFUL_FIRST.index(sort_failure(failure.error))
        )
        for lsn in lsns:
            entry = Entry(lsn, chosen.topic, chosen.key, group, chosen.reporter)
            entry.note(chosen.error)
            entry.unsure |= not group.certain
            if entry.failure is not FailureKind.TOO_LARGE:
                entry.due = time.monotonic() + self._back_off.first_s
            epoch.aside.add(lsn)
            self._pending.enter(entry)

    def _set_aside(self, entries: list[Entry]) -> None:
        if not entries:
            return
        moved: list[Entry] = []
        try:
            for entry, record in self._with_records(entries):
                self._deliveries.hold_offsets(entry.topic)
                self._retry.put(record, Note(entry.code, entry.message, time.time_ns() // 10**6))
                entry.segment_id = record.segment_id
                moved.append(entry)
        except RetryError as error:
            _LOG.debug("records wait in the main log, the retry log has no room: %s", error)
        if not moved:
            return
        self._retry.sync()
        for entry in moved:
            group, entry.group = entry.group, None
            assert group is not None  # noqa: S101 - only such are movable
            with self._count_lock:
                self._aside[entry.topic] += 1
                self.moved += 1
                settled = group.take_one()
            self._deliveries.settle_aside(group.epoch, settled)

    def _with_records(self, entries: list[Entry]) -> Iterator[tuple[Entry, WalRecord]]:
        """Read the records of entries of the main log, in one pass: they are near each other."""
        wanted = {entry.lsn: entry for entry in entries}
        for record in self._log.records(min(wanted), max(wanted) + 1):
            if record.lsn in wanted:
                yield wanted[record.lsn], record

    def _round(self, entries: list[Entry]) -> None:
        try:
            self._look(entries)
        except UnreachableError as error:
            _LOG.warning("%d records wait for Kafka: %s", len(self._pending), error)
            self._look_at = time.monotonic() + self._back_off.first_s
            return
        for entry in entries:
            if entry.lsn in self._pending and not self._pending.was_stopped(entry):
                self._treat(entry)

    def _look(self, entries: list[Entry]) -> None:
        unsure = {entry.lsn: entry for entry in self._with_their_groups(entries) if entry.unsure}
        if not unsure:
            return
        found = self._tail.find(
            lambda segment, lsn: lsn in unsure and self._is_of(unsure[lsn], segment),
            len(unsure),
            sorted({entry.topic for entry in unsure.values()}),
            self._starts(unsure.values()),
        )
        for entry in unsure.values():
            entry.unsure = False
            if entry.lsn in found:
                self._finish(entry)

    def _with_their_groups(self, entries: list[Entry]) -> list[Entry]:
        """Add those from whom they must be told apart: found ones leave before one is treated."""
        groups = {id(e.group) for e in entries if e.group is not None and not e.group.certain}
        others = self._pending.entries if groups else []
        return entries + [entry for entry in others if id(entry.group) in groups]

    def _is_of(self, entry: Entry, segment_id: int) -> bool:
        if entry.set_aside:
            return entry.segment_id == segment_id
        return self._log.holds(segment_id, entry.lsn)

    def _starts(self, entries: Iterable[Entry]) -> Offsets:
        aside = {entry.topic for entry in entries if entry.set_aside}
        return self._deliveries.starts(aside)

    def _treat(self, entry: Entry) -> None:
        if entry.failure is FailureKind.FATAL:
            raise StopError(
                f"the Kafka client cannot go on ({entry.code}: {entry.message}); "
                "close the producer and open it again: its records are in the log"
            )
        if entry.failure is FailureKind.PERMANENT or (
            entry.failure is FailureKind.TOO_LARGE and entry.alone
        ):
            self._give_up(entry)
        else:
            self._again(entry, alone=entry.failure is FailureKind.TOO_LARGE)

    def _again(self, entry: Entry, *, alone: bool) -> None:
        from confluent_kafka import KafkaException

        record = self._record(entry)
        self._pending.send_off(entry)
        self.retried += entry.failure is not None
        entry.tries += 1
        entry.alone = alone
        send = self._sender.send_alone if alone else self._sender.resend
        try:
            sent = send(record, lambda error, message: self._answer(entry, error, message))
        except KafkaException as error:
            self._answer(entry, error.args[0], None)
            entry.unsure = False
        except BaseException:  # closing, or an interrupt: it waits on
            self._pending.take_back(entry)
            raise
        else:
            if alone and not sent:
                self._not_alone(entry, sent=sent is not None)
        self._pending.handed(entry)
        if entry.alone and entry.lsn in self._pending and not entry.unsure:
            self._treat(entry)

    def _not_alone(self, entry: Entry, *, sent: bool) -> None:
        entry.alone = False
        if not sent:
            self._put_off(entry)
            self._pending.take_back(entry)

    def _answer(self, entry: Entry, error: Any, message: Any) -> None:
        """Take the report of a record tried again. Runs inside ``poll``: no raising, no polling."""
        if error is None:
            self._finish(entry, message=message)
            return
        entry.note(error)
        if entry.failure is FailureKind.PURGED:
            return
        self._put_off(entry)
        self._pending.take_back(entry)

    def _put_off(self, entry: Entry) -> None:
        entry.due = time.monotonic() + self._back_off.wait_s(max(1, entry.tries))

    def _give_up(self, entry: Entry) -> None:
        record = self._record(entry)
        what = f"record {record.lsn} for topic {record.topic!r}: {entry.code}: {entry.message}"
        try:
            self._hand_to_caller(record, entry)
        except RetryError as error:
            entry.tries += 1
            self._put_off(entry)
            self._pending.stop(entry)
            _LOG.warning("%s: on_undeliverable is asked again later: %s", what, error)
            return
        except Exception as error:
            raise StopError(f"on_undeliverable failed for {what}; it stays in the log") from error
        self._finish(entry, delivered=False)

    def _hand_to_caller(self, record: WalRecord, entry: Entry) -> None:
        if not entry.set_aside and self._log.synced_lsn < record.lsn:
            # else a power cut could give its lsn to another record, which then was "taken"
            self._sender.sync()
        pid = os.getpid()
        self._on_undeliverable(
            undelivered(record, self._log.wal_id.hex(), entry.code, entry.message)
        )
        if os.getpid() != pid:
            raise StopError("forked inside on_undeliverable: all of this is the parent's")

    def _finish(self, entry: Entry, *, delivered: bool = True, message: Any = None) -> None:
        if entry.reporter is not None and message is None:
            message = self._message(entry, None if delivered else entry.error)
        self._pending.leave(entry, time.monotonic())
        with self._count_lock:
            settled = 1 if entry.group is None else entry.group.take_one()
            self.delivered += settled if delivered else 0
            self.undeliverable += 0 if delivered else settled
        if settled and entry.reporter is not None:
            entry.reporter.notify(None if delivered else entry.error, message)
        if entry.group is None:
            self._done.append(entry.lsn)
            with self._count_lock:  # last: once nothing is in doubt, every caller was notified
                self._aside[entry.topic] -= 1
        else:
            self._deliveries.settle_aside(entry.group.epoch, settled)

    def _message(self, entry: Entry, error: Any) -> Any:
        """Return the message of a record that no report names; its offset is not known."""
        from confluent_kafka import Message

        record = self._record(entry)
        return Message(topic=entry.topic, key=entry.key, value=record.value, error=error)

    def _record(self, entry: Entry) -> WalRecord:
        if entry.set_aside:
            return self._retry.get(entry.lsn)[0]
        return next(self._log.records(entry.lsn, entry.lsn + 1))
