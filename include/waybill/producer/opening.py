"""An open producer: how it begins, forks, waits and ends. What it is for is in ``lossless``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import quote

from waybill.errors import InputError, StopError
from waybill.producer import forks
from waybill.producer.environment import REAL, Environment
from waybill.producer.lock import ProducerBusyError
from waybill.producer.model import Histogram, ProducerStats, Recovery, Undelivered
from waybill.producer.parts import Claim, Parts, open_parts
from waybill.producer.retry_queue import WasTaken
from waybill.settings import WalSettings

if TYPE_CHECKING:
    from typing import Self

POLL_S = 0.05
_NAME_MOST_BYTES = 200


class OpenProducer:
    """The part of ``LosslessProducer`` that does not produce; see there for the arguments."""

    _environment: Environment = REAL

    def __init__(  # noqa: PLR0913 - what the caller may choose
        self,
        settings: WalSettings,
        kafka: Mapping[str, object],
        *,
        name: str,
        on_undeliverable: Callable[[Undelivered], None] | None = None,
        was_taken: WasTaken | None = None,
        marks: bool = False,
        claim: Claim | None = None,
    ) -> None:
        self._claim = claim
        self._settings = settings
        self._kafka = dict(kafka)
        self._name = name
        self._folder = _folder_name(name)
        self._on_undeliverable = on_undeliverable
        self._was_taken = was_taken
        self._marks = marks
        self._closed = False
        self._forked = self._opening = False
        self._own_lock = threading.RLock()
        self._shut_lock = threading.RLock()
        self._shut_parts = False
        self._adopted: list[Parts] = []
        """Logs of dead forks of which records are still tried again."""
        self._parts: Parts | None = None
        self._open(self._folder)
        forks.watch(self)
        try:
            self._take_over_forks()
        except BaseException:
            self._shut()
            raise

    # Opening

    def _open(self, folder: str) -> None:
        parts = self._open_parts(folder)
        topics: dict[str, bytes] = {}
        try:
            parts.recover()
            parts.maintenance.start(
                parts.sender, parts.retry_queue, parts.callbacks, lambda: set(topics)
            )
        except BaseException:
            parts.close()
            raise
        self._topics = topics
        self._latency = Histogram()
        self._gate = parts.gate
        self._log = parts.log
        self._writer = parts.log.writer
        self._sender = parts.sender
        self._each = self._settings.durability == "each"
        self._batching: set[int] = set()
        """Threads that append a batch, which is synced at its end."""
        self._parts = parts
        self._maintenance = (
            parts.maintenance
        )  # last: until then the old one's trouble keeps all others out

    def _open_parts(self, folder: str) -> Parts:
        return open_parts(
            self._settings,
            self._kafka,
            folder,
            self._on_undeliverable,
            self._was_taken,
            self._marks,
            self._environment,
            self._claim,
        )

    def _take_over_forks(self) -> None:
        """Settle what forks of this producer left that are dead."""
        for folder in forks.left_folders(self._settings.dir, self._folder):
            try:
                parts = self._open_parts(folder)
            except ProducerBusyError:
                continue  # it lives
            try:
                parts.recover()
                self.recovered.add(parts.recovered)
                if parts.retry_queue.retrying:
                    parts.maintenance.start(parts.sender, parts.retry_queue, parts.callbacks, set)
                    self._adopted.append(parts)
            finally:
                if parts not in self._adopted:
                    parts.close()

    def after_fork_in_child(self) -> object:
        """Let go of what belongs to the parent; called by the fork itself."""
        kept = [*self._adopted, *([] if self._parts is None else [self._parts])]
        self._parts, self._adopted = None, []
        self._forked = True
        self._own_lock, self._shut_lock = threading.RLock(), threading.RLock()
        for parts in kept:
            parts.callbacks.abandon()
            parts.maintenance.abandoned = True
            parts.maintenance.stop(StopError("opened by another process"), instead=True)
        return kept

    def _open_own(self) -> None:
        """After a fork: open the first log of a fork that nobody has."""
        if self._marks or self._closed:
            raise StopError(
                f"this producer was opened by process {os.getppid()} and does not work after a "
                "fork; open one in each process"
            )
        with self._own_lock:
            if not self._forked:
                return
            if self._opening:
                raise StopError("this producer is just being opened: on_undeliverable waits for it")
            self._opening = True
            try:
                self._open_first_free()
            finally:
                self._opening = False

    def _open_first_free(self) -> None:
        for folder in forks.own_folders(self._folder):
            try:
                self._open(folder)
            except ProducerBusyError:
                continue
            self._forked = False
            return

    @property
    def parts(self) -> Parts:
        """What this producer is made of; not for callers."""
        if self._parts is None:
            self._check()
        assert self._parts is not None  # noqa: S101 - _check opened it, or raised
        return self._parts

    @property
    def name(self) -> str:
        """The name it was opened under; a fork's copy has the same."""
        return self._name

    @property
    def closed(self) -> bool:
        """Tell whether it was closed."""
        return self._closed

    @property
    def inherited(self) -> bool:
        """Tell whether it is the parent's, in a fork that has not used it yet."""
        return self._forked

    @property
    def recovered(self) -> Recovery:
        """What opening found, and did about it."""
        return self.parts.recovered

    @property
    def wal_id(self) -> str:
        """Id of this log, 32 hex digits: lsns count within it. A new directory is a new log."""
        return self.parts.log.wal_id.hex()

    @property
    def capacity_bytes(self) -> int:
        """Most that the log may take on disk."""
        return self._settings.disk_threshold_bytes

    @property
    def offsets(self) -> Mapping[str, Mapping[int, int]]:
        """{topic: {partition: offset}} before which nothing stands that is appended from now on.

        Partitions of which nothing is known are not named. Asked by the thread that appends.
        """
        return {topic: dict(at) for topic, at in list(self.parts.deliveries.offsets.items())}

    # State

    def poll(self, timeout: float = 0.0) -> int:
        """Call the ``on_delivery`` callables that are due; return how many were called.

        Nobody has to call this: delivery goes on without it, and callables that nobody asks for
        are called from the producer's own thread within a tenth of a second. They run outside
        librdkafka, one at a time: they may produce, poll and flush; they must not ``close``.

        Args:
            timeout: seconds to wait for the first report.

        Raises:
            Exception: what a callable raised, now or in the producer's own thread.
        """
        self._check()
        limit = time.monotonic() + timeout
        self._sender.poller.poll(min(timeout, POLL_S))
        while not (called := self.parts.callbacks.serve()) and time.monotonic() < limit:
            self._sender.poller.poll(min(max(0.0, limit - time.monotonic()), POLL_S))
        return called

    def flush(self, timeout: float | None = None) -> int:
        """Wait until all is settled and told; return how many records are in doubt.

        Inside a callable that the producer's own thread calls it does not wait: it would wait for
        what only that thread does.

        Args:
            timeout: most seconds to wait; None or negative: for ever.

        Raises:
            StopError: ``on_undeliverable`` failed for a record, or the disk fails.
            Exception: what an ``on_delivery`` callable raised.
        """
        limit = None if timeout is None or timeout < 0 else time.monotonic() + timeout
        while True:
            self._check()
            left = self.parts.in_doubt()
            self.parts.callbacks.serve()
            if self._maintenance.is_this_thread:
                return left
            wait_s = POLL_S if limit is None else limit - time.monotonic()
            if not left or wait_s <= 0:
                return left
            self._sender.poller.poll(min(POLL_S, wait_s))

    def settled(self, lsn: int) -> bool:
        """Tell whether all up to an lsn is settled, and nothing waits to be tried again.

        As after a ``flush``, but records behind the lsn may be in doubt. Does not wait; what was
        settled in the last tenth of a second may not be known yet.
        """
        self._check()
        self._sender.poller.poll()
        return self.parts.settled(lsn)

    def __len__(self) -> int:
        """Return how many records are in doubt."""
        return self.parts.in_doubt()

    def __bool__(self) -> bool:
        """Return True: a producer with nothing in doubt is one too."""
        return True

    @property
    def stats(self) -> ProducerStats:
        """Counts and sizes of now."""
        return self.parts.stats(self._latency)

    def _refuse_when_stopped(self) -> None:
        """Under the append lock: append nothing more to a log that was closed meanwhile."""
        if self._maintenance.stopped:
            raise StopError(str(self._maintenance.trouble)) from self._maintenance.trouble

    def _check(self) -> None:
        if self._forked:
            self._open_own()
        trouble = self._maintenance.trouble
        if trouble is not None:
            raise StopError(str(trouble)) from trouble

    # The end

    def close(self, timeout: float | None = 30.0) -> int:
        """Wait for what is in doubt, at most ``timeout`` s; close; return how much stays in doubt.

        Without a limit when ``timeout`` is None or negative.

        They are in the log: the next opening settles them. Calling it again does nothing. Whether
        the last records can be delivered or not, it raises no StopError for them: ask ``flush``
        before.

        Raises:
            StopError: called from ``on_delivery`` or ``on_undeliverable``.
            Exception: what an ``on_delivery`` callable raised; it is closed all the same.
        """
        parts = self._parts
        if self._closed or parts is None:
            self._closed = True
            return 0
        if self._maintenance.is_this_thread:
            raise StopError("close() was called from a callable of the producer's own thread")
        wait_s = float("inf") if timeout is None or timeout < 0 else timeout
        limit = time.monotonic() + wait_s
        while parts.in_doubt() and self._maintenance.trouble is None and time.monotonic() < limit:
            self._sender.poller.poll(min(POLL_S, wait_s))
            parts.callbacks.serve_aside()
        left = self._shut()
        parts.callbacks.serve_aside()
        parts.callbacks.serve()
        return left

    def _shut(self) -> int:
        with self._shut_lock:  # two that close at once: the second waits, and finds nothing to do
            self._closed = True
            forks.unwatch(self)
            parts, self._shut_parts = (None if self._shut_parts else self._parts), True
            adopted, self._adopted = self._adopted, []
            left = sum(one.close() for one in adopted)
            return left + (0 if parts is None else parts.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _folder_name(name: str) -> str:
    folder = quote(name, safe="").replace(".", "%2E")
    if not folder or len(folder) > _NAME_MOST_BYTES:
        raise InputError(
            f"{name[:40]!r} cannot name a log: 1 to {_NAME_MOST_BYTES} bytes when quoted"
        )
    return folder
