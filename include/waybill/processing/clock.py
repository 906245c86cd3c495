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

_MOST_TICKS = 4
"""That are missed on a machine that is only busy."""


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
        self._tick_s = min(1.0, timeout_s / 4)
        self._seen = -1
        self._since = 0.0
        self._looked_at = self._cpu_s = 0.0
        """At the last tick: seconds of the clock, and of CPU time."""

    def arm(self) -> None:
        """Start the clock in this process."""
        self._looked_at, self._cpu_s = time.monotonic(), time.process_time()
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, self._tick_s, self._tick_s)

    def disarm(self) -> None:
        """Stop the clock in this process."""
        signal.setitimer(signal.ITIMER_REAL, 0)

    def begin(self) -> None:
        """Begin anew: runs before this one may have had the same marker."""
        self._seen = -1

    def _look(self, _signal: int, _frame: FrameType | None) -> None:
        marker, now = self.marker.value, time.monotonic()
        self._since += self._stood_still_s(now)
        if marker != self._seen or marker < 0:
            self._seen, self._since = marker, now
        if marker >= 0 and now - self._since >= self._timeout_s:
            self._since = now
            raise EventTimeoutError(f"no result within {self._timeout_s:g} s")

    def _stood_still_s(self, now: float) -> float:
        """Return for how long the process could not run: the machine was frozen.

        Code that is stuck in C lets no tick through either, but works or waits meanwhile: what uses
        the processor is no stand-still, what waits is ended by whoever waits for the process.
        """
        gap_s, used_s = now - self._looked_at, time.process_time() - self._cpu_s
        self._looked_at, self._cpu_s = now, self._cpu_s + used_s
        return gap_s if gap_s > _MOST_TICKS * self._tick_s and used_s < gap_s / 2 else 0.0
