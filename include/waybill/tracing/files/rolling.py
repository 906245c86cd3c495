"""A file that records are appended to, and that is closed for the next when it is large or old.

What a SIGKILL leaves, line by line: an empty open file (removed by ``Spool.take_over``: nothing
was promised); an open file with whole records and perhaps a torn tail (cut, the tail set aside,
finished); a synced one that was not renamed (finished); a finished one.

How records follow each other in a file, so that a tail that was torn is known by itself.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, Self
from zlib import crc32

from waybill.errors import InputError, RetryError
from waybill.tracing.files.packer import DamagedFileError
from waybill.tracing.files.spool import Sound, Spool, SpoolLimit

_HEADER = struct.Struct("<II")
"""Length of the record in bytes; CRC-32 of that length's four bytes and the record."""
_LENGTH = struct.Struct("<I")
_LONGEST_BYTES = 2**32 - 1
_BLOCK_BYTES = 64 * 1024


class Framing(Protocol):
    """One way to lay records out in a file."""

    ending: str
    """Of finished files, with its dot."""

    def encode(self, records: Iterable[bytes]) -> bytes:
        """Return records as they stand in a file; InputError for one that cannot."""
        ...

    def sound(self, path: Path) -> Sound:
        """Tell how much of a file is whole records; what follows is set aside."""
        ...

    def read(self, path: Path) -> Iterator[bytes]:
        """Yield the records of a finished file; DamagedFileError."""
        ...


class Frames:
    """Any bytes, each with length and checksum; 8 bytes a record."""

    ending = ".frames"

    def encode(self, records: Iterable[bytes]) -> bytes:
        """Return the records, each after its header; one may have up to 4 GiB."""
        return b"".join(part for record in records for part in (_header(record), record))

    def sound(self, path: Path) -> Sound:
        """See ``Framing.sound``."""
        kept = 0
        with path.open("rb") as file:
            while (record := _next(file)) is not None:
                kept += _HEADER.size + len(record)
        return Sound(kept, sets_aside=True)

    def read(self, path: Path) -> Iterator[bytes]:
        """See ``Framing.read``."""
        position = 0
        with _opened(path) as file:
            while (record := _next(file)) is not None:
                position = file.tell()
                yield record
            if position < os.fstat(file.fileno()).st_size:
                raise DamagedFileError(path, f"is damaged from byte {position} on")


class Lines:
    """Text, a record a line: any tool reads it. What is in a line is not checked."""

    ending = ".lines"

    def encode(self, records: Iterable[bytes]) -> bytes:
        """Return the records as lines.

        Raises:
            InputError: one has a line break in it.
        """
        lines = list(records)
        if any(b"\n" in line for line in lines):
            raise InputError("a record that is to be a line has a line break in it")
        return b"".join(line + b"\n" for line in lines)

    def sound(self, path: Path) -> Sound:
        """See ``Framing.sound``: up to the last line break."""
        end = path.stat().st_size
        with path.open("rb") as file:
            while end > 0:
                start = max(0, end - _BLOCK_BYTES)
                file.seek(start)
                if (found := file.read(end - start).rfind(b"\n")) >= 0:
                    return Sound(start + found + 1, sets_aside=True)
                end = start
        return Sound(0, sets_aside=True)

    def read(self, path: Path) -> Iterator[bytes]:
        """See ``Framing.read``."""
        with _opened(path) as file:
            for line in file:
                if not line.endswith(b"\n"):
                    raise DamagedFileError(path, "ends inside a line")
                yield line[:-1]


FRAMES = Frames()
LINES = Lines()


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise DamagedFileError(path, "is gone from the disk") from error


def _header(record: bytes) -> bytes:
    if len(record) > _LONGEST_BYTES:
        raise InputError(f"a record has {len(record)} bytes; {_LONGEST_BYTES} fit")
    return _HEADER.pack(len(record), _checksum(record))


def _checksum(record: bytes) -> int:
    """With the length in it: a tail of zeros is no row of empty records."""
    return crc32(record, crc32(_LENGTH.pack(len(record))))


