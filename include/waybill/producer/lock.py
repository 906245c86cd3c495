"""One live process a directory: an exclusive flock, and what a forked child does about it.

The lock belongs to the open file, so it ends with the process, however that dies, and a second
opening in the same process is refused too. A fork shares the open file: the child closes its copy
(never unlocks it), else it would hold the lock after its parent's death.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from pathlib import Path

from waybill.errors import RetryError


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
