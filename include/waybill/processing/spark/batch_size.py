"""How many events a batch of one topic has, so that it ends soon though its code is slow.

Spark takes no core back from a task, and a query ends, moves or stops between batches only: a batch
that lasts for hours holds the cores that others have a share of. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

LONGEST_S = 60.0
"""How long a task works on a topic that is alone in its query; then it is given up, and goes on in
smaller batches. A batch of one event a partition has no limit but that of the event."""
_TARGET_S = 20.0
_GROWTH = 10


class BatchSize:
    """The size of a topic's next batch; unlimited until one took long."""

    def __init__(self) -> None:
        self._most_events = math.inf
        self._is_part = False
        """More waits than the batch has."""

    def of(self, ranges: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """Return the first part of what waits, {partition: (first offset, after the last)}."""
        most = max(1, self._most_events / max(1, len(ranges)))
        part = {n: (start, int(min(end, start + most))) for n, (start, end) in ranges.items()}
        self._is_part = part != ranges
        return part

    def limit_s(self, ranges: Mapping[int, tuple[int, int]]) -> float:
        """Return how long a task may take for these: no limit for one event a partition."""
        is_least = all(end - start <= 1 for start, end in ranges.values())
        return math.inf if is_least else LONGEST_S

    def gave_up(self) -> None:
        """Note that a batch took so long that nothing came of it: the next ones are the least."""
        self._most_events = 0

    def took(self, events: int, longest_s: float) -> None:
        """Note how many events the batch had, and how long the longest of its tasks took."""
        wanted = events * _TARGET_S / max(longest_s, 0.001)
        if longest_s > _TARGET_S:
            self._most_events = wanted
        elif self._is_part:
            self._most_events = min(wanted, events * _GROWTH)