def _next(file: BinaryIO) -> bytes | None:
    """Return the next whole record; None at the end, or where no whole one stands."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    length, checksum = _HEADER.unpack(header)
    if length > os.fstat(file.fileno()).st_size - file.tell():
        return None
    record = file.read(length)
    return record if len(record) == length and _checksum(record) == checksum else None


LOG = logging.getLogger(__name__)


def appended_spool(directory: Path, framing: Framing) -> Spool:
    """Return the spool of files that a ``RollingFile`` appends to."""
    return Spool(directory, ending=framing.ending, sound=framing.sound)


@dataclass(slots=True)
class _Open:
    """The file that is appended to."""

    descriptor: int
    path: Path
    timer: threading.Timer
    size_bytes: int = 0


class RollingFile:
    """Appends records to files of a spool, one at a time.

    Safe for several threads, and across a fork: the child begins a file of its own.

    Args:
        directory: of the spool; made when it is missing.
        framing: how records follow each other: ``FRAMES`` or ``LINES``.
        roll_bytes: a file of so many bytes is finished.
        roll_s: a file is finished when it is so old, whether or not more is appended.
        threshold_bytes: most that the spool may hold; see ``SpoolLimit``.
        full_wait_s: how long ``append`` waits for room.
    """

    def __init__(
        self,
        directory: Path,
        framing: Framing,
        *,
        roll_bytes: int = 64 * 1024**2,
        roll_s: float = 5.0,
        threshold_bytes: int = 5 * 1024**3,
        full_wait_s: float = 30.0,
    ) -> None:
        self.spool = appended_spool(directory, framing)
        self._framing = framing
        self._roll_bytes = roll_bytes
        self._roll_s = roll_s
        self._limit = SpoolLimit(
            self.spool, threshold_bytes=threshold_bytes, full_wait_s=full_wait_s
        )
        self._lock = threading.Lock()
        self._open: _Open | None = None
        _ALL.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, records: Iterable[bytes]) -> None:
        """Append records, all or none.

        They survive a SIGKILL when this returns, a loss of power when ``sync`` or ``roll`` does.

        Raises:
            RetryError: the spool or its disk is full, or refuses; nothing was appended.
            InputError: a record cannot be framed.
        """
        body = self._framing.encode(records)
        with self._lock:
            self._limit.wait_for(len(body))
            file = self._open or self._start()
            self._write(file, body)
            self._limit.wrote(len(body))
            if file.size_bytes >= self._roll_bytes:
                self._try_to_roll(file)

    def sync(self) -> None:
        """Make what was appended survive a loss of power; RetryError."""
        with self._lock:
            if self._open is not None:
                _call(os.fdatasync, self._open)

    def roll(self) -> None:
        """Finish the file that is appended to, durably, if there is one; RetryError."""
        with self._lock:
            if self._open is not None:
                self._roll(self._open)

    close = roll

    def _start(self) -> _Open:
        descriptor, path = self.spool.create()
        self._open = _Open(descriptor, path, self._timer(path))
        return self._open

    def _timer(self, path: Path) -> threading.Timer:
        timer = threading.Timer(self._roll_s, self._roll_old, args=(path,))
        timer.daemon = True
        timer.start()
        return timer

    def _write(self, file: _Open, body: bytes) -> None:
        """Write behind the last whole record, wherever an earlier write broke off."""
        written = 0
        try:
            while written < len(body):
                place = file.size_bytes + written
                written += os.pwrite(file.descriptor, memoryview(body)[written:], place)
        except OSError as error:
            raise RetryError(
                f"could not append {len(body)} bytes to {file.path}: {error}"
            ) from error
        file.size_bytes += written

    def _roll(self, file: _Open) -> None:
        if file.size_bytes:
            _call(lambda number: os.ftruncate(number, file.size_bytes), file)
            _call(os.fsync, file)
            _call(lambda _: self.spool.finish(file.path), file)
        else:
            file.path.unlink(missing_ok=True)
        file.timer.cancel()
        os.close(file.descriptor)
        self._open = None

    def _try_to_roll(self, file: _Open) -> None:
        """Finish a file, or say that it could not be; what was appended is safe as it is."""
        try:
            self._roll(file)
        except RetryError as error:
            LOG.warning("%s; tried again when more is appended, or it is old", error)

    def _roll_old(self, path: Path) -> None:
        """Finish a file that is old; on a thread of its own."""
        with self._lock:
            file = self._open
            if file is not None and file.path == path:
                file.timer = self._timer(path)
                self._try_to_roll(file)

    def _forget(self) -> None:
        """In a child: leave the file, its lock and its timer to the parent."""
        self._lock = threading.Lock()
        if self._open is not None:
            os.close(self._open.descriptor)
            self._open = None


def _call(function: Callable[[int], object], file: _Open) -> None:
    try:
        function(file.descriptor)
    except OSError as error:
        raise RetryError(f"{file.path} could not be brought to the disk: {error}") from error


_ALL: weakref.WeakSet[RollingFile] = weakref.WeakSet()


def _forget_all() -> None:
    for file in list(_ALL):
        file._forget()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_forget_all)
