"""A segment whose sync the disk refused: its records are rewritten elsewhere, the file is kept.

After a failed sync the kernel takes the pages for clean: a second sync of the file would succeed
without a write. So the frames are copied to another file, byte for byte (they stay valid: same WAL
id, segment id, lsns), that is synced, and takes the segment's name:

  1. ``copy-<n>.wal`` is made, filled, read again, synced
  2. the bad file gets a second name, ``quarantine/poisoned-<n>-seg-…``: its blocks are not handed
     out again
  3. the copy is renamed over ``seg-…``, atomically, and the directory is synced

A SIGKILL before 3 leaves the old file as the segment and a copy that the next opening removes;
after it, the new one. A power cut leaves either; nothing was said to be synced yet.
"""

from __future__ import annotations

import errno
import logging
import uuid
from collections.abc import Callable
from pathlib import Path

from waybill.producer.wal.disk import Disk, DiskFile, set_aside
from waybill.producer.wal.frame import TERMINATOR
from waybill.producer.wal.segment import WalSegment
from waybill.producer.wal.space import WalFullError

_LOG = logging.getLogger(__name__)
_CHUNK_BYTES = 1024**2
PREFIX = "copy-"


def replace_poisoned(disk: Disk, segment: WalSegment, spare: Callable[[], DiskFile | None]) -> None:
    """Give a segment another file with the same frames, on disk for good. Nobody appends to it.

    Args:
        disk: where both are.
        segment: its end is known.
        spare: takes a free file, for when there is no room for another.

    Raises:
        OSError: refused again; the segment is as it was.
        WalFullError: no room for the copy, and no free file; the same.

    Cost: the segment is read twice and written once; 64 MiB take about a second.
    """
    path = segment.file.path
    copy = _file_for(disk, segment, spare)
    try:
        _fill(copy, segment)
        copy.sync()
        aside = keep_poisoned(disk, path)
        disk.rename(copy.path, path)
    except OSError:
        copy.close()
        disk.remove(copy.path)
        raise
    copy.path = path
    segment.turn_to(copy)
    disk.sync_directory(path.parent)
    segment.poisoned = False
    _LOG.error("the disk refused to keep %s; it was copied, the bad file is %s", path, aside)


def keep_poisoned(disk: Disk, path: Path) -> Path:
    """Give a bad file a second name that no opening takes for a segment; return that."""
    return set_aside(disk, path, f"poisoned-{uuid.uuid4().hex}-{path.name}")


def _file_for(disk: Disk, segment: WalSegment, spare: Callable[[], DiskFile | None]) -> DiskFile:
    size = segment.size if segment.damaged else min(segment.size, segment.used_bytes)
    try:
        return disk.make(segment.file.path.parent / f"{PREFIX}{uuid.uuid4().hex}.wal", size)
    except WalFullError:
        file = None if segment.damaged else spare()
        if file is None:
            raise
        if file.size < size:
            file.close()
            disk.remove(file.path)
            raise
        return file


def _fill(copy: DiskFile, segment: WalSegment) -> None:
    whole = segment.size if segment.damaged else segment.end + len(TERMINATOR)
    for at in range(0, whole, _CHUNK_BYTES):
        part = segment.file.read(at, min(_CHUNK_BYTES, whole - at))
        copy.data[at : at + len(part)] = part
    again = WalSegment(copy, segment.wal_id, segment.id, segment.base_lsn)
    if again.load() != segment.damage or again.end_lsn != segment.end_lsn:
        raise OSError(errno.EIO, f"{segment.file.path} is not in memory any more as it was written")
