"""A clock on user code: it strikes the event that takes too long.

An event's time is up after ``timeout_s``: EventTimeoutError is raised into the code. Code that is
stuck in C never lets a signal handler run, and some swallows the error: whoever waits for the
process ends it (``sandbox.pool``).
"""

from __future__ import annotations

import ctypes
import signal
import time
from types import FrameType

from waybill.processing.failures import EventTimeoutError


class Clock:
    """Implements ``waybill.processing.Watch``. Use it in the main thread of a process.

    Args:
        timeout_s: longest time for one event, in seconds.
        marker: shared with who waits for this process; by default nobody does.
    """

    def __init__(self, *, timeout_s: float, marker: ctypes.c_int64 | None = None) -> None:
        self.marker = ctypes.c_int64(-1) if marker is None else marker
        """What user code works on, or -1."""
        self.marker.value = -1
        self._timeout_s = timeout_s
        self._seen = -1
        self._since = 0.0

    def arm(self) -> None:
        """Start the clock in this process."""
        tick = min(1.0, self._timeout_s / 4)
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, tick, tick)

    def disarm(self) -> None:
        """Stop the clock in this process."""
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _look(self, _signal: int, _frame: FrameType | None) -> None:
        now = self.marker.value
        if now != self._seen or now < 0:
            self._seen, self._since = now, time.monotonic()
        if now >= 0 and time.monotonic() - self._since >= self._timeout_s:
            self._since = time.monotonic()
            raise EventTimeoutError(f"no result within {self._timeout_s:g} s")
