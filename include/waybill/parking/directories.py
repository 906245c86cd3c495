"""The directory of an object in the store: read from its end, without the frames."""

from __future__ import annotations

from waybill.parking.packed import (
    CorruptSegmentError,
    SegmentDescriptor,
    directory_length,
    read_directory,
)
from waybill.storage import ObjectStore

_TAIL_BYTES = 64 * 1024


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
