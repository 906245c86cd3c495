"""The file manager: the books of files that accumulate records and are sent away, in RocksDB.

One process owns the books (RocksDB's lock; the kernel frees it when the owner dies). Others read
them with ``FileReader``, also while the owner runs. Every change of state is one atomic, synced
write: what a method returned for survives SIGKILL and loss of power.

  open ──► closed ──► shipping ──► shipped ──► forgotten
   │          ▲ │         ▲ │
   └────────► failed ◄──────┘        back from failed: by somebody's name only

What people ask of the owner of the books, as files in the spool: bring this file back.

Only the owner writes the books, and it may run as another user's process, or not at all. So an ask
is a small file, written whole, that the owner reads at its next step.

Brings the books up to what is on the disk: new files, abandoned ones, what people ask for.

The tracked files are held against the books too, once a process, some at each step: those that the
books do not know (they were lost) or know as shipped (their deletion broke off).

What a SIGKILL leaves, line by line: a file is in the books and not moved to the tracked ones (it is
found again, known, and moved); a shipped file is still there (it is deleted when it is found
again); an ask was answered and is still there (answered again: the file is not failed any more).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from waybill.errors import InputError
from waybill.tracing.files.books import (
    FILE_STATES,
    FileReader,
    FileRecord,
    FileState,
    Shipment,
    Total,
    created_key,
    file_key,
    new_batch,
    open_books,
    shipment_key,
    state_key,
    total_key,
)
from waybill.tracing.files.spool import Abandoned, Spool, SpoolFile, new_name

_FOLDER = "asks"
_ENDING = ".ask"


@dataclass(frozen=True, slots=True)
class Ask:
    """Somebody's wish to have a failed file tried again."""

    path: Path
    file_id: str
    note: str
    """Who, and why."""


def ask_for_retry(spool_dir: Path, file_id: str, *, who: str, why: str) -> None:
    """Ask the owner of a spool's books to try a failed file again; on disk when this returns."""
    folder = spool_dir / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / new_name()
    with fresh.open("wb") as file:
        file.write(orjson.dumps({"file": file_id, "note": f"{who}: {why}"}))
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(fresh.with_suffix(_ENDING))


def asks(spool_dir: Path) -> Iterator[Ask]:
    """Yield what is asked, oldest first."""
    for path in sorted((spool_dir / _FOLDER).glob(f"*{_ENDING}")):
        wish = orjson.loads(path.read_bytes())
        yield Ask(path, str(wish["file"]), str(wish["note"]))


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
        for file in self._spool.take_over():
            self._note_abandoned(file)
        for some in _chunks(self._spool.new_files()):
            taken = self._taken_up(some)
            self.state_tracked()
            self._spool.track(taken)
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


Change = tuple[FileRecord | None, FileRecord | None]
"""A file before and after; None: not known, forgotten."""


