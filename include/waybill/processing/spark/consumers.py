"""How an application's queries end, and its loop.

A query ends between two batches (``BatchGate``), and is waited for by nobody: the next look asks
again. When the application ends, batches have `LAST_BATCH_S` to end in.

Asking an application to stop: SIGTERM, SIGINT and its row in the tracker set a flag that its loop
looks at. While its tracker is away it waits, and outlives that.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from pyspark.sql.streaming import StreamingQuery

from waybill.back_off import BackOff, RetryTimer
from waybill.errors import RetryError, WaybillError


class Stopping:
    """Make it in the main thread, before Spark starts."""

    def __init__(self) -> None:
        self._event = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def ask(self) -> None:
        """Have the application end; from any thread."""
        self._event.set()

    @property
    def asked(self) -> bool:
        """Whether somebody asked."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep, but wake up when asked; returns whether somebody asked."""
        return self._event.wait(seconds)

    def _ask(self, _signal: int, _frame: FrameType | None) -> None:
        self.ask()


_LOG = logging.getLogger(__name__)
CONSUMER_BACK_OFF = BackOff(2.0, 60.0)
"""Of consumers that stopped, or could not be opened."""
_LONGEST_AWAY_WAIT_S = 15.0
"""Longest wait after a read of the tracker that failed: when it is back, work goes on soon."""
LAST_BATCH_S = 20.0
"""How long an application that is to end lets the batches at work go on."""
_CUT_OFF_S = 3.0
"""What Spark is waited for after that, for all queries together: it has 2 s for each."""


class BatchGate:
    """Lets a query end between two batches; each query has its own."""

    def __init__(self) -> None:
        self._running = threading.Lock()
        self.is_closed = False
        """The query is to end: no batch has an effect but the one that runs."""

    @contextmanager
    def batch(self) -> Iterator[bool]:
        """Run a batch in this block, if it says True."""
        with self._running:
            yield not self.is_closed

    def end(self, query: StreamingQuery) -> bool:
        """Stop the query, unless a batch runs; none has an effect from now on but that one.

        Returns:
            False: a batch runs; ask again.
        """
        self.is_closed = True
        if not self._running.acquire(blocking=False):
            return False
        self._running.release()
        stop_query(query)
        return True


def stop_query(query: StreamingQuery) -> None:
    """Stop a query, whatever it is at; at most 2 s are waited for its end.

    Spark takes it for stopped after that, though its thread may be at something still.
    """
    try:
        query.stop()
    except Exception as error:  # noqa: BLE001 - Java's, of many kinds: it took too long
        _LOG.warning("query %s does not end yet: %s", query.name, str(error).partition("\n")[0])


Ending = tuple[StreamingQuery, Callable[[StreamingQuery], bool]]
"""A query, and what ends it as `BatchGate.end` does."""


def stop_queries(running: Iterable[Ending]) -> None:
    """Stop queries at the end of their batches, or after `LAST_BATCH_S`; all of them at once.

    A batch that is cut off is not committed: it is read again by whoever goes on. Cost: a thread a
    query; a few seconds more than `LAST_BATCH_S` at most, however many there are.
    """
    deadline = time.monotonic() + LAST_BATCH_S
    threads = [
        threading.Thread(target=_stop_by, args=(deadline, *one), name="stop", daemon=True)
        for one in running
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline + _CUT_OFF_S - time.monotonic()))


def _stop_by(deadline: float, query: StreamingQuery, end: Callable[[StreamingQuery], bool]) -> None:
    while not end(query):
        if time.monotonic() >= deadline:
            _LOG.warning("query %s: its batch is cut off after %.0f s", query.name, LAST_BATCH_S)
            stop_query(query)
            return
        time.sleep(0.1)


def try_later(name: str, retry: RetryTimer, error: WaybillError) -> None:
    """Note that a consumer stopped, or could not be opened, and log when it is tried again."""
    wait_s = retry.fail(time.monotonic())
    _LOG.error("consumer %s stopped; again in %.0f s: %s", name, wait_s, error)


def keep_running(
    look: Callable[[Iterable[str]], None],
    wanted: Callable[[], Iterable[str]],
    stopping: Stopping,
    *,
    every_s: float,
    sleep: Callable[[float], object],
) -> None:
    """Start what is wanted and does not run, until told to stop.

    While the tracker or Kafka does not answer, it waits with back-off: no Spark is started anew for
    that.

    Args:
        look: starts what of these names does not run.
        wanted: reads the names from the tracker.
        stopping: ends this.
        every_s: longest time between two looks.
        sleep: for so many seconds after a look that went well, or until there is something new.

    Raises:
        StopError: a newer application serves the cluster: that is what ``wanted`` raises.
    """
    back_off, failures = BackOff(2 * every_s, _LONGEST_AWAY_WAIT_S), 0
    while not stopping.asked:
        try:
            look(wanted())
        except RetryError as error:
            failures += 1
            wait_s = back_off.wait_s(failures)
            _LOG.warning("nothing is started; again in %.0f s: %s", wait_s, error)
            stopping.wait(wait_s)
        else:
            failures = 0
            sleep(every_s)
