"""The file manager: the books of files that accumulate records and are sent away, in RocksDB.

One process owns the books (RocksDB's lock; the kernel frees it when the owner dies). Others read
them with ``FileReader``, also while the owner runs. Every change of state is one atomic, synced
write: what a method returned for survives SIGKILL and loss of power.

Layout (keys are bytes; times are 16 decimal digits, so that byte order is time order)
  f/<id>                    -> FileRecord
  c/<created>/<id>          -> nothing: range search by creation time
  s/<state>/<created>/<id>  -> nothing: the files of a state, oldest first
  p/<shipment id>           -> Shipment
  u/<shipment id>           -> nothing: shipments that are not done
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from waybill.errors import InputError, RetryError, StopError
from waybill.files.records import FILE_STATES, FileRecord, FileState, Shipment

_TIME_DIGITS = 16
_LATEST_US = 10**_TIME_DIGITS - 1
_WRITE_BUFFER_BYTES = 8 * 1024**2


class FileReader:
    """Reads the books of a file manager, as they stood when it was opened or last refreshed.

    Works while the owner runs and when none does. Close it, or use it in a ``with`` block.

    Args:
        directory: the books' folder.

    Raises:
        InputError: there are no books there.
    """

    def __init__(self, directory: Path) -> None:
        from rocksdict import AccessType

        if not (directory / "CURRENT").exists():
            raise InputError(f"no file manager has kept books in {directory}")
        self._own_log = tempfile.TemporaryDirectory(prefix="waybill-files-")
        self._db = _open(directory, AccessType.secondary(self._own_log.name))
        self.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the books."""
        self._db.close()
        self._own_log.cleanup()

    def refresh(self) -> None:
        """See what the owner wrote until now."""
        self._db.try_catch_up_with_primary()

    def get(self, file_id: str) -> FileRecord | None:
        """Return a file by id; None when it is not known."""
        body = self._db.get(_file_key(file_id))
        return None if body is None else FileRecord.decode(body)

    def shipment(self, shipment_id: str) -> Shipment | None:
        """Return a shipment by id; None when it is not known."""
        body = self._db.get(_shipment_key(shipment_id))
        return None if body is None else Shipment.decode(body)

    def files(
        self,
        *,
        state: FileState | None = None,
        since_us: int = 0,
        until_us: int = _LATEST_US,
    ) -> Iterator[FileRecord]:
        """Yield files created in [since_us, until_us], oldest first, of one state or of all.

        Costs one look-up a file that is yielded.
        """
        prefix = b"c/" if state is None else b"s/" + state.encode() + b"/"
        last = _time(until_us)
        for key in self._keys(prefix, prefix + _time(since_us)):
            created = key[len(prefix) : len(prefix) + _TIME_DIGITS]
            if created > last:
                return
            body = self._db.get(b"f/" + key[len(prefix) + _TIME_DIGITS + 1 :])
            if body is not None:
                yield FileRecord.decode(body)

    def unfinished(self) -> list[Shipment]:
        """Return the shipments that are not done, oldest id first."""
        found = [self.shipment(key[2:].decode()) for key in self._keys(b"u/", b"u/")]
        return [shipment for shipment in found if shipment is not None]

    def counts(self) -> dict[FileState, int]:
        """Return how many files each state has. Cost: a scan of the state index."""
        return {state: sum(1 for _ in self._keys(p, p)) for state, p in _state_prefixes()}

    def _keys(self, prefix: bytes, start: bytes) -> Iterator[bytes]:
        for key in self._db.keys(from_key=start):
            if not key.startswith(prefix):
                return
            yield key


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
        self._db = _open(directory, AccessType.read_write())
        self._lock = threading.Lock()
        self._synced = WriteOptions()
        self._synced.sync = True

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
        with self._lock:
            new = {record.id: record for record in records if self.get(record.id) is None}
            self._write([(None, record) for record in new.values()])
        return list(new.values())

    def update(self, file_id: str, **changes: Any) -> FileRecord:  # noqa: ANN401 - fields of FileRecord
        """Change fields of a file (not ``id``, not ``created_us``) and return what it is now.

        Raises:
            InputError: no such file, or a field that cannot be changed.
        """
        if {"id", "created_us"} & set(changes):
            raise InputError("a file's id and time of creation do not change")
        with self._lock:
            before = self._known(file_id)
            after = replace(before, **changes)
            self._write([(before, after)])
        return after

    def begin(self, shipment: Shipment) -> None:
        """Record a shipment before its first object is sent; its files become ``shipping``.

        Raises:
            InputError: a file is unknown, or not ``closed``.
        """
        with self._lock:
            files = [self._known(file_id) for file_id in shipment.files]
            for record in files:
                if record.state != "closed":
                    raise InputError(f"file {record.id!r} is {record.state}, not closed")
            changed = [(f, replace(f, state="shipping", shipment=shipment.id)) for f in files]
            self._write(changed, shipment)

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
        return self._end(shipment_id, "shipped", "")

    def fail(self, shipment_id: str, *, error: str) -> list[FileRecord]:
        """Record that a shipment cannot be sent; its files become ``failed`` and stay."""
        return self._end(shipment_id, "failed", error)

    def prune(self, file_ids: Sequence[str]) -> None:
        """Forget processed files whose content is gone from the disk, and their shipments.

        Raises:
            InputError: a file is neither shipped nor failed.
        """
        with self._lock:
            batch = _new_batch()
            shipments = set()
            for file_id in file_ids:
                record = self._known(file_id)
                if record.state not in {"shipped", "failed"}:
                    raise InputError(f"file {file_id!r} is {record.state}; it is still needed")
                for key in (_file_key(file_id), *_index_keys(record)):
                    batch.delete(key)
                shipments.add(record.shipment)
            for shipment_id in shipments - {None}:
                batch.delete(_shipment_key(str(shipment_id)))
            self._db.write(batch, self._synced)

    def _end(self, shipment_id: str, state: FileState, error: str) -> list[FileRecord]:
        with self._lock:
            shipment = replace(self._known_shipment(shipment_id), done=True, error=error)
            before = [self._known(file_id) for file_id in shipment.files]
            after = [replace(record, state=state, error=error) for record in before]
            self._write(list(zip(before, after, strict=True)), shipment)
        return after

    def _known(self, file_id: str) -> FileRecord:
        record = self.get(file_id)
        if record is None:
            raise InputError(f"no file {file_id!r} is known")
        return record

    def _known_shipment(self, shipment_id: str) -> Shipment:
        shipment = self.shipment(shipment_id)
        if shipment is None:
            raise InputError(f"no shipment {shipment_id!r} is known")
        return shipment

    def _write(
        self,
        changes: Sequence[tuple[FileRecord | None, FileRecord]],
        shipment: Shipment | None = None,
    ) -> None:
        """Write records, their index entries and a shipment, all or nothing, synced."""
        batch = _new_batch()
        for before, after in changes:
            if after.state not in FILE_STATES:
                raise InputError(f"{after.state!r} is no state of a file; there are {FILE_STATES}")
            if before is not None and before.state != after.state:
                batch.delete(_index_keys(before)[1])
            batch.put(_file_key(after.id), after.encode())
            for key in _index_keys(after):
                batch.put(key, b"")
        if shipment is not None:
            unfinished = b"u/" + shipment.id.encode()
            batch.put(_shipment_key(shipment.id), shipment.encode())
            batch.delete(unfinished) if shipment.done else batch.put(unfinished, b"")
        if len(batch):
            self._db.write(batch, self._synced)


