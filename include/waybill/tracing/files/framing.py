"""How records follow each other in a file, so that a tail that was torn is known by itself."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol
from zlib import crc32

from waybill.errors import InputError
from waybill.tracing.files.packer import DamagedFileError
from waybill.tracing.files.spool import Sound

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
