"""What the log's reader need not look at again: one small file, replaced atomically.

Line: CRC32 of the rest (8 hex digits), a space, JSON. Written to ``checkpoint.new``, fsynced,
    renamed over ``checkpoint``, the directory fsynced: a SIGKILL or power cut at any line leaves
    the old one or the new one. A damaged one is moved to ``quarantine/`` and read as "nothing
    known", which costs work, never a record.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from waybill.producer.wal import Disk, RealDisk, set_aside

_LOG = logging.getLogger(__name__)
_NAME = "checkpoint"

Offsets: TypeAlias = dict[str, dict[int, int]]
"""topic -> partition -> the first offset where a record that is not settled may stand."""
Extent: TypeAlias = tuple[int, int]
"""[from, to) of lsns in a log beside the main one; (0, 0): not known."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state of the log that was true at one moment."""

    wal_id: bytes | None = None
    low_lsn: int = 1
    """Low watermark: every record below it is settled."""
    next_segment: int = 1
    """No segment had this id or a higher one."""
    confirmed_lsn: int = 0
    """The last mark that the caller's own store holds."""
    marked: bool = False
    """A mark was written at least once."""
    synced_lsn: int = 0
    next_lsn: int = 0
    """All records below it were there, in whatever way."""
    retry: Extent = (0, 0)
    parked: Extent = (0, 0)
    """Of the logs beside: what they must still hold."""
    offsets: Offsets = field(default_factory=dict)
    retry_offsets: Offsets = field(default_factory=dict)
    """The same for records in the retry log, of the topics that they are of."""

    @property
    def floor_lsn(self) -> int:
        """Records below it are needed by nobody."""
        return min(self.low_lsn, self.confirmed_lsn + 1) if self.marked else self.low_lsn


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the file's bytes."""
    text = json.dumps(
        {
            "wal_id": checkpoint.wal_id.hex() if checkpoint.wal_id else None,
            "low_lsn": checkpoint.low_lsn,
            "next_segment": checkpoint.next_segment,
            "confirmed_lsn": checkpoint.confirmed_lsn,
            "marked": checkpoint.marked,
            "synced_lsn": checkpoint.synced_lsn,
            "next_lsn": checkpoint.next_lsn,
            "retry": checkpoint.retry,
            "parked": checkpoint.parked,
            "offsets": checkpoint.offsets,
            "retry_offsets": checkpoint.retry_offsets,
        }
    ).encode()
    return b"%08x " % zlib.crc32(text) + text


def decode(data: bytes) -> Checkpoint | None:
    """Return the checkpoint, or None when the bytes are damaged."""
    crc, _, text = data.partition(b" ")
    if crc != b"%08x" % zlib.crc32(text):
        return None
    fields = json.loads(text)
    wal_id = bytes.fromhex(fields["wal_id"]) if fields["wal_id"] else None
    offsets, retry_offsets = (_offsets(fields[n]) for n in ("offsets", "retry_offsets"))
    extents = {name: tuple(fields[name]) for name in ("retry", "parked")}
    return Checkpoint(
        **{
            **fields,
            **extents,
            "offsets": offsets,
            "retry_offsets": retry_offsets,
            "wal_id": wal_id,
        }
    )


def _offsets(fields: dict[str, dict[str, int]]) -> Offsets:
    return {
        topic: {int(partition): offset for partition, offset in partitions.items()}
        for topic, partitions in fields.items()
    }


class CheckpointFile:
    """The checkpoint of one directory."""

    def __init__(self, directory: Path, disk: Disk | None = None) -> None:
        self._directory = directory
        self._disk = disk or RealDisk()
        self._path = directory / _NAME
        self._last: bytes | None = None
        self._at = time.monotonic()

    def load(self) -> tuple[Checkpoint, bool]:
        """Return the stored checkpoint or an empty one; and whether a damaged one was put aside."""
        try:
            data = self._disk.read(self._path)
        except FileNotFoundError:
            return Checkpoint(), False
        checkpoint = decode(data)
        if checkpoint is not None:
            return checkpoint, False
        aside = set_aside(self._disk, self._path, f"checkpoint-{uuid.uuid4().hex}")
        self._disk.remove(self._path)
        self._disk.sync_directory(self._directory)
        _LOG.error("the checkpoint in %s is damaged; it was moved to %s", self._directory, aside)
        return Checkpoint(), True

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the stored checkpoint; one equal to the last one written costs nothing.

        Raises:
            OSError: it could not be written; the one before it still stands.
        """
        data = encode(checkpoint)
        if data != self._last:
            self._last = None  # a refused one may be the stored one all the same
            new = self._path.with_suffix(".new")
            self._disk.write(new, data)
            self._disk.rename(new, self._path)
            self._disk.sync_directory(self._directory)
            self._last = data
        self._at = time.monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since the stored checkpoint was true."""
        return time.monotonic() - self._at
