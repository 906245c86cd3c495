"""The marks of one replay: written behind slices that were sent, settled once Kafka has them.

Slices go together in *units* of up to 5,000 events, 8 MiB or a second, each with one mark: where
slices are small, a mark each would cost more than they do. A slice larger than that is a unit by
itself. The next unit is sent meanwhile; a few marks at most wait at a time. They are settled in
order: all before the mark is acknowledged, or parked again; then the tracker is told; then the
log's mark is confirmed. A mark's transaction sees whether the replay was cancelled, or its log
settled by name: then the marks that there are are settled like any others, since what they name was
sent, and nothing more is.

Who dies when: before a unit's mark, the log holds the beginning of the unit, which the next run
does not send again; it writes no mark before it has met all of that, since only what is behind the
last mark is known to have been sent. After the mark, the next run settles it before all else. An
error that comes between two slices has the unit marked; amid a slice it is as if the process had
died.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import orjson
from sqlalchemy import Connection

from waybill.errors import InputError, RetryError, StopError
from waybill.ledger import FencedError, has_ended, refuse_when_left_behind
from waybill.parking import ParkedGroup, Parking, Segment
from waybill.producer import LosslessProducer, WalFullError
from waybill.replay.messages import Parents, books

_LOG = logging.getLogger(__name__)
_MOST_WAITING = 2
_LOG_SHARE = 8
"""A unit may take this part of the log: some wait, and one is sent."""
_LONGEST_S = 60.0
_AFTER_AN_ERROR_S = 10.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class _Mark:
    """One mark that is in the log."""

    lsn: int
    said: dict[str, Any]
    """What it says."""


@dataclass(frozen=True, slots=True)
class MarkingLimits:
    """How large a unit of several slices may be."""

    events: int = 5_000
    bytes: int = 8 * 1024**2
    """Of parked lines."""
    seconds: float = 1.0


@dataclass(slots=True)
class _Unit:
    """Slices that were sent, and have no mark yet."""

    segments: list[Segment] = field(default_factory=list)
    events: int = 0
    bytes: int = 0
    began: float = field(default_factory=time.monotonic)
    said: dict[str, Any] | None = None
    """What its mark says, once that was put together: the books of parents are asked for once."""

    def add(self, segments: Sequence[Segment]) -> None:
        """Add a slice."""
        self.segments += segments
        self.events += sum(segment.count for segment in segments)
        self.bytes += sum(segment.bytes for segment in segments)

    def has_room(self, segments: Sequence[Segment], limits: MarkingLimits) -> bool:
        """Tell whether a slice more is not too much."""
        events = self.events + sum(segment.count for segment in segments)
        size = self.bytes + sum(segment.bytes for segment in segments)
        return events <= limits.events and size <= limits.bytes


class Marking:
    """Writes the marks of one replay, and settles them; to be entered while it is sent.

    Left without an error, all marks are settled; left with one, those that can be in ten seconds.

    Args:
        parking: is told.
        producer: whose log has the marks.
        partition: that is replayed.
        before: called before a mark is written, with the replay's id and its first segment's.
        limits: of a unit.
    """

    def __init__(
        self,
        parking: Parking,
        producer: LosslessProducer,
        partition: ParkedGroup,
        before: Callable[[str, int], None],
        limits: MarkingLimits,
    ) -> None:
        self._parking, self._producer = parking, producer
        self._partition = partition
        self._parents: Parents | None = None
        self._before = before
        most = producer.capacity_bytes // _LOG_SHARE
        self._limits = replace(limits, bytes=min(limits.bytes, most))
        self._replay_id: UUID | None = None
        self._resumes: Callable[[], bool] = lambda: False
        self._unit = _Unit()
        self._amid = False
        self._waiting: deque[_Mark] = deque()
        self._cancelled = self._log_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._end_unit()
            self.finish()
        elif isinstance(error, Exception):
            self._try_to_finish()

    def recover(self) -> None:
        """Settle the marks that a dead run left: opening the log has seen to all before them."""
        for lsn, payload in self._producer.recovered.marks:
            said = orjson.loads(payload)
            self._tell(_Mark(lsn, said), self._parking.replayed_group(UUID(said["replay"])))

    def begin(
        self,
        replay_id: UUID,
        resumes: Callable[[], bool] = lambda: False,
        parents: Parents | None = None,
    ) -> Self:
        """Say which replay it is that is sent now.

        Args:
            replay_id: in the tracker.
            resumes: tells whether a dead run has sent events that were not met again so far.
            parents: if the replay enters earlier.
        """
        self._replay_id, self._parents = replay_id, parents
        self._resumes = resumes
        return self

    def begin_slice(self, segments: Sequence[Segment]) -> bool:
        """Say that a slice is to be sent; return whether it shares a unit, so is not large.

        Its events are then to be ready before the first is sent. Ends the unit before, if both
        are too much for one. Raises what ``finish`` raises.
        """
        if not self._unit.has_room(segments, self._limits) and not self._waits_for_dead():
            self._end_unit()
        if not self._unit.segments:
            self._unit = _Unit()
        self._amid = self._parents is not None  # which count as soon as they are read
        return self._unit.has_room(segments, self._limits)

    def begin_sending(self) -> None:
        """Say that the first event of the slice goes now."""
        self._amid = True

    def end_slice(self, segments: Sequence[Segment]) -> None:
        """Say that all events of a slice were sent; it is marked when it is time.

        Raises:
            RetryError: Kafka is away, or the tracker; the next run goes on from here.
            InputError: the replay was cancelled.
            FencedError: its log was settled by name.
        """
        self._amid = False
        unit = self._unit
        unit.add(segments)
        late = time.monotonic() - unit.began >= self._limits.seconds
        full = unit.events >= self._limits.events or unit.bytes >= self._limits.bytes
        if (late or full) and not self._waits_for_dead():
            self._end_unit()

    def end_generation(self) -> bool:
        """Mark and settle all that was sent, before the log goes on with another topic.

        To be called between two slices. What has no mark, as a dead run's events that opening the
        log has sent again, Kafka has then as well.

        Returns:
            False: not yet: the unit goes on until all that a dead run sent was met again.

        Raises:
            RetryError, InputError, FencedError: as ``end_slice``.
        """
        if self._resumes():
            return False
        self._end_unit()
        self.finish()
        if left := self._producer.flush(_LONGEST_S):
            raise _waits(left)
        return True

    def _waits_for_dead(self) -> bool:
        """Tell whether the unit goes on until all that a dead run sent was met again.

        Some of it may never be: its segment was found damaged since. The dead run's unit was no
        larger than this one may be, so twice that is enough; else the log would fill up.
        """
        return self._resumes() and self._unit.bytes < 2 * self._limits.bytes

    def _end_unit(self) -> None:
        if not self._unit.segments:
            return
        self._write(self._unit)
        self._unit = _Unit()
        self.settle()
        self._wait_for_oldest()
        if self._cancelled or self._log_ended:
            self.finish()

    def _write(self, unit: _Unit) -> None:
        if unit.said is None:
            unit.said = self._said(unit.segments)
        said = unit.said
        payload = orjson.dumps(said)
        try:
            lsn = self._producer.mark(payload)
        except WalFullError as full:
            self.make_room(full)
            lsn = self._producer.mark(payload)
        self._waiting.append(_Mark(lsn, said))

    def _said(self, segments: Sequence[Segment]) -> dict[str, Any]:
        replay_id = str(self._replay_id)
        self._before(replay_id, segments[0].id)
        said: dict[str, Any] = {
            "replay": replay_id,
            "segments": [segment.id for segment in segments],
        }
        if self._parents is not None:
            said["earlier"] = self._parents.said()
        return said

    def settle(self) -> None:
        """Settle those marks of which Kafka has all; cheap when there are none."""
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
            FencedError: its log was settled by name.
        """
        self._finish(_LONGEST_S)
        if self._cancelled:
            raise InputError(f"replay {self._replay_id} was cancelled; the rest stays parked")
        if self._log_ended:
            raise FencedError(
                f"the write-ahead log {self._producer.wal_id} of replay {self._replay_id} was "
                "settled by name (`waybill logs settle`), so this run of it ends here: what it has "
                "sent is marked, and the next run sends what is left"
            )

    def _finish(self, limit_s: float) -> None:
        if not self._waiting:
            return
        if left := self._producer.flush(limit_s):
            raise _waits(left)
        while self._waiting:
            self._settle_oldest()

    def _try_to_finish(self) -> None:
        try:
            if self._unit.segments and not self._amid and not self._resumes():
                self._write(self._unit)
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
        if not self._tell(self._waiting[0], self._partition):
            self._cancelled = True
        self._waiting.popleft()

    def _tell(self, mark: _Mark, partition: ParkedGroup) -> bool:
        """Tell the tracker, then the log; return whether the replay still runs."""
        said = mark.said
        ids = said.get("segments") or [said["segment"]]
        write = books(said, partition)

        def beside(connection: Connection, marked: int) -> None:
            write(connection, marked)
            if has_ended(connection, self._producer.wal_id):
                refuse_when_left_behind(connection, self._producer.wal_id)
                self._log_ended = True

        runs = self._parking.mark_replayed(UUID(said["replay"]), ids, beside)
        self._producer.confirm(mark.lsn)
        return runs


def _waits(left: int) -> RetryError:
    return RetryError(f"{left} events are waiting for Kafka; the next run continues from here")
