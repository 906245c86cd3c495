"""One pipeline's write-ahead log in one process of the collector.

Two threads. The *writer* takes the requests that wait, appends their events, has the disk sync once
for all of them, and answers; a second of events is a page, which ends with a mark. The *settler*
commits pages once Kafka has them: counts, watermark and the log's progress, in one transaction.

Who dies when:
  before an event is in the log   nobody was answered; the sender sends again
  in the log, not synced          a SIGKILL leaves it there: the next opening sends and counts it,
                                  answered or not; a power cut may take it, unanswered
  synced, answered, no mark       the next opening finds it behind the last mark: all of that is one
                                  page, traced and marked first. Its traces may be there already;
                                  they name the same batch and lsn, so they are the same ones
  marked, not committed           the next opening commits it: the mark has its counts
  committed, not confirmed        the tracker has the mark's lsn, so it is passed over
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum

import orjson

from waybill.collector.page import MarkedPage, OpenPage, least_of
from waybill.collector.records import CollectedEvent
from waybill.collector.workers import SharedVersions
from waybill.errors import RetryError, StopError, WaybillError
from waybill.events import Event, IntakeClock, decode, dumps_read, encode, rfc3339
from waybill.ingestion import SourceClaim, Undeliverable, taken_us
from waybill.ledger import (
    LogMinute,
    LogProgress,
    close_collector_log,
    commit_collected,
    follow_generation,
    is_left,
    open_collector_log,
)
from waybill.parking import Parking
from waybill.pipelines import Pipeline, base_topic, topic_of
from waybill.producer import LosslessProducer
from waybill.settings import CollectorSettings, WalSettings
from waybill.storage import KafkaLog, ObjectStore, TrackerStore
from waybill.topics import generation_ends, open_writing_topic
from waybill.tracing import Recorder

_LOG = logging.getLogger(__name__)
_PAGE_EVENTS = 20_000
_PAGE_BYTES = 16 * 1024**2
_GROUP_EVENTS = 5_000
"""Appended before one sync: a longer group would have its first request wait for its last."""
_TELL_EVERY_S = 5.0
_LOOK_S = 1.0
_SETTLE_S = 0.1
_ASK_KAFKA_S = 0.01
"""Between two looks whether Kafka has what a request waits for."""
_AWAY_S = 1.0
_ROOM_SHARE = 0.8
"""Of the producer's queue: with more in it, nothing is appended, which could have to wait."""


