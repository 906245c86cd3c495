"""Opening a directory: its files, and the way of what nobody settled to Kafka before anything new.

  1. open     the log, the checkpoint and what is set aside beside them; a log that belongs to
              somebody else now is moved aside (``move_aside``)
  2. survey   count damage and gaps, list the marks not confirmed and what follows the last one
  3. look     read the topics' tails, from the checkpoint's offsets on, for the records in doubt
  4. replay   produce those not found in WAL order, with their old stamps
  5. settle   until all are acknowledged, taken by ``on_undeliverable``, or in the retry log; then
              the log opens

No checkpoint is written before 5 is done: in between, offsets are not in lsn order. A SIGKILL
anywhere here means that the next opening does the same again, and finds in the tail what this one
sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from waybill.producer.checkpoint import Checkpoint, CheckpointFile
from waybill.producer.delivery import Deliveries
from waybill.producer.model import FoundLog, Recovery
from waybill.producer.retry_log import ParkingPlace, RetryLog
from waybill.producer.retry_queue import RetryQueue
from waybill.producer.sender import HandOver, Sender
from waybill.producer.tail import TailReader
from waybill.producer.wal import DATA, Disk, WriteAheadLog, parse_segment
from waybill.settings import WalSettings

_LOG = logging.getLogger(__name__)
_POLL_EVERY = 256
_POLL_S = 0.05
_WARN_S = 30.0


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

    def found_log(self) -> FoundLog:
        """Return what ``claim`` is asked about."""
        log, start = self.log, self.start
        empty = log.first_lsn == log.next_lsn and not self.retry
        held, topic = 0, ""
        for record in log.records(start.floor_lsn):
            if record.kind == DATA:
                held += record.lsn > start.confirmed_lsn
                topic = record.topic
        confirmed = start.confirmed_lsn
        wal_id = log.wal_id.hex()
        return FoundLog(wal_id, log.directory, confirmed, empty, start.offsets, held, topic)

    def close(self) -> None:
        """Close the logs."""
        for file in (self.log, self.retry, self.parking):
            file.close()


def open_files(directory: Path, settings: WalSettings, disk: Disk, *, marks: bool) -> Files:
    """Open what a directory holds; an empty one gets a log with an id.

    Args:
        directory: of the producer; locked.
        settings: limits of its files.
        disk: where it is.
        marks: the log will have marks.
    """
    file = CheckpointFile(directory, disk)
    stored, damaged = file.load()
    retry = RetryLog(directory / "retry", settings, disk, stored.retry)
    parking = ParkingPlace(directory / "parked", settings, disk, stored.parked)
    log = WriteAheadLog(
        directory,
        settings,
        wal_id=stored.wal_id,
        next_lsn=max(stored.low_lsn, retry.next_lsn, parking.next_lsn),
        next_segment=stored.next_segment,
        disk=disk,
    )
    start = stored
    if stored.wal_id != log.wal_id:  # none was written yet, or it was damaged
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
    opened.close()
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
        "log %s was taken over by another one, or settled by name, or the tracker does not know "
        "it: the %d records behind its last mark are not sent; they were moved to %s",
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


def survey(log: WriteAheadLog, checkpoint: Checkpoint) -> Recovery:
    """Count the damage, list marks and what follows the last one. Reads nothing but the log."""
    result = Recovery()
    lost = [(damage.missing, segment.end_lsn) for segment, damage in log.damage]
    result.quarantined = sum(missing for missing, _ in lost)
    known = max(checkpoint.low_lsn, 1)
    begin = (checkpoint.floor_lsn, log.first_lsn)
    end = (log.last_lsn + 1, max(checkpoint.synced_lsn + 1, checkpoint.next_lsn))
    gaps = [begin, *log.gaps, end]
    result.quarantined += sum(max(0, to - max(at, known)) for at, to in gaps)
    broken_end = any(not missing and end_lsn == log.last_lsn + 1 for missing, end_lsn in lost)
    if broken_end and log.last_lsn >= checkpoint.synced_lsn:
        result.torn = 1
    result.marks = log.marks(checkpoint.confirmed_lsn + 1)
    if checkpoint.marked or result.marks:
        last = max([checkpoint.confirmed_lsn, *(lsn for lsn, _ in result.marks)])
        result.unmarked = [r for r in log.records(last + 1) if r.kind == DATA]
    return result


class Recoverer:
    """Brings the records in doubt to Kafka; used once, before the producer's own threads run."""

    def __init__(
        self,
        log: WriteAheadLog,
        deliveries: Deliveries,
        tail: TailReader,
        sender: Sender,
        retry_queue: RetryQueue,
    ) -> None:
        self._log = log
        self._deliveries = deliveries
        self._tail = tail
        self._sender = sender
        self._retry_queue = retry_queue
        self._elsewhere: Set[int] = frozenset()
        """Records in the retry log, or taken by ``on_undeliverable`` in an earlier life."""

    def recover(self, low_lsn: int, result: Recovery, taken: Set[int]) -> None:
        """Settle every record from ``low_lsn`` on but those that are ``taken`` already.

        Blocks while Kafka is away, with a warning every 30 s, unless ``while_waiting`` ends that.

        Records of the retry log, and those that fail again now, do not hold the opening up: they
        are tried again in the background, and hold up their keys.

        Raises:
            StopError: ``on_undeliverable`` failed, or the client is beyond repair.
        """
        self._elsewhere = self._retry_queue.adopt(taken) | taken
        result.retrying = self._retry_queue.retrying
        topics, count = self._in_doubt(low_lsn)
        if not count:
            return
        _LOG.warning("%d records of %s are in doubt", count, self._log.directory)
        found = self._tail.find(
            lambda segment, lsn: lsn >= low_lsn and self._log.holds(segment, lsn),
            count,
            topics,
            self._deliveries.offsets,
        )
        result.unreadable = list(self._tail.unreadable)
        self._replay(low_lsn, found, result)
        self._settle()
        result.replayed = max(
            0, result.replayed - self._retry_queue.undeliverable - self._retry_queue.moved
        )
        result.retrying = self._retry_queue.retrying

    def _in_doubt(self, low_lsn: int) -> tuple[list[str], int]:
        topics: set[str] = set()
        count = 0
        for record in self._log.records(low_lsn):
            if record.kind == DATA and record.lsn not in self._elsewhere:
                topics.add(record.topic)
                count += 1
        return sorted(topics), count

    def _replay(self, low_lsn: int, found: set[int], result: Recovery) -> None:
        expected = low_lsn
        for record in self._log.records(low_lsn):
            self._deliveries.pass_over(record.lsn - expected)  # lost to damage
            self._sender.place(record.lsn, record.segment_id)
            expected = record.lsn + 1
            if record.kind != DATA:
                self._deliveries.pass_over()
            elif record.lsn in found or record.lsn in self._elsewhere:
                self._sender.mark_found(record.lsn, record.segment_id)
                result.found += record.lsn in found
            else:
                self._sender.send_first(
                    HandOver(
                        record.lsn,
                        record.topic,
                        record.key,
                        record.value,
                        record.headers,
                        record.partition,
                        record.timestamp_ms,
                    )
                )
                result.replayed += 1
                if not result.replayed % _POLL_EVERY:
                    self._sender.poller.poll()
                    self._serve()
        self._deliveries.pass_over(self._log.next_lsn - expected)

    def _settle(self) -> None:
        warn_at = time.monotonic() + _WARN_S
        while in_doubt := self._deliveries.in_doubt(self._log.next_lsn):
            self._sender.while_waiting(in_doubt)
            self._sender.poller.poll(_POLL_S)
            self._serve()
            if time.monotonic() >= warn_at:
                _LOG.warning("%d records of %s wait for Kafka", in_doubt, self._log.directory)
                warn_at = time.monotonic() + _WARN_S

    def _serve(self) -> None:
        next_lsn = self._log.next_lsn
        self._retry_queue.serve(self._deliveries.failed(next_lsn), next_lsn)
