"""Delivery reports counted by epoch: which records are settled, at the price of one counter.

An epoch is a run of at most ``EPOCH_RECORDS`` records of the log. All its records carry one
callable; librdkafka calls it once for each. An epoch is complete when as many of its records are
settled as it holds; the low watermark is the first record of the oldest epoch that is not. A
closure for each record would cost more than the log.

A report does not say which record it is of (its headers and, when it failed, its timestamp are
gone), so failures are sorted out per epoch, once all of the epoch's reports are in: see
``retry_queue``.

The caller's ``on_delivery`` callables are noted inside ``poll`` and called outside every lock:
librdkafka aborts the process when a callback polls or flushes, and what a callback raises comes out
of some other call. They run one at a time from ``poll``, ``flush`` and ``close`` or, when the
caller uses none of these, from the producer's own thread. They may produce, poll and flush.

Invariants
  I1  Reports are counted under one lock (one thread polls at a time): a counter never loses one.
  I2  An offset is remembered for its partition only from first hand-overs, which reach a partition
      in lsn order: every record of a later epoch stands behind it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from waybill.producer.checkpoint import Offsets

_LOG = logging.getLogger(__name__)
EPOCH_RECORDS = 1024
_SAMPLE_ALL = 32
_SAMPLE_MASK = 31

OnDelivery: TypeAlias = Callable[[Any, Any], object]
"""Called with (None, message) or (KafkaError, message), as librdkafka does."""


@dataclass(frozen=True, slots=True)
class FailedReport:
    """A delivery that failed."""

    error: Any
    topic: str
    key: bytes | None
    value: bytes | None
    reporter: Reporter | None = None


class Reporter:
    """The report callable of the records of one epoch that have the same ``on_delivery``."""

    __slots__ = ("_callbacks", "_epoch", "_note", "on_delivery")

    def __init__(self, epoch: Epoch, on_delivery: OnDelivery, callbacks: Callbacks) -> None:
        self._epoch = epoch
        self._callbacks = callbacks
        self._note = callbacks.waiting.append
        self.on_delivery = on_delivery

    def __call__(self, error: Any, message: Any) -> None:
        """Count one report, and pass a success on; a failure may yet succeed.

        The lines of ``Epoch.report`` and ``Callbacks.add``: one call a report instead of three.
        """
        epoch = self._epoch
        if error is not None:
            epoch.report(error, message, self)
            return
        count = epoch.acknowledged + 1
        if count <= _SAMPLE_ALL or not count & _SAMPLE_MASK:
            epoch.offsets[message.topic(), message.partition()] = message.offset() + 1
        epoch.acknowledged = count  # no call from here to the note: another thread's flush() that
        self._note((self.on_delivery, None, message))  # sees it counted finds the note as well

    def notify(self, error: Any, message: Any) -> None:
        """Have the caller's ``on_delivery`` called with how a record ended."""
        self._callbacks.add(self.on_delivery, error, message)


class Epoch:
    """A run of records; the open one still grows."""

    __slots__ = (
        "acknowledged",
        "aside",
        "end_lsn",
        "expected",
        "failures",
        "first_lsn",
        "offsets",
        "reported",
        "reporter_of",
        "reporters",
        "settled_aside",
        "unhanded",
    )

    def __init__(self, first_lsn: int) -> None:
        self.first_lsn = first_lsn
        self.end_lsn: int | None = None
        """The lsn after the last record; None while the epoch is open."""
        self.expected = 0
        """Data records in it; set when it is closed."""
        self.acknowledged = 0
        self.reported = 0
        """Failures reported and already sorted out."""
        self.unhanded = 0
        """Records never handed over with this epoch's callable: refused, held, or found."""
        self.aside: set[int] = set()
        """Records of which no further report comes here: unhanded ones, and failures sorted out."""
        self.settled_aside = 0
        """Records settled by another way than this epoch's callable."""
        self.failures: list[FailedReport] = []
        self.offsets: dict[tuple[str, int], int] = {}
        self.reporter_of: dict[int, Reporter] = {}
        """Of records with an ``on_delivery``, by lsn."""
        self.reporters: dict[OnDelivery, Reporter] = {}

    def reporter(self, on_delivery: OnDelivery, callbacks: Callbacks) -> Reporter:
        """Return the callable that counts a record's report and notifies its caller.

        Whoever hands the record over puts it into ``reporter_of`` before.
        """
        try:
            reporter = self.reporters.get(on_delivery)
            if reporter is None:
                reporter = self.reporters[on_delivery] = Reporter(self, on_delivery, callbacks)
        except TypeError:  # it cannot be hashed
            reporter = Reporter(self, on_delivery, callbacks)
        return reporter

    def report(self, error: Any, message: Any, reporter: Reporter | None = None) -> None:
        """Count one delivery report."""
        if error is not None:
            self.failures.append(
                FailedReport(error, message.topic(), message.key(), message.value(), reporter)
            )
            return
        self.acknowledged = count = self.acknowledged + 1
        if count <= _SAMPLE_ALL or not count & _SAMPLE_MASK:
            self.offsets[message.topic(), message.partition()] = message.offset() + 1

    @property
    def settled(self) -> int:
        """Records settled, in whatever way."""
        return self.acknowledged + self.settled_aside


