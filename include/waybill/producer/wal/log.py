"""The log: a row of segments, the last of which is appended to."""

from __future__ import annotations

import logging
import struct
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from waybill.errors import InputError, RetryError, StopError
from waybill.producer.wal.disk import (
    PAGE_BYTES,
    Disk,
    DiskFile,
    RealDisk,
    WalFullError,
    check_room,
    move,
    set_aside,
)
from waybill.producer.wal.frame import (
    FrameDamage,
    FrameWriter,
    WalFrame,
    WalRecord,
    frame_bytes,
    read_record,
)
from waybill.producer.wal.segment import (
    FREE_PREFIX,
    FreeFiles,
    WalSegment,
    free_path,
    parse_segment,
    segment_path,
)
from waybill.producer.wal.syncer import COPY_PREFIX, Syncer, keep_poisoned
from waybill.settings import WalSettings

_LOG = logging.getLogger(__name__)


class WriteAheadLog:
    """Segments of one directory. The caller holds the directory's lock, and one lock for appends.

    Args:
        directory: exists, and is nobody else's.
        settings: sizes and limits.
        wal_id: of the checkpoint; used when no segment is left to name it.
        next_lsn, next_segment: the least that the checkpoint allows for new records.
        disk: what the directory lies on.

    Opening reads every frame and changes no record. 1 GiB takes some 1.5 s with values of 1 KB, 3
    to 4 s with values of 100 B.
    """

    def __init__(
        self,
        directory: Path,
        settings: WalSettings,
        *,
        wal_id: bytes | None = None,
        next_lsn: int = 1,
        next_segment: int = 1,
        disk: Disk | None = None,
    ) -> None:
        _check_settings(settings)
        self.directory = directory
        self.damage: list[tuple[WalSegment, FrameDamage]] = []
        """What opening found that is no frame."""
        self.gaps: list[tuple[int, int]] = []
        """Runs of lsns, [from, to), that no segment holds though later ones are there."""
        self.segment_id = 0
        """Of the segment that was appended to last; 0 before the first append."""
        self.others_bytes: Callable[[], int] = lambda: 0
        """What else counts against the disk threshold."""
        self._settings = settings
        self._disk = disk or RealDisk()
        self._segments: deque[WalSegment] = deque()
        self._free = FreeFiles(self._disk, directory)
        self._making = threading.Lock()
        self._active: WalSegment | None = None
        self._syncer = Syncer(
            self._disk,
            directory,
            spare=self._free.take,
            last_lsn=lambda: self.next_lsn - 1,
            retire=self._retire_poisoned,
        )
        end_lsn = self._open(wal_id)
        last = self._segments[-1].id if self._segments else 0
        self.writer = FrameWriter(max(next_lsn, end_lsn))
        """Appends to the active segment; whoever calls it holds the lock for appends."""
        self.next_segment = max(next_segment, last + 1)

    # Opening

    def _open(self, wal_id: bytes | None) -> int:
        """Take over what is there; return the lsn after the last one that a segment tells of."""
        names = self._disk.names(self.directory)
        named = [(name, found) for name in names if (found := parse_segment(name)) is not None]
        self.wal_id = named[-1][1][0] if named else wal_id or uuid.uuid4().bytes
        end_lsn = 1
        for name, (its_wal, segment_id, base_lsn) in named:
            path = self.directory / name
            if its_wal != self.wal_id:
                raise StopError(f"{path} is of another log than its neighbours; move one away")
            segment = WalSegment(self._disk.open(path), its_wal, segment_id, base_lsn)
            end_lsn = self._adopt(segment, end_lsn)
        for name in names:
            if name.startswith((FREE_PREFIX, COPY_PREFIX)):
                self._adopt_free(self.directory / name)
        return end_lsn

    def _adopt(self, segment: WalSegment, end_lsn: int) -> int:
        self.damage += [(segment, item) for item in segment.load()]
        if self._segments and segment.base_lsn > end_lsn:
            self.gaps.append((end_lsn, segment.base_lsn))
        segment.trim()
        segment.inherited = True
        self._segments.append(segment)
        self._syncer.add(segment)  # the process that wrote it may have died before its sync
        return max(end_lsn, segment.end_lsn)

    def _adopt_free(self, path: Path) -> None:
        file = self._disk.open(path)
        if path.name.startswith(FREE_PREFIX) and file.size == self._settings.segment_bytes:
            self._free.add(file)
        else:
            self._remove(file)

    def _remove(self, file: DiskFile) -> None:
        self._disk.remove(file.path)
        file.close()

    # Writing

    def append(  # noqa: PLR0913, PLR0917 - the fields of a record, as ``FrameWriter.write``
        self,
        kind: int,
        timestamp_ms: int,
        topic: bytes,
        key: bytes | None,
        value: bytes | None,
        headers: bytes,
        partition: int = -1,
    ) -> int:
        """Append a record and return its lsn. Cost: that of ``FrameWriter.write``.

        Raises:
            WalFullError: a new segment is needed and there is no room; nothing was appended.
            RetryError: the same, because the disk refused for another reason.
            InputError: key, value or headers of 2 GiB or more.
            TypeError: key or value is not bytes.
        """
        write = self.writer.write
        try:
            lsn = write(kind, timestamp_ms, topic, key, value, headers, partition)
            if not lsn:
                self.roll(frame_bytes(topic, key, value, headers))
                lsn = write(kind, timestamp_ms, topic, key, value, headers, partition)
        except struct.error as error:
            raise InputError(f"a part of the record is too large for the log: {error}") from error
        return lsn

    def roll(self, need_bytes: int) -> None:
        """Begin a new segment with room for a frame of ``need_bytes``.

        Raises:
            WalFullError, RetryError, InputError: as ``append``; the segment before stands.
        """
        segment_id = self.next_segment
        path = segment_path(self.directory, self.wal_id, segment_id, self.next_lsn)
        try:
            file = self._take_file(need_bytes)
            self.next_segment += 1  # whatever happens now: an id never names two segments
            self._name(file, path)
        except OSError as error:
            raise RetryError(
                f"a new segment cannot be made in {self.directory}: {error}"
            ) from error
        segment = WalSegment(file, self.wal_id, segment_id, self.next_lsn)
        self._note_end()
        self._active, self.segment_id = segment, segment_id  # first: recycling leaves it alone
        self._segments.append(segment)
        self._syncer.add(segment)
        self.writer.turn_to(segment.data, segment.tag)

    def _take_file(self, need_bytes: int) -> DiskFile:
        fits = need_bytes <= self._settings.segment_bytes
        file = self._free.take() if fits else None
        if file is None:
            with self._making:  # ``prepare`` may be at it
                file = self._free.take() if fits else None
                return file or self._make_file(need_bytes)
        return file

    def _name(self, file: DiskFile, path: Path) -> None:
        try:
            move(self._disk, file, path)
        except OSError:
            self._remove(file)
            raise

    def _make_file(self, need_bytes: int) -> DiskFile:
        whole = -(-need_bytes // PAGE_BYTES) * PAGE_BYTES
        size = max(whole, self._settings.segment_bytes)
        if size > self._settings.disk_threshold_bytes:
            raise InputError(f"a record of {need_bytes} bytes is larger than the log may become")
        while True:
            used = self.size_bytes
            try:
                check_room(
                    self._disk,
                    self.directory,
                    self._settings,
                    used_bytes=used + self.others_bytes(),
                    need_bytes=size,
                )
                return self._disk.make(free_path(self.directory), size)
            except WalFullError:
                if not self._free.remove_one():
                    raise

    def prepare(self) -> None:
        """Have a free file ready before the active segment is full (off the appending thread).

        Raises:
            WalFullError: there is no room.
        """
        writer = self.writer
        if self._active is not None and writer.end > writer.size // 2:
            with self._making:
                if not self._free:
                    self._free.add(self._make_file(self._settings.segment_bytes))

    def sync(self, gate: AbstractContextManager[object] | None = None) -> None:
        """Return when the disk has every record appended before the call.

        A segment that the disk refuses to sync is rewritten elsewhere (see ``syncer``), and nothing
        is appended to it any more; the refused file is never synced again.

        Args:
            gate: the lock for appends, taken only for that; None: the caller holds it.

        Raises:
            StopError: the disk refused the copy too, now or before. The records are still in the
                page cache and on their way to Kafka.
        """
        self._syncer.sync(gate)

    @property
    def synced_lsn(self) -> int:
        """Every record up to this one was synced by this process."""
        return self._syncer.synced_lsn

    @property
    def poisoned(self) -> int:
        """Segments that were rewritten, because the disk refused to sync their file."""
        return self._syncer.poisoned

    # Reading

    @property
    def next_lsn(self) -> int:
        """The lsn of the next record."""
        return self.writer.next_lsn

    def records(self, from_lsn: int, to_lsn: int | None = None) -> Iterator[WalRecord]:
        """Yield the whole records with ``from_lsn <= lsn < to_lsn`` (else: the end), in order."""
        for segment, frame in self._frames(from_lsn, self.next_lsn if to_lsn is None else to_lsn):
            yield read_record(segment.data, frame, segment.id)

    def marks(self, from_lsn: int) -> list[tuple[int, bytes]]:
        """Return the marks that were there when the log was opened, from ``from_lsn`` on."""
        return [
            (frame.lsn, read_record(segment.data, frame, segment.id).value or b"")
            for segment in self._segments
            for frame in segment.marks
            if frame.lsn >= from_lsn
        ]

    def holds(self, segment_id: int, lsn: int) -> bool:
        """Tell whether a segment is there and its range of lsns has ``lsn``."""
        return any(
            segment.id == segment_id and segment.base_lsn <= lsn < self._end_lsn(segment)
            for segment in list(self._segments)
        )

    def _frames(self, from_lsn: int, to_lsn: int) -> Iterator[tuple[WalSegment, WalFrame]]:
        for segment in list(self._segments):
            end_lsn = min(to_lsn, self._end_lsn(segment))
            if end_lsn > from_lsn:
                for frame in segment.frames(from_lsn, end_lsn):
                    yield segment, frame

    def _end_lsn(self, segment: WalSegment) -> int:
        """Return how far a segment goes, for threads that do not hold the lock for appends."""
        now = self.next_lsn  # before the look at the active segment, whose own end is old
        return now if segment is self._active else segment.end_lsn

    @property
    def last_lsn(self) -> int:
        """The lsn of the last record that is held (or the one before the next, when none is)."""
        ends = [self._end_lsn(segment) for segment in list(self._segments)]
        return max(ends, default=self.next_lsn) - 1

    @property
    def first_lsn(self) -> int:
        """The lsn that the oldest segment begins with."""
        return self._segments[0].base_lsn if self._segments else self.next_lsn

    @property
    def size_bytes(self) -> int:
        """Bytes allocated on disk, free files included, quarantine not."""
        return sum(segment.size for segment in list(self._segments)) + self._free.size_bytes

    # Giving free

    def note_position(self) -> None:
        """Remember where the next record begins: reading starts at the nearest such place.

        The caller, who holds the lock for appends, does so every thousand records or so.
        """
        if self._active is not None:
            self._active.note(self.writer.next_lsn, self.writer.end)

    def retire(self) -> None:
        """Append no more to the active segment, so that it can be given free too."""
        self._note_end()
        self._active = None
        self.writer.turn_away()

    def _note_end(self) -> None:
        """Tell the active segment how far it goes: the writer knows, and is too busy to say."""
        if self._active is not None:
            self._active.extend(self.writer.end, self.writer.next_lsn)

    def reusable(self, floor_lsn: int) -> bool:
        """Tell whether ``recycle`` would give a segment free."""
        segments = self._segments
        if not segments or segments[0] is self._active:
            return False
        return segments[0].end_lsn <= floor_lsn

    def _retire_poisoned(self, segment: WalSegment) -> None:
        if segment is self._active:
            self.retire()

    def recycle(self, floor_lsn: int) -> None:
        """Give free the segments of records below ``floor_lsn`` only; never the active one.

        One that lost its records stays until the floor has passed its beginning: the floor's
        checkpoint may not know its id, which would be given again.

        Raises:
            OSError: the disk refused; what it was about is given free the next time.
        """
        while self._segments:
            segment = self._segments[0]
            if segment is self._active or max(segment.end_lsn, segment.base_lsn + 1) > floor_lsn:
                break
            self._release(segment)
        short = self._disk.free_bytes(self.directory) < self._settings.disk_floor_bytes
        self._free.shrink(short=short)

    def _release(self, segment: WalSegment) -> None:
        """Give up the first segment; when the disk refuses, it stays the first."""
        self._syncer.forget(segment)
        path = segment.file.path
        whole = not (segment.poisoned or segment.damaged)
        if whole and segment.size == self._settings.segment_bytes:
            self._free.give(segment.file)
            self._segments.popleft()
            return
        if segment.poisoned:
            keep_poisoned(self._disk, path)
        elif segment.damaged:
            aside = set_aside(self._disk, path, path.name)
            _LOG.error("a damaged segment was moved to %s", aside)
        self._remove(segment.file)
        self._segments.popleft()
        if not whole:
            self._disk.sync_directory(self.directory)

    def close(self, floor_lsn: int = 0) -> None:
        """Close all files; remove the free ones, and the segments below ``floor_lsn``.

        What stays is synced first, unless the durability is ``process``.

        Raises:
            StopError: the disk refused; all is closed all the same.
            OSError: the same, in giving free.
        """
        self.retire()
        try:
            self.recycle(floor_lsn)
            if self._segments and self._settings.durability != "process":
                self.sync()
        finally:
            while self._free.remove_one():
                pass
            for segment in self._segments:
                segment.trim()
                segment.file.close()
            self._segments.clear()


def _check_settings(settings: WalSettings) -> None:
    """Refuse a threshold that two segments do not fit in: one is filled while one is settled.

    Raises:
        InputError: it does not.
    """
    if settings.disk_threshold_bytes < 2 * settings.segment_bytes:
        raise InputError(
            f"WAYBILL_WAL__DISK_THRESHOLD_BYTES is {settings.disk_threshold_bytes}; it must be at "
            f"least twice WAYBILL_WAL__SEGMENT_BYTES ({settings.segment_bytes})"
        )
