"""What an opened log holds that nobody settled, and its way to Kafka before anything new.

  1. survey   count damage and gaps, list the marks not confirmed and what follows the last one
  2. look     read the topics' tails, from the checkpoint's offsets on, for the records in doubt
  3. replay   produce those not found in WAL order, with their old stamps
  4. settle   until all are acknowledged, taken by ``on_undeliverable``, or in the retry log; then
              the log opens

No checkpoint is written before 4 is done: in between, offsets are not in lsn order. A SIGKILL
anywhere here means that the next opening does the same again, and finds in the tail what this one
sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Set

from waybill.producer.checkpoint import Checkpoint
from waybill.producer.delivery import Deliveries
from waybill.producer.model import Recovery
from waybill.producer.retry_queue import RetryQueue
from waybill.producer.sending import HandOver, Sender
from waybill.producer.tail import TailReader
from waybill.producer.wal import DATA, WriteAheadLog

_LOG = logging.getLogger(__name__)
_POLL_EVERY = 256
_POLL_S = 0.05
_WARN_S = 30.0


def survey(log: WriteAheadLog, checkpoint: Checkpoint) -> Recovery:
    """Count the damage, list marks and what follows the last one. Reads nothing but the log."""
    result = Recovery()
    lost = [(found.missing, segment.end_lsn) for segment, found in log.damage]
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

        Blocks while Kafka is away, with a warning every 30 s.

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
                self._sender.found(record.lsn, record.segment_id)
                result.found += record.lsn in found
            else:
                self._sender.first(
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
        while left := self._deliveries.in_doubt(self._log.next_lsn):
            self._sender.poller.poll(_POLL_S)
            self._serve()
            if time.monotonic() >= warn_at:
                _LOG.warning("%d records of %s wait for Kafka", left, self._log.directory)
                warn_at = time.monotonic() + _WARN_S

    def _serve(self) -> None:
        next_lsn = self._log.next_lsn
        self._retry_queue.serve(self._deliveries.failed(next_lsn), next_lsn)
