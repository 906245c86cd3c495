"""Consumers with a query each: started when they are wanted, and again when they stopped.

Those of loading; the topics of processing share queries (``topic_groups``). A consumer that stops
(a table that does not fit) is loud in the log and is tried again with back-off; its neighbours flow
on. So is one whose tracker is away: the application outlives that. One that was fenced ends the
application: another one has taken over.

Asking an application to stop: SIGTERM, SIGINT and its row in the tracker set a flag that its loop
looks at.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FrameType

from pyspark.sql.streaming import StreamingQuery

from waybill.back_off import BackOff, RetryTimer
from waybill.errors import InputError, RetryError, StopError, WaybillError


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


@dataclass(slots=True)
class _Consumer:
    query: StreamingQuery | None = None
    retry: RetryTimer = field(default_factory=lambda: RetryTimer(CONSUMER_BACK_OFF))


class Consumers:
    """Keeps one query running for each name.

    Args:
        start: starts the query of a name where the ledger stands.
        close: called once the query of a name has ended, or its name is not wanted any more.
        fenced: tells whether the consumer of a name was taken over; errors' words do not.
    """

    def __init__(
        self,
        start: Callable[[str], StreamingQuery],
        close: Callable[[str], None] = lambda _: None,
        fenced: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._start = start
        self._close = close
        self._fenced = fenced
        self._consumers: dict[str, _Consumer] = {}

    def look(self, wanted: Iterable[str]) -> None:
        """Start what is wanted and does not run; end what is not wanted any more.

        Raises:
            StopError: a consumer was fenced, or Spark itself is gone.
        """
        names = list(wanted)
        for name in self._consumers.keys() - set(names):
            self._let_go(name, self._consumers[name])
        for name in names:
            consumer = self._consumers.setdefault(name, _Consumer())
            if consumer.query is not None and not consumer.query.isActive:
                self._ended(name, consumer, consumer.query)
            if consumer.query is None and time.monotonic() >= consumer.retry.due:
                self._try(name, consumer)

    def stop(self) -> None:
        """Stop all queries."""
        for consumer in self._consumers.values():
            if consumer.query is not None:
                consumer.query.stop()

    def _let_go(self, name: str, consumer: _Consumer) -> None:
        if consumer.query is not None:
            if not stop_query(consumer.query, name):
                return  # the next look asks again
            self._close(name)
        del self._consumers[name]

    def _try(self, name: str, consumer: _Consumer) -> None:
        consumer.retry.began = time.monotonic()
        try:
            consumer.query = self._start(name)
        except (StopError, InputError, RetryError) as error:
            try_later(name, consumer.retry, error)

    def _ended(self, name: str, consumer: _Consumer, query: StreamingQuery) -> None:
        error = query.exception()
        if self._fenced(name):
            raise StopError(f"consumer {name!r} was taken over by another application: {error}")
        consumer.query = None
        self._close(name)
        try_later(name, consumer.retry, WaybillError(str(error)))


def stop_query(query: StreamingQuery, name: str) -> bool:
    """Stop a query; False: its batch is long, ask again."""
    try:
        query.stop()
    except Exception as error:  # noqa: BLE001 - Java's, of many kinds: it took too long
        if query.isActive:
            _LOG.warning("query %s does not stop yet: %s", name, error)
            return False
    return True


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
) -> None:
    """Start what is wanted and does not run, until told to stop.

    While the tracker or Kafka does not answer, it waits with back-off: no Spark is started anew for
    that.

    Args:
        look: starts what of these names does not run.
        wanted: reads the names from the tracker.
        stopping: ends this.
        every_s: time between two looks.

    Raises:
        StopError: a consumer was fenced.
    """
    back_off, failures = BackOff(2 * every_s, _LONGEST_AWAY_WAIT_S), 0
    while not stopping.asked:
        wait_s = every_s
        try:
            look(wanted())
            failures = 0
        except RetryError as error:
            failures += 1
            wait_s = back_off.wait_s(failures)
            _LOG.warning("nothing is started; again in %.0f s: %s", wait_s, error)
        stopping.wait(wait_s)
