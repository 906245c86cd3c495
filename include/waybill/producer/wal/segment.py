"""One segment file: made or taken from the free ones, mapped, appended to, given free.

A file becomes a segment by its rename from ``free-…`` to ``seg-…``; it is whole, allocated and
begins with a terminator before that. So a SIGKILL at any line leaves a free file or an empty
segment.
"""

from __future__ import annotations

import mmap
import os
import re
import uuid
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

from waybill.producer.wal.frame import MARK, TERMINATOR, Damage, Frame, frame_at, scan, tag_of
from waybill.producer.wal.space import PAGE_BYTES, allocate, sync_directory

_NAME = re.compile(r"seg-([0-9a-f]{32})-([0-9a-f]{8})-([0-9a-f]{16})\.wal")
INDEX_EVERY = 64
"""Records between two entries of the index of a segment that is read."""


class MappedFile:
    """A file of fixed size, mapped for reading and writing."""

    def __init__(self, path: Path, *, size_bytes: int | None = None) -> None:
        self.path = path
        flags = os.O_RDWR | (os.O_CREAT if size_bytes is not None else 0)
        self.fd = os.open(path, flags, 0o600)
        try:
            if size_bytes is not None:
                allocate(self.fd, size_bytes)
            self.size = os.fstat(self.fd).st_size
            self.data = mmap.mmap(self.fd, self.size)
        except BaseException:
            os.close(self.fd)
            if size_bytes is not None:
                path.unlink(missing_ok=True)
            raise

    def rename(self, path: Path) -> None:
        """Give the file another name in its directory, durably."""
        self.path.rename(path)
        self.path = path
        sync_directory(path.parent)

    def close(self) -> None:
        """Unmap and close; the file stays."""
        self.data.close()
        os.close(self.fd)

    def remove(self) -> None:
        """Close and delete."""
        self.close()
        self.path.unlink(missing_ok=True)


class Segment:
    """A run of records of one life of a file."""

    def __init__(self, file: MappedFile, wal_id: bytes, segment_id: int, base_lsn: int) -> None:
        self.file = file
        self.data = file.data
        self.size = file.size
        self.id = segment_id
        self.base_lsn = base_lsn
        self.tag = tag_of(wal_id, segment_id)
        self.wal_id = wal_id
        self.end_lsn = base_lsn
        """The lsn after the last record."""
        self.end = 0
        """The byte after the last frame."""
        self.damaged = False
        self.marks: list[Frame] = []
        """The marks that ``load`` saw."""
        self._index_lsn = [base_lsn]
        self._index_position = [0]

    def note(self, lsn: int, position: int) -> None:
        """Add an index entry: the frame of ``lsn`` begins at ``position``."""
        self._index_lsn.append(lsn)
        self._index_position.append(position)

    def extend(self, end: int, end_lsn: int) -> None:
        """Say how far the segment goes now, which was appended to."""
        self.end, self.end_lsn = end, end_lsn

    def load(self) -> list[Damage]:
        """Read the whole segment: set the end, build the index, return the damage."""
        found: list[Damage] = []
        for item in scan(self.data, tag=self.tag, next_lsn=self.base_lsn):
            if isinstance(item, Damage):
                found.append(item)
                continue
            self.end, self.end_lsn = item.end, item.lsn + 1
            if item.kind == MARK:
                self.marks.append(item)
            if item.lsn % INDEX_EVERY == 0:
                self.note(item.lsn, item.position)
        self.damaged = bool(found)
        return found

    def frames(self, from_lsn: int) -> Iterator[Frame]:
        """Yield the frames from ``from_lsn`` (or the first after it) to the end at this moment."""
        at = max(0, bisect_right(self._index_lsn, from_lsn) - 1)
        position, lsn, end_lsn = self._index_position[at], self._index_lsn[at], self.end_lsn
        while lsn < end_lsn:
            frame = frame_at(self.data, position, self.tag)
            if frame is None or frame.lsn != lsn:
                frame = self._after_damage(position, lsn)
            if frame.lsn >= from_lsn:
                yield frame
            position, lsn = frame.end, frame.lsn + 1

    def _after_damage(self, position: int, lsn: int) -> Frame:
        found = scan(self.data, tag=self.tag, next_lsn=lsn, position=position)
        return next(item for item in found if isinstance(item, Frame))

    def trim(self) -> None:
        """Give the unused rest of an undamaged, finished segment back to the disk."""
        size = -(-(self.end + len(TERMINATOR)) // PAGE_BYTES) * PAGE_BYTES
        if self.damaged or size >= self.size:
            return
        self.data.close()
        os.ftruncate(self.file.fd, size)
        self.file.data = self.data = mmap.mmap(self.file.fd, size)
        self.file.size = self.size = size


def segment_path(directory: Path, wal_id: bytes, segment_id: int, base_lsn: int) -> Path:
    """Return where a segment lies."""
    return directory / f"seg-{wal_id.hex()}-{segment_id:08x}-{base_lsn:016x}.wal"


def parse_segment(path: Path) -> tuple[bytes, int, int] | None:
    """Return (WAL id, segment id, base lsn) of a segment's name, None for any other name."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    return bytes.fromhex(match[1]), int(match[2], 16), int(match[3], 16)


def new_free_file(directory: Path, size_bytes: int) -> MappedFile:
    """Make an allocated file that a segment can be made of.

    Raises:
        WalFullError: no room on the disk; nothing is left behind.
    """
    return MappedFile(directory / f"free-{uuid.uuid4().hex}.wal", size_bytes=size_bytes)