class FileManager(FileReader):
    """Keeps the books; the one owner. Safe for several threads of its process, not across a fork.

    Args:
        directory: made when it is missing; on a local disk.

    Raises:
        RetryError: another live process owns these books.
        StopError: the books are damaged.
    """

    def __init__(self, directory: Path) -> None:
        from rocksdict import AccessType, WriteOptions

        directory.mkdir(parents=True, exist_ok=True)
        self._db = open_books(directory, AccessType.read_write())
        self._lock = threading.Lock()
        self._synced = WriteOptions()
        self._synced.sync = True
        self._totals = self._first_totals()

    def close(self) -> None:
        """Give up ownership."""
        self._db.close()

    def refresh(self) -> None:
        """Nothing to do: the owner sees its own writes."""

    def add(self, records: Iterable[FileRecord]) -> list[FileRecord]:
        """Take up files that are not known yet; known ids are left as they are.

        Returns:
            Those that were new.
        """
        given = {record.id: record for record in records}
        with self._lock:
            known = self.get_many(list(given))
            new = [r for r, one in zip(given.values(), known, strict=True) if one is None]
            self._write([(None, record) for record in new])
        return new

    def update(self, file_id: str, **changes: Any) -> FileRecord:
        """Change fields of a file (not ``id``, not ``created_us``) and return what it is now.

        Raises:
            InputError: no such file, or a field that cannot be changed.
        """
        return self.update_many({file_id: changes})[0]

    def update_many(self, changes: dict[str, dict[str, Any]]) -> list[FileRecord]:
        """Change fields of several files, all or none; see ``update``."""
        if any({"id", "created_us"} & set(fields) for fields in changes.values()):
            raise InputError("a file's id and time of creation do not change")
        with self._lock:
            before = self._known(list(changes))
            after = [replace(b, **f) for b, f in zip(before, changes.values(), strict=True)]
            return self._write(list(zip(before, after, strict=True)))

    def begin(self, shipment: Shipment) -> None:
        """Record a shipment before its first object is sent; its files become ``shipping``.

        Raises:
            InputError: a file is unknown, or not ``closed``.
        """
        with self._lock:
            files = self._known(shipment.files)
            for record in files:
                if record.state != "closed":
                    raise InputError(f"file {record.id!r} is {record.state}, not closed")
            after = (replace(f, state="shipping", shipment=shipment.id, error="") for f in files)
            self._write(list(zip(files, after, strict=True)), shipment)

    def postpone(self, shipment_id: str, *, error: str, next_attempt_us: int) -> Shipment:
        """Record a failed attempt and when the next one is due."""
        with self._lock:
            before = self._known_shipment(shipment_id)
            after = replace(
                before,
                attempts=before.attempts + 1,
                error=error,
                next_attempt_us=next_attempt_us,
            )
            self._write([], after)
        return after

    def finish(self, shipment_id: str) -> list[FileRecord]:
        """Record that every object of a shipment is confirmed; its files become ``shipped``."""
        with self._lock:
            shipment = replace(self._known_shipment(shipment_id), done=True, error="")
            return self._move(shipment, state="shipped", error="")

    def fail(self, shipment_id: str, *, error: str) -> list[FileRecord]:
        """Record that a shipment cannot be sent; its files become ``failed`` and stay."""
        with self._lock:
            shipment = replace(self._known_shipment(shipment_id), done=True, error=error)
            return self._move(shipment, state="failed", error=error)

    def retry(self, file_id: str, *, note: str) -> list[FileRecord]:
        """Bring a failed file back, and return it and what comes back with it.

        A file that failed on its own is ``closed`` again. One that failed with its shipment comes
        back with all the files of that shipment, which is sent under the keys that it had: some of
        its objects may be in the store.

        Args:
            file_id: of a file that is ``failed``.
            note: who wants it, and why.

        Raises:
            InputError: the file is unknown, or not failed.
        """
        with self._lock:
            (record,) = self._known([file_id])
            if record.state != "failed":
                raise InputError(f"file {file_id!r} is {record.state}, not failed")
            if record.shipment is None:
                after = replace(record, state="closed", error="", note=note)
                return self._write([(record, after)])
            shipment = replace(
                self._known_shipment(record.shipment), done=False, error="", next_attempt_us=0
            )
            return self._move(shipment, state="shipping", error="", note=note)

    def prune(self, file_ids: Sequence[str]) -> None:
        """Forget processed files whose content is gone from the disk, and their shipments.

        Raises:
            InputError: a file is neither shipped nor failed.
        """
        with self._lock:
            files = self._known(file_ids)
            for record in files:
                if record.state not in {"shipped", "failed"}:
                    raise InputError(f"file {record.id!r} is {record.state}; it is still needed")
            batch = new_batch()
            for shipment_id in {record.shipment for record in files} - {None}:
                batch.delete(shipment_key(str(shipment_id)))
            self._write_batch(batch, [(record, None) for record in files])

    def _first_totals(self) -> dict[FileState, Total]:
        """Return the totals, and write them where there are none: new books, or earlier ones."""
        totals = super().totals()
        batch = new_batch()
        for state, total in totals.items():
            batch.put(total_key(state), _encoded(total))
        self._db.write(batch, self._synced)
        return totals

    def _move(self, shipment: Shipment, **fields: Any) -> list[FileRecord]:
        """Write a shipment, and change its files."""
        before = self._known(shipment.files)
        after = [replace(record, **fields) for record in before]
        return self._write(list(zip(before, after, strict=True)), shipment)

    def _known(self, file_ids: Sequence[str]) -> list[FileRecord]:
        records = self.get_many(file_ids)
        for file_id, record in zip(file_ids, records, strict=True):
            if record is None:
                raise InputError(f"no file {file_id!r} is known")
        return [record for record in records if record is not None]

    def _known_shipment(self, shipment_id: str) -> Shipment:
        shipment = self.shipment(shipment_id)
        if shipment is None:
            raise InputError(f"no shipment {shipment_id!r} is known")
        return shipment

    def _write(
        self,
        changes: Sequence[tuple[FileRecord | None, FileRecord]],
        shipment: Shipment | None = None,
    ) -> list[FileRecord]:
        """Write records, their index entries and a shipment, all or nothing, synced."""
        now_us = time.time_ns() // 1000
        stamped = [(before, _stamped(before, after, now_us)) for before, after in changes]
        batch = new_batch()
        if shipment is not None:
            unfinished = b"u/" + shipment.id.encode()
            batch.put(shipment_key(shipment.id), shipment.encode())
            batch.delete(unfinished) if shipment.done else batch.put(unfinished, b"")
        self._write_batch(batch, stamped)
        return [after for _, after in stamped]

    def _write_batch(self, batch: Any, changes: Sequence[Change]) -> None:
        totals = dict(self._totals)
        for before, after in changes:
            _put_change(batch, before, after)
            for record, sign in ((before, -1), (after, 1)):
                if record is not None:
                    state = record.state
                    totals[state] = totals[state].plus(sign, sign * record.size_bytes)
        for state, total in totals.items():
            if total != self._totals[state]:
                batch.put(total_key(state), _encoded(total))
        if len(batch):
            self._db.write(batch, self._synced)
        self._totals = totals


def _encoded(total: Total) -> bytes:
    return orjson.dumps([total.files, total.size_bytes])


def _stamped(before: FileRecord | None, after: FileRecord, now_us: int) -> FileRecord:
    if after.state not in FILE_STATES:
        raise InputError(f"{after.state!r} is not a state of a file; there are {FILE_STATES}")
    if before is not None and before.state == after.state:
        return after
    return replace(after, changed_us=now_us)


def _put_change(batch: Any, before: FileRecord | None, after: FileRecord | None) -> None:
    if before is not None and (after is None or before.state != after.state):
        batch.delete(state_key(before))
    if after is None:
        if before is not None:
            batch.delete(file_key(before.id))
            batch.delete(created_key(before))
        return
    batch.put(file_key(after.id), after.encode())
    if before is None:
        batch.put(created_key(after), b"")
    if before is None or before.state != after.state:
        batch.put(state_key(after), b"")
