"""A query without data looks for some less often.

A look costs some milliseconds of CPU, whether or not anything came: twice a second that is most of
what an idle application costs. Spark's trigger has one interval for good, so this writes a private
field of the one that runs. Where another Spark has none of that name, a query looks as ever.
"""

from __future__ import annotations

import logging
import threading
import time

from py4j.protocol import Py4JError
from pyspark.sql.streaming import StreamingQuery

_LOG = logging.getLogger(__name__)
IDLE_AFTER_S = 60.0
"""Without data for so long, a query is idle."""


_INTERVALS = 8
_PARTS = 64


def staggered_ms(usual_ms: int, number: int) -> int:
    """Return the interval of an application's query, so that its queries do not begin together.

    Spark begins batches at multiples of the interval since the epoch. Queries with the same one
    plan, use the cores and leave them idle at the same moments; where intervals differ by some
    milliseconds, their batches drift apart.

    Args:
        usual_ms: as declared; below 64 all queries have it.
        number: of the query in its application, from 1; each eighth has the same interval.

    Returns:
        Milliseconds; a ninth more than declared at the most.
    """
    return usual_ms + (number - 1) % _INTERVALS * (usual_ms // _PARTS)


class IdleTrigger:
    """How often one query looks for data: as declared, or less often while none comes.

    For two threads: the one that looks, and the one that works batches off.

    Args:
        usual_ms: what the query was declared with; 0: without a pause, and so it stays.
        idle_ms: between two looks of an idle query; where it is no longer, nothing changes.
        after_s: of no data, until a query is idle.
    """

    def __init__(self, usual_ms: int, idle_ms: int, *, after_s: float = IDLE_AFTER_S) -> None:
        self._usual_ms, self._idle_ms = usual_ms, idle_ms
        self._after_s = after_s
        self._lock = threading.Lock()
        self._query: StreamingQuery | None = None
        self._worked_at = time.monotonic()
        self._is_idle = False

    def watch(self, query: StreamingQuery) -> None:
        """Begin with a query that was just started."""
        with self._lock:
            self._query = query if 0 < self._usual_ms < self._idle_ms else None
            self._worked_at, self._is_idle = time.monotonic(), False

    def worked(self) -> None:
        """Note that data came. Cost: nothing, but for the first after a pause (1 ms)."""
        with self._lock:
            self._worked_at = time.monotonic()
            if self._is_idle:
                self._set(self._usual_ms)
                self._is_idle = False

    def look(self) -> None:
        """Have a query that became idle look less often."""
        with self._lock:
            if self._query is None or self._is_idle:
                return
            if time.monotonic() - self._worked_at >= self._after_s:
                self._is_idle = True
                self._set(self._idle_ms)

    def _set(self, interval_ms: int) -> None:
        if self._query is None:
            return
        try:
            executor = self._query._jsq.streamingQuery().triggerExecutor()
            field = executor.getClass().getDeclaredField("intervalMs")
            field.setAccessible(True)
            field.setLong(executor, interval_ms)
        except Py4JError as error:  # another Spark; or it ends just now
            reason = str(error).partition("\n")[0]
            _LOG.info("the query looks for data as often as before: %s", reason)
            self._query = None
