"""What logs that were taken over had sent beyond their last committed page.

A run that claims a source from another log (its node died, or stands still) reads again what that
log had not committed. Some of it is in Kafka already. It is found there by the header that names
the log, and counted as taken in, so that the books have as many events as the log. The run leaves
out what it finds so. What a process that wakes up sends after that is a copy: it is counted when it
is found, by that process itself when it sees that it was fenced, by the next runs, or by
``waybill logs settle``; the destination tells it for a duplicate.

Who dies when: events are counted in the transaction that moves ``counted_to`` past them. Who comes
after that reads them again from ``offsets``, to leave them out; the traces are on disk before it,
and name the same batch when they are written again.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from waybill.errors import InputError, ParkError, RetryError, StopError
from waybill.events import Event, decode, instant, wall_us
from waybill.ingestion.page_traces import TracesByName
from waybill.ingestion.turns import TurnEndedError
from waybill.ledger import (
    HeldRecords,
    LogIdentity,
    ReplacedLog,
    SourceLease,
    claim_source,
    count_copies,
    end_log,
    ended_at,
    release_source,
    replaced_log,
    settle_log,
    tell_log,
)
from waybill.pipelines import Pipeline, topic_of
from waybill.processing import Counts
from waybill.producer import HEADER, SETTLE_S, FoundLog, LosslessProducer, read_stamp
from waybill.storage import KafkaLog, TrackerStore
from waybill.topics import generation_ends
from waybill.tracing import Recorder

_LOG = logging.getLogger(__name__)


class SourceClaim:
    """Claims a pipeline's source for the log that a producer opens: its ``claim``.

    Args:
        tracker: the books.
        log: where the pipeline's topic is.
        pipeline: whose source.
        name: of the producer.
        node: of this machine.
        recorder: for the traces.
        rereadable: what the log holds can be had from its source again.
    """

    takes_over = True
    """The source is claimed from whatever log has it; False: from none that is open."""

    def __init__(  # noqa: PLR0913 - who claims what
        self,
        tracker: TrackerStore,
        log: KafkaLog,
        pipeline: Pipeline,
        name: str,
        node: str,
        recorder: Recorder | None,
        *,
        rereadable: bool = True,
    ) -> None:
        self._rereadable = rereadable
        self._tracker, self._log, self._recorder = tracker, log, recorder
        self._pipeline, self._name, self._node = pipeline, name, node
        self._lease: SourceLease | None = None
        self._refused: list[str] = []

    @property
    def lease(self) -> SourceLease:
        """The lease; the producer is open."""
        assert self._lease is not None  # noqa: S101 - a producer opens with its claim only
        return self._lease

    def __call__(self, found: FoundLog) -> bool:
        """Claim the source for a log; False: the log was taken over, and must not be sent."""
        topic = topic_of(self._pipeline)
        known = generation_ends(self._tracker, self._log, topic)
        if not found.empty:  # of a later generation that it does not name, it has sent nothing
            known |= {topic: {}, **{name: dict(at) for name, at in found.offsets.items()}}
        held = HeldRecords(committed_lsn=found.confirmed_lsn)
        if not self._rereadable:
            held = HeldRecords(found.held, found.topic, found.confirmed_lsn)
            if found.topic not in found.offsets:
                known |= {found.topic: {}}
        identity = LogIdentity(
            found.wal_id,
            self._pipeline.id,
            "ingestion",
            self._name,
            self._node,
            str(found.directory.resolve()),
            topic,
            self._rereadable,
        )
        self._lease = claim_source(
            self._tracker,
            identity,
            ends=known,
            empty=found.empty,
            held=held,
            takes_over=self.takes_over,
        )
        if self._lease is None:
            self._refused.append(found.wal_id)
        return self._lease is not None

    @contextmanager
    def stopping(self, producer: LosslessProducer) -> Iterator[None]:
        """End the logs that were moved aside; close a producer that was fenced, unsent.

        A run that fails with nothing unsettled in its log gives the source back.
        """
        for wal_id in self._refused:
            self._end(wal_id, held=producer.recovered.superseded)
        try:
            yield
        except TurnEndedError:
            raise
        except (InputError, RetryError):
            self._give_back(producer)
            raise
        except StopError:
            producer.close(0)
            raise

    def _give_back(self, producer: LosslessProducer) -> None:
        if not self._rereadable or not producer.is_confirmed:
            return
        try:
            release_source(self._tracker, self.lease, minute=wall_us() // 60_000_000)
        except RetryError as error:
            _LOG.warning("the source is not given back, the next run takes it over: %s", error)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Count what this log has sent, once its producer is closed, where it was taken over."""
        try:
            yield
        except StopError:
            if self._lease is not None:
                self._try_to_end(self._lease.wal_id)
            raise

    def _try_to_end(self, wal_id: str) -> None:
        try:
            self._end(wal_id)
        except RetryError as error:
            _LOG.warning("what log %s has sent is not counted yet: %s", wal_id, error)

    def _end(self, wal_id: str, **detail: int) -> None:
        replaced = replaced_log(self._tracker, wal_id)
        if replaced is not None:
            count_sent(self._tracker, self._log, replaced, recorder=self._recorder)
            end_log(self._tracker, wal_id, **detail)


