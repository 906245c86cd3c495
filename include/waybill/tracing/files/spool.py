"""The spool: a folder of files of one node, written by any process on it.

A file is written under ``.open``, synced, renamed to its ending, and the folder synced. While it
is being written its owner holds an exclusive ``flock`` on it, which the kernel drops when the owner
dies. The owner's pid and start time are in the name. A file is abandoned only when both say so: no
such process here, and the lock is free (another container may share the folder but not the pids).

New files are in the folder itself; those that the books know are moved below it, to ``tracked``. So
what is new is found by a listing that does not grow with what waits.

What a SIGKILL leaves, line by line of ``Spool.store``: nothing; an empty or torn ``.open``
(``take_over`` removes it: its write never returned); a whole ``.open`` (``take_over`` finishes it);
the file.

Names of files: when each was created, and by which process, which may be dead by now.

``<created µs>-<pid>-<process start ms>-<random>``: 16 digits of time, so that names sort by time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from waybill.errors import RetryError

_NAME_PARTS = 4
_START_TOLERANCE_MS = 5000


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


def new_name() -> str:
    """Return a file id that no file ever had."""
    created_us = time.time_ns() // 1000
    return f"{created_us:016d}-{os.getpid()}-{_Start.ms()}-{uuid.uuid4().hex[:12]}"


def created_us(name: str) -> int | None:
    """Return when a file was created, from its name; None when it is not one of ours."""
    parts = name.partition(".")[0].split("-")
    if len(parts) != _NAME_PARTS or not all(part.isdigit() for part in parts[:3]):
        return None
    return int(parts[0])


def owner_lives(name: str) -> bool:
    """Tell whether the process that made a file runs; pids are used again, so start times count."""
    if created_us(name) is None:
        return True
    _, pid, start_ms, _ = name.partition(".")[0].split("-")
    try:
        began_ms = psutil.Process(int(pid)).create_time() * 1000
    except psutil.NoSuchProcess:
        return False
    return bool(abs(began_ms - int(start_ms)) < _START_TOLERANCE_MS)


OPEN = ".open"
TRACKED = "tracked"
"""Folder of the files that the books know."""
_TRACKED_BYTES = "tracked.bytes"
"""What the files in ``tracked`` hold, written by the books' owner."""
_DAMAGED = "damaged"
_TRIES = 5


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """One file of a spool."""

    id: str
    """Name without its ending."""
    path: Path
    created_us: int
    """Microseconds since 1970."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Sound:
    """How much of a file that a dead process left is whole."""

    kept_bytes: int
    """Up to here; 0: nothing."""
    sets_aside: bool = False
    """Whether what follows is kept elsewhere, or thrown away as what nobody was promised."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """What became of a file whose owner died."""

    id: str
    created_us: int
    size_bytes: int
    kept_bytes: int
    """0: it was torn from the start and is removed. Else it is a finished file now, of so many."""

    @property
    def finished(self) -> bool:
        """Whether there is a file now."""
        return self.kept_bytes > 0


class Spool:
    """One spool folder; made when it is missing. Holds no state: any number may be opened.

    Args:
        directory: on a local disk, shared by the processes of one node.
        ending: of finished files, with its dot; files of other endings are none of the spool's.
        sound: tells how much of a file is whole, for those that dead processes left.
    """

    def __init__(self, directory: Path, *, ending: str, sound: Callable[[Path], Sound]) -> None:
        self.directory = directory
        self.tracked = directory / TRACKED
        self.ending = ending
        self._sound = sound

    def store(self, body: bytes | memoryview) -> Path:
        """Write a whole file and return its path; it is on disk when this returns.

        Raises:
            RetryError: the disk is full or refuses; nothing is left behind.
        """
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError):
                return self._store(body)
        raise RetryError(f"{self.directory} is being removed while files are written to it")

    def _store(self, body: bytes | memoryview) -> Path:
        descriptor, path = self.create()
        try:
            write_all(descriptor, body)
            os.fsync(descriptor)
            return self.finish(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise RetryError(
                f"could not write {len(body)} bytes to a file in {self.directory}: {error}"
            ) from error
        finally:
            os.close(descriptor)

    def create(self) -> tuple[int, Path]:
        """Create an open file and lock it; return its descriptor (the caller's to close) and path.

        Raises:
            RetryError: the disk is full or refuses.
        """
        for _ in range(_TRIES):
            path = self.directory / (new_name() + OPEN)
            try:
                return _locked(path), path
            except (FileNotFoundError, BlockingIOError):
                self.directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RetryError(f"could not create a file in {self.directory}: {error}") from error
        raise RetryError(f"{self.directory} is being removed while files are written to it")

    def finish(self, path: Path) -> Path:
        """Make a synced open file a finished one, durably, and return its path."""
        done = path.with_suffix(self.ending)
        path.rename(done)
        sync_directory(path.parent)
        return done

    def id_of(self, path: Path) -> str:
        """Return a file's id."""
        return path.name.removesuffix(self.ending).removesuffix(OPEN)

    def path(self, file_id: str) -> Path:
        """Return where a finished file is; when it is nowhere, where it was tracked."""
        new = self.directory / f"{file_id}{self.ending}"
        return new if new.exists() else self.tracked / new.name

    def open_path(self, file_id: str) -> Path:
        """Return where a file is while it is written."""
        return self.directory / f"{file_id}{OPEN}"

    def files(self) -> list[SpoolFile]:
        """Return all finished files, new and tracked, oldest first."""
        files = {file.id: file for file in (*self.new_files(), *self.tracked_files())}
        return sorted(files.values(), key=lambda file: (file.created_us, file.id))

    def new_files(self) -> Iterator[SpoolFile]:
        """Yield the finished files that are not tracked yet, in no order."""
        yield from self._entries(self.directory, self.ending)

    def open_files(self) -> Iterator[SpoolFile]:
        """Yield the files that are being written, or were when their owner died, in no order."""
        yield from self._entries(self.directory, OPEN)

    def tracked_files(self) -> Iterator[SpoolFile]:
        """Yield the finished files that are tracked, in no order."""
        yield from self._entries(self.tracked, self.ending)

    def used_bytes(self) -> int:
        """Return the bytes that finished and unfinished files hold.

        Of the tracked ones it is what the books say. Cost: a listing of the others.
        """
        new = sum(file.size_bytes for file in (*self.new_files(), *self.open_files()))
        return new + self._tracked_bytes()

    def track(self, files: Sequence[SpoolFile]) -> None:
        """Move new files to the tracked ones; for the owner of the books, which know them."""
        self.tracked.mkdir(exist_ok=True)
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                file.path.rename(self.tracked / file.path.name)

    def remove(self, ids: Iterable[str]) -> None:
        """Delete finished files, durably; one that is gone is no error. For the books' owner."""
        for path in map(self.path, ids):
            path.unlink(missing_ok=True)
        for folder in (self.directory, self.tracked):
            if folder.exists():
                sync_directory(folder)

    def state_tracked(self, size_bytes: int) -> None:
        """Say what the tracked files hold, for ``used_bytes``; for the books' owner."""
        target = self.directory / _TRACKED_BYTES
        fresh = target.with_suffix(".fresh")
        fresh.write_text(str(size_bytes))
        fresh.rename(target)

    def take_over(self) -> list[Abandoned]:
        """Finish, cut or remove the files that dead processes left open."""
        abandoned = [file.path for file in self.open_files() if not owner_lives(file.path.name)]
        settled = [self._settle(path) for path in abandoned]
        return [one for one in settled if one is not None]

    def _settle(self, path: Path) -> Abandoned | None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = os.fstat(descriptor).st_size
            kept = self._cut(path, descriptor, size)
        except (BlockingIOError, FileNotFoundError):
            return None
        finally:
            os.close(descriptor)
        return Abandoned(self.id_of(path), created_us(path.name) or 0, size, kept)

    def _cut(self, path: Path, descriptor: int, size: int) -> int:
        """Leave what is whole of an abandoned file as a finished one; return its bytes."""
        sound = self._sound(path)
        if sound.sets_aside and sound.kept_bytes < size:
            self._set_aside(path, sound.kept_bytes)
        if not sound.kept_bytes:
            path.unlink()
            return 0
        if sound.kept_bytes < size:
            os.ftruncate(descriptor, sound.kept_bytes)
        os.fsync(descriptor)
        self.finish(path)
        return sound.kept_bytes

    def _set_aside(self, path: Path, position: int) -> None:
        """Keep what follows a position, durably; again after a death, under the same name."""
        folder = self.directory / _DAMAGED
        folder.mkdir(exist_ok=True)
        with path.open("rb") as source, (folder / f"{path.stem}.tail").open("wb") as target:
            source.seek(position)
            target.write(source.read())
            target.flush()
            os.fsync(target.fileno())
        sync_directory(folder)

    def _entries(self, folder: Path, ending: str) -> Iterator[SpoolFile]:
        """Yield files of ours with an ending; those that vanish meanwhile are left out."""
        try:
            listing = os.scandir(folder)
        except FileNotFoundError:
            return
        with listing:
            for entry in listing:
                made_us = created_us(entry.name) if entry.name.endswith(ending) else None
                if made_us is None:
                    continue
                with contextlib.suppress(FileNotFoundError):
                    size = entry.stat().st_size
                    name = entry.name.removesuffix(ending)
                    yield SpoolFile(name, Path(entry.path), made_us, size)

    def _tracked_bytes(self) -> int:
        try:
            return int((self.directory / _TRACKED_BYTES).read_text())
        except (FileNotFoundError, ValueError):  # never stated, or by a machine that lost its power
            return sum(file.size_bytes for file in self.tracked_files())


def sync_directory(directory: Path) -> None:
    """Make renames and removals in a folder durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, body: bytes | memoryview) -> None:
    """Write everything, however little the system takes at once."""
    remaining = memoryview(body)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def _locked(path: Path) -> int:
    """Create a file and lock it; BlockingIOError when it was taken for abandoned in between."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(descriptor).st_nlink:
            raise BlockingIOError(f"{path} was removed before it was locked")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


_LOOK_S = 1.0
_WAIT_S = 0.2


class SpoolLimit:
    """Holds one writer below the limits of its spool.

    Args:
        spool: what is limited.
        threshold_bytes: most that it may hold; looked up once a second.
        floor_bytes: free space of the disk that is left untouched.
        full_wait_s: how long ``wait_for`` waits for room before it raises.
        advice: what to look at when it stays full.
    """

    def __init__(
        self,
        spool: Spool,
        *,
        threshold_bytes: int,
        floor_bytes: int = 0,
        full_wait_s: float = 30.0,
        advice: str = "is its shipper running, and does the object store answer?",
    ) -> None:
        self._spool = spool
        self._threshold_bytes = threshold_bytes
        self._floor_bytes = floor_bytes
        self._full_wait_s = full_wait_s
        self._advice = advice
        self._used_bytes = 0
        self._free_bytes = 0
        self._looked_at = float("-inf")

    def wait_for(self, more_bytes: int) -> None:
        """Wait until so many bytes more fit.

        Raises:
            RetryError: the spool or its disk stayed full.
        """
        deadline = time.monotonic() + self._full_wait_s
        while not self._fits(more_bytes):
            if time.monotonic() >= deadline:
                raise RetryError(self._full(more_bytes))
            time.sleep(_WAIT_S)

    def wrote(self, more_bytes: int) -> None:
        """Count what was written since the last look."""
        self._used_bytes += more_bytes
        self._free_bytes -= more_bytes

    def _fits(self, more_bytes: int) -> bool:
        """Tell by what was seen a moment ago, and written since; look again before a refusal."""
        if time.monotonic() - self._looked_at < _LOOK_S and self._has_room(more_bytes):
            return True
        self._looked_at = time.monotonic()
        self._used_bytes = self._spool.used_bytes()
        self._free_bytes = self._look_at_disk() if self._floor_bytes else 0
        return self._has_room(more_bytes)

    def _has_room(self, more_bytes: int) -> bool:
        on_disk = not self._floor_bytes or self._free_bytes - more_bytes >= self._floor_bytes
        return on_disk and self._used_bytes + more_bytes <= self._threshold_bytes

    def _look_at_disk(self) -> int:
        self._spool.directory.mkdir(parents=True, exist_ok=True)
        disk = os.statvfs(self._spool.directory)
        return disk.f_bavail * disk.f_frsize

    def _full(self, more_bytes: int) -> str:
        disk = f" with {self._free_bytes} free on its disk, where {self._floor_bytes} stay free,"
        return (
            f"spool {self._spool.directory} holds {self._used_bytes} of {self._threshold_bytes} "
            f"bytes{disk if self._floor_bytes else ''} and {more_bytes} more do not fit; "
            + self._advice
        )
