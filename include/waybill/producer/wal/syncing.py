"""What of the log the disk has: segments not synced yet, and those whose sync was refused."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from waybill.errors import StopError
from waybill.producer.wal.disk import Disk, DiskFile
from waybill.producer.wal.poison import replace_poisoned
from waybill.producer.wal.segment import WalSegment
from waybill.producer.wal.space import WalFullError

_LOG = logging.getLogger(__name__)


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