def _open(directory: Path, access: Any) -> Any:  # noqa: ANN401 - rocksdict's types are not imported
    from rocksdict import Options, Rdict

    options = Options(raw_mode=True)
    options.create_if_missing(create_if_missing=True)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_keep_log_file_num(2)
    options.set_max_open_files(-1)
    try:
        return Rdict(str(directory), options, access_type=access)
    except Exception as error:  # rocksdict raises Exception itself
        if "/LOCK" in str(error):
            raise RetryError(
                f"another process keeps the books of {directory}; one shipper runs on a node"
            ) from error
        raise StopError(
            f"the books of {directory} cannot be opened: {error}. If they are damaged, move the "
            "folder away: files not yet sent are found again, and what is then sent twice is "
            "removed by look-ups"
        ) from error


def _new_batch() -> Any:  # noqa: ANN401
    from rocksdict import WriteBatch

    return WriteBatch(raw_mode=True)


def _time(moment_us: int) -> bytes:
    return b"%016d" % min(max(moment_us, 0), _LATEST_US)


def _file_key(file_id: str) -> bytes:
    return b"f/" + file_id.encode()


def _shipment_key(shipment_id: str) -> bytes:
    return b"p/" + shipment_id.encode()


def _index_keys(record: FileRecord) -> tuple[bytes, bytes]:
    place = _time(record.created_us) + b"/" + record.id.encode()
    return b"c/" + place, b"s/" + record.state.encode() + b"/" + place


def _state_prefixes() -> list[tuple[FileState, bytes]]:
    return [(state, b"s/" + state.encode() + b"/") for state in FILE_STATES]
