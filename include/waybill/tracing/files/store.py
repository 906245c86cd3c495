"""What shipping needs of an object store, and the one thing that it does carefully with it."""

from __future__ import annotations

import hashlib
from typing import Protocol

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
