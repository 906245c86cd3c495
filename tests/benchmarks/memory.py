"""The most memory that this process and its Python children took together.

A page that several of them share counts once: each has its share of it (PSS). Workers are forks of
one daemon, and all of them map the same libraries.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import psutil

_EVERY_S = 0.25


class PeakMemory:
    """Samples the memory in use while it is entered; a JVM is not counted."""

    def __init__(self) -> None:
        self.peak_mb = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.peak_mb = max(self.peak_mb, python_memory() // 1024**2)


def python_memory() -> int:
    """Return the bytes in memory of this process and its Python descendants."""
    me = psutil.Process()
    total = 0
    for process in (me, *me.children(recursive=True)):
        try:
            if process.name().startswith("python"):
                total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total
