"""Ingestion: pages of a source into the write-ahead log and Kafka, each page exactly once.

A page: read at the cursor; its events appended; their traces written; then one *mark* in the log
with the cursor behind it, its counts and what it parked. The next pages are read while Kafka takes
it. Once all before the mark is acknowledged, or parked: the tracker, by compare-and-set, under the
lease of the source; then the mark is confirmed. So the cursor follows delivery, in order, and lags
behind the log by ``_MOST_IN_FLIGHT`` pages at most, and few MiB: what a run has in memory does not
depend on how large its source is.

Who dies when, and the log is there: before the mark, the log holds the beginning of a page; the
next run reads the page again (a connector gives the same page at the same cursor), appends only
what is not there, and writes the traces of all of it: see ``page_traces`` why that doubles none.
After the mark, the next run commits the mark first. After the tracker's commit, the mark is found
done.
An event that Kafka refuses is counted with its page all the same: see ``refused_messages``. Events
of a dead run that the page read again does not hold (the source changed) are counted with it too.

Who dies when, and the next run is on another node, or the disk is gone: it takes the lease over,
and reads all that was not committed from the source again, but for what is in Kafka already (see
``takeover``). The run that it took over fails at its next page, or when it has given all the intake
versions that it had reserved: some seconds of them. The log on the other node is not sent any more:
the next opening there moves it aside.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection

from waybill.errors import InputError, ParkError, RetryError, SettleError, StopError
from waybill.events import (
    IntakeClock,
    decode,
    encode,
    encode_data,
    rfc3339_us,
    wall_us,
)
from waybill.ingestion.connectors import (
    BadRow,
    ConfirmedConnector,
    Connector,
    CountingConnector,
    Cursor,
    Page,
    Record,
    Row,
    waiting_in,
)
from waybill.ingestion.page_traces import TracesByName
from waybill.ingestion.refused_messages import Undeliverable
from waybill.ingestion.run_progress import RunProgress
from waybill.ingestion.run_report import IngestReport
from waybill.ingestion.source_rows import IntakeRows, TakenRow, declared_for, held_by, parked_id
from waybill.ingestion.takeover import InKafka, count_sent, taken_us
from waybill.ingestion.turns import KafkaWaitError, RunSoFar, Turn, TurnEndedError, WaitsFor
from waybill.ledger import (
    CursorReset,
    IntakeCommit,
    LogProgress,
    OffsetsMovedError,
    PageMark,
    Position,
    SourceLease,
    begin_position,
    close_source,
    commit_intake,
    follow_generation,
    is_left,
    note_run,
    open_source,
    replaced_logs,
    tell_progress,
    write_copies,
)
from waybill.parking import (
    ObjectDescriptor,
    Packer,
    ParkedEvent,
    Parking,
    SegmentDescriptor,
    identify,
    new_key,
)
from waybill.pipelines import EventDeclaration, Pipeline, base_topic, topic_of
from waybill.processing import COUNT_NAMES, Counts
from waybill.producer import LosslessProducer, WalFullError
from waybill.progress import Progress
from waybill.storage import LARGEST_MESSAGE_BYTES, KafkaLog, ObjectStore, TrackerStore, check_in
from waybill.topics import generation_ends
from waybill.tracing import Recorder

_LOG = logging.getLogger(__name__)
_STORE_AWAY_LIMIT_S = 600.0
_MOST_IN_FLIGHT = 32
"""Pages in the log of which Kafka has not acknowledged all,"""
_MOST_BYTES_IN_FLIGHT = 32 * 1024**2
"""and bytes of their messages, but for one page that is larger."""
_ADOPTED_PAGES = 100
"""Pages in which events of an unfinished page are looked for that its first page did not hold."""
_CONFIRM_EVERY = 16
"""Committed pages after which a source is told at the latest."""
_KAFKA_AWAY_LIMIT_S = 60.0
"""Kafka acknowledges nothing for so long: the run ends, and the next one goes on."""
_TELL_EVERY_S = 5.0
_TELL_IDLE_S = 3600.0
"""A run whose source gives nothing says so often that its log is not one that was forgotten."""
_AFTER_AN_ERROR_S = 5.0
_POLL_S = 0.02
_LOOK_S = 1.0
"""Between two looks at whether the topic has a newer generation."""
_YOUNG_OBJECTS = 100_000
"""So many more of them than went have Python look for garbage."""
_RESERVED_US = 10_000_000
"""Intake versions are reserved in the tracker so far ahead of the clock. A run that was fenced
stamps none beyond; one that takes over begins above."""
_Unfinished = dict[str, deque["_Left"]]
"""Event id to its records behind the log's last mark."""


