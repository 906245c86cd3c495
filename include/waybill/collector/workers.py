"""What processes of one host share: whose the write-ahead logs are, and the intake versions.

A process of the collector has a slot, and the logs of it.

A slot is a number, held by a lock on a file that the kernel gives back when the process dies. The
log of a pipeline in a slot is named ``collector-<slot>-<pipeline id>``. A process that takes a slot
opens the logs that the last one left; slots beyond the number of workers, of times when there were
more, are emptied by whoever finds them free.

The workers of a host give the intake versions of a pipeline one after the other, by a file
``collector-<pipeline id>.version``: of two events the one that came later has the higher version,
whichever workers took them, and whatever the host's clock did in between.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waybill.errors import RetryError
from waybill.events import IntakeClock

_LOG_NAME = re.compile(r"collector-(\d{1,4})-([a-z0-9][a-z0-9-]*)")
_POLL_S = 0.2
_VERSION_BYTES = 8


class Slot:
    """A slot that this process holds.

    Args:
        number: which.
        fd: of its locked file.
    """

    def __init__(self, number: int, fd: int) -> None:
        self.number = number
        self._fd = fd

    def log_name(self, pipeline_id: str) -> str:
        """Return the name of a pipeline's log."""
        return f"collector-{self.number}-{pipeline_id}"

    def release(self) -> None:
        """Give it back."""
        os.close(self._fd)


class SharedVersions:
    """The highest intake version that a pipeline's workers on this host gave.

    It outlives their processes, not a power cut: after that each goes on above its own log and
    what the tracker knows.

    Args:
        directory: of the write-ahead logs.
        pipeline_id: whose events.
    """

    def __init__(self, directory: Path, pipeline_id: str) -> None:
        self._path = directory / f"collector-{pipeline_id}.version"
        self._fd: int | None = None
        self._last: mmap.mmap

    @contextmanager
    def above(self, clock: IntakeClock) -> Iterator[None]:
        """Have a clock give versions above all others', while no other worker gives any.

        Cost: some microseconds.
        """
        fd = self._open() if self._fd is None else self._fd
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            clock.go_above(int.from_bytes(self._last[:], "little"))
            yield
            self._last[:] = clock.last.to_bytes(_VERSION_BYTES, "little")
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)

    def _open(self) -> int:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, _VERSION_BYTES)
            self._last = mmap.mmap(fd, _VERSION_BYTES)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return fd

    def close(self) -> None:
        """Close the file; ``above`` opens it anew."""
        if self._fd is not None:
            self._last.close()
            os.close(self._fd)
            self._fd = None


def take_slot(directory: Path, number: int) -> Slot | None:
    """Take a slot; None: a living process has it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"collector-{number}.slot"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return Slot(number, fd)


def take_free_slot(directory: Path, workers: int, *, limit_s: float) -> Slot:
    """Take the first free slot of so many; wait for one that a stopping process still has.

    Raises:
        RetryError: all are taken.
    """
    deadline = time.monotonic() + limit_s
    while True:
        for number in range(workers):
            slot = take_slot(directory, number)
            if slot is not None:
                return slot
        if time.monotonic() > deadline:
            raise RetryError(
                f"{workers} processes of the collector have their logs in {directory} already; "
                "stop them, or give this one another WAYBILL_WAL__DIR"
            )
        time.sleep(_POLL_S)


def left_logs(directory: Path) -> Iterator[tuple[int, str]]:
    """Yield (slot, pipeline id) of the logs that hold something."""
    for path in sorted(directory.glob("collector-*")):
        match = _LOG_NAME.fullmatch(path.name)
        if match and (any(path.glob("seg-*.wal")) or any(path.glob("retry/seg-*.wal"))):
            yield int(match[1]), match[2]
