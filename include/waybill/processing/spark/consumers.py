"""Consumers with a query each: started when they are wanted, and again when they stopped.

Those of loading; the topics of processing share queries (``topic_groups``). A consumer that stops
(a table that does not fit) is loud in the log and is tried again with back-off; its neighbours flow
on. So is one whose tracker is away: the application outlives that. So is one whose lease another
application took: it lets go, and if it is wanted here all the same (it was moved away and back
between two looks), it takes the lease again. That is refused where a newer application serves this
cluster (``ApplicationLease.check``), and only that ends this one, at its next beat.

A query ends between two batches (``BatchGate``), and is waited for by nobody: the next look asks
again. When the application ends, batches have `LAST_BATCH_S` to end in.

Asking an application to stop: SIGTERM, SIGINT and its row in the tracker set a flag that its loop
looks at.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Protocol

from pyspark.sql.streaming import StreamingQuery

from waybill.back_off import BackOff, RetryTimer
from waybill.clusters import HeldConsumer, Serving
from waybill.errors import InputError, RetryError, StopError, WaybillError
from waybill.ledger import FencedError


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
_STOPPING_S = 5.0
"""What is not wanted any more and has not ended after so long is left to the next look."""


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


class Consumer(Protocol):
    """A consumer whose query was started."""

    @property
    def problem(self) -> str:
        """Why nothing comes of its query now; empty: it works."""

    @property
    def error(self) -> WaybillError | None:
        """What its last batch failed with: Spark's words for it begin with ids of the query."""

    def look(self) -> None:
        """Do what is due beside the batches."""

    def end(self, query: StreamingQuery) -> bool:
        """Stop the query, unless a batch runs: see `BatchGate.end`."""

    def close(self) -> None:
        """Give back what it holds; its query has ended."""


@dataclass(slots=True)
class _State:
    running: tuple[Consumer, StreamingQuery] | None = None
    retry: RetryTimer = field(default_factory=lambda: RetryTimer(CONSUMER_BACK_OFF))
    is_ending: bool = False
    """It was told to end, by not being wanted or by a fence: it ends before it starts anew."""
    error: WaybillError | None = None
    """Why it was not started, or ended, last."""


class Consumers:
    """Keeps one query running for each name.

    Args:
        start: starts the query of a name where the ledger stands.
    """

    def __init__(self, start: Callable[[str], tuple[Consumer, StreamingQuery]]) -> None:
        self._start = start
        self._states: dict[str, _State] = {}
        self._wanted: dict[str, None] | None = None
        """By the last look."""

    def look(self, wanted: Iterable[str]) -> None:
        """Start what is wanted and does not run; end what is not wanted any more.

        Waits for no batch: what it cannot do yet is done by a later look.
        """
        names = self._wanted = dict.fromkeys(wanted)
        until = time.monotonic() + _STOPPING_S
        for name, state in list(self._states.items()):
            if (state.is_ending or name not in names) and time.monotonic() < until:
                self._let_go(state)
                if name not in names and not state.is_ending:
                    del self._states[name]
        for name in names:
            state = self._states.setdefault(name, _State())
            if not state.is_ending:
                self._keep(name, state)

    def serving(self, version: int) -> Serving | None:
        """Return what the last look left running, by this version; None before the first one."""
        if self._wanted is None:
            return None
        held = filter(None, map(self._held, self._wanted))
        return Serving.of(version, len(self._wanted), list(held))

    def _held(self, name: str) -> HeldConsumer | None:
        state = self._states.get(name, _State())
        if state.running is not None and not state.is_ending:
            problem = state.running[0].problem
            return HeldConsumer(name, "fails", problem) if problem else None
        return HeldConsumer.of(name, state.error, "for its turn, or for its last query")

    def stop(self) -> None:
        """Stop all queries at the end of their batches, or after `LAST_BATCH_S`."""
        running = [state.running for state in self._states.values() if state.running is not None]
        stop_queries((query, consumer.end) for consumer, query in running)

    def close(self) -> None:
        """Give back what the consumers hold, once Spark has ended."""
        for state in self._states.values():
            if state.running is not None:
                state.running[0].close()

    def _let_go(self, state: _State) -> None:
        state.is_ending = True
        if state.running is not None:
            consumer, query = state.running
            if not consumer.end(query):
                return
            consumer.close()
        state.running, state.is_ending = None, False

    def _keep(self, name: str, state: _State) -> None:
        if state.running is None:
            if time.monotonic() >= state.retry.due:
                self._try(name, state)
        elif (error := _look(*state.running)) is not None:
            state.is_ending, state.error = True, error
            try_later(name, state.retry, error)

    def _try(self, name: str, state: _State) -> None:
        state.retry.began = time.monotonic()
        try:
            state.running, state.error = self._start(name), None
        except (StopError, InputError, RetryError) as error:
            state.error = error
            try_later(name, state.retry, error)


def _look(consumer: Consumer, query: StreamingQuery) -> WaybillError | None:
    """Look at a consumer; returns why it cannot go on."""
    if not query.isActive:
        return consumer.error or WaybillError(str(query.exception()))
    try:
        consumer.look()
    except FencedError as error:
        return error
    return None


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
