"""How files become objects: the protocol, and the plain way, one object a file.

A packer is deterministic: the same files in the same order give the same objects under the same
keys. That is what lets a shipment be sent again after a death.

What shipping needs of an object store, and the one thing that it does carefully with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from waybill.errors import RetryError
from waybill.storage import ObjectMissingError


class FileStore(Protocol):
    """An object store, as far as files need one; ``waybill.storage.ObjectStore`` is one."""

    def put(self, key: str, body: bytes) -> str:
        """Store an object whole and return its ETag; RetryError when the store is away."""
        ...

    def get(self, key: str) -> bytes:
        """Return an object; ObjectMissingError, RetryError."""
        ...


def put_confirmed(store: FileStore, key: str, body: bytes) -> None:
    """Store an object and make sure that the store has exactly these bytes.

    The ETag is compared with the MD5; where it is none (an encrypted bucket), the object is read
    back.

    Raises:
        RetryError: the store is away, or holds something else.
    """
    etag = store.put(key, body)
    if etag.strip('"') == hashlib.md5(body, usedforsecurity=False).hexdigest():
        return
    try:
        stored = store.get(key)
    except ObjectMissingError as error:
        raise RetryError(f"{key!r} was acknowledged but is not in the store") from error
    if stored != body:
        raise RetryError(f"{key!r} holds {len(stored)} bytes that differ from what was sent")


MakeBody = Callable[[], bytes]
"""Makes one object's content, the same each time."""


class DamagedFileError(Exception):
    """A finished file that is gone, or whose bytes are not what was written."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"file {path.name} {reason}")
        self.path = path


class Cargo(Protocol):
    """The content of a shipment's files, and how it is cut into objects."""

    @property
    def records(self) -> int:
        """How many records the files hold together, as the packer counts them."""
        ...

    def keys(self, ship_id: str) -> tuple[str, ...]:
        """Return every object key, each once, in the order in which they are sent."""
        ...

    def objects(self, ship_id: str) -> Iterator[tuple[str, MakeBody]]:
        """Yield each key with what makes its content, in the order of ``keys``."""
        ...


CargoT = TypeVar("CargoT", bound=Cargo)


class FilePacker(Protocol[CargoT]):
    """Makes objects of files."""

    def plan(self) -> dict[str, Any]:
        """Return what is needed to pack in the same way later; JSON, kept with the shipment."""
        ...

    def load(self, paths: Sequence[Path], plan: dict[str, Any]) -> CargoT:
        """Read files, oldest first, and cut them as a plan says.

        Raises:
            DamagedFileError: one of them is gone or cannot be read.
        """
        ...

    def check(self, store: FileStore) -> None:
        """Refuse a store that these objects do not belong in; before a shipment is begun.

        Raises:
            RetryError: the store is away.
            InputError: they do not belong there.
        """
        ...

    def announce(self, store: FileStore, cargo: CargoT) -> None:
        """Store what has to be there before the cargo's first object; RetryError."""
        ...


@dataclass(frozen=True, slots=True)
class WholeFiles:
    """The content of each file as an object of its own."""

    paths: tuple[Path, ...]
    prefix: str

    @property
    def records(self) -> int:
        """Files; what is in them is not looked at."""
        return len(self.paths)

    def keys(self, ship_id: str) -> tuple[str, ...]:
        """Return a key a file; the shipment has no part in it."""
        del ship_id
        return tuple(self.prefix + path.name for path in self.paths)

    def objects(self, ship_id: str) -> Iterator[tuple[str, MakeBody]]:
        """Yield each file's key and what reads it."""
        for key, path in zip(self.keys(ship_id), self.paths, strict=True):
            yield key, path.read_bytes


class WholeFilePacker:
    """Ships each file as it is, under ``<prefix><file name>``.

    Args:
        prefix: with its ``/``, as in ``logs/``.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def plan(self) -> dict[str, Any]:
        """Return the prefix: a shipment that was begun under one goes on under it."""
        return {"prefix": self._prefix}

    def load(self, paths: Sequence[Path], plan: dict[str, Any]) -> WholeFiles:
        """See ``FilePacker.load``; only that they are there is looked at."""
        for path in paths:
            if not path.is_file():
                raise DamagedFileError(path, "is gone from the disk")
        return WholeFiles(tuple(paths), str(plan["prefix"]))

    def check(self, store: FileStore) -> None:
        """Accept every store."""

    def announce(self, store: FileStore, cargo: WholeFiles) -> None:
        """Say nothing beforehand."""
