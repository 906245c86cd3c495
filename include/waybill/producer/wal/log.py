"""The log: a row of segments, the last of which is appended to."""

from __future__ import annotations

import logging
import os
import struct
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from waybill.errors import InputError, RetryError, StopError
from waybill.producer.wal.frame import TERMINATOR, Damage, Frame, FrameWriter, frame_bytes
from waybill.producer.wal.record import WalRecord, read_record
from waybill.producer.wal.segment import (
    MappedFile,
    Segment,
    new_free_file,
    parse_segment,
    segment_path,
)
from waybill.producer.wal.space import (
    PAGE_BYTES,
    WalFullError,
    check_room,
    check_settings,
    sync_directory,
)
from waybill.settings import WalSettings

_LOG = logging.getLogger(__name__)
_FREE_MOST = 2
_END_BYTES = len(TERMINATOR)


class WriteAheadLog:
    """Segments of one directory. The caller holds the directory's lock, and one lock for appends.

    Args:
        directory: exists, and is nobody else's.
        settings: sizes and limits.
        wal_id: of the checkpoint; used when no segment is left to name it.
        next_lsn, next_segment: the least that the checkpoint allows for new records.

    Opening reads every frame (about a second for 1 GiB) and changes no record.
    """

    def __init__(
        self,
        directory: Path,
        settings: WalSettings,
        *,
        wal_id: bytes | None = None,
        next_lsn: int = 1,
        next_segment: int = 1,
    ) -> None:
        check_settings(settings)
        self.directory = directory
        self.damage: list[tuple[Segment, Damage]] = []
        """What opening found that is no frame."""
        self.gaps: list[tuple[int, int]] = []
        """Runs of lsns, [from, to), that no segment holds though later ones are there."""
        self.segment_id = 0
        """Of the segment that was appended to last; 0 before the first append."""
        self.others_bytes: Callable[[], int] = lambda: 0
        """What else counts against the disk threshold."""
        self._settings = settings
        self._segments: deque[Segment] = deque()
        self._free: deque[MappedFile] = deque()
        self._unsynced: deque[Segment] = deque()
        self._sync_lock = threading.Lock()
        self._poisoned: str | None = None
        self.synced_lsn = 0
        """Every record up to this one was synced by this process."""
        self._active: Segment | None = None
        self._open(wal_id)
        last = self._segments[-1] if self._segments else None
        self.writer = FrameWriter(max(next_lsn, last.end_lsn if last else 1))
        """Appends to the active segment; whoever calls it holds the lock for appends."""
        self.next_segment = max(next_segment, last.id + 1 if last else 1)

    # Opening

    def _open(self, wal_id: bytes | None) -> None:
        names = ((path, parse_segment(path)) for path in sorted(self.directory.glob("seg-*.wal")))
        named = [(path, name) for path, name in names if name is not None]
        self.wal_id = named[-1][1][0] if named else wal_id or uuid.uuid4().bytes
        for path, (its_wal, segment_id, base_lsn) in named:
            if its_wal != self.wal_id:
                raise StopError(f"{path} is of another log than its neighbours; move one away")
            self._adopt(Segment(MappedFile(path), its_wal, segment_id, base_lsn))
        for path in self.directory.glob("free-*.wal"):
            if path.stat().st_size == self._settings.segment_bytes:
                file = MappedFile(path)
                file.data[:_END_BYTES] = TERMINATOR  # a process may have died before it did so
                self._free.append(file)
            else:
                path.unlink()

    def _adopt(self, segment: Segment) -> None:
        found = segment.load()
        if self._segments:
            before = self._segments[-1].end_lsn
            if segment.base_lsn > before:
                self.gaps.append((before, segment.base_lsn))
        self.damage += [(segment, item) for item in found]
        segment.trim()
        self._segments.append(segment)
        self._unsynced.append(segment)  # the process that wrote it may have died before its sync

    # Writing

    def append(  # noqa: PLR0913, PLR0917 - the fields of a record
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
        path = segment_path(self.directory, self.wal_id, self.next_segment, self.next_lsn)
        try:
            file = self._take_file(need_bytes)
            file.rename(path)
        except OSError as error:
            raise RetryError(
                f"a new segment cannot be made in {self.directory}: {error}"
            ) from error
        segment = Segment(file, self.wal_id, self.next_segment, self.next_lsn)
        self.next_segment += 1
        self._segments.append(segment)
        self._unsynced.append(segment)
        self._note_end()
        self._active, self.segment_id = segment, segment.id
        self.writer.turn_to(segment.data, segment.tag)

    def _take_file(self, need_bytes: int) -> MappedFile:
        if need_bytes <= self._settings.segment_bytes and self._free:
            return self._free.popleft()
        return self._make_file(need_bytes)

    def _make_file(self, need_bytes: int) -> MappedFile:
        whole = -(-need_bytes // PAGE_BYTES) * PAGE_BYTES
        size = max(whole, self._settings.segment_bytes)
        if size > self._settings.disk_threshold_bytes:
            raise InputError(f"a record of {need_bytes} bytes is larger than the log may become")
        while True:
            try:
                check_room(
                    self.directory,
                    self._settings,
                    used_bytes=self.size_bytes + self.others_bytes(),
                    need_bytes=size,
                )
                return new_free_file(self.directory, size)
            except WalFullError:
                if not self._free:
                    raise
                self._free.popleft().remove()

    def prepare(self) -> None:
        """Have a free file ready before the active segment is full (off the appending thread).

        Raises:
            WalFullError: there is no room.
        """
        writer = self.writer
        if not self._free and self._active is not None and writer.end > writer.size // 2:
            self._free.append(self._make_file(self._settings.segment_bytes))

    def sync(self) -> None:
        """Return when the disk has every record appended before the call.

        Raises:
            StopError: the disk refused, now or before; what it kept is not known, so no sync is
                tried again
                on that file. The records are still in the page cache and on their way to Kafka.
        """
        with self._sync_lock:
            if self._poisoned is not None:
                raise StopError(self._poisoned)
            last_lsn = self.next_lsn - 1
            waiting = list(self._unsynced)
            try:
                for segment in waiting:
                    os.fdatasync(segment.file.fd)
            except OSError as error:
                self._poisoned = f"the disk refused to keep the log in {self.directory}: {error}"
                raise StopError(self._poisoned) from error
            for _ in waiting[:-1]:  # the last one may still be written to
                self._unsynced.popleft()
            self.synced_lsn = last_lsn

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
        self._note_end()
        return any(
            segment.id == segment_id and segment.base_lsn <= lsn < segment.end_lsn
            for segment in self._segments
        )

    def _frames(self, from_lsn: int, to_lsn: int) -> Iterator[tuple[Segment, Frame]]:
        self._note_end()
        for segment in list(self._segments):
            if segment.end_lsn <= from_lsn:
                continue
            for frame in segment.frames(from_lsn):
                if frame.lsn >= to_lsn:
                    return
                yield segment, frame

    @property
    def last_lsn(self) -> int:
        """The lsn of the last record that is held (or the one before the next, when none is)."""
        self._note_end()
        return (self._segments[-1].end_lsn if self._segments else self.next_lsn) - 1

    @property
    def first_lsn(self) -> int:
        """The lsn that the oldest segment begins with."""
        return self._segments[0].base_lsn if self._segments else self.next_lsn

    @property
    def size_bytes(self) -> int:
        """Bytes allocated on disk, free files included, quarantine not."""
        return sum(s.size for s in list(self._segments)) + sum(f.size for f in list(self._free))

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

    def recycle(self, floor_lsn: int) -> None:
        """Give free the segments of records below ``floor_lsn`` only; never the active one."""
        while self._segments and self._segments[0] is not self._active:
            if self._segments[0].end_lsn > floor_lsn:
                return
            self._release(self._segments.popleft())

    def _release(self, segment: Segment) -> None:
        with self._sync_lock:
            if segment in self._unsynced:
                self._unsynced.remove(segment)
        if segment.damaged:
            self._quarantine(segment)
        elif len(self._free) < _FREE_MOST and segment.size == self._settings.segment_bytes:
            segment.file.rename(self.directory / f"free-{uuid.uuid4().hex}.wal")
            segment.data[:_END_BYTES] = TERMINATOR  # after the rename: a segment is never damaged
            self._free.append(segment.file)
        else:
            segment.file.remove()

    def _quarantine(self, segment: Segment) -> None:
        folder = self.directory / "quarantine"
        folder.mkdir(exist_ok=True)
        segment.file.rename(folder / segment.file.path.name)
        segment.file.close()
        sync_directory(self.directory)
        _LOG.error("a damaged segment was moved to %s", segment.file.path)

    def close(self, floor_lsn: int = 0) -> None:
        """Close all files; remove the free ones, and the segments below ``floor_lsn``."""
        self.retire()
        self.recycle(floor_lsn)
        for file in self._free:
            file.remove()
        for segment in self._segments:
            segment.trim()
            segment.file.close()
        self._free.clear()
        self._segments.clear()
