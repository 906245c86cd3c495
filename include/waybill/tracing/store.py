"""What tracing needs of an object store, and the two things that it does carefully with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Protocol

from waybill.errors import RetryError
from waybill.storage import ObjectInfo, ObjectMissingError
from waybill.tracing.layout import LAYOUT_KEY, bucket_of, layout_buckets


class TraceStore(Protocol):
    """An object store, as far as traces need one; ``waybill.storage.ObjectStore`` is one."""

    def put(self, key: str, body: bytes) -> str:
        """Store an object whole and return its ETag; RetryError when the store is away."""
        ...

    def get(self, key: str) -> bytes:
        """Return an object; ObjectMissingError, RetryError."""
        ...

    def list(self, prefix: str) -> Iterable[ObjectInfo]:
        """Yield the objects below a prefix; RetryError."""
        ...


def put_confirmed(store: TraceStore, key: str, body: bytes) -> None:
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


def stated_buckets(store: TraceStore) -> int | None:
    """Return the number of buckets that the store's traces were begun with; None: no traces yet.

    Raises:
        RetryError: the store is away.
        InputError: the layout object is damaged or of a later release.
    """
    try:
        return layout_buckets(store.get(LAYOUT_KEY))
    except ObjectMissingError:
        return None


class Buckets:
    """Finds the bucket of an event id by the number the store states, else the configured one."""

    def __init__(self, store: TraceStore, *, configured: int) -> None:
        self._store = store
        self._configured = configured
        self._stated: int | None = None

    def of(self, event_id: str) -> int:
        """Return the bucket of an event id; reads the layout object until it is there, then never.

        Raises:
            RetryError: the store is away.
            InputError: the layout object is damaged or of a later release.
        """
        if self._stated is None:
            self._stated = stated_buckets(self._store)
        return bucket_of(event_id, self._stated or self._configured)
