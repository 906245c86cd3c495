"""How many events a batch of one topic has, and how many cores, though its code is slow.

And though its rows are large: user code makes any number of bytes of an event.

Spark takes no core back from a task, and a query ends, moves or stops between batches only: a batch
that lasts for hours holds the cores that others have a share of. And Spark's fair scheduler counts
tasks, not seconds: of two queries that take turns, the one with longer tasks has most of the cores.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

LONGEST_S = 60.0
"""How long a task works on a topic that is alone in its query; then it is given up, and goes on in
smaller batches. A batch of one event a partition has no limit but that of the event."""
_TARGET_S = 20.0
MOST_BYTES = 512 * 1024**2
"""Of rows in memory, and of results that park at mapping, that a topic's batch makes of its events,
and a task of those of all its topics; beyond, the topic is given up. A worker holds them until the
task ends, twice while it writes them, and who loads holds those of a commit. It is well above what
one event can bring, a result of 64 MiB; a batch of one event has no limit, so that it gets on."""
_TARGET_BYTES = MOST_BYTES // 2
_GROWTH = 10
_LONG_S = 3.0
"""Of all tasks of a batch together: 200,000 events of quick code take some 2.5 s."""
_LONG_TURN = 1.2
"""Times what a batch of another query takes that falls behind: in turns with it the larger one has
so much more of the cores. Less is noise."""
_SPARE_CORES = 0.25
"""That queries beside one with long batches have left to them beyond what they used: who has used
most of the last core that was left to it gets one more."""
_NOTED_S = 1.0
_MOMENT_S = 2.0
"""A query that had a batch so long ago is still at work: it may have the next one soon."""


class BatchSize:
    """The size of a topic's next batch; unlimited until one took long."""

    def __init__(self) -> None:
        self._most_events = math.inf
        self._is_part = False
        """More waits than the batch has."""
        self._is_least = False
        """The batch has one event a partition, or fewer."""
        self._partitions = 1
        """Of the last batch, before it was cut to one."""
        self._singles = 0
        """So many of the next batches have one event, of one partition after the other: one of each
        at once were not within `MOST_BYTES`."""
        self._turn = -1
        """The partition that had the last of these."""
        self._event_s = 0.0
        """What an event takes of a core: the most of late, so that one batch without slow events
        does not hide them."""

    def of(self, ranges: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """Return the first part of what waits, {partition: (first offset, after the last)}."""
        most = max(1, self._most_events / max(1, len(ranges)))
        part = {n: (start, int(min(end, start + most))) for n, (start, end) in ranges.items()}
        self._partitions = max(1, len(part))
        if self._singles and part:
            self._turn = min((n for n in part if n > self._turn), default=min(part))
            part = {self._turn: part[self._turn]}
        self._is_part, self._is_least = part != ranges, _is_least(part)
        return part

    def limit_s(self, ranges: Mapping[int, tuple[int, int]]) -> float:
        """Return how long a task may take for these: no limit for one event a partition."""
        return math.inf if _is_least(ranges) else LONGEST_S

    def limit_bytes(self, ranges: Mapping[int, tuple[int, int]]) -> float:
        """Return how many bytes may be made of these: no limit for one event."""
        return math.inf if len(ranges) == 1 and _is_least(ranges) else MOST_BYTES

    def gave_up(self) -> None:
        """Note that nothing came of a batch, it took so long, or made so much: the next is least.

        Where it was, as many have one event alone as there are partitions.
        """
        if self._is_least:
            self._singles = self._partitions
        self._most_events = 0
        self._event_s = LONGEST_S

    def is_long(self, events: int, turn_s: float = math.inf) -> bool:
        """Tell whether a batch of so many events will hold cores for long, as far as is known.

        Args:
            events: of the batch.
            turn_s: see `QueriesAtWork.turn_s`.
        """
        return events * self._event_s > min(_LONG_S, _LONG_TURN * turn_s)

    def worked(self, events: int, took_s: float) -> None:
        """Note what tasks took together for so many events, also in a batch with other topics.

        What a few events took tells little of many: most of it is not theirs.
        """
        noted_s = took_s / max(1, events) if took_s > _NOTED_S else 0.0
        self._event_s = max(noted_s, self._event_s / 4)

    def took(self, events: int, longest_s: float, made_bytes: int) -> None:
        """Note how many events the batch had, how long its longest task took, and what was made."""
        if self._singles:
            self._singles -= 1
            return
        most = min(_TARGET_S / max(longest_s, 0.001), _TARGET_BYTES / max(made_bytes, 1))
        wanted = events * most
        if most < 1:
            self._most_events = wanted
        elif self._is_part:
            self._most_events = min(wanted, events * _GROWTH)


def _is_least(ranges: Mapping[int, tuple[int, int]]) -> bool:
    return all(end - start <= 1 for start, end in ranges.values())


@dataclass(slots=True)
class _Query:
    since: float
    """When its core seconds were counted anew."""
    until: float = math.inf
    """When it is at work no more."""
    core_s: float = 0.0
    cores: float = math.inf
    """That its last batch kept busy, with the pause before it; infinite: it had none yet."""
    turn_s: float = math.inf
    """Core seconds of its last batch, if that was a full one."""


class QueriesAtWork:
    """What cores the queries of an application use that are at work; for any thread.

    One is at work while it has a batch, and for a moment behind it.

    Args:
        clock: seconds, in rising order; None: those of this machine.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}

    @contextmanager
    def batch(self, query: str) -> Iterator[None]:
        """Count a query as at work while the block runs, and for a moment longer."""
        with self._lock:
            one = self._at_work().setdefault(query, _Query(self._now()))
            one.until = math.inf
        try:
            yield
        finally:
            with self._lock:
                now = self._now()
                one.cores = one.core_s / max(now - one.since, 0.001)
                one.since, one.core_s, one.until = now, 0.0, now + _MOMENT_S

    def worked(self, query: str, took_s: float, *, is_full: bool = False) -> None:
        """Note what tasks of its batch took together; a full one: the query falls behind."""
        with self._lock:
            one = self._queries[query]
            one.core_s += took_s
            one.turn_s = took_s if is_full else math.inf

    def cores_of(self, query: str) -> float:
        """Return the cores that a query's last batch kept busy, with the pause before it.

        0: it is not at work; infinite: it has its first batch.
        """
        with self._lock:
            own = self._at_work().get(query)
        return 0.0 if own is None else own.cores

    def turn_s(self, query: str) -> float:
        """Return the least that a batch of another query took, which falls behind.

        Infinite: none does that had less of the cores lately than this one.
        """
        with self._lock:
            others = self._others(query)
            own = self._queries.get(query)
        cores = math.inf if own is None else own.cores
        return min((one.turn_s for one in others if one.cores < cores), default=math.inf)

    def cores_for(self, query: str, cores: int) -> int:
        """Return how many of the cores a query may hold for long, so that others keep theirs.

        What the others left lately, and a bit less: so that they can take more. Its share at the
        least.
        """
        with self._lock:
            others = self._others(query)
        if not others:
            return cores
        share = max(1, cores // (len(others) + 1))
        used = sum(one.cores for one in others)
        return share if used >= cores else max(share, cores - math.ceil(used + _SPARE_CORES))

    def _others(self, query: str) -> list[_Query]:
        return [one for name, one in self._at_work().items() if name != query]

    def _now(self) -> float:
        return time.monotonic() if self._clock is None else self._clock()

    def _at_work(self) -> dict[str, _Query]:
        now = self._now()
        for name in [name for name, one in self._queries.items() if one.until <= now]:
            del self._queries[name]
        return self._queries
