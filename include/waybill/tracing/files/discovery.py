"""Brings the books up to what is on the disk: new files, abandoned ones, what people ask for.

The tracked files are held against the books too, once a process, some at each step: those that the
books do not know (they were lost) or know as shipped (their deletion broke off).

What a SIGKILL leaves, line by line: a file is in the books and not moved to the tracked ones (it is
found again, known, and moved); a shipped file is still there (it is deleted when it is found
again); an ask was answered and is still there (answered again: the file is not failed any more).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from waybill.errors import InputError
from waybill.tracing.files.asks import asks
from waybill.tracing.files.manager import FileManager
from waybill.tracing.files.records import FileRecord
from waybill.tracing.files.spool import Abandoned, Spool, SpoolFile

LOG = logging.getLogger(__name__)
_AT_ONCE = 1000
"""Files that one write to the books takes up."""
_OPEN_AFTER_US = 1_000_000
"""Files open for less are left out of the books: they are finished in a moment."""


class Discovery:
    """Watches one spool for the owner of its books."""

    def __init__(self, spool: Spool, files: FileManager) -> None:
        self._spool = spool
        self._files = files
        self._stated_bytes = -1
        self._tracked = _chunks(spool.tracked_files())
        self.is_complete = False
        """Every tracked file was held against the books since this process began."""

    def run(self) -> None:
        """Note what is new. Cost: a listing of what is not tracked yet, 20 µs a new file."""
        for one in self._spool.take_over():
            self._note_abandoned(one)
        for some in _chunks(self._spool.new_files()):
            found = self._taken_up(some)
            self.state_tracked()
            self._spool.track(found)
        self._follow_open()
        self._answer_asks()
        self.go_on()
        self.state_tracked()

    def go_on(self) -> None:
        """Hold the next tracked files against the books. Cost: 20 ms or less."""
        some = next(self._tracked, [])
        self._taken_up(some)
        self.is_complete = not some

    def state_tracked(self) -> None:
        """Tell writers what the tracked files hold."""
        totals = self._files.totals()
        size_bytes = sum(totals[state].size_bytes for state in ("closed", "shipping", "failed"))
        if size_bytes != self._stated_bytes and self._spool.directory.exists():
            self._spool.state_tracked(size_bytes)
            self._stated_bytes = size_bytes

    def _taken_up(self, found: Sequence[SpoolFile]) -> list[SpoolFile]:
        """Bring files into the books; delete those that are shipped; return the others."""
        known = dict(zip(found, self._files.get_many([file.id for file in found]), strict=True))
        self._files.add(
            FileRecord(f.id, f.created_us, "closed", size_bytes=f.size_bytes)
            for f, record in known.items()
            if record is None
        )
        self._files.update_many(
            {f.id: _closed(f) for f, r in known.items() if r is not None and r.state == "open"}
        )
        shipped = {f.id for f, r in known.items() if r is not None and r.state == "shipped"}
        if shipped:
            self._spool.remove(shipped)
        return [file for file in found if file.id not in shipped]

    def _note_abandoned(self, one: Abandoned) -> None:
        cut = one.size_bytes - one.kept_bytes
        if not one.finished:
            LOG.warning("file %s is torn (%d bytes): its writer died", one.id, cut)
            error = f"torn: its writer died before its write returned; {cut} bytes removed"
            self._note(FileRecord(one.id, one.created_us, "failed", error=error))
            return
        LOG.warning("file %s of a dead process is taken over", one.id)
        if cut:
            LOG.warning("file %s had a torn tail of %d bytes; it is cut and set aside", one.id, cut)
            note = f"its writer died: a torn tail of {cut} bytes was cut"
            self._note(FileRecord(one.id, one.created_us, "closed", one.kept_bytes, note=note))

    def _follow_open(self) -> None:
        """Note the files that are being written, and those that were and are nowhere now."""
        until_us = time.time_ns() // 1000 - _OPEN_AFTER_US
        there = [file for file in self._spool.open_files() if file.created_us <= until_us]
        self._files.add(FileRecord(f.id, f.created_us, "open", f.size_bytes) for f in there)
        ids = {file.id for file in there}
        for record in self._files.files(state="open"):
            if record.id not in ids and self._vanished(record.id):
                reason = "gone from the disk before it was finished"
                LOG.error("file %s is %s", record.id, reason)
                self._files.update(record.id, state="failed", error=reason, size_bytes=0)

    def _vanished(self, file_id: str) -> bool:
        """Tell whether a file is nowhere; looked for in the order in which files move."""
        return not (self._spool.open_path(file_id).exists() or self._spool.path(file_id).exists())

    def _note(self, record: FileRecord) -> None:
        """Put a file in the books as it is now, known there or not."""
        if not self._files.add([record]):
            now = {name: getattr(record, name) for name in ("state", "size_bytes", "error", "note")}
            self._files.update(record.id, **now)

    def _answer_asks(self) -> None:
        for ask in asks(self._spool.directory):
            try:
                back = self._files.retry(ask.file_id, note=ask.note)
                LOG.warning("%d failed files are tried again: %s", len(back), ask.note)
            except InputError as error:
                LOG.warning("not tried again: %s (%s)", error, ask.note)
            ask.path.unlink(missing_ok=True)


def _closed(file: SpoolFile) -> dict[str, Any]:
    return {"state": "closed", "size_bytes": file.size_bytes}


def _chunks(files: Iterator[SpoolFile]) -> Iterator[list[SpoolFile]]:
    while some := list(islice(files, _AT_ONCE)):
        yield some
