"""A clock on user code: it strikes the event that takes too long, then the process that is stuck.

An event's time is up after ``timeout_s``: EventTimeoutError is raised into the code. Code that is
stuck in C never lets a signal handler run; its process ends after three times as long.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
import time
from types import FrameType

from waybill.processing.failures import EventTimeoutError

_MARKER_BYTES = 8
_STUCK_IN_C = 3
_STANDARD_ERROR = 2


class Clock:
    """Implements ``waybill.processing.Watch``. Use it in the main thread of a process.

    Args:
        timeout_s: longest time for one event, in seconds.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self.marker = ctypes.c_int64.from_buffer(mmap.mmap(-1, _MARKER_BYTES))
        """The offset that user code works on, or -1. Forked children share it."""
        self.marker.value = -1
        self._timeout_s = timeout_s
        self._seen = -1
        self._since = 0.0
        self._struck = False

    def arm(self) -> None:
        """Start the clock in this process."""
        tick = min(1.0, self._timeout_s / 4)
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, tick, tick)
        self._expect_life()

    def disarm(self) -> None:
        """Stop the clock in this process."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()

    def _expect_life(self) -> None:
        """End the process unless the interpreter comes back here in time.

        Code that is stuck in C (a regular expression that explodes) never lets a signal handler
        run; faulthandler's own thread needs no interpreter.
        """
        limit_s = self._timeout_s * _STUCK_IN_C
        faulthandler.dump_traceback_later(limit_s, exit=True, file=_STANDARD_ERROR)

    def _look(self, _signal: int, _frame: FrameType | None) -> None:
        now = self.marker.value
        if now != self._seen or now < 0:
            self._seen, self._since = now, time.monotonic()
            self._struck = False
        if not self._struck:  # code that swallowed the error is left to faulthandler
            self._expect_life()
        if now >= 0 and time.monotonic() - self._since >= self._timeout_s:
            self._since, self._struck = time.monotonic(), True
            raise EventTimeoutError(f"no result within {self._timeout_s:g} s")


class ChildClock(Clock):
    """A clock for isolated runs: it goes in forked children only.

    The process that makes it keeps its own alarms and needs no main thread.
    """

    def __init__(self, *, timeout_s: float) -> None:
        super().__init__(timeout_s=timeout_s)
        self._parent = os.getpid()

    def arm(self) -> None:
        """Start the clock, if this is a child."""
        if os.getpid() != self._parent:
            super().arm()

    def disarm(self) -> None:
        """Stop the clock; in the parent, make way for the children's.

        faulthandler has one timer a process: a child forked while it runs would wait for it for
        ever.
        """
        if os.getpid() != self._parent:
            super().disarm()
        else:
            faulthandler.cancel_dump_traceback_later()