class _Marked(NamedTuple):
    """One page that is in the log, up to its mark."""

    lsn: int
    """Of the mark."""
    mark: dict[str, Any]
    offsets: dict[int, int]
    """Of the topic: nothing behind the mark stands before them."""
    least_minute: int | None
    events: int
    message_bytes: int


class _Left(NamedTuple):
    """One event that a dead run left in the log, behind its last mark."""

    event_name: str
    key: str
    minute: int
    lsn: int
    taken_us: int


@dataclass(slots=True)
class Intake:
    """What ingestion stands on, opened."""

    pipeline: Pipeline
    connector: Connector
    producer: LosslessProducer
    tracker: TrackerStore
    parking: Parking
    objects: ObjectStore
    log: KafkaLog
    lease: SourceLease
    """Claimed for the producer's log, before that sent anything."""
    recorder: Recorder | None = None
    undeliverable: Undeliverable | None = None
    """Parks what Kafka refuses, if the producer was opened with it; else that stops the run."""
    reset: CursorReset | None = None
    """Where to begin instead of where the connector stands, once for each request."""
    now_us: Callable[[], int] = wall_us
    """The clock, in microseconds since 1970."""
    told: RunProgress | None = None
    """Tells how far the run is, and knows whether it is to stop; None: nobody is told."""
    drains: str = ""
    """Who has this run bring what is in the log to Kafka, and read nothing; empty: nobody."""
    turn: Turn | None = None
    """The run gives its slot back at a page where it must wait; goes with ``told``. None: it has
    no slot, and waits itself."""


def ingest(intake: Intake) -> IngestReport:
    """Read all that the source has behind the cursor; safe to run again after any death.

    Raises:
        TurnEndedError: the run gave its slot back at a page; only where it has one.
        RetryError: Kafka, the tracker or the object store is away; run it again.
        InputError: the source cannot be read as declared.
        FencedError: another run has taken the source over, and goes on instead.
    """
    return _Run(intake).run()


