"""Read many frames fast: those that are whole and follow each other, without an object for each.

``scan`` finds whatever is whole, wherever it is, and names what is damaged between. Nearly all of a
log is neither: ``scan_run`` goes through that part, and stops before the first frame that is not as
it should be. What is so, and where it goes on, ``scan`` decides.

A window of the segment is copied at a time: nothing of the mapping is held when it is unmapped, and
a slice of ``bytes`` costs less than one of a view. Checking a window's heads as columns of NumPy
was no faster: the slices and the checksums, a call each, are most of it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from zlib_ng.zlib_ng import crc32

from waybill.producer.wal.frame import (
    HEAD,
    MARK,
    OVERHEAD_BYTES,
    PREFIX_BYTES,
    TERMINATOR,
    Buffer,
    WalFrame,
    frame_at,
)

INDEX_EVERY = 64
"""Records between two entries of the index of a segment that is read."""
WINDOW_BYTES = 256 * 1024
_U32 = 0xFFFFFFFF
_unpack = struct.Struct("<IIQ4xiiIQ").unpack_from
"""Prefix and head; tag, kind and the topic's size in one, without partition and timestamp."""


@dataclass(slots=True)
class FrameRun:
    """Whole frames of one segment, each where the one before ends, with the next lsn."""

    end: int
    """The byte after the last frame."""
    next_lsn: int
    """The lsn after its."""
    index: list[tuple[int, int]] = field(default_factory=list)
    """(lsn, position) of the frames whose lsn is a multiple of INDEX_EVERY."""
    marks: list[WalFrame] = field(default_factory=list)

    def add(self, frame: WalFrame) -> None:
        """Go on behind a frame."""
        if frame.lsn % INDEX_EVERY == 0:
            self.index.append((frame.lsn, frame.position))
        if frame.kind == MARK:
            self.marks.append(frame)
        self.end, self.next_lsn = frame.end, frame.lsn + 1


def scan_run(data: Buffer, *, tag: int, next_lsn: int, position: int = 0) -> FrameRun:
    """Return the frames from ``position`` on, up to the first that is not whole, or not the next.

    Args: as ``scan`` takes them; where it would yield frames without damage, these are the same.

    Cost: 0.4 µs a frame and 0.4 s a GiB.
    """
    run = FrameRun(position, next_lsn)
    while True:
        before = run.next_lsn
        _read_window(data[run.end : run.end + WINDOW_BYTES], tag, run)
        if run.next_lsn == before:  # the end, or a frame larger than a window
            frame = frame_at(data, run.end, tag)
            if frame is None or frame.lsn != before:
                return run
            run.add(frame)


def _read_window(window: bytes, tag: int, run: FrameRun) -> None:
    """Go on in the bytes that begin at the run's end, as far as all is as it should be."""
    base, at, lsn = run.end, 0, run.next_lsn
    size, last = len(window), len(window) - OVERHEAD_BYTES
    known, kind, fixed = -1, 0, 0
    while at <= last:
        crc, length, shared, key, value, headers, its_lsn = _unpack(window, at)
        body = at + PREFIX_BYTES
        end = body + length
        if shared != known:  # as good as never from the first frame on
            known, kind, fixed = shared, shared >> 32 & 0xFF, HEAD.size + (shared >> 48)
        parts = headers + (key if key > 0 else 0) + (value if value > 0 else 0)
        if its_lsn != lsn or end > size or fixed + parts != length or known & _U32 != tag:
            break
        if crc32(TERMINATOR, crc32(window[body:end], length)) != crc:
            break
        if kind == MARK or not lsn % INDEX_EVERY:
            run.add(WalFrame(lsn, kind, base + at, base + end))
        at, lsn = end, lsn + 1
    run.end, run.next_lsn = base + at, lsn
