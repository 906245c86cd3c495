"""Segment files: one that holds records, and those that are free for further use.

A file becomes a segment by its rename from ``free-…`` to ``seg-…``; it is whole, allocated and
begins with a terminator before that. So a SIGKILL at any line leaves a free file or an empty
segment.

Free files are a stack: the one given back last is taken first, its pages are warm. The files at the
bottom that the stack did not shrink down to for ``FREE_IDLE_S`` are more than anybody needs, and
are removed. After a burst that wrote twenty segments between two checkpoints twenty are kept, and a
minute later two.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

from waybill.producer.wal.disk import PAGE_BYTES, Disk, DiskFile, move
from waybill.producer.wal.frame import (
    PREFIX,
    TERMINATOR,
    FrameDamage,
    WalFrame,
    frame_at,
    scan,
    tag_of,
)
from waybill.producer.wal.frame_runs import FrameRun, scan_run

_NAME = re.compile(r"seg-([0-9a-f]{32})-([0-9a-f]{8})-([0-9a-f]{16})\.wal")
_TAG_BYTES = 4
FREE_PREFIX = "free-"
FREE_IDLE_S = 60.0
LEAST_FREE = 2
"""Free files that are kept however idle the log is."""


class WalSegment:
    """A run of records of one life of a file."""

    def __init__(self, file: DiskFile, wal_id: bytes, segment_id: int, base_lsn: int) -> None:
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
        self.damage: list[FrameDamage] = []
        """What ``load`` found that is no frame."""
        self.poisoned = False
        """A sync of the file was refused: it is never synced again, nor used for anything else."""
        self.inherited = False
        """Another process wrote it, whose syncs may have been refused."""
        self.marks: list[WalFrame] = []
        """The marks that ``load`` saw."""
        self._index_lsn = [base_lsn]
        self._index_position = [0]

    @property
    def damaged(self) -> bool:
        """Tell whether ``load`` found damage."""
        return bool(self.damage)

    @property
    def used_bytes(self) -> int:
        """The frames and the terminator behind them, in whole pages."""
        return -(-(self.end + len(TERMINATOR)) // PAGE_BYTES) * PAGE_BYTES

    def note(self, lsn: int, position: int) -> None:
        """Add an index entry: the frame of ``lsn`` begins at ``position``."""
        self._index_position.append(position)  # first: a reader looks for the lsn
        self._index_lsn.append(lsn)

    def extend(self, end: int, end_lsn: int) -> None:
        """Say how far the segment goes, which was appended to."""
        self.end, self.end_lsn = end, end_lsn

    def turn_to(self, file: DiskFile) -> None:
        """Go on with another file of the same frames; who reads the old mapping may end that."""
        self.file.let_go()
        self.file, self.data, self.size = file, file.data, file.size

    def sync(self) -> None:
        """Return when the disk has every byte of it.

        Raises:
            OSError: it has not, and never will by a further sync.
        """
        if self.inherited:
            self.file.touch(self.end + len(TERMINATOR))
            self.inherited = False
        self.file.sync()

    def load(self) -> list[FrameDamage]:
        """Read the whole segment: set the end, build the index, return the damage.

        The writer leaves a terminator behind the last frame: a file that ends before it was cut.
        """
        position, lsn = 0, self.base_lsn
        while True:
            run = scan_run(self.data, tag=self.tag, next_lsn=lsn, position=position)
            self._note_run(run, lsn)
            damage = next(
                scan(self.data, tag=self.tag, next_lsn=run.next_lsn, position=run.end), None
            )
            if not isinstance(damage, FrameDamage):
                break
            if damage.missing or not self._is_former_life(damage.position):
                self.damage.append(damage)
            position, lsn = damage.end, run.next_lsn + damage.missing
        tail_seen = bool(self.damage) and self.damage[-1].position >= self.end
        if self.end + len(TERMINATOR) > self.size and not tail_seen:
            self.damage.append(FrameDamage(self.end, self.size, 0))
        return self.damage

    def _note_run(self, run: FrameRun, from_lsn: int) -> None:
        if run.next_lsn == from_lsn:
            return
        self.end, self.end_lsn = run.end, run.next_lsn
        self.marks += run.marks
        for lsn, position in run.index:
            self.note(lsn, position)

    def _is_former_life(self, position: int) -> bool:
        """Tell whether the end is a whole frame of the file's former life, not a broken one.

        A power cut leaves that when the disk has nothing yet of this life.
        """
        at = position + PREFIX.size
        its_tag = int.from_bytes(self.data[at : at + _TAG_BYTES], "little")
        return its_tag != self.tag and frame_at(self.data, position, its_tag) is not None

    def frames(self, from_lsn: int, end_lsn: int) -> Iterator[WalFrame]:
        """Yield the frames from ``from_lsn`` (or the first after it) to before ``end_lsn``."""
        at = max(0, bisect_right(self._index_lsn, from_lsn) - 1)
        position, lsn = self._index_position[at], self._index_lsn[at]
        while lsn < end_lsn:
            frame = frame_at(self.data, position, self.tag)
            if frame is None or frame.lsn != lsn:
                frame = self._after_damage(position, lsn)
            if frame is None or frame.lsn >= end_lsn:
                return
            if frame.lsn >= from_lsn:
                yield frame
            position, lsn = frame.end, frame.lsn + 1

    def _after_damage(self, position: int, lsn: int) -> WalFrame | None:
        found = scan(self.data, tag=self.tag, next_lsn=lsn, position=position)
        return next((item for item in found if isinstance(item, WalFrame)), None)

    def trim(self) -> None:
        """Give the unused rest of an undamaged, finished segment back to the disk."""
        if self.damaged or self.used_bytes >= self.size:
            return
        self.file.resize(self.used_bytes)
        self.data, self.size = self.file.data, self.file.size


def segment_path(directory: Path, wal_id: bytes, segment_id: int, base_lsn: int) -> Path:
    """Return where a segment lies."""
    return directory / f"seg-{wal_id.hex()}-{segment_id:08x}-{base_lsn:016x}.wal"


def parse_segment(name: str) -> tuple[bytes, int, int] | None:
    """Return (WAL id, segment id, base lsn) of a segment's name, None for any other name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return bytes.fromhex(match[1]), int(match[2], 16), int(match[3], 16)