class Deliveries:
    """The epochs that are not complete, oldest first.

    ``open_next``, ``low_lsn`` and ``in_doubt`` are called under the log's append lock.
    """

    def __init__(self, offsets: Offsets, retry_offsets: Offsets | None = None) -> None:
        self.epochs: deque[Epoch] = deque()
        self.offsets = offsets
        self.retry_offsets = retry_offsets or {}
        """The same for records set aside, as it was when the first of a topic was."""
        self.low = 1
        """The low watermark as it was last asked for."""
        self.delivered = 0
        """Acknowledged in epochs that are complete."""
        self._lock = threading.Lock()
        self._others = 0

    def open_next(self, first_lsn: int) -> Epoch:
        """Close the open epoch, if any, and begin the next at ``first_lsn``."""
        if self.epochs and self.epochs[-1].end_lsn is None:
            last = self.epochs[-1]
            last.expected = first_lsn - last.first_lsn - self._others
            last.end_lsn = first_lsn
        self._others = 0
        epoch = Epoch(first_lsn)
        self.epochs.append(epoch)
        return epoch

    def pass_over(self, count: int = 1) -> None:
        """Say that the next ``count`` lsns of the open epoch hold no data (marks, damage)."""
        self._others += count

    def expected(self, epoch: Epoch, next_lsn: int) -> int:
        """Return how many data records an epoch holds now."""
        if epoch.end_lsn is not None:
            return epoch.expected
        return next_lsn - epoch.first_lsn - self._others

    def low_lsn(self, next_lsn: int) -> int:
        """Drop the complete epochs from the front and return the low watermark.

        An open epoch that was complete for a moment has taught its offsets: they are true only for
        the records behind that moment (I2), so it never goes back.
        """
        self.low = max(self.low, self._complete_up_to(next_lsn))
        return self.low

    def _complete_up_to(self, next_lsn: int) -> int:
        while self.epochs:
            epoch = self.epochs[0]
            if epoch.settled < self.expected(epoch, next_lsn):
                return epoch.first_lsn
            self._learn(epoch)
            if epoch.end_lsn is None:
                return next_lsn
            self.delivered += epoch.acknowledged
            self.epochs.popleft()
        return next_lsn

    def _learn(self, epoch: Epoch) -> None:
        for (topic, partition), offset in list(epoch.offsets.items()):
            at = self.offsets.setdefault(topic, {})
            at[partition] = max(offset, at.get(partition, 0))

    def hold_offsets(self, topic: str) -> None:
        """Remember where to look for a record of a topic that is set aside before it is settled."""
        self.retry_offsets.setdefault(topic, dict(self.offsets.get(topic, {})))

    def release_offsets(self, waiting: set[str]) -> None:
        """Forget those offsets, but for topics of which records still wait."""
        for topic in self.retry_offsets.keys() - waiting:
            del self.retry_offsets[topic]

    def starts(self, aside: set[str]) -> Offsets:
        """Return where to look for records; in the ``aside`` topics for those set aside too."""
        starts = {topic: dict(at) for topic, at in list(self.offsets.items())}
        return starts | {
            topic: dict(at) for topic, at in self.retry_offsets.items() if topic in aside
        }

    def in_doubt(self, next_lsn: int) -> int:
        """Return how many records are not settled."""
        return sum(self.expected(epoch, next_lsn) - epoch.settled for epoch in list(self.epochs))

    def failed(self, next_lsn: int) -> list[tuple[Epoch, int]]:
        """Return the epochs with failures of which all reports are in, and how many failures."""
        return [
            (epoch, len(epoch.failures))
            for epoch in list(self.epochs)
            if epoch.failures
            and epoch.acknowledged + epoch.reported + len(epoch.failures) + epoch.unhanded
            >= self.expected(epoch, next_lsn)
        ]

    def settle_aside(self, epoch: Epoch, count: int = 1) -> None:
        """Count records of an epoch as settled: delivered by a later try, found, or taken over."""
        with self._lock:
            epoch.settled_aside += count


