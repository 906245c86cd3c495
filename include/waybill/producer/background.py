"""Steps that are done again and again beside the caller, each by a thread of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Protocol


class Background(Protocol):
    """Who does the steps."""

    def start(self, name: str, step: Callable[[], None], every_s: float) -> None:
        """Begin to do a step every ``every_s`` seconds, until the producer is closing."""

    @property
    def is_current(self) -> bool:
        """Tell whether the caller is inside a step."""

    def join(self) -> None:
        """Wait until the last step is done; closing was said before."""


class Threads:
    """``Background`` of the operating system.

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
