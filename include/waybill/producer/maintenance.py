"""What goes on beside the caller: idle polls, checkpoints, failures, free files, group sync.

One thread, every ``TICK_S``. It survives I/O errors of the checkpoint: each is logged, and from the
``CHECKPOINT_FAILURES``-th in a row on the next call of the producer raises StopError, until one
succeeds again. All other trouble is final: the caller's next call raises it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from waybill.errors import RetryError, StopError
from waybill.producer.checkpoint import Checkpoint, Offsets
from waybill.producer.delivery import Callbacks, Deliveries
from waybill.producer.recovery import Files
from waybill.producer.retry_queue import RetryQueue
from waybill.producer.sender import Sender
from waybill.settings import WalSettings

_LOG = logging.getLogger(__name__)
TICK_S = 0.05
CHECKPOINT_FAILURES = 5
_FIRST_OFFSETS_S = 0.2


class Background(Protocol):
    """Does steps again and again beside the caller."""

    def start(self, name: str, step: Callable[[], None], every_s: float) -> None:
        """Begin to do a step every ``every_s`` seconds, until the producer is closing."""

    @property
    def is_current(self) -> bool:
        """Tell whether the caller is inside a step."""

    def join(self) -> None:
        """Wait until the last step is done; closing was said before."""


class Threads:
    """``Background`` of the operating system: a thread for each step.

    Args:
        closing: ends the threads.
    """

    def __init__(self, closing: threading.Event) -> None:
        self._closing = closing
        self._threads: list[threading.Thread] = []

    def start(self, name: str, step: Callable[[], None], every_s: float) -> None:
        pid = os.getpid()

        def run() -> None:
            while not self._closing.wait(every_s):
                if os.getpid() != pid:
                    return  # forked inside a step: all of it is the parent's
                step()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    @property
    def is_current(self) -> bool:
        return threading.current_thread() in self._threads

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


@dataclass(slots=True)
class Marks:
    """What is known of marks."""

    used: bool
    confirmed_lsn: int
    synced_lsn: int
    written: int = 0
    """By this process."""


class MaintenanceThread:
    """Checkpoints and the background thread of one producer.

    Args:
        files: what it writes to.
        gate: the append lock.
        background: does the steps.
    """

    def __init__(
        self,
        settings: WalSettings,
        files: Files,
        deliveries: Deliveries,
        marks: Marks,
        *,
        gate: threading.Lock,
        background: Background,
    ) -> None:
        self.trouble: StopError | None = None
        """What every further call of the producer raises."""
        self.ready = False
        """Recovery is over: from then on checkpoints are true."""
        self.floor_lsn = 0
        """Of the checkpoint written last."""
        self.abandoned = False
        """This is a forked child: everything is the parent's."""
        self._closed = False
        self._settings = settings
        self._log = files.log
        self._deliveries = deliveries
        self._marks = marks
        self._file = files.checkpoint
        self._retry = files.retry
        self._parking = files.parking
        self._gate = gate
        self._background = background
        self._final = False
        self._failures = 0
        self._sequence = self._saved = 0
        self._saved_offsets: Offsets = {}
        self._save_lock = threading.Lock()
        self._polls = 0
        """Of the client, when this thread looked last."""
        self._next = 0.0
        """When the next checkpoint is due, by the monotonic clock."""

    # Checkpoints

    def checkpoint(self) -> Checkpoint:
        """Write a checkpoint of now, then give free what nobody needs.

        Raises:
            OSError: it could not be written; the one before stands, nothing was given free.
            StopError: the disk refused to keep the retry log.
        """
        with self._gate:
            state = self._state()
            self._sequence += 1
            sequence = self._sequence
        with self._save_lock:
            if self._closed:
                raise StopError("this producer is closed")
            for aside in (self._retry, self._parking):
                aside.sync()  # what the watermark passed must be there before the watermark is
            if sequence > self._saved:  # a later one by another thread is as good
                self._file.save(state)
                self._saved, self.floor_lsn = sequence, state.floor_lsn
                self._saved_offsets = state.offsets
                self._log.recycle(state.floor_lsn)
                self._retry.recycle(state.retry[0])
                self._parking.recycle(state.parked[0])
        return state

    def end(self) -> None:
        """Write no checkpoint from now on: the directory is about to be somebody else's."""
        with self._save_lock:
            self._closed = True

    def _state(self) -> Checkpoint:
        log, marks = self._log, self._marks
        low_lsn = self._deliveries.low_lsn(log.next_lsn)
        return Checkpoint(
            wal_id=log.wal_id,
            low_lsn=low_lsn,
            next_segment=log.next_segment,
            confirmed_lsn=marks.confirmed_lsn,
            marked=marks.used,
            synced_lsn=max(marks.synced_lsn, log.synced_lsn),
            next_lsn=log.next_lsn,
            retry=self._retry.extent(low_lsn),
            parked=self._parking.extent(self._retry.least_lsn(low_lsn)),
            offsets={topic: dict(at) for topic, at in self._deliveries.offsets.items()},
            retry_offsets={t: dict(at) for t, at in list(self._deliveries.retry_offsets.items())},
        )

    @property
    def floor_of_now(self) -> int:
        """What the floor of a checkpoint would be, as far as was last looked."""
        low_lsn = self._deliveries.low
        return min(low_lsn, self._marks.confirmed_lsn + 1) if self._marks.used else low_lsn

    def try_checkpoint(self) -> Checkpoint | None:
        """Write a checkpoint; an I/O error is counted, logged and leaves None."""
        try:
            state = self.checkpoint()
        except OSError as error:
            self._failures += 1
            _LOG.exception("checkpoint %s failed, %d in a row", self._log.directory, self._failures)
            if self._failures >= CHECKPOINT_FAILURES and self.trouble is None:
                self.trouble = StopError(
                    f"the checkpoint in {self._log.directory} failed {self._failures} times: "
                    f"{error}; nothing is lost, but the log cannot be released"
                )
            return None
        self._failures = 0
        if not self._final:
            self.trouble = None
        return state

    @property
    def age_s(self) -> float:
        """Seconds since the checkpoint on disk was true."""
        return self._file.age_s

    # The thread

    def start(
        self,
        sender: Sender,
        retry_queue: RetryQueue,
        callbacks: Callbacks,
        topics: Callable[[], set[str]],
    ) -> None:
        """Begin to work. ``topics`` are those produced to in this process."""
        tick = partial(self._tick, sender, retry_queue, callbacks, topics)
        jobs: list[tuple[str, Callable[[], None], float]] = [("waybill-producer", tick, TICK_S)]
        if self._settings.durability == "group":
            every_s = max(1, self._settings.group_commit_ms) / 1000
            jobs.append(("waybill-producer-sync", self._sync, every_s))
        for name, job, every_s in jobs:
            self._background.start(name, partial(self._step, job), every_s)

    def _tick(
        self,
        sender: Sender,
        retry_queue: RetryQueue,
        callbacks: Callbacks,
        topics: Callable[[], set[str]],
    ) -> None:
        """Do what is due."""
        poller = sender.poller
        if poller.polls == self._polls:
            poller.poll()
        self._polls = poller.polls
        if not self.stopped:
            with self._gate:
                next_lsn = self._log.next_lsn
                self._deliveries.low_lsn(next_lsn)
                failed = self._deliveries.failed(next_lsn)
            retry_queue.serve(failed, next_lsn)
        callbacks.serve_aside()
        if self.abandoned:
            return
        try:
            self._log.prepare()
        except (OSError, RetryError) as error:
            _LOG.debug("no free segment could be made ahead: %s", error)
        now = time.monotonic()
        if now >= self._next or self._log.reusable(self.floor_of_now):
            self.try_checkpoint()
            interval_s = self._settings.checkpoint_interval_ms / 1000
            known = self.has_first_offsets(topics())
            self._next = now + (interval_s if known else min(_FIRST_OFFSETS_S, interval_s))

    def _step(self, job: Callable[[], None]) -> None:
        try:
            job()
        except StopError as error:
            self.stop(error)
        except Exception as error:  # noqa: BLE001 - it ends up in the caller's next call
            _LOG.exception("the producer's thread failed")
            self.stop(StopError(f"the producer's thread failed: {error!r}"))

    def _sync(self) -> None:
        if self._log.synced_lsn < self._log.next_lsn - 1:
            self._log.sync(self._gate)

    def stop(self, error: StopError, *, instead: bool = False) -> None:
        """Have every further call raise ``error``: the first one given, unless ``instead``."""
        if instead or not self._final:
            self._final = True
            self.trouble = error

    @property
    def stopped(self) -> bool:
        """Tell whether the trouble is final."""
        return self._final

    def has_first_offsets(self, topics: set[str]) -> bool:
        """Tell whether the checkpoint on disk knows where to look in each of the topics."""
        return topics <= self._saved_offsets.keys()

    @property
    def is_this_thread(self) -> bool:
        """Tell whether the caller is the maintenance itself, inside a callable of the user."""
        return self._background.is_current

    def join(self) -> None:
        """Wait for the threads to end; ``closing`` is set."""
        self._background.join()
