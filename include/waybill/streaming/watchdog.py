"""A worker's watch over user code: a clock against endless loops, a marker against crashes.

The marker is one 64-bit integer in a shared memory map: the offset of the event that user code
works on, or -1. When the interpreter dies, the file keeps the offset, and the task's next attempt
knows that user code did it.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from waybill.stages import MARKER_BYTES, Clock


class Watchdog(Clock):
    """Implements ``waybill.stages.Watch``. Use it in the main thread of a worker."""

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            if file.seek(0, 2) < MARKER_BYTES:
                file.truncate(0)
                file.write((-1).to_bytes(MARKER_BYTES, "little", signed=True))
                file.flush()
            super().__init__(mmap.mmap(file.fileno(), MARKER_BYTES), timeout_s=timeout_s)
        self._path = path
        self.crashed = self.marker.value >= 0
        """True: an earlier attempt of this task died inside user code."""

    def close(self) -> None:
        """Stop the clock and remove the marker: the task came to its end."""
        self.disarm()
        self._path.unlink(missing_ok=True)
