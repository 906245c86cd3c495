"""Runs questions about traces: in the process that serves, or in the one that asks.

While a question runs, a thread beside it says every 0.2 s that it goes on and how far it is, and
asks whether it is to be cancelled; then the query is told, and ends by itself. Who dies when: the
question's row says ``running`` with an old time, and any runner takes it up. A runner that only was
slow finds its question another's when it wants to write, and writes nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal
from uuid import UUID, uuid4

from waybill.errors import RetryError, WaybillError
from waybill.parking import ParkedPlace, Whereabouts
from waybill.storage import TrackerStore
from waybill.tracing import QueryCancelledError, Trace, TraceQuery, Watched
from waybill.trails import queries as trace_queries
from waybill.trails.answer import Answering
from waybill.trails.queries import Asked, Beat
from waybill.trails.trail import TrailBooks

LOG = logging.getLogger(__name__)
THREADS = 2
LIMIT_S = 600.0
"""Longest that a question may take."""
_BEAT_S = 0.2
_LOOK_S = 1.0
"""Between looks for questions of other processes; own ones are told of."""
_JOIN_S = 10.0


def runner_name() -> str:
    """Return a name that no other runner has: host, process, and a part of chance."""
    return f"{socket.gethostname()}/{os.getpid()}/{uuid4().hex[:8]}"


class Work:
    """One question while it runs, and why it ends early."""

    def __init__(self, tracker: TrackerStore, query_id: UUID, *, runner: str) -> None:
        self.watch = Watched()
        self.ended_by: Literal["", "cancel", "limit", "lost", "close"] = ""
        self._tracker = tracker
        self._query_id = query_id
        self._runner = runner
        self._until = time.monotonic() + LIMIT_S
        self._over = threading.Event()

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Say that the work goes on, until the end of the block."""
        thread = threading.Thread(target=self._beat, name="waybill-question-beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def end(self, why: Literal["cancel", "limit", "lost", "close"]) -> None:
        """Let the query end soon."""
        self.ended_by = self.ended_by or why
        self.watch.cancel()

    def _beat(self) -> None:
        heard = time.monotonic()
        while not self._over.wait(_BEAT_S):
            try:
                answer = self._say()
                heard = time.monotonic()
            except Exception:
                LOG.warning("question %s: the tracker was not told", self._query_id, exc_info=True)
                answer = False if time.monotonic() - heard < trace_queries.STALE_S else None
            if answer is None:
                self.end("lost")
            elif answer:
                self.end("cancel")
            elif time.monotonic() > self._until:
                self.end("limit")

    def _say(self) -> bool | None:
        watch = self.watch
        said = Beat(
            watch.objects_read,
            watch.objects,
            watch.bytes_scanned,
            watch.external_id,
            watch.searched[0].backend if watch.searched else "",
        )
        return trace_queries.beat(self._tracker, self._query_id, said, runner=self._runner)


class Runner:
    """Runs questions one at a time, or in threads. Safe for several threads.

    Args:
        books: the questions, and what trails are joined with.
        traces: opens what looks traces up; called once, when the first question is there.
        shipped_after_s: longest that a trace usually waits before it is shipped, in seconds.
    """

    def __init__(
        self,
        books: TrailBooks,
        traces: Callable[[], TraceQuery],
        *,
        shipped_after_s: float,
    ) -> None:
        self.name = runner_name()
        self._books = books
        self._tracker = books.tracker
        self._open_traces = traces
        self._shipped_after_s = shipped_after_s
        self._traces: TraceQuery | None = None
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._running: set[Work] = set()
        self._wake = threading.Semaphore(0)
        self._closed = threading.Event()

    def run(self, asked: Asked) -> None:
        """Run a question that is this runner's, and write what came of it."""
        work = Work(self._tracker, asked.id, runner=self.name)
        with self._lock:
            self._running.add(work)
        try:
            with work.beating():
                ended = self._ended(work, asked)
            if ended is not None:
                trace_queries.finish(self._tracker, asked.id, runner=self.name, **ended)
        except KeyboardInterrupt:
            trace_queries.finish(self._tracker, asked.id, runner=self.name, state="cancelled")
            raise
        finally:
            with self._lock:
                self._running.discard(work)

    def _ended(self, work: Work, asked: Asked) -> dict[str, Any] | None:
        """Return how a question ended; None: it is no longer this runner's to say."""
        try:
            answer = self._answer(work, asked)
        except QueryCancelledError:
            return self._broken_off(work, asked)
        except WaybillError as error:
            return {"state": "failed", "error": str(error)}
        except Exception as error:
            LOG.exception("question %s failed", asked.id)
            return {"state": "failed", "error": f"unexpected {type(error).__name__}: {error}"}
        return {"state": "done", "answer": answer}

    def _broken_off(self, work: Work, asked: Asked) -> dict[str, Any] | None:
        if work.ended_by == "close":
            trace_queries.give_back(self._tracker, asked.id, runner=self.name)
        if work.ended_by == "limit":
            words = f"it took longer than {LIMIT_S:.0f} s; name a shorter time, or fewer ids"
            return {"state": "failed", "error": words}
        return {"state": "cancelled"} if work.ended_by == "cancel" else None

    def _answer(self, work: Work, asked: Asked) -> dict[str, Any]:
        traces = self._opened()

        def look(
            ids: Sequence[str], since: datetime | None, until: datetime | None
        ) -> dict[str, list[Trace]]:
            return traces.trails(ids, since=since, until=until, watch=work.watch)

        def parked(place: ParkedPlace) -> Whereabouts | None:
            if work.watch.cancelled():
                raise QueryCancelledError("the question was cancelled")
            return self._books.parked(place)

        answering = Answering(replace(self._books, parked=parked), look, asked.question)
        answer = answering.answer()
        answer.note_search(work.watch.searched, shipped_after_s=self._shipped_after_s)
        return answer.to_json()

    def _opened(self) -> TraceQuery:
        with self._lock:
            if self._traces is None:
                self._traces = self._open_traces()
            return self._traces

    def start(self) -> None:
        """Start the threads that take up whatever is asked; again: nothing."""
        with self._lock:
            if self._threads or self._closed.is_set():
                return
            self._threads = [
                threading.Thread(target=self._serve, name=f"waybill-questions-{n}", daemon=True)
                for n in range(THREADS)
            ]
            for thread in self._threads:
                thread.start()

    def wake(self) -> None:
        """Say that something was asked."""
        self._wake.release()

    def close(self) -> None:
        """Give back what runs, end the threads, and close what looks traces up."""
        self._closed.set()
        with self._lock:
            for work in self._running:
                work.end("close")
            threads, traces = self._threads, self._traces
        for _ in threads:
            self._wake.release()
        for thread in threads:
            thread.join(_JOIN_S)
        if traces is not None and hasattr(traces, "close"):
            traces.close()

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                asked = trace_queries.claim(self._tracker, runner=self.name)
                if asked is not None:
                    self.run(asked)
                    continue
            except RetryError as error:
                LOG.warning("the tracker does not answer, so no question is taken up: %s", error)
            except Exception:
                LOG.exception("a question could not be taken up, or its end not be written")
            self._wake.acquire(timeout=_LOOK_S)
