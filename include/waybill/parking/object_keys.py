"""Keys of objects that name what they hold, and the directories inside objects.

A producer's message that Kafka refused, and a commit that was parked whole, are named in the key of
their object: one that a killed process left, and no row names, is known for garbage once the books
stand at that message or commit, or beyond. What acknowledged it named another object, or none.
"""

from __future__ import annotations

import re
from uuid import uuid4

from waybill.parking.packed import (
    CorruptSegmentError,
    SegmentDescriptor,
    directory_length,
    read_directory,
)
from waybill.storage import ObjectStore

_REFUSED = re.compile(r"parked/refused/([0-9a-f]{32})/([0-9]{1,19})/[0-9a-f]{32}\.jsonl\.zst")
_UNLOADED = re.compile(r"parked/unloaded/([0-9a-f]*)/([0-9]{1,19})/[0-9a-f]{32}\.jsonl\.zst")
_TAIL_BYTES = 64 * 1024


def new_refused_key(wal_id: str, lsn: int) -> str:
    """Return a fresh key: ``parked/refused/<wal id>/<lsn>/<uuid4>.jsonl.zst``."""
    return f"parked/refused/{wal_id}/{lsn}/{uuid4().hex}.jsonl.zst"


def refused_message(key: str) -> tuple[str, int] | None:
    """Return (WAL id, lsn) of the message that an object holds; None: it is another kind."""
    found = _REFUSED.fullmatch(key)
    return None if found is None else (found[1], int(found[2]))


def new_unloaded_key(destination: str, commit_number: int) -> str:
    """Return a fresh key: ``parked/unloaded/<destination, in hex>/<commit>/<uuid4>.jsonl.zst``."""
    return f"parked/unloaded/{destination.encode().hex()}/{commit_number}/{uuid4().hex}.jsonl.zst"


def unloaded_commit(key: str) -> tuple[str, int] | None:
    """Return (destination, commit number) of an object; None: it is another kind."""
    found = _UNLOADED.fullmatch(key)
    return None if found is None else (bytes.fromhex(found[1]).decode(), int(found[2]))


def read_object_directory(
    objects: ObjectStore, key: str, size: int
) -> tuple[SegmentDescriptor, ...]:
    """Return the segments that an object's directory names.

    Args:
        objects: where it is.
        key: which.
        size: its bytes.

    Cost: one request, two for a directory of more than 64 KiB.

    Raises:
        CorruptSegmentError: it has no directory, or a damaged one.
        ObjectMissingError: it is gone.
    """
    tail = _tail(objects, key, size, _TAIL_BYTES)
    needed = directory_length(tail) or 0
    if needed > size:
        raise CorruptSegmentError(key, size, "is shorter than its directory says")
    if needed > len(tail):
        tail = _tail(objects, key, size, needed)
    return read_directory(tail, key=key)


def _tail(objects: ObjectStore, key: str, size: int, most: int) -> bytes:
    length = min(most, size)
    if length == 0:
        return b""
    return objects.get(key, position=size - length, length=length)
