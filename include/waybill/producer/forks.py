"""One live process a directory: the lock, and what a fork means for open producers.

The lock of a directory belongs to the open file, so it ends with the process, however that dies,
and a second opening in the same process is refused too. A fork shares the open file: the child
closes its copy (never unlocks it), else it would hold the lock after its parent's death.

A child shares the memory of its parent's log and a client whose threads are gone: it must touch
neither. So at the fork every open producer lets go of the parent's parts in the child, and with its
next use it opens a log of its own: the first of ``<name>+1``, ``<name>+2``, ... that no live
process has. What a dead child left there is settled by whoever opens it next: another child, or the
next opening of ``<name>`` itself.

Locks inside C libraries are copied as they stand. Each thread of librdkafka takes two of them for a
moment when it connects for the first time: OpenSSL's (random numbers are seeded by thread) and that
of glibc's resolver. A child forked in such a moment finds the lock taken for ever, and any client
that it opens hangs. So a fork waits until the newest client is ``SETTLING_S`` old, and a child
tries both locks before it opens its first client: ``StopError`` instead of a hang.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from waybill.errors import RetryError, StopError

SETTLING_S = 0.25
"""The first connections of a client to brokers that are there or refuse take less."""
LOCKS_LIMIT_S = 10.0
"""Both locks are held for microseconds; name servers are not asked for an address."""


class Forked(Protocol):
    """An open producer."""

    def after_fork_in_child(self) -> object:
        """Let go of the parent's parts; return what must never be destroyed in this process."""


_OPEN: weakref.WeakSet[Any] = weakref.WeakSet()
_KEPT: list[object] = []
"""Of a parent, in its child: destroying a client whose threads are gone would hang."""


@dataclass
class _Clients:
    """What a fork has to know of the clients of this process."""

    newest_at: float = float("-inf")
    """``time.monotonic()``."""
    inherited: bool = False
    """The process was forked from one that had clients, and has not tried the locks yet."""


_CLIENTS = _Clients()


def watch(producer: Forked) -> None:
    """Have a producer told of forks."""
    _OPEN.add(producer)


def unwatch(producer: Forked) -> None:
    """Tell it no more."""
    _OPEN.discard(producer)


def note_client() -> None:
    """Have forks know that a client is made now.

    Raises:
        StopError: see ``check_inherited_locks``.
    """
    check_inherited_locks()
    _CLIENTS.newest_at = time.monotonic()


def check_inherited_locks() -> None:
    """Try the locks that a client needs, once in a forked process: some milliseconds.

    Raises:
        StopError: one was taken when this process was forked; no client will ever work here.
    """
    if not _CLIENTS.inherited:
        return
    trial = threading.Thread(target=_take_locks, daemon=True, name="waybill-inherited-locks")
    trial.start()
    trial.join(LOCKS_LIMIT_S)
    if trial.is_alive():
        raise StopError(
            f"process {os.getpid()} was forked while a Kafka client of its parent was connecting: "
            "it inherited a lock that nobody will release, and no Kafka client works in it. End "
            "it and fork again. A flush() before the fork avoids this"
        )
    _CLIENTS.inherited = False


def _take_locks() -> None:
    """Do what a thread of librdkafka does when it connects for the first time."""
    from confluent_kafka import Producer

    socket.getaddrinfo("127.0.0.1", None, flags=socket.AI_ADDRCONFIG)
    Producer(
        {
            "bootstrap.servers": "127.0.0.1:1",
            "socket.connection.setup.timeout.ms": 1000,
            "log_level": 0,
        }
    )


def _before_fork() -> None:
    age_s = time.monotonic() - _CLIENTS.newest_at
    if age_s < SETTLING_S:
        time.sleep(SETTLING_S - age_s)


def _after_fork() -> None:
    _CLIENTS.inherited = _CLIENTS.inherited or _CLIENTS.newest_at > float("-inf")
    for producer in list(_OPEN):
        _KEPT.append(producer.after_fork_in_child())


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def own_folders(folder: str) -> Iterator[str]:
    """Yield the folders that forks of a producer use, in the order they are tried."""
    number = 0
    while True:
        number += 1
        yield f"{folder}+{number}"


def left_folders(directory: Path, folder: str) -> list[str]:
    """Return the folders of forks that are there; who lives there is not asked."""
    return sorted(path.name for path in directory.glob(f"{folder}+*") if path.is_dir())


class ProducerBusyError(RetryError):
    """Another live process has this log open. Call again when it has closed it."""

    def __init__(self, directory: Path, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(f"the log in {directory} is open in {holder}")
        self.directory = directory
        self.pid = pid


class DirectoryLock:
    """Held from construction to ``release``.

    Raises:
        ProducerBusyError: somebody else holds it.
    """

    def __init__(self, directory: Path) -> None:
        with _FORKS:  # a fork between the opening and the noting would keep the copy
            self._fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
                os.close(self._fd)
                pid = int(holder) if holder.isdigit() else None
                raise ProducerBusyError(directory, pid) from None
            _HELD.add(self)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let the next one in. In a forked child: only let go of the copy."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_HELD: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()
_FORKS = threading.RLock()
"""Held while a lock is taken, and by every fork."""


def _let_go_in_child() -> None:
    for lock in list(_HELD):  # also of a producer that another thread was just opening
        lock.release()
    _FORKS.release()


os.register_at_fork(
    before=_FORKS.acquire,
    after_in_parent=_FORKS.release,
    after_in_child=_let_go_in_child,
)
