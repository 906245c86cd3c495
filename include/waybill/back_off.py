"""How long to wait before something that failed is tried again, and when that is."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackOff:
    """Waits in seconds: each twice the one before, up to a longest."""

    first_s: float = 1.0
    longest_s: float = math.inf
    healthy_s: float = 120.0
    """What ran this long before it failed begins anew with the first wait."""

    def wait_s(self, failures: int) -> float:
        """Return the wait after this many failures in a row (1 is the first; 0: none)."""
        return min(self.first_s * 2.0 ** min(failures - 1, 60), self.longest_s) if failures else 0.0

    def failures(self, before: int, lived_s: float) -> int:
        """Return the failures in a row with one more, of what ran ``lived_s`` seconds."""
        return 1 if lived_s >= self.healthy_s else before + 1


@dataclass(slots=True)
class RetryTimer:
    """When one thing that fails now and then is due. Times are seconds of one monotonic clock."""

    back_off: BackOff
    began: float = 0.0
    """When it was begun last."""
    failures: int = 0
    """In a row."""
    due: float = 0.0
    """Not to be begun before."""

    def fail(self, now: float) -> float:
        """Count a failure of what was begun last; return for how long it waits now, in seconds."""
        self.failures = self.back_off.failures(self.failures, now - self.began)
        wait_s = self.back_off.wait_s(self.failures)
        self.due = now + wait_s
        return wait_s
