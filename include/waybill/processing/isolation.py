"""User code in forked children: what ends the interpreter there ends one event, not the task.

A child runs the code and streams its results back; the event at which it died is parked, and a new
child goes on behind it. Code that dies while it is loaded is tried in a child first.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from waybill.errors import ParkError
from waybill.events import Event
from waybill.processing.failures import Fault, words_of
from waybill.processing.transformation import (
    Again,
    Outcome,
    Transform,
    Watch,
    compile_transformation,
    run,
)

_LENGTH = struct.Struct("<Q")
_LIVED = 86
"""Exit status of a child that came to the end of its work; no user code is likely to choose it."""


def compile_isolated(code: str, name: str, watch: Watch) -> Transform:
    """Like ``compile_transformation``, after a child has loaded the code and lived.

    Raises:
        ParkError: ``code_invalid``; it cannot be loaded, or loading it ends the interpreter, or
            never ends. What the child says of it is said: the code is not met again here.
    """
    marked = watch.marker.value
    with _clock_held(watch):
        words, status = _loaded_in_child(code, name, watch)
        if os.WIFSIGNALED(status):  # perhaps by somebody else
            words, status = _loaded_in_child(code, name, watch)
    if words:
        raise ParkError("code_invalid", words)
    if not os.WIFEXITED(status) or os.WEXITSTATUS(status) != _LIVED:
        raise ParkError("code_invalid", f"loading the transformation of {name!r}: {_end(status)}")
    watch.marker.value = marked
    return compile_transformation(code, name)


def _loaded_in_child(code: str, name: str, watch: Watch) -> tuple[str, int]:
    """Return (what is wrong with the code, the child's status)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _child(watch, lambda: _load(code, name, writing))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        words = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(pid, 0)
    return words, status


def _load(code: str, name: str, writing: int) -> None:
    try:
        compile_transformation(code, name)
    except ParkError as error:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(error.message.encode("utf-8", "replace"))


def run_isolated(
    transform: Transform,
    events: Sequence[Event],
    offsets: Sequence[int],
    watch: Watch,
    again: Again | None = None,
) -> Iterator[Outcome]:
    """Like ``run``, in forked children: survives code that ends the interpreter.

    A child that a signal ended may have been killed by somebody else: its event gets a second
    child, and is a fault if that one is killed as well.

    Cost: a fork (10 to 20 ms in a worker) for each call and each crash, and 10 µs an event for the
    pipe: with slices of 512 events about 40 µs an event.
    """
    with _clock_held(watch):
        done, killed_at = 0, -1
        while done < len(events):
            count, status, words = yield from _child_results(
                transform, events, offsets, watch, again, done
            )
            done += count
            if done == len(events):
                return
            if os.WIFSIGNALED(status) and killed_at != done:
                killed_at = done
                continue
            yield Fault("interpreter_crashed", words)
            done += 1


@contextmanager
def _clock_held(watch: Watch) -> Iterator[None]:
    """Keep this process's own clock from striking: the marker is the child's now."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    watch.disarm()
    try:
        yield
    finally:
        watch.marker.value = -1  # a child that died left its own mark
        watch.arm()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _child_results(
    transform: Transform,
    events: Sequence[Event],
    offsets: Sequence[int],
    watch: Watch,
    again: Again | None,
    start: int,
) -> Generator[Outcome, None, tuple[int, int, str]]:
    """Yield the results of one child from event ``start`` on.

    Returns (how many, its status, how it ended in words).
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        rest = None if again is None else again._replace(fresh=partial(_shifted, again, start))
        outcomes = run(transform, events[start:], offsets[start:], watch, rest)
        _child(watch, lambda: _serve(outcomes, writing))
    os.close(writing)
    count = status = 0
    began = time.monotonic()
    try:
        with os.fdopen(reading, "rb") as pipe:
            while (body := _read_body(pipe.read)) is not None:
                yield _unpickled(body)
                count += 1
                began = time.monotonic()
    finally:
        _, status = os.waitpid(pid, 0)
    return count, status, f"{_end(status)} {time.monotonic() - began:.1f} s after it got the event"


def _read_body(read: Callable[[int], bytes]) -> bytes | None:
    head = read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = read(length)
    return body if len(body) == length else None


def _child(watch: Watch, work: Callable[[], object]) -> NoReturn:
    """Work in a forked child, then end without any clean-up of the parent's things."""
    status = 1
    try:
        _offer_to_the_oom_killer()
        watch.arm()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        work()
        status = _LIVED
    finally:
        os._exit(status)


def _offer_to_the_oom_killer() -> None:
    """Let the kernel end this child before the worker, whose results are complete up to here."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _shifted(again: Again, start: int, index: int) -> Event:
    return again.fresh(start + index)


def _serve(outcomes: Iterator[Outcome], writing: int) -> None:
    with os.fdopen(writing, "wb") as pipe:
        for outcome in outcomes:
            body = _pickled(outcome)
            pipe.write(_LENGTH.pack(len(body)) + body)
            pipe.flush()


def _pickled(outcome: Outcome) -> bytes:
    try:
        return pickle.dumps(outcome)
    except Exception as error:  # noqa: BLE001 - user data may refuse in any way
        words = f"the result cannot leave its process: {words_of(error)}"
        return pickle.dumps(Fault("result_invalid", words))


def _unpickled(body: bytes) -> Outcome:
    try:
        outcome: Outcome = pickle.loads(body)  # noqa: S301 - written by our own child
    except Exception as error:  # noqa: BLE001 - user data may refuse in any way
        words = f"the result cannot enter its process: {words_of(error)}"
        return Fault("result_invalid", words)
    return outcome


def _end(status: int) -> str:
    if os.WIFSIGNALED(status):
        how = f"signal {os.WTERMSIG(status)}"
    else:
        how = f"exit status {os.WEXITSTATUS(status)}"
    return f"the code ended the Python interpreter ({how})"
