"""Expiry: traces older than their retention are deleted by the hour.

An hour that is being compacted, or whose replaced objects still lie there, is left to a later run.
A shipper that comes back with files of such an hour sends them once more, and the next run deletes
them. Safe to kill: what is left is found again.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice

from waybill.progress import Progress
from waybill.storage import Deletion
from waybill.tracing.layout import (
    COMPACTED_PREFIX,
    EARLY_PREFIX,
    Hour,
    TraceStore,
    bucket_prefix,
    place_of,
    stated_layout,
)
from waybill.tracing.manifests import read_manifests

_MOST_KEYS = 1_000


def expire_traces(store: TraceStore, before: datetime, *, apply: bool = True) -> int:
    """Delete the objects of hours that ended before a moment; returns how many.

    Args:
        store: where they are.
        before: with a time zone.
        apply: delete; else only count.

    Cost: a listing of all traces, about 1 s for 10,000 objects.

    Raises:
        NotDeletedError: the store did not delete some; all others are gone.
        RetryError: the store is away.
        InputError: the store's layout is damaged or of a later release.
    """
    layout = stated_layout(store)
    if layout is None:
        return 0
    busy = {manifest.at for manifest in read_manifests(store)}
    prefixes = [bucket_prefix(number) for number in range(layout.buckets + 1)]
    prefixes += [EARLY_PREFIX] * layout.early
    gone, deletion = 0, Deletion(store)
    progress = Progress("retention: traces", "objects")
    for prefix in [*prefixes, COMPACTED_PREFIX]:
        old = _old(store, prefix, before, busy)
        while keys := list(islice(old, _MOST_KEYS)):
            gone += len(deletion.delete(keys) if apply else keys)
            progress.add(len(keys))
    deletion.end()
    return gone


def _old(store: TraceStore, prefix: str, before: datetime, busy: set[Hour]) -> Iterator[str]:
    # taken whole: a listing goes on by key, and these are being deleted
    for info in list(store.list(prefix)):
        hour = _hour(info.key)
        if hour is not None and hour.end < before and hour not in busy:
            yield info.key


def _hour(key: str) -> Hour | None:
    if not key.startswith(COMPACTED_PREFIX):
        place = place_of(key)
        return None if place is None else place.hour
    path = "/".join(key.removeprefix(COMPACTED_PREFIX).split("/")[:2])
    try:
        return Hour.at(path)
    except ValueError:
        return None
