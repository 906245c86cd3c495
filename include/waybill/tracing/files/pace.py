"""How fast objects are sent: as fast as they go, until the store asks for less.

Additive increase, multiplicative decrease, as TCP does it (Chiu and Jain, 1989): each refusal
halves the rate, each second without one adds to it. Limiters with a fixed rate, which is what
libraries have, do not follow what the store says.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_GROWTH_PER_S = 5.0
"""Objects a second that a second without refusal adds."""
_LEAST_PER_S = 0.2


class Pace:
    """The rate of one sender. Not for several threads.

    Args:
        most_per_s: objects a second that are never exceeded.
        clock: seconds, as ``time.monotonic``.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        *,
        most_per_s: float = 1000.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._most_per_s = most_per_s
        self._clock = clock
        self._sleep = sleep
        self.rate_per_s = most_per_s
        """What may be sent at present."""
        self.refusals = 0
        self._next_at = clock()
        self._sent_at = self._next_at
        self._seen_per_s = most_per_s

    def wait(self) -> None:
        """Wait until the next object may be sent."""
        now = self._clock()
        if self._next_at > now:
            self._sleep(self._next_at - now)
            now = self._clock()
        self._note_speed(now)
        self._next_at = max(now, self._next_at) + 1 / self.rate_per_s

    def sent(self) -> None:
        """Note that an object was taken: the rate grows by a little."""
        grown = self.rate_per_s + _GROWTH_PER_S / self.rate_per_s
        self.rate_per_s = min(self._most_per_s, grown)

    def refused(self) -> None:
        """Note that the store asks for less: half of what was really sent, from now on."""
        self.refusals += 1
        self.rate_per_s = max(_LEAST_PER_S, min(self.rate_per_s, self._seen_per_s) / 2)
        self._next_at = self._clock() + 1 / self.rate_per_s

    def _note_speed(self, now: float) -> None:
        """Follow the rate at which objects really go: its mean over about the last five."""
        gap_s = max(now - self._sent_at, 1 / self._most_per_s)
        self._sent_at = now
        self._seen_per_s += 0.2 * (1 / gap_s - self._seen_per_s)
