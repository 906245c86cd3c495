"""Logs on a disk in memory, with segments of a few sectors."""

from pathlib import Path

from waybill.producer.checkpoint import Checkpoint, CheckpointFile
from waybill.producer.wal import DATA, WriteAheadLog
from waybill.producer.wal.memory_disk import MemoryDisk
from waybill.settings import WalSettings

FOLDER = Path("/log")
SEGMENT = 4096


def settings(**values):
    """Return settings with segments below what a caller may choose."""
    known = {"segment_bytes": SEGMENT, "disk_threshold_bytes": 2**30, "disk_floor_bytes": 0}
    return WalSettings().model_copy(update={**known, **values})


def open_log(disk, **values):
    """Open checkpoint and log as the producer does: (log, checkpoint file, checkpoint, damaged)."""
    file = CheckpointFile(FOLDER, disk)
    found, damaged = file.load()
    log = WriteAheadLog(
        FOLDER,
        settings(**values),
        wal_id=found.wal_id,
        next_lsn=found.low_lsn,
        next_segment=found.next_segment,
        disk=disk,
    )
    return log, file, found, damaged


def checkpoint(log, file, low_lsn):
    """Write a checkpoint and give free what is below it, as the producer does."""
    file.save(
        Checkpoint(
            wal_id=log.wal_id,
            low_lsn=low_lsn,
            next_segment=log.next_segment,
            synced_lsn=log.synced_lsn,
        )
    )
    log.recycle(low_lsn)


def put(log, value, *, kind=DATA):
    """Append a record."""
    return log.append(kind, 1, b"topic", b"k", value, b"")


def values(log, from_lsn=1):
    """Return the records that are held, (lsn, value)."""
    return [(record.lsn, record.value) for record in log.records(from_lsn)]


def names(disk, prefix="seg-"):
    """Return the files of the log's directory whose names begin so."""
    return [name for name in disk.names(FOLDER) if name.startswith(prefix)]


def fresh():
    """Return an empty disk."""
    return MemoryDisk()
