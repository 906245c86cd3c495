"""How many events of a pipeline a worker takes: a bucket that fills with time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class RateLimit:
    """Lets so many events a second through, and as many at once after a pause.

    Args:
        events_per_s: 0: no limit.
        now_s: a clock.
    """

    def __init__(self, events_per_s: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._rate = events_per_s
        self._now_s = now_s
        self._left = float(events_per_s)
        self._at_s = now_s()

    def take(self, events: int) -> int:
        """Take events; return 0, or the seconds to wait before they may come: none is taken then.

        More events than a second's are let through when the bucket is full, and paid off after.
        """
        if not self._rate:
            return 0
        now = self._now_s()
        self._left = min(self._rate, self._left + (now - self._at_s) * self._rate)
        self._at_s = now
        wanted = min(events, self._rate)
        if self._left >= wanted:
            self._left -= events
            return 0
        return max(1, math.ceil((wanted - self._left) / self._rate))
