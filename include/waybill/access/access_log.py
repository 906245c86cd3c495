"""Looks at something personal that go on: a page that asks again for the same is one look.

The server tells, not the one who asks: a look goes on while the same person is shown the very same
texts, without a minute's pause and for an hour at most. Whatever else is shown is another look. A
web server process knows its own looks only, so that several write one entry each: never too few.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterable

PAUSE_S = 60.0
"""A page asks every few seconds; who asks after this long looks anew."""
LONGEST_S = 3600.0
"""However steadily somebody asks, each hour has its entry."""
_MOST = 10_000


class AccessLog:
    """The looks of one process that were written down and go on. Safe for several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[bytes, tuple[float, float]] = {}
        """What is seen to when its look began, and when it was asked for last."""

    def goes_on(self, look: bytes) -> bool:
        """Tell whether this look was written down and goes on; then it was asked for now."""
        now = self._clock()
        with self._lock:
            began, last = self._open.get(look, (-math.inf, -math.inf))
            goes_on = now - last <= PAUSE_S and now - began <= LONGEST_S
            if goes_on:
                self._open[look] = (began, now)
            return goes_on

    def written(self, look: bytes) -> None:
        """Note a look once its entry is committed: one that could not be written is no look."""
        now = self._clock()
        with self._lock:
            if len(self._open) >= _MOST:
                self._open.clear()  # all others are written once more
            self._open[look] = (now, now)


def look_at(user: str, team: str, seen: Iterable[tuple[str, ...]]) -> bytes:
    """Return what tells one look from another: who sees what of which team."""
    digest = hashlib.sha256()
    for part in ((user, team), *sorted(set(seen))):
        digest.update(repr(part).encode("utf-8", "surrogatepass"))
    return digest.digest()
