"""Transient errors of user code: the event is run again, in place, before it is parked.

In place, because events of its key that come after it have to wait for it. What all events of one
task spend on it together, waits and repeated runs, is bounded: a service that is down for long
costs a task that much once, and from then on its events park at the first error.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from ctypes import c_double
from dataclasses import replace
from typing import TypeVar

from waybill.events import error_type
from waybill.processing.failures import Fault

_DOUBLE_BYTES = 8

T = TypeVar("T")


class Retries:
    """How often and how long one task tries again. Forked children share what is spent.

    Args:
        attempts: runs of one event, the first included.
        backoff_s: wait before the second run, doubled before each later one.
        budget_s: for all waits and repeated runs; a run that has begun is not cut short.
        clock: seconds.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        attempts: int = 1,
        *,
        backoff_s: float = 0.2,
        budget_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._attempts = attempts
        self._backoff_s = backoff_s
        self._budget_s = budget_s
        self._clock = clock
        self._sleep = sleep
        self._spent = c_double.from_buffer(mmap.mmap(-1, _DOUBLE_BYTES))

    @property
    def spent_s(self) -> float:
        """Return the seconds spent so far."""
        return self._spent.value

    def settle(self, outcome: T, run_again: Callable[[], T]) -> T | Fault:
        """Return the outcome of an event; after a transient fault, of its last run.

        A transient fault that stays says in its message how many attempts there were.
        """
        attempt = 1
        wait_s = self._backoff_s
        while isinstance(outcome, Fault) and error_type(outcome.code).transient:
            if attempt >= self._attempts or self._spent.value + wait_s > self._budget_s:
                return replace(outcome, message=f"{outcome.message} (attempts: {attempt})")
            began = self._clock()
            try:
                self._sleep(wait_s)
                outcome = run_again()
            finally:
                self._spent.value += self._clock() - began
            attempt += 1
            wait_s *= 2
        return outcome
