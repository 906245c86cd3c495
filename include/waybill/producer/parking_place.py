"""Where undeliverable messages wait when the caller takes none: beside the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from waybill.errors import InputError
from waybill.producer.model import Undelivered, undelivered
from waybill.producer.retry_log import Note, RetryLog
from waybill.producer.wal import DATA, WalRecord

_LOG = logging.getLogger(__name__)


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
