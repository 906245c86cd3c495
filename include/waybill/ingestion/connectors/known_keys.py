"""Keys that a source had, so that those that are gone are deletes.

Objects below ``source-keys/<pipeline's folder>/<digest of the table and its key>/``:
    known/<id>.<version>.zst            keys, one a line as JSON: of rows that were sent, written
                                        before their page is; or all that a comparison found. None
                                        of these rows was sent with a greater version
    gone/<comparison>/<number>.zst      keys that are gone, until their deletes are committed

A comparison takes all of ``known`` for what the source had. So nothing need say which of them count
and who dies leaves too much, never too little: a key that is known twice, or was deleted before, is
at worst a delete of a row that is not there. When the deletes are committed, the objects that the
comparison began with are deleted.

Keys are spread over ``_BUCKETS`` files of the temporary folder by a hash, so that memory holds a
64th of them at a time, and no order of a database's has to be known.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import IO

import zstandard

from waybill.errors import InputError
from waybill.storage import ObjectMissingError, ObjectStore

KEYS_PREFIX = "source-keys/"
_BUCKETS = 64
_OBJECT_BYTES = 16 << 20
_BUFFER_BYTES = 8 << 20
_WAIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Gone:
    """Keys of which the deletes are to be sent."""

    comparison: str
    objects: int
    """How many objects there are."""


class Comparison:
    """One comparison of what a source has with what it had. A context manager."""

    def __init__(self, known: KnownKeys, before: Sequence[str]) -> None:
        self._known, self._before = known, before
        self._held = ExitStack()
        self._had = _Spill(self._held)
        self._has = _Spill(self._held)
        self.had = self.has = self.missing = 0
        self.versions = [version for name in before if (version := _version(name)) is not None]
        """Up to the greatest of them, rows were sent: whatever became of the cursor since."""

    def __enter__(self) -> Comparison:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: object, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def add(self, keys: Iterable[bytes]) -> None:
        """Add keys that the source has."""
        self._has.add(keys)

    def count(self) -> None:
        """Count what it had, has, and has no more: ``had``, ``has``, ``missing``."""
        for name in self._before:
            self._had.add(self._known.lines(name))
        for number in range(_BUCKETS):
            had, has = set(self._had.lines(number)), set(self._has.lines(number))
            self.had += len(had)
            self.has += len(has)
            self.missing += len(had - has)

    def write(self, version: int) -> Gone:
        """Write what it has as known, up to a version, then what is gone."""
        name, objects, known, size = uuid.uuid4().hex, 0, list[bytes](), 0
        for number in range(_BUCKETS):
            has = set(self._has.lines(number))
            known += has
            size += sum(map(len, has))
            if size >= _OBJECT_BYTES:
                self._known.add(known, version)
                known, size = [], 0
            if gone := sorted(set(self._had.lines(number)) - has):
                self._known.put(f"gone/{name}/{objects}", gone)
                objects += 1
        self._known.add(known, version)
        return Gone(name, objects)


class KnownKeys:
    """The keys that are known of one pipeline's source."""

    def __init__(self, objects: ObjectStore, folder: str) -> None:
        self._objects, self._prefix = objects, f"{KEYS_PREFIX}{folder}/"

    def add(self, keys: Sequence[bytes], version: int) -> None:
        """Take note of keys, before rows of them are sent with up to a version."""
        if keys:
            self.put(f"known/{uuid.uuid4().hex}.{version}", keys)

    def begin(self) -> tuple[Comparison, list[str]]:
        """Begin a comparison; return it, and what can be deleted once its deletes are committed."""
        before = [item.key for item in self._objects.list(f"{self._prefix}known/")]
        left = [item.key for item in self._objects.list(f"{self._prefix}gone/")]
        return Comparison(self, before), before + left

    def gone(self, comparison: str, number: int) -> list[bytes]:
        """Return the keys of one object of a comparison, the least first.

        Raises:
            InputError: it is not there.
        """
        name = f"{self._prefix}gone/{comparison}/{number}.zst"
        try:
            return list(self.lines(name))
        except ObjectMissingError as error:
            raise InputError(
                f"object {name!r} with the keys that are to be deleted is not there; restore it, or"
                " reset the cursor: the next comparison finds them again"
            ) from error

    def missing(self, gone: Gone, first: int) -> str:
        """Return an object of a comparison, from the first on that is needed, that is not there."""
        there = {item.key for item in self._objects.list(f"{self._prefix}gone/{gone.comparison}/")}
        return next((name for name in self.objects_of(gone)[first:] if name not in there), "")

    def objects_of(self, gone: Gone) -> list[str]:
        """Return the objects of the keys that are gone."""
        numbers = range(gone.objects)
        return [f"{self._prefix}gone/{gone.comparison}/{number}.zst" for number in numbers]

    def lines(self, name: str) -> Iterator[bytes]:
        """Yield the keys of an object."""
        body = zstandard.ZstdDecompressor().decompressobj().decompress(self._objects.get(name))
        yield from body.splitlines()

    def put(self, name: str, keys: Iterable[bytes]) -> None:
        """Write an object of keys."""
        body = zstandard.compress(b"\n".join(keys), 3)
        self._objects.put_waiting(f"{self._prefix}{name}.zst", body, limit_s=_WAIT_S)

    def forget(self, names: Sequence[str]) -> None:
        """Delete objects."""
        self._objects.delete(names)


def _version(name: str) -> int | None:
    """Return the version in the name of an object of known keys; None: there is none."""
    text = name.rpartition("/")[2].removesuffix(".zst").partition(".")[2]
    return int(text) if text else None


class _Spill:
    """Lines in files without a name, which are gone with the process, however that ends."""

    def __init__(self, held: ExitStack) -> None:
        self._files: list[IO[bytes]] = [
            held.enter_context(tempfile.TemporaryFile()) for _ in range(_BUCKETS)
        ]
        self._waiting: list[list[bytes]] = [[] for _ in range(_BUCKETS)]
        self._bytes = 0

    def add(self, lines: Iterable[bytes]) -> None:
        waiting = self._waiting
        for line in lines:
            waiting[hash(line) % _BUCKETS].append(line)
            self._bytes += len(line) + 50
            if self._bytes > _BUFFER_BYTES:
                self._flush()

    def _flush(self) -> None:
        for file, lines in zip(self._files, self._waiting, strict=True):
            if lines:
                file.seek(0, 2)
                file.write(b"\n".join(lines) + b"\n")
                lines.clear()
        self._bytes = 0

    def lines(self, number: int) -> Iterator[bytes]:
        self._flush()
        file = self._files[number]
        file.seek(0)
        return (line.rstrip(b"\n") for line in file)
