"""A worker's watch over user code: a clock against endless loops, a marker against crashes.

The marker is one 64-bit integer in a shared memory map: the offset of the event that user code
works on, or -1. When the interpreter dies, the file keeps the offset, and the task's next attempt
knows that user code did it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import signal
import time
from pathlib import Path
from types import FrameType

from waybill.stages import EventTimeoutError

_BYTES = 8
_STUCK_IN_C = 3
_STANDARD_ERROR = 2


class Watchdog:
    """Implements ``waybill.stages.Watch``. Use it in the main thread of a worker."""

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            if file.seek(0, 2) < _BYTES:
                file.truncate(0)
                file.write((-1).to_bytes(_BYTES, "little", signed=True))
                file.flush()
            self._map = mmap.mmap(file.fileno(), _BYTES)
        self.marker = ctypes.c_int64.from_buffer(self._map)
        """The offset that user code works on, or -1."""
        self._path = path
        self._timeout_s = timeout_s
        self._seen = -1
        self._since = 0.0
        self._struck = False
        self.crashed = self.marker.value >= 0
        """True: an earlier attempt of this task died inside user code."""

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

    def close(self) -> None:
        """Stop the clock and remove the marker: the task came to its end."""
        self.disarm()
        self._path.unlink(missing_ok=True)

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
