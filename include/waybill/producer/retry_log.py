"""Records set aside in a small log of their own, so that the main log need not be kept for them.

Used twice: ``retry/`` holds records that Kafka did not take for now, ``parked/`` those that it will
never take (``ParkingPlace``, where the caller takes no undeliverable messages). A record here keeps
its place in the main log (segment, lsn) as its name.

After a kill: a record is put and synced here before the main log's watermark may pass it, so that
a death in between leaves it in both, once by name. A mark says that records are settled; killed
before it is written, they are met again: retried ones are looked for in the topic, parked ones are
still parked.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from waybill.errors import InputError, StopError
from waybill.producer.checkpoint import Extent
from waybill.producer.model import Undelivered, undelivered
from waybill.producer.wal import (
    DATA,
    MARK,
    Disk,
    HeaderList,
    RealDisk,
    WalRecord,
    WriteAheadLog,
    encode_headers,
)
from waybill.settings import WalSettings

_LOG = logging.getLogger(__name__)
_NAME = "waybill-aside"
"""The last header of a record here: its place in the main log, and the note."""
_PLACE = struct.Struct("<IQ")
_LSN = struct.Struct("<Q")
_SEGMENT_BYTES = 1024**2
_INDEX_EVERY = 64


@dataclass(frozen=True, slots=True)
class Note:
    """Why a record was set aside."""

    code: str = ""
    """Kafka's name of the error."""
    message: str = ""
    at_ms: int = 0
    """When, in ms since epoch."""


class RetryLog:
    """Records set aside, each until it is settled. Safe for several threads.

    Args:
        directory: made with the first record.
        settings: of the main log; segments here are smaller.
        disk: what the directory lies on.

    Opening reads every frame.
    """

    def __init__(
        self,
        directory: Path,
        settings: WalSettings,
        disk: Disk | None = None,
        expected: Extent = (0, 0),
    ) -> None:
        self.beside: Callable[[], int] = lambda: 0
        """Bytes of what else counts against the disk threshold."""
        self.damaged = 0
        """Records (and marks) that opening found lost to damage."""
        self._directory = directory
        self._expected = expected
        self._floor, self._closed = expected[0], False
        self._disk = disk or RealDisk()
        size = min(settings.segment_bytes, _SEGMENT_BYTES)
        self._settings = settings.model_copy(update={"segment_bytes": size})
        self._lock = threading.RLock()
        self._log: WriteAheadLog | None = None
        self._places: dict[int, int] = {}
        """lsn in the main log -> lsn here."""
        self._settled_by: dict[int, int] = {}
        """The same of records that are settled -> lsn of the mark that says so."""
        if directory.name in self._disk.names(directory.parent):
            self.damaged = _missing(self._open(), expected)
        else:
            self.damaged = expected[1] - expected[0]

    def _open(self) -> WriteAheadLog:
        if self._closed:
            raise StopError("this producer is closed")
        if self._log is None:
            self._disk.make_directory(self._directory)
            self._log = log = WriteAheadLog(
                self._directory,
                self._settings,
                disk=self._disk,
                next_lsn=max(1, self._expected[1]),
            )
            log.others_bytes = self._beside
            for record in log.records(log.first_lsn):
                if record.kind == MARK:
                    for (lsn,) in _LSN.iter_unpack(record.value or b""):
                        self._places.pop(lsn, None)
                        self._settled_by[lsn] = record.lsn
                else:
                    lsn = _read(record)[0].lsn
                    self._places[lsn] = record.lsn
                    self._settled_by.pop(lsn, None)
        return self._log

    def _beside(self) -> int:
        return self.beside()

    def __len__(self) -> int:
        """Return how many records are not settled."""
        return len(self._places)

    def __contains__(self, lsn: int) -> bool:
        """Tell whether a record of the main log is here."""
        return lsn in self._places

    @property
    def next_lsn(self) -> int:
        """The least lsn that no record here has."""
        with self._lock:
            return max([*self._places, *self._settled_by], default=0) + 1

    @property
    def lsns(self) -> list[int]:
        """Their lsns in the main log, in order."""
        with self._lock:
            return sorted(self._places)

    def least_lsn(self, other_lsn: int) -> int:
        """Return the least lsn in the main log of a record here, or ``other_lsn`` if that is less.

        Asked at each checkpoint under the append lock: no sorting.
        """
        with self._lock:
            return min(other_lsn, min(self._places, default=other_lsn))

    @property
    def size_bytes(self) -> int:
        """Bytes allocated on disk."""
        return 0 if self._log is None else self._log.size_bytes

    @property
    def settled(self) -> set[int]:
        """Records of the main log that were here and are settled, as far as is known."""
        with self._lock:
            return set(self._settled_by)

    def extent(self, low_lsn: int) -> Extent:
        """Return which lsns here must be kept once the main log's watermark is ``low_lsn``.

        A mark is kept while the main log may still show the record that it settles.
        """
        with self._lock:
            log = self._log
            if log is None:
                return (max(1, self._expected[1]),) * 2
            marks = [mark for lsn, mark in self._settled_by.items() if lsn >= low_lsn]
            return min([log.next_lsn, *self._places.values(), *marks]), log.next_lsn

    def recycle(self, floor_lsn: int) -> None:
        """Give free what is below a floor that a checkpoint on disk names.

        An error of the disk is logged: the next time does it.
        """
        with self._lock:
            log = self._log
            if log is None:
                return
            self._floor = floor_lsn
            self._settled_by = {lsn: at for lsn, at in self._settled_by.items() if at >= floor_lsn}
            try:
                if floor_lsn == log.next_lsn:
                    self._put_away(log)
                else:
                    log.recycle(floor_lsn)
            except OSError as error:
                _LOG.warning("segments in %s are kept for now: %s", self._directory, error)

    def _put_away(self, log: WriteAheadLog) -> None:
        """Close the files and remove those that nobody needs."""
        self._expected = (log.next_lsn,) * 2
        self._log = None
        log.close(self._floor)
        if not self._disk.names(self._directory):
            self._disk.remove_directory(self._directory)

    def put(self, record: WalRecord, note: Note) -> None:
        """Set a record of the main log aside; ``sync`` makes it survive a power cut.

        Raises:
            WalFullError, RetryError: there is no room, or the disk refuses; nothing was put.
        """
        place = _PLACE.pack(record.segment_id, record.lsn) + msgspec.json.encode(note)
        _, headers = encode_headers([*record.headers, (_NAME, place)])
        with self._lock:
            log = self._open()
            if not log.next_lsn % _INDEX_EVERY:
                log.note_position()
            self._places[record.lsn] = log.append(
                DATA,
                record.timestamp_ms,
                record.topic.encode(),
                record.key,
                record.value,
                headers,
                record.partition,
            )
            # not before: a refused put leaves its mark needed
            self._settled_by.pop(record.lsn, None)

    def sync(self) -> None:
        """Return when the disk has every record put before.

        Raises:
            StopError: the disk refused.
        """
        with self._lock:
            if self._log is not None and self._log.synced_lsn < self._log.next_lsn - 1:
                self._log.sync()

    def get(self, lsn: int) -> tuple[WalRecord, Note]:
        """Return a record, named as in the main log, and why it is here.

        Raises:
            KeyError: it is not here.
        """
        with self._lock:
            here = self._places[lsn]
            return _read(next(self._open().records(here, here + 1)))

    def settle(self, lsns: Iterable[int]) -> None:
        """Forget records, durably with the next ``sync``; unknown ones are passed over.

        Raises:
            WalFullError, RetryError: the disk refuses; nothing was forgotten.
            StopError: the same, for ever.
        """
        with self._lock:
            known = [lsn for lsn in dict.fromkeys(lsns) if lsn in self._places]
            log = self._log
            if not known or log is None:
                return
            mark = log.append(MARK, 0, b"", None, b"".join(map(_LSN.pack, known)), b"")
            for lsn in known:
                del self._places[lsn]
                self._settled_by[lsn] = mark

    def close(self) -> None:
        """Close the files; remove what nobody needs."""
        with self._lock:
            self._closed = True
            if self._log is not None:
                self._put_away(self._log)