@contextmanager
def registered(tracker: TrackerStore, producer: LosslessProducer) -> Iterator[None]:
    """Tell the tracker at the end what a log that is no lease, such as a replay's, still holds."""
    wal_id = producer.wal_id
    try:
        yield
    finally:
        left = len(producer)
        try:
            tell_log(tracker, wal_id, unsettled=left, closed=not left)
        except RetryError as error:
            _LOG.warning("the tracker was not told of the end of log %s: %s", wal_id, error)


def settle(
    tracker: TrackerStore,
    log: KafkaLog,
    wal_id: str,
    *,
    who: str,
    reason: str,
    recorder: Recorder | None = None,
) -> int:
    """End a log by name; return how many events it had sent that were not counted yet.

    Raises:
        InputError: it is closed or ended.
        RetryError: Kafka or the tracker is away; what it had sent is counted by the next run.
    """
    purpose = settle_log(tracker, wal_id, who=who, reason=reason)
    replaced = replaced_log(tracker, wal_id)
    if replaced is None or purpose != "ingestion":
        return 0
    return count_sent(tracker, log, replaced, recorder=recorder).counted


class _Sent(NamedTuple):
    """One event of a log, in Kafka."""

    event: Event
    lsn: int
    counted: bool
    """It was counted before."""


@dataclass(slots=True)
class InKafka:
    """Events that a run need not send: another log's, which are counted."""

    events: dict[str, deque[int]] = field(default_factory=dict)
    """Event id to the intake minutes of its messages."""
    counted: int = 0
    """Events that were counted now."""

    def take(self, event_id: str) -> bool:
        """Take one message of an event; False: there is none."""
        found = self.events.get(event_id)
        if found is None:
            return False
        found.popleft()
        if not found:
            del self.events[event_id]
        return True


def taken_us(event: Event) -> int:
    """Return when an event was taken in, in microseconds since 1970.

    A time that is none, of a message that others sent under a log's name: the intake minute's.
    """
    moment = instant(event.time)
    return (
        event.intake_minute * 60_000_000 if moment is None else int(moment.timestamp() * 1_000_000)
    )


def count_sent(
    tracker: TrackerStore,
    log: KafkaLog,
    replaced: ReplacedLog,
    *,
    recorder: Recorder | None = None,
) -> InKafka:
    """Count what a log had sent beyond its last committed page and nobody has counted yet.

    Returns:
        All that it had sent beyond that page, unless a run has met it again since.

    Raises:
        RetryError: Kafka or the tracker is away, or somebody else counted meanwhile.

    Cost: reads the topic from where that page ended, about 100,000 messages a second.
    """
    if not replaced.adoptions:
        time.sleep(SETTLE_S)  # requests of a process that died just now
    info = log.describe(replaced.topic)
    marks = log.watermarks(info)
    if (ended := ended_at(tracker, replaced.topic)) is not None:  # what is behind is read by nobody
        marks = {n: (low, min(high, ended.get(n, 0))) for n, (low, high) in marks.items()}
    begin = replaced.counted_to if replaced.reread else replaced.offsets
    ranges = {n: (max(begin.get(n, low), low), high) for n, (low, high) in marks.items()}
    found = InKafka()
    counts, passed = Counts(), TracesByName()
    for sent in _sent(log, replaced, ranges):
        event = sent.event
        found.events.setdefault(event.id, deque()).append(event.intake_minute)
        if sent.counted:
            continue
        found.counted += 1
        for name in ("in_first", "passed", "out"):
            counts.add((event.pipeline_id, event.name, "ingestion", event.intake_minute), name)
        passed[event.name].add(event.id, event.key, event.intake_minute, sent.lsn, taken_us(event))
    number = replaced.adoptions + 1
    reference = f"intake:{replaced.pipeline_id}:late-{replaced.wal_id}:{number}"
    if recorder is not None and passed:
        recorder.write(passed.batches(replaced.pipeline_id, topic=replaced.topic, batch=reference))
    count_copies(
        tracker,
        replaced,
        reference=reference,
        counts=list(counts.by_pipeline()),
        counted_to={n: high for n, (_, high) in marks.items()},
    )
    if found.counted:
        _LOG.warning(
            "log %s of %s had sent %d events beyond its last committed page; they are counted",
            *(replaced.wal_id, replaced.node, found.counted),
        )
    return found


def _sent(
    log: KafkaLog, replaced: ReplacedLog, ranges: dict[int, tuple[int, int]]
) -> Iterator[_Sent]:
    wal_id = bytes.fromhex(replaced.wal_id)
    for message in log.read_messages(replaced.topic, ranges):
        lsn = _lsn(message, wal_id)
        if lsn is None or lsn <= replaced.committed_lsn:
            continue
        try:
            event = decode(message.value() or b"")
        except ParkError as error:
            _LOG.error("a message under the name of log %s is no event: %s", replaced.wal_id, error)
            continue
        if event.pipeline_id != replaced.pipeline_id:
            _LOG.error("log %s cannot have sent an event of another pipeline", replaced.wal_id)
            continue
        end = replaced.counted_to.get(message.partition(), 0)
        yield _Sent(event, lsn, message.offset() < end)


def _lsn(message: Any, wal_id: bytes) -> int | None:
    for name, value in message.headers() or ():
        if name == HEADER and (stamp := read_stamp(value)) and stamp[0] == wal_id:
            return int(stamp[2])
    return None
