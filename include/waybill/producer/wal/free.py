"""Free files: settled segments kept for further use, as many as were needed lately.

They are a stack: the one given back last is taken first, its pages are warm. The files at the
bottom that the stack did not shrink down to for ``IDLE_S`` are more than anybody needs, and are
removed; so after a burst that wrote twenty segments between two checkpoints twenty are kept, and a
minute later two.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from waybill.producer.wal.disk import Disk, DiskFile, move
from waybill.producer.wal.frame import TERMINATOR

IDLE_S = 60.0
LEAST = 2
"""Kept however idle the log is."""
PREFIX = "free-"


def free_path(directory: Path) -> Path:
    """Return a new name for a free file."""
    return directory / f"{PREFIX}{uuid.uuid4().hex}.wal"


class FreeFiles:
    """The free files of one directory, all of one size. Safe for several threads."""

    def __init__(
        self, disk: Disk, directory: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._clock = clock
        self._lock = threading.Lock()
        self._stack: list[tuple[DiskFile, float]] = []

    def take(self) -> DiskFile | None:
        """Return a file that begins with a terminator, or None."""
        with self._lock:
            return self._stack.pop()[0] if self._stack else None

    def add(self, file: DiskFile) -> None:
        """Keep a file that has a free file's name."""
        file.data[: len(TERMINATOR)] = TERMINATOR
        with self._lock:
            self._stack.append((file, self._clock()))

    def give(self, file: DiskFile) -> None:
        """Keep a segment's file, whose records nobody needs.

        Raises:
            OSError: it could not be renamed for good; it is not kept.
        """
        move(self._disk, file, free_path(self._directory))
        self.add(file)  # after the rename: a segment is never damaged

    def shrink(self, *, short: bool = False) -> None:
        """Remove what was not needed for ``IDLE_S``; when space is ``short``, all but the least."""
        limit = self._clock() - IDLE_S
        while True:
            with self._lock:
                if len(self._stack) <= LEAST or not (short or self._stack[0][1] <= limit):
                    return
                file, _ = self._stack.pop(0)
            self._remove(file)

    def remove_one(self) -> bool:
        """Remove one file to make room; tell whether there was one."""
        file = self.take()
        if file is not None:
            self._remove(file)
        return file is not None

    def _remove(self, file: DiskFile) -> None:
        file.close()
        self._disk.remove(file.path)

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        with self._lock:
            return sum(file.size for file, _ in self._stack)

    def __len__(self) -> int:
        return len(self._stack)
