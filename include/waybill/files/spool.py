"""The spool: a folder of finished files of one node, written by any process on it.

A file is written under ``.open``, synced, renamed to its ending, and the folder synced. While it
is being written its owner holds an exclusive ``flock`` on it, which the kernel drops when the owner
dies. The owner's pid and start time are in the name. A file is abandoned only when both say so: no
such process here, and the lock is free (another container may share the folder but not the pids).

What a SIGKILL leaves, line by line of ``Spool.store``: nothing; an empty or torn ``.open``
(``take_over`` removes it: its write never returned); a whole ``.open`` (``take_over`` finishes it);
the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from waybill.errors import RetryError

_OPEN = ".open"
_NAME_PARTS = 4
_START_TOLERANCE_MS = 5000
_STORE_TRIES = 5


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """One finished file."""

    id: str
    """Name without its ending."""
    path: Path
    created_us: int
    """Microseconds since 1970."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    """What became of a file whose owner died."""

    id: str
    created_us: int
    size_bytes: int
    finished: bool
    """True: it was whole and is a finished file now. False: it was torn and is removed."""


class Spool:
    """One spool folder; made when it is missing.

    Args:
        directory: on a local disk, shared by the processes of one node.
        ending: of finished files, with its dot; files of other endings are none of the spool's.
        is_whole: tells whether a file was written to its end, for those that dead processes left.
    """

    def __init__(self, directory: Path, *, ending: str, is_whole: Callable[[Path], bool]) -> None:
        self.directory = directory
        self.ending = ending
        self._is_whole = is_whole

    def path(self, file_id: str) -> Path:
        """Return where a finished file is."""
        return self.directory / f"{file_id}{self.ending}"

    def store(self, body: bytes | memoryview) -> Path:
        """Write a whole file and return its path; it is on disk when this returns.

        Raises:
            RetryError: the disk is full or refuses; nothing is left behind.
        """
        for _ in range(_STORE_TRIES):
            path = self.directory / (_new_name() + _OPEN)
            try:
                return self._write(path, body)
            except (FileNotFoundError, BlockingIOError):
                self.directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
                raise RetryError(
                    f"could not write {len(body)} bytes to a file in {self.directory}: {error}"
                ) from error
        raise RetryError(f"{self.directory} is being removed while files are written to it")

    def _write(self, path: Path, body: bytes | memoryview) -> Path:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left = memoryview(body)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
            return self._finish(path)
        finally:
            os.close(descriptor)

    def files(self) -> list[SpoolFile]:
        """Return the finished files, oldest first."""
        found = [
            SpoolFile(name.removesuffix(self.ending), Path(entry.path), created_us, size)
            for name, entry, size in self._entries()
            if name.endswith(self.ending) and (created_us := _created_us(name)) is not None
        ]
        return sorted(found, key=lambda file: (file.created_us, file.id))

    def used_bytes(self) -> int:
        """Return the bytes that finished and unfinished files hold."""
        return sum(size for _, _, size in self._entries())

    def take_over(self) -> list[Abandoned]:
        """Finish or remove the files that dead processes left open."""
        names = [name for name, _, _ in self._entries() if name.endswith(_OPEN)]
        settled = [self._settle(self.directory / name) for name in names if not _owner_lives(name)]
        return [one for one in settled if one is not None]

    def _settle(self, path: Path) -> Abandoned | None:
        created_us = _created_us(path.name)
        if created_us is None:
            return None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            whole = self._is_whole(path)
            size = os.fstat(descriptor).st_size
            if whole:
                os.fsync(descriptor)
                self._finish(path)
            else:
                path.unlink()
        except (BlockingIOError, FileNotFoundError):
            return None
        finally:
            os.close(descriptor)
        return Abandoned(path.name.removesuffix(_OPEN), created_us, size, whole)

    def _finish(self, path: Path) -> Path:
        done = path.with_suffix(self.ending)
        path.rename(done)
        sync_directory(path.parent)
        return done

    def _entries(self) -> Iterator[tuple[str, os.DirEntry[str], int]]:
        """Yield (name, entry, bytes) of files; those that vanish meanwhile are left out."""
        try:
            listing = os.scandir(self.directory)
        except FileNotFoundError:
            return
        with listing:
            for entry in listing:
                if entry.name.endswith((_OPEN, self.ending)):
                    with contextlib.suppress(FileNotFoundError):
                        yield entry.name, entry, entry.stat().st_size


def sync_directory(directory: Path) -> None:
    """Make renames and removals in a folder durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Start:
    """Start time of this process in ms; looked up once a process, again after a fork."""

    _pid = 0
    _ms = 0

    @classmethod
    def ms(cls) -> int:
        if cls._pid != os.getpid():
            cls._ms = int(psutil.Process().create_time() * 1000)
            cls._pid = os.getpid()
        return cls._ms


def _new_name() -> str:
    created_us = time.time_ns() // 1000
    return f"{created_us:016d}-{os.getpid()}-{_Start.ms()}-{uuid.uuid4().hex[:12]}"


def _created_us(name: str) -> int | None:
    """Return when a file was created, from its name; None when it is not one of ours."""
    parts = name.partition(".")[0].split("-")
    if len(parts) != _NAME_PARTS or not all(part.isdigit() for part in parts[:3]):
        return None
    return int(parts[0])


def _owner_lives(name: str) -> bool:
    """Tell whether the process that made a file runs; pids are used again, so start times count."""
    if _created_us(name) is None:
        return True
    _, pid, start_ms, _ = name.partition(".")[0].split("-")
    try:
        began_ms = psutil.Process(int(pid)).create_time() * 1000
    except psutil.NoSuchProcess:
        return False
    return bool(abs(began_ms - int(start_ms)) < _START_TOLERANCE_MS)
