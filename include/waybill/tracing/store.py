"""What tracing needs of an object store, and the layout that the store states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from waybill.errors import InputError, RetryError
from waybill.storage import ObjectInfo, ObjectMissingError
from waybill.tracing.files import FileStore
from waybill.tracing.layout import LAYOUT_KEY, NEW_BUCKETS, Layout


class TraceStore(FileStore, Protocol):
    """An object store, as far as traces need one; ``waybill.storage.ObjectStore`` is one."""

    def list(self, prefix: str) -> Iterable[ObjectInfo]:
        """Yield the objects below a prefix; RetryError."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, some of which may be gone; RetryError."""
        ...

    def get_tagged(self, key: str) -> tuple[bytes, str]:
        """Return an object and its ETag; ObjectMissingError, RetryError."""
        ...

    def swap(self, key: str, body: bytes, *, expected: str | None) -> str | None:
        """Store an object if the store has what is expected (an ETag, or nothing); else None."""
        ...


def stated_layout(store: TraceStore) -> Layout | None:
    """Return how the store's traces are cut; None: there are none yet.

    Raises:
        RetryError: the store is away.
        InputError: the layout object is damaged or of a later release.
    """
    try:
        return Layout.decode(store.get(LAYOUT_KEY))
    except ObjectMissingError:
        return None


def settled_layout(store: TraceStore, configured: int | None) -> Layout:
    """Return how the store's traces are cut; decided now, and for ever, when there are none.

    Args:
        store: where they are.
        configured: number of buckets that was set, if one was.

    Raises:
        RetryError: the store is away.
        InputError: another number is set than the traces were begun with.
    """
    stated = stated_layout(store)
    if stated is None:
        store.swap(LAYOUT_KEY, Layout(configured or NEW_BUCKETS).encode(), expected=None)
        stated = stated_layout(store)  # another node may have been first
    if stated is None:
        raise RetryError(f"{LAYOUT_KEY} was stored and is not in the store")
    if configured is not None and configured != stated.buckets:
        raise InputError(
            f"WAYBILL_TRACES__BUCKETS is {configured}, but the traces in the store were begun "
            f"with {stated.buckets}; unset it, or use another bucket of the store"
        )
    return stated


class KnownLayout:
    """The layout that a store states, read until it is there, then never again."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store
        self._stated: Layout | None = None

    def get(self) -> Layout | None:
        """Return it; None: there are no traces yet. Raises as ``stated_layout``."""
        if self._stated is None or self._stated.early:
            self._stated = stated_layout(self._store)
        return self._stated
