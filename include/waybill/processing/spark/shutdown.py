"""Asking an application to stop: SIGTERM and SIGINT set a flag that its loop looks at."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Stopping:
    """Make it in the main thread, before Spark starts."""

    def __init__(self) -> None:
        self._event = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    @property
    def asked(self) -> bool:
        """Whether somebody asked."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep, but wake up when asked; returns whether somebody asked."""
        return self._event.wait(seconds)

    def _ask(self, _signal: int, _frame: FrameType | None) -> None:
        self._event.set()
