"""What of the log the disk has: segments not synced yet, and those whose sync was refused.

A segment whose sync the disk refused is *poisoned*: its records are rewritten to another file.
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
import threading
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from waybill.errors import StopError
from waybill.producer.wal.disk import Disk, DiskFile, WalFullError, set_aside
from waybill.producer.wal.frame import TERMINATOR
from waybill.producer.wal.segment import WalSegment

_LOG = logging.getLogger(__name__)
_CHUNK_BYTES = 1024**2
COPY_PREFIX = "copy-"


class Syncer:
    """Syncs the segments of one log.

    Args:
        disk, directory: where they lie.
        spare: takes a free file.
        last_lsn: tells the lsn of the record appended last.
        retire: has nothing appended to a segment any more; called under the append lock.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        *,
        spare: Callable[[], DiskFile | None],
        last_lsn: Callable[[], int],
        retire: Callable[[WalSegment], None],
    ) -> None:
        self.synced_lsn = 0
        """Every record up to this one was synced by this process."""
        self.poisoned = 0
        """Segments rewritten, whose file the disk refused to sync."""
        self._disk = disk
        self._directory = directory
        self._spare = spare
        self._last_lsn = last_lsn
        self._retire = retire
        self._lock = threading.Lock()
        self._unsynced: deque[WalSegment] = deque()
        self._names_synced = True
        self._refused: str | None = None

    def add(self, segment: WalSegment) -> None:
        """Sync this segment too from now on. One that was found may lack its name on disk."""
        self._unsynced.append(segment)
        if segment.inherited:
            self._names_synced = False

    def forget(self, segment: WalSegment) -> None:
        """Sync this segment no more: nobody needs its records."""
        with self._lock:
            if segment in self._unsynced:
                self._unsynced.remove(segment)

    def sync(self, gate: AbstractContextManager[object] | None) -> None:
        """See ``WriteAheadLog.sync``."""
        with self._lock:
            if self._sync_all():
                return
        with gate or nullcontext(), self._lock:  # the order of whoever holds the gate and syncs
            while not self._sync_all():
                self._rewrite()

    def _sync_all(self) -> bool:
        """Sync what is good; tell whether that was all."""
        if self._refused is not None:
            raise StopError(self._refused)
        last_lsn = self._last_lsn()
        waiting = list(self._unsynced)
        self._sync_names()
        for segment in waiting:
            if not segment.poisoned:
                _try_sync(segment)
        if any(segment.poisoned for segment in waiting):
            return False
        for _ in waiting[:-1]:  # the last one may still be written to
            self._unsynced.popleft()
        self.synced_lsn = max(self.synced_lsn, last_lsn)
        return True

    def _sync_names(self) -> None:
        if not self._names_synced:
            try:
                self._disk.sync_directory(self._directory)
            except OSError as error:
                raise self._stop(error) from error
            self._names_synced = True

    def _rewrite(self) -> None:
        for segment in [segment for segment in self._unsynced if segment.poisoned]:
            self._retire(segment)
            try:
                replace_poisoned(self._disk, segment, self._spare)
            except (OSError, WalFullError) as error:
                raise self._stop(error) from error
            self._unsynced.remove(segment)
            self.poisoned += 1

    def _stop(self, error: Exception) -> StopError:
        self._refused = f"the disk refused to keep the log in {self._directory}: {error}"
        return StopError(self._refused)


def _try_sync(segment: WalSegment) -> None:
    try:
        segment.sync()
    except OSError as error:
        segment.poisoned = True
        _LOG.warning("the disk refused to keep %s: %s", segment.file.path, error)


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
        return disk.make(segment.file.path.parent / f"{COPY_PREFIX}{uuid.uuid4().hex}.wal", size)
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