def free_path(directory: Path) -> Path:
    """Return a new name for a free file."""
    return directory / f"{FREE_PREFIX}{uuid.uuid4().hex}.wal"


class FreeFiles:
    """The free files of one directory, all of one size. Safe for several threads."""

    def __init__(
        self, disk: Disk, directory: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._clock = clock
        self._lock = threading.Lock()
        self._stack: list[tuple[DiskFile, float]] = []

    def take(self) -> DiskFile | None:
        """Return a file that begins with a terminator, or None."""
        with self._lock:
            return self._stack.pop()[0] if self._stack else None

    def add(self, file: DiskFile) -> None:
        """Keep a file that has a free file's name."""
        file.data[: len(TERMINATOR)] = TERMINATOR
        with self._lock:
            self._stack.append((file, self._clock()))

    def give(self, file: DiskFile) -> None:
        """Keep a segment's file, whose records nobody needs.

        Raises:
            OSError: it could not be renamed for good; it is not kept.
        """
        move(self._disk, file, free_path(self._directory))
        self.add(file)  # after the rename: a segment is never damaged

    def shrink(self, *, short: bool = False) -> None:
        """Remove what was not needed for ``FREE_IDLE_S``; when ``short`` of space, all but two."""
        limit = self._clock() - FREE_IDLE_S
        while True:
            with self._lock:
                if len(self._stack) <= LEAST_FREE or not (short or self._stack[0][1] <= limit):
                    return
                file, _ = self._stack.pop(0)
            self._remove(file)

    def remove_one(self) -> bool:
        """Remove one file to make room; tell whether there was one."""
        file = self.take()
        if file is not None:
            self._remove(file)
        return file is not None

    def _remove(self, file: DiskFile) -> None:
        file.close()
        self._disk.remove(file.path)

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        with self._lock:
            return sum(file.size for file, _ in self._stack)

    def __len__(self) -> int:
        return len(self._stack)
