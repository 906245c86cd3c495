"""What a fork means for open producers, and which directory a forked process uses.

A child shares the memory of its parent's log and a client whose threads are gone: it must touch
neither. So at the fork every open producer lets go of the parent's parts in the child, and with its
next use it opens a log of its own: the first of ``<name>+1``, ``<name>+2``, ... that no live
process has. What a dead child left there is settled by whoever opens it next: another child, or the
next opening of ``<name>`` itself.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol


class Forked(Protocol):
    """An open producer."""

    def after_fork_in_child(self) -> object:
        """Let go of the parent's parts; return what must never be destroyed in this process."""


_OPEN: weakref.WeakSet[Any] = weakref.WeakSet()
_KEPT: list[object] = []
"""Of a parent, in its child: destroying a client whose threads are gone would hang."""


def watch(producer: Forked) -> None:
    """Have a producer told of forks."""
    _OPEN.add(producer)


def unwatch(producer: Forked) -> None:
    """Tell it no more."""
    _OPEN.discard(producer)


def _after_fork() -> None:
    for producer in list(_OPEN):
        _KEPT.append(producer.after_fork_in_child())


os.register_at_fork(after_in_child=_after_fork)


def own_folders(folder: str) -> Iterator[str]:
    """Yield the folders that forks of a producer use, in the order they are tried."""
    number = 0
    while True:
        number += 1
        yield f"{folder}+{number}"


def left_folders(directory: Path, folder: str) -> list[str]:
    """Return the folders of forks that are there; who lives there is not asked."""
    return sorted(path.name for path in directory.glob(f"{folder}+*") if path.is_dir())
