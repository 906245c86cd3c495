"""A shift: one process runs the jobs that are due, each in a thread of its own.

The main thread keeps the leases, starts what is due, and sees to it that no run is longer than its
limit. A thread cannot be ended: where a lease was lost or a run is over its limit the shift raises,
and its process is to end, the threads with it. The next one does again what was cut off.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from waybill.errors import InputError, RetryError, StopError, WaybillError
from waybill.storage import TrackerStore
from waybill.upkeep.records import (
    BEAT_S,
    JOBS,
    Job,
    Lease,
    beat,
    note_told,
    read_jobs,
    take_lease,
    write_failure,
    write_success,
)

_LOG = logging.getLogger(__name__)
_POLL_S = 5.0
"""Longest between two looks: so soon a job that was resumed begins."""
_ASK_S = 15.0
_AWAY_S = 30.0
"""A tracker that does not answer for so long ends the shift."""

Work = Callable[[], Mapping[str, Any]]
"""Does a job once; returns its outcome, numbers and short texts.

Raises a ``StopError`` or an ``InputError`` where the same would happen again, anything else where
it may pass."""
Tell = Callable[[Job, str, int], None]
"""Says that a job fails, why, and how often in a row."""


@dataclass(slots=True)
class _Running:
    job: Job
    lease: Lease
    began: float
    work: Future[Mapping[str, Any]]
    end: Future[bool] | None = None
    """Writes down what came of the work, and tells; False: the lease was lost."""


class Shift:
    """Runs jobs by their leases.

    Args:
        tracker: where the records are; safe for several threads.
        work: what to do, by job; jobs that are not in it are left to others.
        holder: who says so, for people.
        tell: says that a job fails, the first of several times in a row.
        words_of: an error in words that may be shown: no values of events, no secrets.
    """

    def __init__(
        self,
        tracker: TrackerStore,
        work: Mapping[str, Work],
        *,
        holder: str,
        tell: Tell = lambda _job, _error, _times: None,
        words_of: Callable[[BaseException], str] | None = None,
    ) -> None:
        self._tracker = tracker
        self._work = work
        self._jobs = [job for job in JOBS if job.name in work]
        self._holder = holder
        self._tell = tell
        self._words_of = words_of or _words_of
        self._running: dict[str, _Running] = {}
        self._pool = ThreadPoolExecutor(1 + len(self._jobs), thread_name_prefix="upkeep")
        self._beaten = 0.0
        self._away_since: float | None = None

    def run(
        self, length_s: float, *, is_stopped: Callable[[], bool] = lambda: False
    ) -> dict[str, int]:
        """Run what is due, until the time is over and nothing runs; returns how often each ran.

        A long run at the end delays no other job: they go on beside it.

        Args:
            length_s: how long.
            is_stopped: asked in a thread, each 15 s; True: nothing more is started.

        Raises:
            RetryError: the tracker did not answer for half a minute, or a run was over its limit.
            StopError: another process has the lease of a job that runs here.
        """
        asked, asks, stopped = self._pool.submit(is_stopped), time.monotonic() + _ASK_S, False
        over, runs = time.monotonic() + length_s, Counter[str]()
        while self._running or (time.monotonic() < over and not stopped):
            if asked.done() and time.monotonic() > asks:  # in a thread: whom it asks may be away
                stopped = asked.result()
                asked, asks = self._pool.submit(is_stopped), time.monotonic() + _ASK_S
            try:
                self._keep()
                waits_s = _POLL_S if stopped else self._start_due()
                self._away_since = None
            except RetryError as error:
                waits_s = self._wait_for_tracker(error)
            for ended in self._wait(waits_s):
                runs[ended.job.name] += 1
        return dict(runs)

    def run_now(self, job: Job, *, wait_s: float) -> Mapping[str, Any]:
        """Run one job once, whether or not it is due or paused; returns its outcome.

        Args:
            job: which.
            wait_s: so long it is waited for where another process runs it.

        Raises:
            RetryError: it is still run elsewhere; or as ``run``.
            BaseException: the job's own.
        """
        until = time.monotonic() + wait_s
        while not self._start(job, asked=True):
            if time.monotonic() > until:
                record = next(one for one in read_jobs(self._tracker) if one.job == job.name)
                raise RetryError(f"{job.name} is run by {record.holder} since {record.started_at}")
            time.sleep(1.0)
        while True:
            for ended in self._wait(_POLL_S):
                return ended.work.result()
            self._keep()

    def _start_due(self) -> float:
        """Start what is due; return the seconds until the next look."""
        waits_s = _POLL_S
        due = {one.job: one.due_in_s for one in read_jobs(self._tracker)}
        for job in self._jobs:
            due_in_s = due[job.name]
            if job.name in self._running or due_in_s is None:
                continue
            if due_in_s > 0:
                waits_s = min(waits_s, due_in_s)
            else:
                self._start(job)
        return waits_s

    def _start(self, job: Job, *, asked: bool = False) -> bool:
        began = time.monotonic()
        lease = take_lease(self._tracker, job, holder=self._holder, asked=asked)
        if lease is None:
            return False
        work = self._pool.submit(self._work[job.name])
        self._running[job.name] = _Running(job, lease, began, work)
        return True

    def _end(self, one: _Running) -> bool:
        """Write down what came of a run, and tell where that is due: in a thread of its own."""
        error = one.work.exception()
        if error is None:
            return write_success(self._tracker, one.lease, one.work.result())
        _LOG.error("%s failed", one.job.name, exc_info=error)
        final = isinstance(error, InputError | StopError)
        return self._write_failure(one, error, final=final)

    def _write_failure(self, one: _Running, error: BaseException, *, final: bool) -> bool:
        words = self._words_of(error)
        failed = write_failure(self._tracker, one.lease, words, final=final)
        if failed is not None and failed.tell:
            self._tell(one.job, words, failed.failures)
            note_told(self._tracker, one.job.name)
        return failed is not None

    def _keep(self) -> None:
        """Keep the leases, and end the shift where one was lost or a run is over its limit."""
        now = time.monotonic()
        at_work = [one for one in self._running.values() if one.end is None]
        if at_work and now - self._beaten >= BEAT_S:
            lost = beat(self._tracker, [one.lease for one in at_work])
            self._beaten = now
            if lost:
                raise StopError(
                    f"another process has {', '.join(one.job for one in lost)}: this one was "
                    "frozen, or cut off from the tracker, for over a minute, and ends"
                )
        for one in at_work:
            if now - one.began > one.job.limit_s and not one.work.done():
                error = _OverLimitError(
                    f"{one.job.name} took over {one.job.limit_s:.0f} s: its process is ended, and "
                    "it is done again"
                )
                self._write_failure(one, error, final=True)
                raise error

    def _wait(self, seconds: float) -> list[_Running]:
        """Wait until something ends, at most so long; return the runs that are written down.

        What is not written as the tracker is away is left: its lease ends, and it is done again.
        """
        futures: list[Future[Any]] = [one.end or one.work for one in self._running.values()]
        if futures:
            wait(futures, seconds, FIRST_COMPLETED)
        else:
            time.sleep(seconds)
        ended = []
        for one in list(self._running.values()):
            if one.end is None and one.work.done():
                one.end = self._pool.submit(self._end, one)
            elif one.end is not None and one.end.done():
                ended.append(self._running.pop(one.job.name))
                if error := one.end.exception():
                    _LOG.error("%s is not written down; done again", one.job.name, exc_info=error)
                elif not one.end.result():
                    raise StopError(f"another process has {one.job.name}: this one ends")
        return ended

    def _wait_for_tracker(self, error: RetryError) -> float:
        if isinstance(error, _OverLimitError):
            raise error
        now = time.monotonic()
        self._away_since = now if self._away_since is None else self._away_since
        if now - self._away_since > _AWAY_S:
            raise error
        _LOG.warning("nothing is started: %s", error)
        return _POLL_S


class _OverLimitError(RetryError):
    """A run was over its limit."""


def _words_of(error: BaseException) -> str:
    """Return the library's own words; of others the type, as theirs may quote values of events."""
    return str(error) if isinstance(error, WaybillError) else type(error).__name__


__all__ = ["Shift", "Tell", "Work"]