class _Run:
    _position = Position(0, None, 0)
    """Behind the last page that is in the log with its mark,"""
    _first = 0
    """and the rows that were read before this run."""
    _total: int | None = None
    """Rows that the source has, where it can say."""
    _began: float
    _idle_told = 0.0
    """When it was told last, monotonic, that the run waits for its source."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        beside = intake.told.words if intake.told else lambda: ""
        self._log_progress = Progress(
            f"ingestion of {intake.pipeline.name}", "records", beside=beside
        )
        self._settled = 0
        """Events of the pages that this run committed."""
        self._clock = IntakeClock(
            last=intake.lease.last_version, reserve=self._reserve, now_us=intake.now_us
        )
        pipeline = intake.pipeline
        self._topic = intake.lease.topic or topic_of(pipeline)
        self._look_due = 0.0
        """When to see next whether the topic has a newer generation."""
        self._event = _declared(pipeline)
        self._rows = IntakeRows(pipeline, self._clock)
        self._accepted = self._parked = self._resumed = self._pages = self._known = 0
        self._known_parked = 0
        """Rows that could not become events, and were parked before."""
        self._settling = RunWatermark(intake.producer, self._clock.minute)
        self._waiting: deque[_Marked] = deque()
        self._in_log = 0
        """Events in the log whose page is not committed."""
        self._page_bytes = 0
        """Of the messages of the page whose mark is not written yet."""
        self._page_minute: int | None = None
        """When the page was begun whose mark is not written yet."""
        self._elsewhere: list[InKafka] = []
        """What logs that were taken over had sent: it is in Kafka, and counted."""
        self._adopted: InKafka | None = None
        """Of these, what this log holds of a page that was longer before its run died."""
        self._adopted_pages = 0
        self._sent_again: set[str] = set()
        """Keys of events that were sent while there was some of that."""

    def run(self) -> IngestReport:
        """Read the source to its end."""
        try:
            with _seldom_collected():
                return self._run()
        except TurnEndedError:
            raise
        except KafkaWaitError as error:
            self._try_to_finish()
            self._intake.producer.close(0)  # it was waited for long enough
            raise self._turn_ended("kafka", f"{error}; what it is to take is in the log") from error
        except (RetryError, InputError):
            self._try_to_finish()
            raise

    def _run(self) -> IngestReport:
        self._began = time.monotonic()
        intake = self._intake
        unfinished = _unfinished(intake.producer)
        self._in_log = sum(map(len, unfinished.values()))
        minute = self._clock.minute()
        self._settling.begin(open_source(intake.tracker, self._progress(), minute=minute))
        self._finish_marks()
        self._look_elsewhere()
        if not unfinished:  # whatever the source says: a topic that drains waits for this log
            self._follow_generation()
        position = begin_position(intake.tracker, self._progress(), intake.reset)
        self._position, self._first = position, position.rows_read
        if intake.drains:
            stopped, leaves = intake.drains, False
            position = self._end_page(position, unfinished)
        else:
            position, stopped, leaves = self._read(position, unfinished)
        self._deliver_all()
        close_source(
            intake.tracker,
            intake.lease,
            last_version=self._clock.last,
            minute=self._clock.minute(),
            left=None if stopped or leaves else self._count_between(position.cursor, None),
            at_end=not (stopped or leaves),
        )
        if not intake.drains:
            self._total = intake.connector.count()
        self._tell(last=True)
        if words := waiting_in(intake.connector):
            _LOG.info("%s", words)
        note_run(intake.tracker, intake.pipeline.id)
        if leaves:
            raise self._turn_ended("share", "its team is over its share, and another team waits")
        return self._report(stopped)

    def _report(self, stopped: str = "") -> IngestReport:
        """Return what the run did, in all of its turns."""
        intake = self._intake
        told = intake.told
        seconds = time.monotonic() - self._began if told is None else told.spent_s()
        if told is not None:
            told.reported(seconds)
        report = IngestReport(
            pipeline=intake.pipeline.name,
            read=self._position.rows_read - self._first,
            accepted=self._accepted,
            parked=self._parked - self._known_parked,
            refused=intake.undeliverable.parked if intake.undeliverable else 0,
            resumed=self._resumed,
            pages=self._pages,
            seconds=round(seconds, 2),
            stopped=stopped,
            waiting=waiting_in(intake.connector),
        )
        return report if self._before is None else report.after(self._before.report)

    @property
    def _before(self) -> RunSoFar | None:
        turn = self._intake.turn
        return None if turn is None else turn.before

    def _turn_ended(self, waits_for: WaitsFor, words: str) -> TurnEndedError:
        told = self._intake.told
        if told is None:
            raise TypeError("a run with turns tells how far it is")
        self._tell_counts(told)
        return TurnEndedError(waits_for, words, RunSoFar(told.run, self._report(), told.figures))

    def _read(self, position: Position, unfinished: _Unfinished) -> tuple[Position, str, bool]:
        """Take in the pages behind a position, to the source's end or until the run is to end.

        Returns:
            The position behind the last page; who stopped the run, empty: nobody; and whether it is
            to give its slot back: not where the cursor stands where this turn began, or turns that
            are too short for a source to get on would never end.
        """
        intake = self._intake
        self._total, stopped, leaves = intake.connector.count(), "", False
        begun_at = position.cursor
        pages = intake.connector.read(begun_at)
        for page in pages:
            if page is None:
                self._while_nothing_comes()
            else:
                if not unfinished:  # else they belong to the page, which is of one generation
                    self._follow_generation()
                position = self._position = self._page(page, position, unfinished)
                unfinished = {}
                self._commit_delivered()
                self._wait_for_room()
                self._log_progress.at(position.rows_read, self._total)
            self._tell()
            if unfinished:
                continue
            stopped = self._stopped()
            leaves = not stopped and position.cursor != begun_at and self._leaves()
            if stopped or leaves:
                break
        if (stopped or leaves) and isinstance(pages, Generator):
            pages.close()
        return self._end_page(position, unfinished), stopped, leaves

    def _end_page(self, position: Position, unfinished: _Unfinished) -> Position:
        """Take in what a dead run left of a page, where no row of it came; return the position."""
        if unfinished:
            position = self._position = self._page(None, position, unfinished)
        return position

    def _tell(self, *, last: bool = False) -> None:
        """Say how far the run is, to whom it may concern."""
        told = self._intake.told
        if told is not None:
            self._tell_counts(told)
            told.look(self._intake.connector, self._position.cursor, last=last)

    def _tell_counts(self, told: RunProgress) -> None:
        told.at(
            read=self._position.rows_read - self._first,
            settled=self._settled,
            parked=self._parked,
            pages=self._pages,
            total=self._total,
        )

    def _stopped(self) -> str:
        """Return who has the run end here; empty: it goes on."""
        told = self._intake.told
        if told is None or not told.stop_asked():
            return ""
        who = told.stopped()
        _LOG.info("the run ends at this page: %s has it stop; the next run goes on", who)
        return who

    def _leaves(self) -> bool:
        """Tell whether the run gives its slot to another team here."""
        intake = self._intake
        if intake.turn is None or intake.told is None or not intake.told.leave_asked():
            return False
        _LOG.info("the run gives its slot back at this page: another team waits for one")
        return True

    def _finish_marks(self) -> None:
        """Commit pages that were marked in the log and of which the tracker was not told.

        They are a dead run's, or of an earlier turn of this one.
        """
        for lsn, payload in self._intake.producer.recovered.marks:
            mark = orjson.loads(payload)
            done = self._commit_recovered(_Marked(lsn, mark, {}, None, 0, 0))
            self._intake.producer.confirm(lsn)
            if self._before is not None and done:
                self._pages += 1
                self._settled += _events_of(mark["counts"])
        if self._before is None:
            self._known_parked = 0  # what this run read

    def _commit_recovered(self, page: _Marked) -> bool:
        """Commit a page of a dead run; False: that was done before.

        Raises:
            SettleError: the tracker does not know the page before; says which command helps.
        """
        try:
            return self._commit(page, self._settling.recovered(page.mark["counts"]))
        except OffsetsMovedError as error:
            raise SettleError(
                f"{error}: it lost commits of ingestion, as where an older copy of it is restored,"
                f" and the log's row with them. `waybill logs settle {self._intake.lease.wal_id}"
                " --why …` lets the next run read on from where the tracker stands"
            ) from error

    def _look_elsewhere(self) -> None:
        """Count what logs that were taken over had sent, and keep it: it is not sent again."""
        intake = self._intake
        for replaced in replaced_logs(intake.tracker, intake.pipeline.id):
            if base_topic(replaced.topic) != base_topic(self._topic):
                continue
            found = count_sent(intake.tracker, intake.log, replaced, recorder=intake.recorder)
            if found.events and not replaced.reread:
                self._elsewhere.append(found)

    def _follow_generation(self) -> None:
        """Go on with the newest generation of the topic, between two pages.

        Kafka has all that was sent to the one before, and all of it is committed: no message of
        this log follows there. Until that is said, the one before cannot end.
        """
        now = time.monotonic()
        if now < self._look_due:
            return
        self._look_due = now + _LOOK_S
        intake = self._intake
        if not is_left(intake.tracker, self._topic):
            return
        self._deliver_all()
        ends = generation_ends(intake.tracker, intake.log, base_topic(self._topic))
        self._topic = follow_generation(intake.tracker, intake.lease.wal_id, self._topic, ends)
        _LOG.info("%s goes on with topic %s", intake.pipeline.id, self._topic)

    def _while_nothing_comes(self) -> None:
        """Commit what Kafka has meanwhile, while a source without an end is waited for."""
        self._intake.producer.poll(0)
        self._commit_delivered()
        if time.monotonic() - self._idle_told > _TELL_IDLE_S:
            self._tell_waiting()
            self._idle_told = time.monotonic()

    # Versions and the lease

    def _reserve(self, version: int) -> int:
        limit = version + _RESERVED_US
        tell_progress(self._intake.tracker, replace(self._progress(), last_version=limit))
        return limit

    def _progress(self) -> LogProgress:
        return LogProgress(self._intake.lease, self._clock.reserved, self._in_log)

    def _tell_waiting(self) -> None:
        waiting = len(self._intake.producer)
        tell_progress(self._intake.tracker, self._progress(), waiting=waiting)

    # Delivery

    def _commit_delivered(self) -> None:
        """Commit the pages of which Kafka has all; cheap when there are none."""
        while self._waiting and self._intake.producer.settled(self._waiting[0].lsn):
            self._commit_oldest()

    def _commit_oldest(self) -> None:
        page = self._waiting[0]
        behind = [other.least_minute for other in self._waiting if other is not page]
        done = self._commit(page, self._settling.page([*behind, self._page_minute]))
        if not done:
            raise OffsetsMovedError(
                f"page {page.mark['sequence']} of {self._intake.pipeline.id!r} was committed by "
                "another run; this run ends here, the next one goes on"
            )
        self._intake.producer.confirm(page.lsn)
        self._waiting.popleft()
        self._pages += 1
        self._settled += page.events
        if not self._waiting or self._pages % _CONFIRM_EVERY == 0:
            self._confirm(page.mark["cursor"])

    def _confirm(self, cursor: Cursor | None) -> None:
        """Tell the source how far it is committed, if it wants to know; None: nothing of it is."""
        connector = self._intake.connector
        if cursor is not None and isinstance(connector, ConfirmedConnector):
            connector.confirm(cursor)

    def _wait_for_room(self) -> None:
        """Wait while too much is in flight."""
        patience = self._patience()
        while self._is_full():
            patience.check(len(self._intake.producer))
            self._intake.producer.poll(_POLL_S)
            self._commit_delivered()

    def _is_full(self) -> bool:
        in_flight = sum(page.message_bytes for page in self._waiting)
        return len(self._waiting) > _MOST_IN_FLIGHT or in_flight > _MOST_BYTES_IN_FLIGHT

    def _deliver_all(self) -> None:
        """Wait until Kafka has all that is in the log, and commit all pages."""
        patience = self._patience()
        while left := self._intake.producer.flush(1.0):
            self._commit_delivered()
            patience.check(left)
        while self._waiting:
            self._commit_oldest()

    def _patience(self) -> _Patience:
        turn = self._intake.turn
        return _Patience(self._tell_waiting, None if turn is None else turn.kafka_wait_s)

    def _try_to_finish(self) -> None:
        """Commit what Kafka has, or takes in a few seconds, of a run that cannot go on."""
        try:
            if self._waiting and not self._intake.producer.flush(_AFTER_AN_ERROR_S):
                while self._waiting:
                    self._commit_oldest()
            self._commit_delivered()
            self._tell_waiting()
        except (RetryError, StopError) as error:
            _LOG.warning("%d pages stay in the log for the next run: %s", len(self._waiting), error)

    def _produce(self, value: bytes, key: bytes) -> int:
        producer = self._intake.producer
        try:
            lsn = producer.produce(self._topic, value, key)
        except WalFullError:
            if not self._waiting:
                raise
            self._deliver_all()
            lsn = producer.produce(self._topic, value, key)
        self._in_log += 1
        self._page_bytes += len(value)
        return lsn

    def _mark(self, payload: bytes) -> int:
        producer = self._intake.producer
        try:
            return producer.mark(payload)
        except WalFullError:
            if not self._waiting:
                raise
            self._deliver_all()
            return producer.mark(payload)

    # Pages

    def _page(self, page: Page | None, position: Position, unfinished: _Unfinished) -> Position:
        """Put a page into the log, with its mark; return the position behind it.

        Args:
            page: of the source; None: it gave none, and the cursor stays where it is, be it
                nowhere yet.
            position: before the page.
            unfinished: what a dead run left of it.
        """
        intake = self._intake
        counts = Counts()
        passed = TracesByName()
        packer = Packer()
        self._page_minute, self._page_bytes = self._clock.minute(), 0
        known_before = self._known
        self._forget_adopted()
        cursor, rows, counted = position.cursor, 0, None
        if page is not None:
            self._take_in(page, passed, unfinished, counts, packer)
            cursor, rows = page.cursor, len(page.rows) + len(page.bad)
            counted = self._count_between(page.start, page.cursor)
        known = self._known - known_before
        taken = sum(len(one.ids) for one in passed.values())
        ingested = counts.total("in_first") + taken + known
        self._adopt(unfinished, passed)
        self._count(passed, counts)
        sequence = position.sequence + 1
        reference = f"intake:{intake.pipeline.id}:{intake.lease.wal_id}:{sequence}"
        mark: dict[str, Any] = {
            "sequence": sequence,
            "reference": reference,
            "cursor": cursor,
            "rows": rows,
            "counts": list(counts.by_pipeline()),
            "parked": self._put_parked(packer),
            "counted": None if counted is None else [counted, ingested],
        }
        self._trace(passed, reference)
        lsn = self._mark(orjson.dumps(mark))
        events = counts.total("passed")
        offsets = dict(intake.producer.offsets.get(self._topic, {}))
        least = least_minute(mark["counts"])
        self._waiting.append(_Marked(lsn, mark, offsets, least, events, self._page_bytes))
        self._page_minute = None
        self._accepted += events + known
        self._parked += counts.total("parked")
        return Position(sequence, cursor, position.rows_read + rows)

    def _take_in(
        self,
        page: Page,
        passed: TracesByName,
        unfinished: _Unfinished,
        counts: Counts,
        packer: Packer,
    ) -> None:
        """Take a page's rows in, and park those that are no events."""
        for index, taken in enumerate(self._rows.take_all(page.rows, finite=page.finite)):
            if isinstance(taken, ParkError):
                where = taken.where if page.place is None else page.place(index)
                known_by = where if page.origin is None else page.origin
                self._park_row(page.rows[index], taken, where, known_by, counts, packer)
            elif not (self._elsewhere or unfinished) or self._is_new(taken, passed, unfinished):
                lsn = self._produce(self._message(taken), taken.key.encode())
                passed[taken.name].add(taken.id, taken.key, taken.minute, lsn, taken.taken_us)
        for bad in page.bad:
            known_by = bad.place if page.origin is None else page.origin
            self._bad(bad, known_by, counts, packer)

    def _count_between(self, start: Cursor | None, end: Cursor | None) -> int | None:
        """Return how many records the source itself counts; None: it cannot."""
        source = self._intake.connector
        return source.count_between(start, end) if isinstance(source, CountingConnector) else None

    def _count(self, passed: TracesByName, counts: Counts) -> None:
        """Count a page's events, each of which was taken in and is on its way."""
        for event_name, events in passed.items():
            for minute, number in Counter(events.minutes).items():
                key = (self._intake.pipeline.id, event_name, "ingestion", minute)
                for name in ("in_first", "passed", "out"):
                    counts.add(key, name, number)

    def _adopt(self, unfinished: _Unfinished, passed: TracesByName) -> None:
        """Count the events that a dead run put into the log, and that no row was found for.

        They are kept: the next page may hold their rows, of a source whose pages grow with it.
        """
        kept = InKafka()
        for identity, found in unfinished.items():
            for left in found:
                passed[left.event_name].add(
                    identity, left.key, left.minute, left.lsn, left.taken_us
                )
                kept.events.setdefault(identity, deque()).append(left.minute)
                self._resumed += 1
        if kept.events:
            self._elsewhere.append(kept)
            self._adopted = kept
            self._adopted_pages = _ADOPTED_PAGES

    def _forget_adopted(self) -> None:
        """Forget what was adopted, once all was met, or some pages later: none will come."""
        if self._adopted is None:
            return
        self._adopted_pages -= 1
        if self._adopted_pages and self._adopted.events:
            return
        self._elsewhere = [one for one in self._elsewhere if one is not self._adopted]
        self._adopted = None
        if not self._elsewhere:
            self._sent_again.clear()

    def _is_new(self, taken: TakenRow, passed: TracesByName, unfinished: _Unfinished) -> bool:
        """Tell whether an event is to be sent: neither another log has sent it, nor this one."""
        if self._elsewhere and self._is_elsewhere(taken):
            self._known += 1
            return False
        found = unfinished.get(taken.id)
        if not found:
            return True
        left = found.popleft()
        passed[taken.name].add(taken.id, taken.key, left.minute, left.lsn, left.taken_us)
        self._resumed += 1
        return False

    def _message(self, taken: TakenRow) -> bytes:
        """Return an event's message; a payload that is too large to travel goes into the store."""
        if len(taken.content) <= LARGEST_MESSAGE_BYTES:
            return taken.message
        event = self._rows.event(taken)
        name = f"{taken.id}-{taken.intake_version:x}"
        check_in(self._intake.objects, event, taken.content, name=name)
        return encode(event, content=taken.content)

    def _is_elsewhere(self, event: TakenRow) -> bool:
        """Tell whether another log has sent an event, and no earlier one of its key is to follow.

        Where one was missing there, all later ones of its key are sent again: in order.
        """
        if event.key not in self._sent_again:
            for found in self._elsewhere:
                if found.take(event.id):
                    self._accepted -= found is self._adopted  # it was counted when it was adopted
                    return True
        self._sent_again.add(event.key)
        return False

    def _bad(self, bad: BadRow, known_by: str, counts: Counts, packer: Packer) -> None:
        error = ParkError(bad.code, bad.message, where=bad.place)
        self._park(bad.raw, self._event.name, error, known_by, counts, packer)

    def _park_row(
        self,
        row: Row,
        error: ParkError,
        where: str,
        known_by: str,
        counts: Counts,
        packer: Packer,
    ) -> None:
        """Park a row that is no event, under its own event name where that is declared."""
        try:
            name = declared_for(self._intake.pipeline, row).name
        except ParkError:
            name = self._event.name
        data = row.data if isinstance(row, Record) else row
        placed = ParkError(error.code, error.message, where=where)
        known_by = held_by(row, known_by)
        self._park(orjson_or_repr(data), name, placed, known_by, counts, packer)

    def _park(
        self,
        raw: bytes,
        name: str,
        error: ParkError,
        known_by: str,
        counts: Counts,
        packer: Packer,
    ) -> None:
        pipeline = self._intake.pipeline
        _, minute, taken = self._clock.stamp()
        at = rfc3339_us(taken)
        key = (pipeline.id, name, "ingestion", minute)
        counts.add(key, "in_first")
        counts.add(key, "parked")
        packer.add(
            ParkedEvent(
                pipeline_id=pipeline.id,
                event_name=name,
                stage="ingestion",
                error_type=error.code,
                message=error.message,
                where=error.where,
                stack_hash="",
                pipeline_version=pipeline.version,
                event_at=at,
                parked_at=at,
                topic="",
                kafka_partition=-1,
                kafka_offset=-1,
                attempt=0,
                value=raw,
            ),
            identify(
                parked_id(pipeline.id, name, known_by, raw),
                source_version=0,
                intake_version=0,
                minute=minute,
            ),
        )

    def _put_parked(self, packer: Packer) -> dict[str, Any] | None:
        if not packer.count:
            return None
        packed = packer.finish()
        key = new_key()
        self._intake.objects.put_waiting(key, packed.body, limit_s=_STORE_AWAY_LIMIT_S)
        return {
            "key": key,
            "size": len(packed.body),
            "segments": [segment.to_json() for segment in packed.segments],
        }

    def _commit(self, page: _Marked, watermark: PageMark) -> bool:
        """Commit a page; False: that was done before."""
        intake = self._intake
        mark = page.mark
        parked = mark["parked"]
        reference = mark.get("reference") or f"intake:{intake.pipeline.id}:{mark['sequence']}"
        copies: Counter[tuple[str, str, str, int]] = Counter()

        def record_parked(connection: Connection, number: int) -> list[str]:
            if parked is None:
                return []
            segments = tuple(SegmentDescriptor.from_json(s) for s in parked["segments"])
            item = ObjectDescriptor(parked["key"], parked["size"], segments)
            found = intake.parking.record_once(
                connection,
                [item],
                scope=f"ingestion/{intake.pipeline.id}",
                commit_number=number,
            )
            copies.update(found)
            write_copies(connection, reference, found)
            return [item.key]

        commit = IntakeCommit(
            pipeline_id=intake.pipeline.id,
            sequence=mark["sequence"],
            cursor=mark["cursor"],
            rows=mark["rows"],
            counts=mark["counts"],
            watermark=_with_counts(watermark, mark.get("counted")),
            progress=LogProgress(
                intake.lease,
                max(self._clock.reserved, self._clock.last + _RESERVED_US),
                max(0, self._in_log - page.events),
                page.lsn,
                page.offsets,
            ),
            reference=reference,
        )
        assert commit.progress is not None  # noqa: S101 - just made
        done = commit_intake(intake.tracker, commit, record_parked)
        if done:
            self._in_log = commit.progress.unsettled
            self._clock.reserved = commit.progress.last_version
            self._known_parked += copies.total()
        return done

    def _trace(self, passed: TracesByName, reference: str) -> None:
        recorder = self._intake.recorder
        if recorder is not None:
            pipeline_id = self._intake.pipeline.id
            recorder.write(passed.batches(pipeline_id, topic=self._topic, batch=reference))


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Have Python look for garbage in cycles less often: rows are none, and there are many.

    By its own measure a page of rows has it walk through them several times: 4 to 8 % of the CPU.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_YOUNG_OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _declared(pipeline: Pipeline) -> EventDeclaration:
    found = pipeline.events.get(pipeline.source.event)
    if found is None:
        raise InputError(
            f"pipeline {pipeline.name!r}: its source gives event {pipeline.source.event!r}, which "
            "is not under `events`"
        )
    return found


