"""Read a source's file whole: plain, gzip, or the one CSV of a zip.

Its path was judged (``pipelines.source_path``) before it is opened here, and a link may have been
put in its way since: no link is followed while it is opened, at any level.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import zipfile
import zlib
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Protocol

from waybill.errors import InputError, RetryError

MAX_BYTES = 2 * 1024**3
"""Largest file, unpacked: it is read into memory whole."""
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def read_file(file: Path) -> bytes:
    """Return the file's bytes as they are on disk.

    Args:
        file: a real path, without links (``find_file``).

    Raises:
        InputError: it is not there, is no file, may not be read, or a link stands in the path.
        RetryError: the disk did not answer.
    """
    try:
        with os.fdopen(open_unlinked(file), "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"source file {str(file)!r} is not a file; correct source.path")
            if status.st_size > MAX_BYTES:
                raise _too_large(file)
            return stream.read()
    except PermissionError as error:
        raise InputError(f"source file {str(file)!r} may not be read; grant the right") from error
    except ValueError as error:
        raise InputError(f"source.path {str(file)!r} is no path: {error}") from error
    except OSError as error:
        if error.errno in _NOT_THERE:
            raise InputError(
                f"source file {str(file)!r} is not there ({error.strerror}); correct source.path"
            ) from error
        raise RetryError(f"source file {str(file)!r} cannot be read now: {error}") from error


_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV)
"""ELOOP (ENOTDIR of a folder): a link stands where none stood when the path was resolved."""


def open_unlinked(file: Path) -> int:
    """Open a real path folder by folder; fails where any part of it is a link now."""
    with ExitStack() as opened:
        folder = os.open(file.anchor, os.O_RDONLY | os.O_CLOEXEC)
        opened.callback(os.close, folder)
        for part in file.parts[1:-1]:
            folder = os.open(part, _FOLDER, dir_fd=folder)
            opened.callback(os.close, folder)
        return os.open(file.name or ".", _FILE, dir_fd=folder)


_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Without waiting, should it be a pipe."""
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
"""O_PATH where there is one: a folder above may be one that the worker cannot list."""


def unpacked(content: bytes, file: Path) -> bytes:
    """Return the text bytes inside: of a gzip, of the one CSV in a zip, or the bytes themselves.

    Raises:
        InputError: it is damaged, encrypted, too large, or a zip without exactly one CSV.
    """
    try:
        if content.startswith(_GZIP):
            with gzip.open(io.BytesIO(content)) as stream:
                return _limited(stream, file)
        if content.startswith(_ZIP):
            return _only_csv(content, file)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise InputError(
            f"source file {str(file)!r} cannot be unpacked ({error}); fetch it again, unencrypted"
        ) from error
    return content


def _only_csv(content: bytes, file: Path) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = [name for name in archive.namelist() if _is_csv(name)]
        if len(names) != 1:
            raise InputError(
                f"source file {str(file)!r}: expected a zip with one .csv;"
                f" found {len(names)} {sorted(names)[:5]}; unpack it and name one file"
            )
        with archive.open(names[0]) as stream:
            return _limited(stream, file)


def _is_csv(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix.lower() == ".csv" and not any(
        part.startswith((".", "__MACOSX")) for part in path.parts
    )


def _limited(stream: _Readable, file: Path) -> bytes:
    content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise _too_large(file)
    return content


def _too_large(file: Path) -> InputError:
    return InputError(
        f"source file {str(file)!r} has more than {MAX_BYTES // 1024**3} GiB; split it"
    )
