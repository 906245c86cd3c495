"""The files of one producer's directory: log, checkpoint, and what is set aside beside them."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from waybill.producer.checkpoint import Checkpoint, CheckpointFile
from waybill.producer.model import FoundLog
from waybill.producer.retry_log import ParkingPlace, RetryLog
from waybill.producer.wal import DATA, Disk, WriteAheadLog, parse_segment
from waybill.settings import WalSettings

_LOG = logging.getLogger(__name__)


class Files(NamedTuple):
    """What a producer's directory holds, opened."""

    checkpoint: CheckpointFile
    start: Checkpoint
    """As it was found."""
    retry: RetryLog
    parking: ParkingPlace
    log: WriteAheadLog
    damaged: bool
    """The checkpoint was."""

    def found(self) -> FoundLog:
        """Return what ``claim`` is asked about."""
        log, start = self.log, self.start
        empty = log.first_lsn == log.next_lsn and not self.retry
        return FoundLog(log.wal_id.hex(), log.directory, start.confirmed_lsn, empty, start.offsets)


def open_files(directory: Path, settings: WalSettings, disk: Disk, *, marks: bool) -> Files:
    """Open what a directory holds; an empty one gets a log with an id.

    Args:
        directory: of the producer; locked.
        settings: limits of its files.
        disk: where it is.
        marks: the log will have marks.
    """
    file = CheckpointFile(directory, disk)
    found, damaged = file.load()
    retry = RetryLog(directory / "retry", settings, disk, found.retry)
    parking = ParkingPlace(directory / "parked", settings, disk, found.parked)
    log = WriteAheadLog(
        directory,
        settings,
        wal_id=found.wal_id,
        next_lsn=max(found.low_lsn, retry.next_lsn, parking.next_lsn),
        next_segment=found.next_segment,
        disk=disk,
    )
    start = found
    if found.wal_id != log.wal_id:  # none was written yet, or it was damaged
        start = Checkpoint(wal_id=log.wal_id, low_lsn=log.first_lsn)
        if log.first_lsn == log.next_lsn:
            start = replace(start, marked=marks)
            file.save(start)  # a log has its id from the beginning, though it is killed here
    return Files(file, start, retry, parking, log, damaged)


def move_aside(disk: Disk, directory: Path, opened: Files) -> int:
    """Move a log to ``quarantine/<its id>/``; return how many records behind its last mark it held.

    The checkpoint, which names it, goes last: killed anywhere, the next opening finds the same log,
    and moves the rest.
    """
    log = opened.log
    behind = log.records(opened.start.confirmed_lsn + 1)
    held = sum(record.kind == DATA for record in behind)
    for one in (log, opened.retry, opened.parking):
        one.close()
    disk.make_directory(directory / "quarantine")
    target = directory / "quarantine" / log.wal_id.hex()
    disk.make_directory(target)
    for name in ("retry", "parked"):
        if name in disk.names(directory):
            disk.make_directory(target / name)
            _move_segments(disk, directory / name, target / name)
    _move_segments(disk, directory, target)
    _move_files(disk, directory, target, ["checkpoint"])
    _LOG.error(
        "log %s was taken over by another one, or settled by name: the %d records behind its last "
        "mark are not sent; they were moved to %s",
        *(log.wal_id.hex(), held, target),
    )
    return held


def _move_segments(disk: Disk, source: Path, target: Path) -> None:
    segments = [name for name in disk.names(source) if parse_segment(name) is not None]
    _move_files(disk, source, target, segments)


def _move_files(disk: Disk, source: Path, target: Path, names: list[str]) -> None:
    there = set(disk.names(target))
    for name in set(names) & set(disk.names(source)) - there:
        disk.link(source / name, target / name)
    disk.sync_directory(target)
    for name in names:
        disk.remove(source / name)
    disk.sync_directory(source)