def _unfinished(producer: LosslessProducer) -> _Unfinished:
    """Return the events behind the log's last mark."""
    found: _Unfinished = {}
    for record in producer.recovered.unmarked:
        event = decode(record.value or b"")
        left = _Left(event.name, event.key, event.intake_minute, record.lsn, taken_us(event))
        found.setdefault(event.id, deque()).append(left)
    return found


def _events_of(counts: Iterable[tuple[str, list[list[Any]]]]) -> int:
    """Return how many events of a page passed, by the counts of its mark."""
    column = COUNT_NAMES.index("passed")
    return sum(int(row[-1][column]) for _, rows in counts for row in rows)


def _with_counts(watermark: PageMark, counted: list[int] | None) -> PageMark:
    if counted is None:
        return watermark
    return replace(watermark, counted=counted[0], ingested=counted[1])


class _Patience:
    """Ends a wait for Kafka in which nothing moves, and says what waits meanwhile.

    Args:
        tell: says what waits.
        slot_s: so long the run may wait with its slot; None: it has none.
    """

    def __init__(self, tell: Callable[[], None], slot_s: float | None) -> None:
        self._tell, self._slot_s = tell, slot_s
        self._left = -1
        self._moved = self._told = time.monotonic()

    def check(self, left: int) -> None:
        """Raise a RetryError when nothing moved for too long; ``left``: what waits now."""
        now = time.monotonic()
        if left != self._left:
            self._left, self._moved = left, now
        if now - self._told > _TELL_EVERY_S:
            self._tell()
            self._told = now
        if self._slot_s is not None and now - self._moved > self._slot_s:
            raise KafkaWaitError(
                f"Kafka acknowledged nothing for {self._slot_s:.0f} s, while {left} events or pages"
                " wait for it"
            )
        if now - self._moved > _KAFKA_AWAY_LIMIT_S:
            raise _not_delivered(left)


