"""What tracing needs of an object store, and the number of buckets that the store states."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from waybill.files import FileStore
from waybill.storage import ObjectInfo, ObjectMissingError
from waybill.tracing.layout import LAYOUT_KEY, bucket_of, layout_buckets


class TraceStore(FileStore, Protocol):
    """An object store, as far as traces need one; ``waybill.storage.ObjectStore`` is one."""

    def list(self, prefix: str) -> Iterable[ObjectInfo]:
        """Yield the objects below a prefix; RetryError."""
        ...


def stated_buckets(store: FileStore) -> int | None:
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
