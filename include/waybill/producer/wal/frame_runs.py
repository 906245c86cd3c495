"""Read many frames fast: those that are whole and follow each other, without an object for each.

``scan`` finds whatever is whole, wherever it is, and names what is damaged between. Nearly all of a
log is neither: ``scan_run`` goes through that part, and stops before the first frame that is not as
it should be. What is so, and where it goes on, ``scan`` decides.

A window of the segment is copied at a time: nothing of the mapping is held when it is unmapped.
Where there are many frames, the fields of a window's heads are checked as columns (NumPy, where it
is installed).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from typing import Any, TypeAlias

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
WINDOW_BYTES = 1024 * 1024
COLUMNS_FROM = 10_000
"""Frames of a segment before NumPy is imported, which takes a tenth of a second."""
_HEAD_BYTES = HEAD.size
_unpack = struct.Struct("<IIIBxH4xiiIQ").unpack_from
"""Prefix and head without partition and timestamp."""
_unpack_length = struct.Struct("<4xI").unpack_from
_SIZES = ("topic", "key", "value", "headers")
_HEAD_FIELDS = [
    ("crc", "<u4"), ("length", "<u4"), ("tag", "<u4"), ("kind", "u1"), ("pad", "u1"),
    ("topic", "<u2"), ("partition", "<i4"), ("key", "<i4"), ("value", "<i4"), ("headers", "<u4"),
    ("lsn", "<u8"), ("timestamp", "<i8"),
]  # fmt: skip


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


Step: TypeAlias = Callable[[bytes, int, FrameRun], None]
"""(window that begins at the run's end, tag, run): go on as far as all is as it should be."""


def scan_run(data: Buffer, *, tag: int, next_lsn: int, position: int = 0) -> FrameRun:
    """Return the frames from ``position`` on, up to the first that is not whole, or not the next.

    Args: as ``scan`` takes them; where it would yield frames without damage, these are the same.

    Cost: 0.35 µs a frame and 0.1 s a GiB in long segments, of which the checksum is a half.
    """
    run = FrameRun(position, next_lsn)
    step: Step = frame_by_frame
    while True:
        before = run.next_lsn
        step(data[run.end : run.end + WINDOW_BYTES], tag, run)
        if run.next_lsn == before:  # the end, or larger than a window
            frame = frame_at(data, run.end, tag)
            if frame is None or frame.lsn != before:
                return run
            run.add(frame)
        elif step is frame_by_frame and run.next_lsn - next_lsn >= COLUMNS_FROM:
            step = column_step() or frame_by_frame


def frame_by_frame(window: bytes, tag: int, run: FrameRun) -> None:
    """Go on in one loop: 0.7 µs a frame."""
    base, at, lsn = run.end, 0, run.next_lsn
    size, last = len(window), len(window) - OVERHEAD_BYTES
    while at <= last:
        crc, length, its_tag, kind, topic, key, value, headers, its_lsn = _unpack(window, at)
        body = at + PREFIX_BYTES
        end = body + length
        if its_tag != tag or its_lsn != lsn or end > size:
            break
        parts = topic + headers + (key if key > 0 else 0) + (value if value > 0 else 0)
        if _HEAD_BYTES + parts != length:
            break
        if crc32(TERMINATOR, crc32(window[body:end], length)) != crc:
            break
        if kind == MARK or not lsn % INDEX_EVERY:
            run.add(WalFrame(lsn, kind, base + at, base + end))
        at, lsn = end, lsn + 1
    run.end, run.next_lsn = base + at, lsn


@cache
def column_step() -> Step | None:
    """Return a step that checks heads as columns, 0.4 µs a frame; None without NumPy."""
    try:
        import numpy as np
    except ImportError:
        return None
    head, nothing = np.dtype(_HEAD_FIELDS), np.int64(0)

    def before_first_bad(good: Any) -> int:
        return len(good) if good.all() else int(good.argmin())

    def by_columns(window: bytes, tag: int, run: FrameRun) -> None:
        bounds = _bounds(window)
        if len(bounds) == 1:
            return
        at = np.array(bounds)
        begins, lengths = at[:-1], np.diff(at) - PREFIX_BYTES
        everywhere = np.ndarray(len(window) - head.itemsize + 1, head, window, strides=(1,))
        heads = everywhere[begins]
        parts = sum(np.maximum(heads[name], nothing) for name in _SIZES)  # -1: null
        base, lsn = run.end, run.next_lsn
        lsns = np.arange(lsn, lsn + len(begins), dtype=np.uint64)
        good = (heads["tag"] == tag) & (heads["lsn"] == lsns) & (parts + _HEAD_BYTES == lengths)
        count = before_first_bad(good)
        bodies = map(window.__getitem__, map(slice, (begins + PREFIX_BYTES).tolist(), bounds[1:]))
        crcs = map(crc32, repeat(TERMINATOR), map(crc32, bodies, lengths[:count].tolist()))
        crc = np.fromiter(crcs, np.uint32, count)
        count = before_first_bad(crc == heads["crc"][:count])
        noted = (heads["kind"] == MARK) | (lsns % INDEX_EVERY == 0)
        for number in np.flatnonzero(noted[:count]).tolist():
            kind, begin, end = int(heads["kind"][number]), bounds[number], bounds[number + 1]
            run.add(WalFrame(lsn + number, kind, base + begin, base + end))
        run.end, run.next_lsn = base + bounds[count], lsn + count

    return by_columns


def _bounds(window: bytes) -> list[int]:
    """Return where frames begin, by their lengths alone, and where the last that is whole ends."""
    bounds, at, last = [0], 0, len(window) - OVERHEAD_BYTES
    while at <= last:
        length = _unpack_length(window, at)[0]
        if not length:
            break
        at += PREFIX_BYTES + length
        bounds.append(at)
    if at > len(window):
        bounds.pop()
    return bounds
