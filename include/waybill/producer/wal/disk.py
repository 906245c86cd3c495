"""Where log and checkpoint meet the disk: all their input and output goes through a ``Disk``.

``RealDisk`` is the operating system's; ``memory_disk.MemoryDisk`` is one for tests, which loses
power and refuses when told to. Appending goes by no call: it writes to the map of a file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from mmap import mmap
from pathlib import Path
from typing import Protocol

from waybill.errors import RetryError
from waybill.settings import WalSettings

PAGE_BYTES = 4096
_POPULATE_BYTES = 1024**2
_MADV_POPULATE_WRITE = 23
"""Of Linux; not named in ``mmap``."""


class WalFullError(RetryError):
    """The log may not grow now; nothing was appended, nothing was lost. Call again later."""

    appended = 0
    """Of a batch: how many messages were appended before."""


class DiskFile(Protocol):
    """A file of fixed size, mapped for reading and writing."""

    path: Path
    size: int
    data: mmap
    """``size`` bytes; of an empty file (which cannot be mapped) one byte that is not in it."""

    def read(self, position: int, size_bytes: int) -> bytes:
        """Return bytes of the file; a page that cannot be read is an OSError, not a SIGBUS."""

    def touch(self, size_bytes: int) -> None:
        """Have the first ``size_bytes`` written by the next sync, even if they count as clean."""

    def sync(self) -> None:
        """Return when the disk has all that was written to the file, and its size.

        Raises:
            OSError: it has not, and a further sync would not tell: the pages count as clean now.
        """

    def resize(self, size_bytes: int) -> None:
        """Cut the file; ``data`` is another mapping afterwards."""

    def let_go(self) -> None:
        """Close, and leave ``data`` to those who still read it."""

    def close(self) -> None:
        """Unmap and close; the file stays."""


class Disk(Protocol):
    """What the log and the checkpoint need of a file system. All raise OSError when refused."""

    def make(self, path: Path, size_bytes: int) -> DiskFile:
        """Make a file with real blocks, so that writing to its map never fails; its size is synced.

        Raises:
            WalFullError: no room; nothing is left behind.
        """

    def open(self, path: Path) -> DiskFile:
        """Map a file that is there."""

    def rename(self, path: Path, new: Path) -> None:
        """Rename in one directory, in place of what is there. ``sync_directory`` makes it last."""

    def link(self, path: Path, new: Path) -> None:
        """Give a file a second name, in whatever directory of this disk."""

    def remove(self, path: Path) -> None:
        """Remove a name, if it is there."""

    def make_directory(self, path: Path) -> None:
        """Make a directory, if it is not there, and have the one above it know it for good."""

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory. ``sync_directory`` of the one above makes it last."""

    def sync_directory(self, directory: Path) -> None:
        """Make names in a directory (new, renamed, removed files) survive a power cut."""

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted."""

    def read(self, path: Path) -> bytes:
        """Return a small file.

        Raises:
            FileNotFoundError: it is not there.
        """

    def write(self, path: Path, data: bytes) -> None:
        """Make a small file and sync it; one that was refused is removed, never synced again."""

    def free_bytes(self, directory: Path) -> int:
        """Return how much can still be allocated."""


def check_room(
    disk: Disk, directory: Path, settings: WalSettings, *, used_bytes: int, need_bytes: int
) -> None:
    """Refuse a new segment for which there is no room. Asked for each segment, never per record.

    Raises:
        WalFullError: it would pass the threshold, or leave less free than the floor.
    """
    if used_bytes + need_bytes > settings.disk_threshold_bytes:
        raise WalFullError(
            f"the log in {directory} takes {used_bytes} bytes and may take "
            f"{settings.disk_threshold_bytes} (WAYBILL_WAL__DISK_THRESHOLD_BYTES)"
        )
    free_bytes = disk.free_bytes(directory)
    if free_bytes - need_bytes < settings.disk_floor_bytes:
        raise WalFullError(
            f"{free_bytes} bytes are free below {directory}, of which "
            f"{settings.disk_floor_bytes} must stay free (WAYBILL_WAL__DISK_FLOOR_BYTES)"
        )


def move(disk: Disk, file: DiskFile, path: Path) -> None:
    """Give a mapped file another name in its directory, for good.

    Raises:
        OSError: refused; the file has the name that its ``path`` says.
    """
    disk.rename(file.path, path)
    file.path = path
    disk.sync_directory(path.parent)


def set_aside(disk: Disk, path: Path, name: str) -> Path:
    """Give a file a second name in ``quarantine/``, for good; return that.

    A name that is taken (by a process that died before it removed the first name) gets a prefix.
    """
    folder = path.parent / "quarantine"
    disk.make_directory(folder)
    taken = name in disk.names(folder)
    aside = folder / (f"{uuid.uuid4().hex}-{name}" if taken else name)
    disk.link(path, aside)
    disk.sync_directory(folder)
    return aside


class MappedFile:
    """``DiskFile`` of the operating system."""

    def __init__(self, path: Path, *, size_bytes: int | None = None) -> None:
        self.path = path
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if size_bytes is not None else 0)
        self._fd = os.open(path, flags, 0o600)
        try:
            if size_bytes is not None:
                _allocate(self._fd, size_bytes)
                os.fdatasync(self._fd)
            self._map()
            if size_bytes is not None:
                self._populate()
        except BaseException:
            os.close(self._fd)
            if size_bytes is not None:
                path.unlink(missing_ok=True)
            raise

    def _map(self) -> None:
        self.size = os.fstat(self._fd).st_size
        self.data = mmap(self._fd, self.size) if self.size else mmap(-1, 1)

    def _populate(self) -> None:
        """Have the pages there before the first append touches them: a fault costs more than it.

        In small steps, between which other threads run. Where the kernel cannot (before 5.14), the
        appends do it themselves.
        """
        with contextlib.suppress(OSError):
            for position in range(0, self.size, _POPULATE_BYTES):
                length = min(_POPULATE_BYTES, self.size - position)
                self.data.madvise(_MADV_POPULATE_WRITE, position, length)

    def read(self, position: int, size_bytes: int) -> bytes:
        return os.pread(self._fd, size_bytes, position)

    def touch(self, size_bytes: int) -> None:
        data = self.data
        for position in range(0, min(size_bytes, self.size), PAGE_BYTES):
            data[position] = data[position]

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def resize(self, size_bytes: int) -> None:
        self.data.close()
        os.ftruncate(self._fd, size_bytes)
        self._map()

    def let_go(self) -> None:
        os.close(self._fd)

    def close(self) -> None:
        self.data.close()
        os.close(self._fd)


class RealDisk:
    """``Disk`` of the operating system."""

    def make(self, path: Path, size_bytes: int) -> DiskFile:
        return MappedFile(path, size_bytes=size_bytes)

    def open(self, path: Path) -> DiskFile:
        return MappedFile(path)

    def rename(self, path: Path, new: Path) -> None:
        path.replace(new)

    def link(self, path: Path, new: Path) -> None:
        new.hardlink_to(path)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def make_directory(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        self.sync_directory(path.parent)

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def sync_directory(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def names(self, directory: Path) -> list[str]:
        return sorted(path.name for path in directory.iterdir())

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write(self, path: Path, data: bytes) -> None:
        path.unlink(missing_ok=True)
        try:
            with path.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                path.unlink(missing_ok=True)
            raise

    def free_bytes(self, directory: Path) -> int:
        found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize


def _allocate(fd: int, size_bytes: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise WalFullError(f"no room for a segment of {size_bytes} bytes: {error}") from error
        raise