class Callbacks:
    """What is to be called, in the order the reports came."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[OnDelivery, Any, Any]] = deque()
        """Calls to be made; reporters hold its ``append``, so it is never another one."""
        self._serving = threading.RLock()
        self._busy = False
        self._raised: BaseException | None = None

    def add(self, on_delivery: OnDelivery, error: Any, message: Any) -> None:
        """Note a call to be made."""
        self.waiting.append((on_delivery, error, message))

    def guarded(self, call: Callable[..., object]) -> Callable[..., None]:
        """Return a callable of the caller's for librdkafka's ``poll`` that never raises there."""

        def guard(*given: Any) -> None:
            try:
                call(*given)
            except Exception as error:  # noqa: BLE001 - the next serve raises it
                _LOG.exception("%r failed; the next poll or flush raises it", call)
                self._raised = self._raised or error

        return guard

    def serve(self) -> int:
        """Make the calls that are due and return how many; 0 from inside such a call.

        Raises:
            Exception: whatever a callable raised, now or before in the producer's own thread. The
                message it was called for is settled all the same; the calls behind it are made by
                the next ``serve``.
        """
        if not self.waiting and self._raised is None:
            return 0
        with self._serving:
            if self._busy:
                return 0
            self._busy = True
            try:
                raised, self._raised = self._raised, None
                if raised is not None:
                    raise raised
                return self._call_all()
            finally:
                self._busy = False

    def serve_aside(self) -> None:
        """Make all calls that are due; the first that raises is raised by the next ``serve``."""
        if not self.waiting:
            return
        if not self._serving.acquire(blocking=False):
            return  # another thread makes the calls, and those behind them
        try:
            if self._busy:
                return
            self._busy = True
            while self.waiting:
                self._call_aside()
            self._busy = False
        finally:
            self._serving.release()

    def _call_aside(self) -> None:
        try:
            self._call_all()
        except Exception as error:  # noqa: BLE001 - the next serve raises it
            _LOG.exception("on_delivery failed; the next poll or flush raises it")
            self._raised = self._raised or error

    def abandon(self) -> None:
        """In a forked child: the calls are the parent's."""
        self.waiting.clear()

    def _call_all(self) -> int:
        count = 0
        while self.waiting:
            on_delivery, error, message = self.waiting.popleft()
            count += 1
            on_delivery(error, message)
        return count


class Poller:
    """``poll`` of one client, by one thread at a time: a second caller goes on at once."""

    def __init__(self, poll: Callable[[float], int]) -> None:
        self._poll = poll
        self._lock = threading.Lock()
        self.polls = 0
        self._ended = False

    def poll(self, timeout_s: float = 0.0) -> None:
        """Serve delivery reports that are in; wait up to ``timeout_s`` for the first."""
        if timeout_s <= 0 and self._lock.locked():
            return
        with self._lock:  # not acquire(): an interrupt behind it would leave it held
            self.polls += 1
            if not self._ended:
                self._poll(timeout_s)

    def end(self) -> None:
        """Poll no more: the client is about to be closed."""
        with self._lock:
            self._ended = True
