"""The books of files: what is known of a file and of a shipment, and RocksDB, where it is kept.

Layout (keys are bytes; times are 16 decimal digits, so that byte order is time order)
  f/<id>                    -> FileRecord
  c/<created>/<id>          -> nothing: range search by creation time
  s/<state>/<created>/<id>  -> nothing: the files of a state, oldest first
  n/<state>                 -> Total: how many files, how many bytes
  p/<shipment id>           -> Shipment
  u/<shipment id>           -> nothing: shipments that are not done
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self, get_args

import orjson

from waybill.errors import NotFoundError, RetryError, StopError

FileState = Literal["open", "closed", "shipping", "shipped", "failed"]
"""open: records are added. closed: finished, waits. shipping: in a shipment. shipped: processed.
failed: cannot go on by itself; ``error`` says why; the file stays where it is."""
FILE_STATES: tuple[FileState, ...] = get_args(FileState)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file, from its creation or discovery until some time after it is processed."""

    id: str
    """Unique for ever; any text."""
    created_us: int
    """Microseconds since 1970; never changes."""
    state: FileState = "closed"
    size_bytes: int = 0
    shipment: str | None = None
    """The shipment it goes, or went, with; target keys and attempts stand there."""
    error: str = ""
    changed_us: int = 0
    """When it came into its state; 0: not known."""
    note: str = ""
    """Who brought it back after it failed, and why."""

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON."""
        return asdict(self)

    def encode(self) -> bytes:
        """Return the record as it is stored."""
        return orjson.dumps(self)

    @classmethod
    def decode(cls, body: bytes) -> FileRecord:
        """Return the record that ``encode`` stored."""
        return cls(**orjson.loads(body))


@dataclass(frozen=True, slots=True)
class Total:
    """All files of one state."""

    files: int = 0
    size_bytes: int = 0

    def plus(self, files: int, size_bytes: int) -> Total:
        """Return it with files added or, where negative, taken away."""
        return Total(self.files + files, self.size_bytes + size_bytes)


@dataclass(frozen=True, slots=True)
class Shipment:
    """Files that are sent together, and where to; written before the first object is sent."""

    id: str
    created_us: int
    files: tuple[str, ...]
    """File ids, in the order in which they are read."""
    keys: tuple[str, ...]
    """Every object key that is, or will be, written."""
    plan: dict[str, Any] = field(default_factory=dict)
    """What else the sender needs to make the same objects again."""
    records: int = 0
    """How many the files hold together, as the packer counts them."""
    attempts: int = 0
    """Failed ones so far."""
    next_attempt_us: int = 0
    error: str = ""
    """Of the last failed attempt."""
    done: bool = False
    """Nothing more will be sent: shipped, or failed."""

    def to_json(self) -> dict[str, Any]:
        """Return the shipment as JSON."""
        return asdict(self)

    def encode(self) -> bytes:
        """Return the shipment as it is stored."""
        return orjson.dumps(self)

    @classmethod
    def decode(cls, body: bytes) -> Shipment:
        """Return the shipment that ``encode`` stored."""
        values = orjson.loads(body)
        return cls(**{**values, "files": tuple(values["files"]), "keys": tuple(values["keys"])})


_TIME_DIGITS = 16
LATEST_US = 10**_TIME_DIGITS - 1
_WRITE_BUFFER_BYTES = 8 * 1024**2
_AT_ONCE = 256
"""Records that one read takes."""


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
            raise NotFoundError(f"no file manager has kept books in {directory}")
        self._own_log = tempfile.TemporaryDirectory(prefix="waybill-files-")
        self._db = open_books(directory, AccessType.secondary(self._own_log.name))
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
        return self.get_many([file_id])[0]

    def get_many(self, file_ids: Sequence[str]) -> list[FileRecord | None]:
        """Return files by id, in this order; None for those that are not known. Cost: 5 µs each."""
        bodies = self._db.get([file_key(file_id) for file_id in file_ids])
        return [None if body is None else FileRecord.decode(body) for body in bodies]

    def shipment(self, shipment_id: str) -> Shipment | None:
        """Return a shipment by id; None when it is not known."""
        body = self._db.get(shipment_key(shipment_id))
        return None if body is None else Shipment.decode(body)

    def files(
        self,
        *,
        state: FileState | None = None,
        since_us: int = 0,
        until_us: int = LATEST_US,
        newest_first: bool = False,
    ) -> Iterator[FileRecord]:
        """Yield files created in [since_us, until_us], oldest first, of one state or of all.

        Costs about 6 µs a file that is yielded, however many there are; reads 256 ahead.
        """
        prefix = b"c/" if state is None else state_prefix(state)
        first, last = prefix + _time(since_us), prefix + _time(until_us) + b"/\xff"
        keys = self._keys(first, last, backwards=newest_first)
        while some := list(islice(keys, _AT_ONCE)):
            places = [file_key_at(key, prefix) for key in some]
            for body in self._db.get(places):
                if body is not None:
                    yield FileRecord.decode(body)

    def unfinished(self) -> list[Shipment]:
        """Return the shipments that are not done, oldest id first."""
        shipments = [self.shipment(key[2:].decode()) for key in self._keys(b"u/", b"u/\xff")]
        return [shipment for shipment in shipments if shipment is not None]

    def totals(self) -> dict[FileState, Total]:
        """Return how many files each state has, and their bytes. Cost: a look-up a state."""
        bodies = self._db.get([total_key(state) for state in FILE_STATES])
        if None in bodies:
            return self._counted()
        return {
            state: Total(*orjson.loads(body))
            for state, body in zip(FILE_STATES, bodies, strict=True)
        }

    def counts(self) -> dict[FileState, int]:
        """Return how many files each state has. Cost: a look-up a state."""
        return {state: total.files for state, total in self.totals().items()}

    def _counted(self) -> dict[FileState, Total]:
        """Count the files of books that hold no totals yet, those of an earlier release."""
        totals = dict.fromkeys(FILE_STATES, Total())
        for record in self.files():
            totals[record.state] = totals[record.state].plus(1, record.size_bytes)
        return totals

    def _keys(self, first: bytes, last: bytes, *, backwards: bool = False) -> Iterator[bytes]:
        """Yield the keys from the first to the last, or the other way."""
        for key in self._db.keys(from_key=last if backwards else first, backwards=backwards):
            if not first <= key <= last:
                return
            yield key


def open_books(directory: Path, access: Any) -> Any:
    """Open RocksDB.

    Raises:
        RetryError: another live process owns these books.
        StopError: they are damaged.
    """
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


def new_batch() -> Any:
    """Return an empty batch of writes."""
    from rocksdict import WriteBatch

    return WriteBatch(raw_mode=True)


def file_key(file_id: str) -> bytes:
    """Return where a file's record is."""
    return b"f/" + file_id.encode()


def file_key_at(index_key: bytes, prefix: bytes) -> bytes:
    """Return where the record is that an index entry stands for."""
    return b"f/" + index_key[len(prefix) + _TIME_DIGITS + 1 :]


def shipment_key(shipment_id: str) -> bytes:
    """Return where a shipment is."""
    return b"p/" + shipment_id.encode()


def total_key(state: FileState) -> bytes:
    """Return where a state's total is."""
    return b"n/" + state.encode()


def state_prefix(state: FileState) -> bytes:
    """Return what the index entries of a state begin with."""
    return b"s/" + state.encode() + b"/"


def created_key(record: FileRecord) -> bytes:
    """Return a file's entry in the index by creation time."""
    return b"c/" + _place(record)


def state_key(record: FileRecord) -> bytes:
    """Return a file's entry in the index of its state."""
    return state_prefix(record.state) + _place(record)


def _place(record: FileRecord) -> bytes:
    return _time(record.created_us) + b"/" + record.id.encode()


def _time(moment_us: int) -> bytes:
    return b"%016d" % min(max(moment_us, 0), LATEST_US)
