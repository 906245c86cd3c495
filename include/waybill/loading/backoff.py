"""One destination's loads while it is unavailable: tried again, waited for, or parked on request.

Away, or not to be loaded as it is: the load is tried again, at most 30 s apart and with jitter, and
its staged objects keep. The tracker is told since when and why (``loading.states``). What
waits is parked once somebody ordered it, or the settings do after a time; from then on the
destination is asked before each load, and what it does not take is parked, until it takes one.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from waybill.back_off import BackOff
from waybill.errors import RetryError, WaybillError
from waybill.ledger import FencedError, StagedReference
from waybill.loading.failures import (
    AWAY,
    BY_HAND_ONLY,
    EXECUTORS_FAILED,
    ExecutorsFailedError,
    NotTakenError,
)
from waybill.loading.loader import Loader
from waybill.loading.states import (
    Waiting,
    note_failure,
    note_parking,
    note_taken,
    read_waiting,
)

_LOG = logging.getLogger(__name__)
_BACK_OFF = BackOff(0.5, 30.0)
"""Each wait is shortened at random by up to a half."""
_LOOK_S = 2.0
"""Longest that an order is not seen while waiting."""
_NOTE_S = 10.0
"""The tracker is told of failures so often at most, unless they say something else."""
_PARKED_ROWS = 20_000
"""Rows that are parked in one object and transaction, unless one commit has more."""
_PARKED_COMMITS = 200
_PROBE_S = 1.0
"""While what comes is parked, the destination is asked so often at most,"""
_COMPARE_AGAIN_S = 10.0
"""A destination that could not be compared is asked again so soon."""
_PROBE_SHARE = 5.0
"""and for this many times as long as asking took, things are parked without asking."""


_FAILED_JOBS = 3
"""So often in a row executors fail before that is told: one that dies is replaced by itself."""


class StoppedError(WaybillError):
    """The application is to stop; what was not loaded waits for the next one."""


@dataclass(slots=True)
class _Failure:
    """What the destination said last, and when the tracker was told of it."""

    code: str = ""
    message: str = ""
    by_hand_only: bool = False
    attempts: int = 0
    noted_at: float = float("-inf")
    noted_code: str = ""
    next_probe_at: float = field(default=float("-inf"))


class Patience:
    """Brings commits into one destination, or parks them.

    Args:
        loader: of the destination.
        park_after_s: what waits is parked when the destination took nothing for so long; None: only
            by order.
        wait: sleeps for some seconds; returns True when the application is to stop.
        clock: seconds, from any start.
        compare_every_s: while nothing is to be loaded, its books are compared so often; None: only
            when it is opened, and by loads.
    """

    def __init__(
        self,
        loader: Loader,
        *,
        park_after_s: float | None,
        wait: Callable[[float], bool],
        clock: Callable[[], float] = time.monotonic,
        compare_every_s: float | None = None,
    ) -> None:
        self._loader = loader
        self._park_after_s = park_after_s
        self._wait = wait
        self._clock = clock
        self._compare_every_s = compare_every_s
        self._compare_at = clock() + (compare_every_s or 0.0)
        self._busy = threading.Lock()
        self._fenced: FencedError | None = None
        """A comparison was: ``look`` tells."""
        self._is_ending = False
        """Nothing is compared any more."""
        self._random = random.Random()  # noqa: S311 - spreads retries
        self._failures = 0
        """In a row."""
        self._failed_jobs = 0
        """Of those, loads that executors did not carry out."""
        self._waiting: Waiting | None = None
        self._read = False
        self._failure = _Failure()

    @property
    def problem(self) -> str:
        """Why the destination takes nothing; empty: it does, as far as is known. For any thread."""
        failure = self._failure
        return f"{failure.code}: {failure.message}" if failure.code else ""

    def deliver(self, references: Sequence[StagedReference], *, after: int, until: int) -> None:
        """Load commits ``after`` + 1 to ``until``, or park them; returns when the tracker knows.

        Raises:
            StopError: fenced.
            StoppedError: asked to stop.
        """
        with self._busy:
            while after < until:
                rest = [item for item in references if item.commit_number > after]
                try:
                    after = self._step(rest, after, until)
                except RetryError as error:  # the tracker or the store: no word of the destination
                    _LOG.warning("%s waits: %s", self._loader.consumer, error)
                    self._sleep(self._next_wait_s())

    def look(self) -> None:
        """When a destination did not answer and nothing is to be loaded, see whether it does.

        What it answers says nothing of a load that it refused; that is tried with the next one.
        One that takes its loads is compared from time to time, in a thread: see ``compare``.

        Raises:
            FencedError: another loader has taken over.
        """
        if self._fenced is not None:
            raise self._fenced
        if self._failure.code != AWAY:
            self._compare_sometimes()
            return
        if not self._busy.acquire(blocking=False):
            return
        try:
            if self._waiting is not None and self._clock() >= self._failure.next_probe_at:
                self._probe()
                with self._loader.books() as connection:
                    self._taken(connection, None)
                self._over()
        except (NotTakenError, RetryError) as error:
            _LOG.debug("%s: %s", self._loader.consumer, error)
        finally:
            self._busy.release()

    def _compare_sometimes(self) -> None:
        now = self._clock()
        if self._compare_every_s is None or now < self._compare_at or self._busy.locked():
            return
        self._compare_at = now + self._compare_every_s
        threading.Thread(
            target=self.compare, name=f"compare-{self._loader.name}", daemon=True
        ).start()

    def compare(self) -> None:
        """Compare the destination's books with the tracker's, unless a load is at work.

        A load does it by itself; this is for when nothing comes. What it lacks is loaded again.
        """
        if not self._busy.acquire(blocking=False):
            return
        began = self._clock()
        try:
            if not self._is_ending:
                self._loader.compare()
        except FencedError as error:
            self._fenced = error
        except WaybillError as error:
            _LOG.warning("%s was not compared: %s", self._loader.consumer, error)
            self._compare_at = min(self._compare_at, began + _COMPARE_AGAIN_S)
        finally:
            spent = self._clock() - began
            self._compare_at = max(self._compare_at, self._clock() + _PROBE_SHARE * spent)
            self._busy.release()

    def end(self) -> bool:
        """Have no comparison begin any more; False: one goes on, ask again.

        Only then is the destination closed: what goes on would open it again, and nobody would
        close that. One that goes on while the application ends is cut off, as by a kill: a
        reload writes down what it has done part by part, and is gone on with.
        """
        self._is_ending = True
        if not self._busy.acquire(blocking=False):
            return False
        self._busy.release()
        return True

    def _step(self, rest: Sequence[StagedReference], after: int, until: int) -> int:
        """Try once, or park some; returns the commit that the destination stands at then."""
        if not self._read or self._waiting is not None:
            with self._loader.books() as connection:
                self._resume(read_waiting(connection, self._loader.name))
        began = self._clock()
        try:
            if self._waiting is not None and rest:
                if self._parks() and self._clock() < self._failure.next_probe_at:
                    return self._park(rest, after, until)
                self._probe()  # before the objects are read again
            began = self._clock()
            rows = self._loader.load(
                rest, after=after, until=until, beside=lambda c: self._taken(c, until)
            )
        except NotTakenError as failure:
            self._failed_jobs = 0
            found = self._unreached(failure) if failure.unreached else failure
            return self._not_taken(found, rest, after, until, began)
        except ExecutorsFailedError as failure:
            self._failed_jobs += 1
            if self._failed_jobs < _FAILED_JOBS:
                raise
            found = NotTakenError(self._in_words(failure))
            return self._not_taken(found, rest, after, until, began)
        if rows:
            self._over()
        spent = self._clock() - began
        _LOG.info(
            "%s: loaded to commit %d, %d rows in %.2f s", self._loader.consumer, until, rows, spent
        )
        return until

    def _resume(self, found: Waiting | None) -> None:
        """Go on from what the tracker says: an order may have come, or been taken back."""
        self._waiting = found
        if found is not None and not self._read:
            self._failure = _Failure(
                found.code, found.error, found.code in BY_HAND_ONLY, attempts=found.attempts
            )
        self._read = True

    def _probe(self) -> None:
        """Ask the destination, and say when to ask again."""
        began = self._clock()
        try:
            self._loader.probe()
        finally:
            self._ask_later(began)

    def _ask_later(self, began: float) -> None:
        """Say when to ask again, after what was begun then."""
        now = self._clock()
        self._failure.next_probe_at = now + max(_PROBE_S, _PROBE_SHARE * (now - began))

    def _unreached(self, failure: NotTakenError) -> NotTakenError:
        """Return what it means that an executor may not have come to the destination.

        The driver asks it: where it answers, what executors say is no word of the destination.
        """
        try:
            self._probe()
        except NotTakenError:
            return failure
        return NotTakenError(
            ExecutorsFailedError(
                f"{failure}; the driver reaches it, executors do not, or have not what they need: "
                f"mend that, or {self._by_driver()}"
            )
        )

    def _in_words(self, failure: ExecutorsFailedError) -> ExecutorsFailedError:
        """Return what to do about executors that fail."""
        return ExecutorsFailedError(
            f"{failure}; {self._failed_jobs} times in a row. Look at the executors' log and the "
            "cluster's memory (`waybill clusters set --memory-mb`, spark.executor.memoryOverhead), "
            f"or {self._by_driver()}"
        )

    def _by_driver(self) -> str:
        return f"set loaded_by of {self._loader.name} to driver and start loading again"

    def _taken(self, connection: Connection, until: int | None) -> None:
        """Write that a load was taken, in the transaction that acknowledges it."""
        if self._waiting is not None:
            note_taken(connection, self._loader.name, until)

    def _over(self) -> None:
        if self._waiting is not None:
            waited_s = self._waiting.waited_s
            _LOG.info("%s: takes loads again, after %.0f s", self._loader.consumer, waited_s)
        self._waiting, self._failure = None, _Failure()
        self._failures = self._failed_jobs = 0

    def _not_taken(
        self,
        error: NotTakenError,
        rest: Sequence[StagedReference],
        after: int,
        until: int,
        began: float,
    ) -> int:
        """Wait, or park some; returns the commit that the destination stands at then."""
        failure = self._failure
        failure.code, failure.message = error.code, str(error)
        failure.by_hand_only = error.by_hand_only
        failure.attempts += 1
        if error.code == EXECUTORS_FAILED:  # a load is what asks executors
            self._ask_later(began)
        self._note()
        if self._parks():
            return self._park(rest, after, until)
        wait_s = self._next_wait_s()
        _LOG.warning("%s waits %.1f s: %s", self._loader.consumer, wait_s, error)
        self._sleep(wait_s)
        return after

    def _note(self) -> None:
        """Tell the tracker of a failure, or at least hear of orders.

        Raises:
            FencedError: another loader has taken over.
            RetryError: the tracker is away.
        """
        failure, now = self._failure, self._clock()
        news = failure.code != failure.noted_code or now - failure.noted_at >= _NOTE_S
        with self._loader.books() as connection:
            if news or self._waiting is None:
                self._waiting = note_failure(
                    connection,
                    self._loader.name,
                    code=failure.code,
                    error=failure.message,
                    attempts=failure.attempts,
                )
                failure.noted_at, failure.noted_code = now, failure.code
            else:
                self._waiting = read_waiting(connection, self._loader.name)

    def _parks(self) -> bool:
        """Tell whether what the destination does not take is parked."""
        state = self._waiting
        if state is None:
            return False
        if state.asked_at is not None:
            return True
        due = self._park_after_s is not None and state.waited_s >= self._park_after_s
        return due and not self._failure.by_hand_only

    def _park(self, rest: Sequence[StagedReference], after: int, until: int) -> int:
        """Park the first of the commits; what they are parked under is what was said last."""
        if self._wait(0):
            raise StoppedError("asked to stop")
        until = first_part(rest, after=after, until=until)
        rows = self._loader.park(
            [item for item in rest if item.commit_number <= until],
            after=after,
            until=until,
            code=self._failure.code,
            message=self._failure.message,
            beside=lambda connection: self._parking(connection, after + 1),
        )
        self._failure.next_probe_at = max(self._failure.next_probe_at, self._clock() + _PROBE_S)
        _LOG.warning("%s: parked to commit %d, %d rows", self._loader.consumer, until, rows)
        return until

    def _parking(self, connection: Connection, commit_number: int) -> None:
        """Write the first commit that is parked, in the transaction that parks it."""
        if self._waiting is not None:
            note_parking(connection, self._waiting, commit_number)

    def _next_wait_s(self) -> float:
        self._failures += 1
        return _BACK_OFF.wait_s(self._failures) * self._random.uniform(0.5, 1.0)

    def _sleep(self, seconds: float) -> None:
        """Wait, but no longer than until somebody orders that what waits is parked."""
        while seconds > 0:
            if self._wait(min(seconds, _LOOK_S)):
                raise StoppedError("asked to stop")
            seconds -= _LOOK_S
            if self._waiting is not None and self._is_ordered():
                return

    def _is_ordered(self) -> bool:
        try:
            with self._loader.books() as connection:
                waiting = read_waiting(connection, self._loader.name)
        except RetryError as error:
            _LOG.warning("%s cannot hear of orders: %s", self._loader.consumer, error)
            return False
        self._waiting = waiting or self._waiting
        return self._parks()


def first_part(references: Sequence[StagedReference], *, after: int, until: int) -> int:
    """Return the last of the first commits that are parked together; at least one."""
    until = min(until, after + _PARKED_COMMITS)
    rows = 0
    for item in references:
        rows += item.rows
        if rows > _PARKED_ROWS and item.commit_number > after + 1:
            return min(until, item.commit_number - 1)
    return until
