"""How much a spool may hold: its writers wait, then are told; nothing is dropped."""

from __future__ import annotations

import os
import time

from waybill.errors import RetryError
from waybill.tracing.files.spool import Spool

_LOOK_S = 1.0
_WAIT_S = 0.2


class SpoolLimit:
    """Holds one writer below the limits of its spool.

    Args:
        spool: what is limited.
        threshold_bytes: most that it may hold; looked up once a second.
        floor_bytes: free space of the disk that is left untouched.
        full_wait_s: how long ``wait_for`` waits for room before it raises.
        advice: what to look at when it stays full.
    """

    def __init__(
        self,
        spool: Spool,
        *,
        threshold_bytes: int,
        floor_bytes: int = 0,
        full_wait_s: float = 30.0,
        advice: str = "is its shipper running, and does the object store answer?",
    ) -> None:
        self._spool = spool
        self._threshold_bytes = threshold_bytes
        self._floor_bytes = floor_bytes
        self._full_wait_s = full_wait_s
        self._advice = advice
        self._used_bytes = 0
        self._free_bytes = 0
        self._looked_at = float("-inf")

    def wait_for(self, more_bytes: int) -> None:
        """Wait until so many bytes more fit.

        Raises:
            RetryError: the spool or its disk stayed full.
        """
        deadline = time.monotonic() + self._full_wait_s
        while not self._fits(more_bytes):
            if time.monotonic() >= deadline:
                raise RetryError(self._full(more_bytes))
            time.sleep(_WAIT_S)

    def wrote(self, more_bytes: int) -> None:
        """Count what was written since the last look."""
        self._used_bytes += more_bytes
        self._free_bytes -= more_bytes

    def _fits(self, more_bytes: int) -> bool:
        """Tell by what was seen a moment ago, and written since; look again before a refusal."""
        if time.monotonic() - self._looked_at < _LOOK_S and self._has_room(more_bytes):
            return True
        self._looked_at = time.monotonic()
        self._used_bytes = self._spool.used_bytes()
        self._free_bytes = self._look_at_disk() if self._floor_bytes else 0
        return self._has_room(more_bytes)

    def _has_room(self, more_bytes: int) -> bool:
        on_disk = not self._floor_bytes or self._free_bytes - more_bytes >= self._floor_bytes
        return on_disk and self._used_bytes + more_bytes <= self._threshold_bytes

    def _look_at_disk(self) -> int:
        self._spool.directory.mkdir(parents=True, exist_ok=True)
        disk = os.statvfs(self._spool.directory)
        return disk.f_bavail * disk.f_frsize

    def _full(self, more_bytes: int) -> str:
        disk = f" with {self._free_bytes} free on its disk, where {self._floor_bytes} stay free,"
        return (
            f"spool {self._spool.directory} holds {self._used_bytes} of {self._threshold_bytes} "
            f"bytes{disk if self._floor_bytes else ''} and {more_bytes} more do not fit; "
            + self._advice
        )