@dataclass(frozen=True, slots=True)
class Stores:
    """What the collector stands on, opened."""

    tracker: TrackerStore
    log: KafkaLog
    objects: ObjectStore
    recorder: Recorder | None
    wal: WalSettings
    kafka: Mapping[str, object]
    """Settings of librdkafka."""
    node: str

    def wal_settings(self) -> WalSettings:
        """Return those of the collector's logs: it syncs by itself, and is never to wait for room.

        A log of a quarter of the usual segments: there is one for each pipeline and worker.
        """
        segment_bytes = max(1024**2, self.wal.segment_bytes // 4)
        changed = {"durability": "process", "when_full": "raise", "segment_bytes": segment_bytes}
        return self.wal.model_copy(update=changed)


class Ack(Enum):
    """When a request is answered."""

    WAL = "wal"
    KAFKA = "kafka"


@dataclass(slots=True)
class Submission:
    """The events of one request, and what became of them."""

    events: Sequence[CollectedEvent]
    ack: Ack
    done: Callable[[Submission], None]
    """Called once, from a thread of the intake."""
    known: list[bool] = field(default_factory=list)
    """Of each event: whether it had come before."""
    last_lsn: int = 0
    error: WaybillError | None = None


class RememberedIds:
    """The newest ids that senders gave, with what they stood for.

    Args:
        most: how many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()

    def lsn(self, event: CollectedEvent) -> int | None:
        """Return where the log has an event of this name, id and payload; None: nowhere known.

        Another payload under a known id is another event: nothing is ever lost for an id.
        """
        found = self._found.get((event.name, event.id))
        return found[1] if found is not None and found[0] == hash(event.content) else None

    def add(self, event: CollectedEvent, lsn: int) -> None:
        """Remember an event; forget the oldest where there are too many."""
        self._found[event.name, event.id] = (hash(event.content), lsn)
        while len(self._found) > self._most:
            self._found.popitem(last=False)


class Intake:
    """A pipeline's log, open. ``submit`` from any thread.

    Args:
        stores: what it stands on.
        settings: limits and times.
        pipeline: whose events.
        name: of the log; one live process a name.
        remembers: ids that came before, where the log of this process was open already.
    """

    def __init__(
        self,
        stores: Stores,
        settings: CollectorSettings,
        pipeline: Pipeline,
        name: str,
        remembers: RememberedIds | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.error: WaybillError | None = None
        """Why it takes nothing more, and has to be opened anew; None: it goes on."""
        self.taken = 0
        """Events that it appended."""
        self._stores = stores
        self._settings = settings
        self._name = name
        self.remembers = remembers or RememberedIds(settings.remembered_ids)
        self._queue: deque[Submission] = deque()
        self._queued = 0
        self._wake = threading.Condition()
        self._state = threading.Lock()
        """Of the page and the clock, where the settler looks at them."""
        self._page = OpenPage()
        self._marked: deque[MarkedPage] = deque()
        self._unsent: deque[Submission] = deque()
        """Synced, and waiting for Kafka."""
        self._stopping = self._moving = self._paused = False
        self._deadline = float("inf")
        self._settler_wake = threading.Event()
        self._look_due = self._tell_due = 0.0
        self._threads: list[threading.Thread] = []
        self._producer: LosslessProducer
        self._claim: SourceClaim
        self._clock: IntakeClock
        self._versions = SharedVersions(stores.wal.dir, pipeline.id)
        self._topic = ""

    # Opening

    def open(self) -> Intake:
        """Open the log and settle what a dead process left in it; blocks while Kafka is away.

        Raises:
            RetryError: a server is away.
            StopError, InputError: it cannot be opened until somebody mends something.
        """
        stores, pipeline = self._stores, self.pipeline
        stores.log.wait_until_up(limit_s=self._settings.answer_s)
        open_writing_topic(stores.tracker, stores.log, topic_of(pipeline))
        refused = Undeliverable(
            stores.tracker,
            Parking(stores.tracker, stores.objects),
            stores.objects,
            pipeline_version=pipeline.version,
            recorder=stores.recorder,
        )
        self._claim = SourceClaim(
            *(stores.tracker, stores.log, pipeline, self._name, stores.node, stores.recorder),
            rereadable=False,
        )
        self._producer = LosslessProducer(
            stores.wal_settings(),
            stores.kafka,
            name=self._name,
            on_undeliverable=refused.park,
            was_taken=refused.taken,
            marks=True,
            claim=self._claim,
        )
        with self._claim.stopping(self._producer):
            try:
                self._adopt()
            except BaseException:
                self._producer.close(0)
                self._versions.close()
                raise
        for work in (self._write, self._settle):
            thread = threading.Thread(target=work, name=f"{self._name}-{work.__name__}")
            thread.daemon = True
            self._threads.append(thread)
            thread.start()
        return self

    def _adopt(self) -> None:
        """Take over what a dead process left: pages with marks, and events behind the last one."""
        lease, recovered = self._claim.lease, self._producer.recovered
        self._topic = lease.topic or topic_of(self.pipeline)
        left = [(record.lsn, decode(record.value or b"")) for record in recovered.unmarked]
        marked = [MarkedPage.of(lsn, payload, {}) for lsn, payload in recovered.marks]
        versions = [event.intake_version for _, event in left]
        versions += [page.last_version for page in marked]
        self._clock = IntakeClock(last=max([lease.last_version, *versions]))
        with self._versions.above(self._clock):
            pass  # from here on no worker of this host gives one that this log has
        minute = self._clock.minute()
        opened = open_collector_log(self._stores.tracker, self._progress(), minute=minute)
        self._marked.extend(page for page in marked if page.page.lsn > opened.committed_lsn)
        for lsn, event in left:
            stamp = (lsn, event.intake_minute, taken_us(event))
            self._page.add(event.name, event.id, event.key, stamp)
            self.remembers.add(_collected(event), lsn)
        if left:
            _LOG.warning("%s: %d events of a dead process are counted", self.pipeline.id, len(left))
            try:
                self._cut()
            except RetryError as error:  # pages before it are committed first
                _LOG.warning("%s: their page waits for room: %s", self.pipeline.id, error)

    # Taking

    def submit(self, submission: Submission) -> None:
        """Queue a request's events; its ``done`` is called once they are safe, or refused.

        Raises:
            RetryError: too many wait already, or it is being closed.
        """
        with self._wake:
            if self._stopping or self.error is not None:
                raise RetryError("the log is being closed; send again")
            if self._queued > self._settings.queued_events:
                raise RetryError(f"{self._queued} events wait for the disk; send again later")
            self._queue.append(submission)
            self._queued += len(submission.events)
            self._wake.notify()

    def _write(self) -> None:
        try:
            while self._write_some():
                pass
        except BaseException as error:  # noqa: BLE001 - it ends up in every answer
            self._fail(error)

    def _write_some(self) -> bool:
        taken = self._take()
        if taken:
            self._append(taken)
        leaving = self._stopping or self._moving
        if self._page.events and (leaving or self._is_due()):
            self._try_to_cut()
        if self._stopping and not self._queue and not self._page.events:
            return False
        if self._moving and not self._page.events:
            with self._wake:
                self._paused = True
                self._settler_wake.set()
                while self._moving and not self._stopping:
                    self._wake.wait(_SETTLE_S)
                self._paused = False
        return self.error is None

    def _take(self) -> list[Submission]:
        """Wait for requests, or for the end of a page; return those that are due now."""
        with self._wake:
            if not self._queue and not self._stopping:
                wait_s = self._settings.page_s
                if self._page.events:
                    wait_s = max(0.01, self._page.began_s + wait_s - time.monotonic())
                self._wake.wait(wait_s)
            taken: list[Submission] = []
            size = 0
            if self._moving and not self._stopping:
                return taken
            while self._queue and size < _GROUP_EVENTS:
                taken.append(self._queue.popleft())
                size += len(taken[-1].events)
            self._queued -= size
        return taken

    def _append(self, taken: Sequence[Submission]) -> None:
        """Append the events of requests, have the disk sync, answer."""
        refused = self._refusal()
        try:
            for submission in taken:
                self._append_one(submission, refused)
            if refused is None:
                self._producer.sync()
        except BaseException as error:
            for submission in taken:
                submission.error = submission.error or StopError(f"the log failed: {error!r}")
            self._answer(taken)
            raise
        self._answer(taken)

    def _append_one(self, submission: Submission, refused: RetryError | None) -> None:
        if refused is None:
            try:
                self._append_events(submission)
            except RetryError as error:
                refused = error
            if not self._page.events:  # none was new, or there was no room
                with self._state:
                    self._page.least_minute = None
        submission.error = refused

    def _refusal(self) -> RetryError | None:
        """Return why nothing can be appended now; None: something can."""
        if self._page.traced:
            return RetryError("the log is full: Kafka or the tracker is away for too long")
        in_doubt = len(self._producer)
        if in_doubt > self._stores.wal.max_in_flight * _ROOM_SHARE:
            return RetryError(f"Kafka has not acknowledged {in_doubt} events")
        return None

    def _append_events(self, submission: Submission) -> None:
        page, remembers, pipeline = self._page, self.remembers, self.pipeline
        produce, topic = self._producer.produce, self._topic
        if not page.events:
            page.began_s = time.monotonic()
        with self._state:  # all of a request are taken at one time; each has a version of its own
            with self._versions.above(self._clock):
                version, minute, taken = self._clock.stamp(len(submission.events))
            if page.least_minute is None:
                page.least_minute = minute
        time_text = rfc3339(datetime.fromtimestamp(taken / 1_000_000, UTC))
        for number, event in enumerate(submission.events):
            lsn = remembers.lsn(event) if event.own_id else None
            submission.known.append(lsn is not None)
            if lsn is None:
                value = encode(
                    Event(
                        id=event.id,
                        pipeline_id=pipeline.id,
                        team=pipeline.team,
                        name=event.name,
                        key=event.key,
                        source_version=event.source_version,
                        intake_version=version + number,
                        intake_minute=minute,
                        time=time_text,
                        data=None,
                        data_ref=event.data_ref,
                    ),
                    content=event.content,
                )
                lsn = produce(topic, value, event.key.encode())
                page.add(event.name, event.id, event.key, (lsn, minute, taken))
                page.size_bytes += len(value)
                self.taken += 1
                if event.own_id:
                    remembers.add(event, lsn)
            submission.last_lsn = max(submission.last_lsn, lsn)

    def _answer(self, taken: Sequence[Submission]) -> None:
        for submission in taken:
            if submission.ack is Ack.KAFKA and submission.error is None:
                self._unsent.append(submission)
                self._settler_wake.set()
            else:
                submission.done(submission)

    # Pages

    def _is_due(self) -> bool:
        page = self._page
        age_s = time.monotonic() - page.began_s
        large = page.events >= _PAGE_EVENTS or page.size_bytes >= _PAGE_BYTES
        return page.traced or large or age_s >= self._settings.page_s

    def _try_to_cut(self) -> None:
        try:
            self._cut()
        except RetryError as error:
            _LOG.warning("%s: a page cannot be marked yet: %s", self.pipeline.id, error)
            time.sleep(_AWAY_S)

    def _cut(self) -> None:
        """End the page: traces, then the mark."""
        page, pipeline_id = self._page, self.pipeline.id
        reference = page.reference(pipeline_id, self._producer.wal_id)
        if self._stores.recorder is not None and not page.traced:
            batches = page.batches(pipeline_id, topic=self._topic, reference=reference)
            self._stores.recorder.write(batches)
        page.traced = True
        payload = orjson.dumps(page.mark(pipeline_id, reference, self._clock.last))
        lsn = self._producer.mark(payload)
        offsets = dict(self._producer.offsets.get(self._topic, {}))
        with self._state:
            self._marked.append(MarkedPage.of(lsn, payload, offsets))
            self._page = OpenPage()
        self._settler_wake.set()

    # Settling

    def _settle(self) -> None:
        while self.error is None:
            waits = self._marked or self._unsent
            self._settler_wake.wait(_ASK_KAFKA_S if self._unsent else _SETTLE_S)
            self._settler_wake.clear()
            try:
                self._settle_some()
            except RetryError as error:
                _LOG.warning("%s: pages wait to be committed: %s", self.pipeline.id, error)
                time.sleep(_AWAY_S)
            except BaseException as error:  # noqa: BLE001 - it ends up in every answer
                self._fail(error)
            if self._is_left(waits=bool(waits)):
                return

    def _is_left(self, *, waits: bool) -> bool:
        """Tell whether the settler has nothing more to do, or no time for it."""
        if not self._stopping or self._threads[0].is_alive():
            return False
        return time.monotonic() > self._deadline or not (waits or self._marked or self._unsent)

    def _settle_some(self) -> None:
        while self._unsent and self._producer.settled(self._unsent[0].last_lsn):
            submission = self._unsent.popleft()
            submission.done(submission)
        ready = []
        for page in list(self._marked):
            if not self._producer.settled(page.page.lsn):
                break
            ready.append(page)
        now = time.monotonic()
        if ready or now >= self._tell_due:
            self._commit(ready)
            self._tell_due = now + _TELL_EVERY_S
        if now >= self._look_due and not self._stopping:
            self._look_due = now + _LOOK_S
            self._follow_generation()

    def _commit(self, ready: Sequence[MarkedPage]) -> None:
        with self._state:
            now = self._clock.minute()
            behind = list(self._marked)[len(ready) :]
            minutes = [self._page.least_minute, *(page.least_minute for page in behind)]
            events = self._page.events + sum(page.events for page in behind)
        minute = LogMinute(least_of(minutes, now), now, len(self._producer))
        progress = self._progress(events, ready[-1].offsets if ready else {})
        pages = [page.page for page in ready]
        committed = commit_collected(self._stores.tracker, pages, progress, minute)
        while self._marked and self._marked[0].page.lsn <= committed:
            with self._state:
                self._marked.popleft()
        if ready:
            self._producer.confirm(committed)

    def _progress(self, events: int = 0, offsets: Mapping[int, int] | None = None) -> LogProgress:
        return LogProgress(self._claim.lease, self._clock.last, events, None, offsets or {})

    def _follow_generation(self) -> None:
        """Go on with the newest generation of the topic, once all of this one is committed."""
        tracker, log = self._stores.tracker, self._stores.log
        if not self._moving:
            self._moving = is_left(tracker, self._topic)
        if not (self._moving and self._paused) or self._marked or len(self._producer):
            return
        ends = generation_ends(tracker, log, base_topic(self._topic))
        self._topic = follow_generation(tracker, self._claim.lease.wal_id, self._topic, ends)
        _LOG.info("%s goes on with topic %s", self.pipeline.id, self._topic)
        with self._wake:
            self._moving = False
            self._wake.notify_all()

    # The end

    def _fail(self, error: BaseException) -> None:
        """Take nothing more: the next opening of the log goes on."""
        own = error if isinstance(error, WaybillError) else StopError(f"the log failed: {error!r}")
        with self._wake:
            if self.error is not None:
                return
            _LOG.error("%s: the log is closed: %s", self.pipeline.id, own, exc_info=error)
            self.error = own
            waiting = [*self._queue, *self._unsent]
            self._queue.clear()
            self._unsent.clear()
            self._queued = 0
            self._wake.notify_all()
        self._settler_wake.set()
        for submission in waiting:
            submission.error = submission.error or RetryError("the log is opened anew; send again")
            submission.done(submission)

    def close(self, timeout_s: float) -> bool:
        """Take nothing more, settle what is there, close the log; tell whether all was settled.

        What was not stays in the log, and in the tracker as open: the next opening goes on.
        """
        self._deadline = time.monotonic() + timeout_s
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._settler_wake.set()
        for thread in self._threads:
            thread.join(max(0.0, self._deadline - time.monotonic()) + 2 * _AWAY_S)
        left = self._marked or self._page.events or self.error is not None
        whole = not left and not len(self._producer) and self._give_back()
        self._producer.close(0)
        if not self._threads[0].is_alive():
            self._versions.close()
        if self.error is not None:
            with contextlib.suppress(StopError), self._claim.ending():
                raise StopError(str(self.error))
        return whole

    def _give_back(self) -> bool:
        try:
            minute = self._clock.minute()
            close_collector_log(self._stores.tracker, self._progress(), minute=minute)
        except (RetryError, StopError) as error:
            _LOG.warning("%s: the tracker was not told of its end: %s", self.pipeline.id, error)
            return False
        return True


def _collected(event: Event) -> CollectedEvent:
    """Return an event of the log as its sender gave it."""
    content = b"" if event.data_ref else dumps_read(event.data)
    version = event.source_version
    return CollectedEvent(event.id, event.name, event.key, version, content, own_id=True)
