"""Where a producer meets what is outside: disk, lock, Kafka, threads. Tests bring their own.

One live process a directory: an exclusive flock, and what a forked child does about it.

The lock belongs to the open file, so it ends with the process, however that dies, and a second
opening in the same process is refused too. A fork shares the open file: the child closes its copy
(never unlocks it), else it would hold the lock after its parent's death.

Steps that are done again and again beside the caller, each by a thread of its own.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from waybill.errors import RetryError
from waybill.producer.forks import note_client
from waybill.producer.tail import Tail, TailReader
from waybill.producer.wal import Disk, RealDisk


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


class Background(Protocol):
    """Who does the steps."""

    def start(self, name: str, step: Callable[[], None], every_s: float) -> None:
        """Begin to do a step every ``every_s`` seconds, until the producer is closing."""

    @property
    def is_current(self) -> bool:
        """Tell whether the caller is inside a step."""

    def join(self) -> None:
        """Wait until the last step is done; closing was said before."""


class Threads:
    """``Background`` of the operating system.

    Args:
        closing: ends the threads.
    """

    def __init__(self, closing: threading.Event) -> None:
        self._closing = closing
        self._threads: list[threading.Thread] = []

    def start(self, name: str, step: Callable[[], None], every_s: float) -> None:
        pid = os.getpid()

        def run() -> None:
            while not self._closing.wait(every_s):
                if os.getpid() != pid:
                    return  # forked inside a step: all of it is the parent's
                step()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    @property
    def is_current(self) -> bool:
        return threading.current_thread() in self._threads

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


class Lock(Protocol):
    """One live process a directory."""

    def release(self) -> None:
        """Let the next one in."""


MakeTail: TypeAlias = Callable[[Mapping[str, object], bytes, Callable[[], bool]], TailReader]


def _client(config: dict[str, object]) -> Any:
    from confluent_kafka import Producer

    note_client()
    return Producer(config)


def _lock(directory: Path) -> Lock:
    directory.mkdir(parents=True, exist_ok=True)
    return DirectoryLock(directory)


@dataclass(frozen=True, slots=True)
class Environment:
    """How the things outside are got; each call returns a new one."""

    disk: Disk = field(default_factory=RealDisk)
    lock: Callable[[Path], Lock] = _lock
    """Makes the directory and locks it; raises ``ProducerBusyError``."""
    client: Callable[[dict[str, object]], Any] = _client
    """Of librdkafka's settings: what ``Sender`` uses of a ``confluent_kafka.Producer``."""
    tail: MakeTail = Tail
    background: Callable[[threading.Event], Background] = Threads


REAL = Environment()
