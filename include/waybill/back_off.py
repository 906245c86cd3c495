"""How long to wait before something that failed is tried again."""

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
