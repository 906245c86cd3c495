"""The marks of one replay: written behind each group, settled once Kafka has all before them.

The next group is sent meanwhile; a few marks at most wait at a time. They are settled in order: all
before the mark is acknowledged, or parked again; then the tracker is told; then the log's mark is
confirmed. Killed in between, the next run finds the marks in the log, and settles them first. A
cancelled replay's marks are settled like any others: what they name was sent.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import orjson

from waybill.errors import InputError, RetryError, StopError
from waybill.operations.entering import Parents, books
from waybill.parking import Parking, Partition, Segment
from waybill.producer import LosslessProducer, WalFullError

_LOG = logging.getLogger(__name__)
_MOST_WAITING = 2
_LONGEST_S = 60.0
_AFTER_AN_ERROR_S = 10.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class _Mark:
    """One mark that is in the log."""

    lsn: int
    said: dict[str, Any]
    """What it says."""


class Marking:
    """Writes the marks of one replay, and settles them; to be entered while it is sent.

    Left without an error, all marks are settled; left with one, those that can be in ten seconds.

    Args:
        parking: is told.
        producer: whose log has the marks.
        partition: that is replayed.
        parents: if the replay enters earlier.
    """

    def __init__(
        self,
        parking: Parking,
        producer: LosslessProducer,
        partition: Partition,
        parents: Parents | None = None,
    ) -> None:
        self._parking, self._producer = parking, producer
        self._partition, self._parents = partition, parents
        self._waiting: deque[_Mark] = deque()
        self._cancelled: UUID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
        elif isinstance(error, Exception):
            self._try_to_finish()

    def recover(self) -> None:
        """Settle the marks that a dead run left: opening the log has seen to all before them."""
        for lsn, payload in self._producer.recovered.marks:
            self._tell(_Mark(lsn, orjson.loads(payload)))

    def write(self, replay_id: UUID, segments: Sequence[Segment]) -> None:
        """Write the mark of segments whose events were all sent; settle earlier ones.

        Raises:
            RetryError: Kafka is away, or the tracker; the next run goes on from here.
            InputError: the replay was cancelled.
        """
        said: dict[str, Any] = {
            "replay": str(replay_id),
            "segments": [segment.id for segment in segments],
        }
        if self._parents is not None:
            said["earlier"] = self._parents.said()
        payload = orjson.dumps(said)
        try:
            lsn = self._producer.mark(payload)
        except WalFullError as full:
            self.make_room(full)
            lsn = self._producer.mark(payload)
        self._waiting.append(_Mark(lsn, said))
        self.settle()
        self._wait_for_oldest()
        if self._cancelled is not None:
            self.finish()

    def settle(self) -> None:
        """Settle the marks of which Kafka has all; cheap when there are none."""
        while self._waiting and self._producer.settled(self._waiting[0].lsn):
            self._settle_oldest()

    def make_room(self, full: WalFullError) -> None:
        """Settle all marks, so that the log may give free what is before them.

        Raises:
            WalFullError: ``full``: there are none.
        """
        if not self._waiting:
            raise full
        self._finish(_LONGEST_S)

    def finish(self) -> None:
        """Settle all marks.

        Raises:
            RetryError: Kafka is away, or the tracker; the next run goes on from here.
            InputError: the replay was cancelled.
        """
        self._finish(_LONGEST_S)
        if self._cancelled is not None:
            raise InputError(f"replay {self._cancelled} was cancelled; what is left stays parked")

    def _finish(self, limit_s: float) -> None:
        if not self._waiting:
            return
        if left := self._producer.flush(limit_s):
            raise _waits(left)
        while self._waiting:
            self._settle_oldest()

    def _try_to_finish(self) -> None:
        try:
            self._finish(_AFTER_AN_ERROR_S)
        except (RetryError, StopError) as error:
            _LOG.warning("%d marks stay in the log for the next run: %s", len(self._waiting), error)

    def _wait_for_oldest(self) -> None:
        limit = time.monotonic() + _LONGEST_S
        while len(self._waiting) > _MOST_WAITING:
            if time.monotonic() > limit:
                raise _waits(len(self._producer))
            self._producer.poll(_POLL_S)
            self.settle()

    def _settle_oldest(self) -> None:
        mark = self._waiting[0]
        if not self._tell(mark):
            self._cancelled = UUID(mark.said["replay"])
        self._waiting.popleft()

    def _tell(self, mark: _Mark) -> bool:
        """Tell the tracker, then the log; return whether the replay still runs."""
        said = mark.said
        ids = said.get("segments") or [said["segment"]]
        beside = books(said, self._partition)
        runs = self._parking.mark_replayed(UUID(said["replay"]), ids, beside)
        self._producer.confirm(mark.lsn)
        return runs


def _waits(left: int) -> RetryError:
    return RetryError(f"{left} events wait for Kafka; the next run goes on from here")
