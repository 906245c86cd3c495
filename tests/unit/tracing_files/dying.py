"""A process that dies at its n-th change of the disk, the books or the store."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from typing import Any

from tests.unit.tracing_files.folder_store import FolderStore

from waybill.tracing.files import FileManager

CHANGES: list[tuple[Any, str]] = [
    *[(os, name) for name in ("pwrite", "fsync", "ftruncate", "rename", "unlink")],
    (FileManager, "_write_batch"),
    (FolderStore, "put"),
]


APART: Any = get_context("forkserver")
"""Forked from a process that never opened RocksDB: its threads do not come along in a fork."""
FORKED = get_context("fork")
"""Quicker, for what does without RocksDB."""
_LONGEST_S = 60.0


def deaths(
    act: Callable[..., object], *arguments: Any, context: Any = APART
) -> Iterator[tuple[int, str]]:
    """Run ``act`` in processes that die before their first change, their second, and so on.

    And amid those that may be done by half. To die after a change is to die before the next.
    Yields after each death (number, when); ends with the first that outlives all its changes.
    """
    for number in range(1, 1000):
        if _exit_code(context, (number, "before", act, arguments)) == 0:
            return
        yield number, "before"
        if context is FORKED:
            _exit_code(context, (number, "half", act, arguments))
            yield number, "half"
    raise AssertionError("it never ends")


def lives(act: Callable[..., object], *arguments: Any) -> None:
    """Run ``act`` in a process of its own, to its end."""
    assert _exit_code(APART, (0, "never", act, arguments)) == 0


def _exit_code(context: Any, what: tuple[Any, ...]) -> int:
    process = context.Process(target=_run, args=what)
    process.start()
    process.join(_LONGEST_S)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"it hangs: {what}")
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return int(process.exitcode)


def _run(number: int, when: str, act: Callable[..., object], arguments: Any) -> None:
    for owner, name in CHANGES:
        _arm(owner, name, _Death(number, when))
    act(*arguments)


class _Death:
    """When to die: shared by all that count."""

    calls = 0

    def __init__(self, number: int, when: str) -> None:
        self.number, self.when = number, when

    def now(self, when: str) -> bool:
        return _Death.calls == self.number and self.when == when


def _arm(owner: Any, name: str, death: _Death) -> None:
    real = getattr(owner, name)

    def dying(*arguments: Any, **more: Any) -> Any:
        _Death.calls += 1
        if death.now("before"):
            os.kill(os.getpid(), signal.SIGKILL)
        if death.now("half") and name == "pwrite":
            descriptor, body, position = arguments
            real(descriptor, bytes(body)[: len(body) // 2], position)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **more)

    setattr(owner, name, dying)
