"""Waiting for a server that is being restarted: what a person started goes on, and says for what.

Off by default: services and tasks are tried again by those who run them, and say so themselves. The
command line switches it on for as long as a command runs; a command that is a service switches it
off again (``nobody_waiting``). Only what may be done twice is waited for: a connection, a question,
a write under a key.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from waybill.back_off import BackOff
from waybill.errors import AwayError, RetryError

T = TypeVar("T")
_BACK_OFF = BackOff(0.5, 3.0)


@dataclass(slots=True)
class _Patience:
    limit_s: float
    tell: Callable[[str], None]
    told: set[str] = field(default_factory=set)
    """Settings of the servers that were said to be away, and did not answer since."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_hopeless: Callable[[RetryError], bool] = lambda _error: False


_now: list[_Patience] = []
"""The last one counts; of all threads of the process."""


@contextmanager
def waiting(
    limit_s: float,
    tell: Callable[[str], None],
    is_hopeless: Callable[[RetryError], bool] = lambda _error: False,
) -> Iterator[None]:
    """Have ``answered`` wait inside the block.

    Args:
        limit_s: longest wait for one answer.
        tell: gets a line when a wait begins, one for each server.
        is_hopeless: tells of an error that nobody is to wait for.
    """
    given = _Patience(limit_s, tell, is_hopeless=is_hopeless)
    _now.append(given)
    try:
        yield
    finally:
        _now.remove(given)


@contextmanager
def nobody_waiting() -> Iterator[None]:
    """Have ``answered`` wait for nothing inside the block: a service has tries of its own.

    A try that waited as well would be as long as both, and be told of that late.
    """
    with waiting(0.0, lambda _line: None):
        yield


def answered(ask: Callable[[], T], *, kind: type[RetryError] = AwayError) -> T:
    """Return what ``ask`` returns; while it raises an error of a kind it is called again.

    Raises:
        RetryError: of that kind: the server stayed away, or nobody waits.
    """
    if not _now:
        return ask()
    patience = _now[-1]
    deadline = time.monotonic() + patience.limit_s
    failures = 0
    told = ""
    while True:
        try:
            answer = ask()
        except kind as error:
            if time.monotonic() >= deadline or patience.is_hopeless(error):
                raise
            told = getattr(error, "setting", type(error).__name__)
            _say(patience, told, error)
        else:
            patience.told.discard(told)
            return answer
        failures += 1
        time.sleep(_BACK_OFF.wait_s(failures))


def _say(patience: _Patience, server: str, error: RetryError) -> None:
    with patience.lock:
        if server in patience.told:
            return
        patience.told.add(server)
    first = str(error).partition("\n")[0]
    patience.tell(f"waiting up to {patience.limit_s:.0f} s: {first}")
