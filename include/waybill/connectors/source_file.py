"""Find a source's file and read it whole: plain, gzip, or the one CSV of a zip.

``package:name/path`` is a file of an installed package, found without importing the package.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Protocol

from waybill.errors import InputError, RetryError

MAX_BYTES = 2 * 1024**3
"""Largest file, unpacked: it is read into memory whole."""
_PACKAGE = "package:"
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def find_file(path: str, base_dir: Path) -> Path:
    """Return the file a declaration names.

    Raises:
        InputError: the package is not installed, or the path leaves it.
    """
    if path.startswith(_PACKAGE):
        return _in_package(path)
    return base_dir / path


def _in_package(path: str) -> Path:
    name, _, rest = path.removeprefix(_PACKAGE).partition("/")
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
    except ValueError:  # __main__ and the like, which were not imported from a file
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            f"source.path {path!r}: the package {name!r} is not installed here; install it"
            " (pip install) or give the file's own path"
        )
    folder = Path(next(iter(spec.submodule_search_locations))).resolve()
    file = (folder / rest).resolve()
    if not file.is_relative_to(folder):
        raise InputError(f"source.path {path!r} leaves the package; name a file inside of it")
    return file


def read_file(file: Path) -> bytes:
    """Return the file's bytes as they are on disk.

    Raises:
        InputError: it is not there, or may not be read.
        RetryError: the disk did not answer.
    """
    try:
        if not file.is_file():
            raise InputError(f"source file {str(file)!r} is not there; correct source.path")
        if file.stat().st_size > MAX_BYTES:
            raise _too_large(file)
        return file.read_bytes()
    except PermissionError as error:
        raise InputError(f"source file {str(file)!r} may not be read; grant the right") from error
    except ValueError as error:
        raise InputError(f"source.path {str(file)!r} is no path: {error}") from error
    except OSError as error:
        raise RetryError(f"source file {str(file)!r} cannot be read now: {error}") from error


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