def _missing(log: WriteAheadLog, expected: Extent) -> int:
    """Count what is damaged or not there, of what a checkpoint said must be."""
    floor_lsn, next_lsn = expected
    missing = sum(damage.missing for _, damage in log.damage)
    missing += sum(to - at for at, to in log.gaps)
    if next_lsn:
        missing += max(0, log.first_lsn - floor_lsn)
        missing += max(0, next_lsn - (log.last_lsn + 1))
    return missing


def _read(record: WalRecord) -> tuple[WalRecord, Note]:
    headers: HeaderList = record.headers[:-1]
    data = record.headers[-1][1] or b""
    segment_id, lsn = _PLACE.unpack_from(data)
    note = msgspec.json.decode(data[_PLACE.size :], type=Note)
    return replace(record, lsn=lsn, segment_id=segment_id, headers=headers), note


class ParkingPlace(RetryLog):
    """Messages that Kafka refuses for good, kept until they are sent again or discarded.

    They count against the log's disk threshold. Safe for several threads.
    """

    def park(self, message: Undelivered) -> None:
        """Keep a message; returns when the disk has it. Keeping it again changes nothing.

        Raises:
            WalFullError, RetryError: there is no room, or the disk refuses.
        """
        if message.lsn not in self and message.lsn not in self.settled:
            record = WalRecord(
                message.lsn,
                message.segment_id,
                DATA,
                message.topic,
                message.key,
                message.value,
                message.headers,
                message.timestamp_ms,
                message.partition,
            )
            self.put(record, Note(message.code, message.message, time.time_ns() // 10**6))
            _LOG.warning(
                "message %d for topic %r is parked: %s", message.lsn, message.topic, message.message
            )
        self.sync()

    def messages(self, wal_id: str) -> list[Undelivered]:
        """Return what is parked, in the order it was produced."""
        return [self._message(lsn, wal_id) for lsn in self.lsns]

    def _message(self, lsn: int, wal_id: str) -> Undelivered:
        record, note = self.get(lsn)
        return undelivered(record, wal_id, note.code, note.message)

    def chosen(self, lsns: Iterable[int] | None) -> list[int]:
        """Return the lsns meant: those given, or all.

        Raises:
            InputError: one of them is not parked.
        """
        if lsns is None:
            return self.lsns
        wanted = sorted(set(lsns))
        missing = [lsn for lsn in wanted if lsn not in self]
        if missing:
            raise InputError(f"not parked: {missing[:10]}; parked are {self.lsns[:10]}")
        return wanted