def _not_delivered(left: int) -> Exception:
    return RetryError(
        f"{left} events or pages are in the write-ahead log, but Kafka acknowledged nothing for "
        f"{_KAFKA_AWAY_LIMIT_S:.0f} s; the next run sends them"
    )


def orjson_or_repr(row: Any) -> bytes:
    """Return a refused row's bytes: JSON where it has a JSON form, else its repr."""
    try:
        return encode_data(row)
    except ParkError:
        return repr(row).encode("utf-8", "backslashreplace")


class RunWatermark:
    """The watermark of one run; see ``waybill.ledger.watermarks``.

    Args:
        producer: has the events; it was opened before, and so has recovered what a dead run left.
        minute: gives the minute of now by the clock that stamps events; it never goes back.
    """

    def __init__(self, producer: LosslessProducer, minute: Callable[[], int]) -> None:
        self._producer = producer
        self._minute = minute
        self._left_by_others: int | None = None

    def begin(self, left_open: int | None) -> None:
        """Say what the opened watermark was: the least minute where a dead run had left it open."""
        self._left_by_others = left_open

    def recovered(self, counts: Iterable[tuple[str, list[list[Any]]]]) -> PageMark:
        """Return where the commit of a dead run's page moves the watermark: it stays below it."""
        minutes = [least_minute(counts), self._left_by_others, self._minute()]
        least = min(minute for minute in minutes if minute is not None)
        self._left_by_others = least
        return PageMark(least, len(self._producer))

    def page(self, uncounted: Iterable[int | None]) -> PageMark:
        """Return where the commit of a page moves the watermark; Kafka has all up to its mark.

        The run's first page has counted what a dead run left uncounted, so that nothing is left of
        that run.

        Args:
            uncounted: the least minutes of the pages behind it that are not committed yet.
        """
        self._left_by_others = None
        minutes = [minute for minute in uncounted if minute is not None]
        return PageMark(min(minutes, default=self._minute()), len(self._producer))


def least_minute(counts: Iterable[tuple[str, list[list[Any]]]]) -> int | None:
    """Return the least intake minute of a page's counts; None: it has none."""
    return min((int(row[2]) for _, rows in counts for row in rows), default=None)
