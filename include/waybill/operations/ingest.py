"""Ingestion: pages of a source into the write-ahead log and Kafka, each page exactly once.

A page: read at the cursor; its events appended; their traces written; then one *mark* in the log
with the cursor behind it, its counts and what it parked; then the tracker, by compare-and-set; then
the mark is confirmed.

Who dies when: before the mark, the log holds the beginning of a page; the next run reads the page
again (a connector gives the same page at the same cursor), appends only what is not there, and
writes the traces of all of it: see ``ingest_traces`` why that doubles none. After the mark, the
next run commits the mark first. After the tracker's commit, the mark is found done.
An event that Kafka refuses is counted with its page all the same: see ``undeliverable``. Events of
a dead run that the page read again does not hold (the source changed) are counted with it too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection

from waybill.connectors import BadRow, Connector, CountingConnector, Cursor, Page
from waybill.errors import InputError, ParkError, RetryError
from waybill.events import (
    Event,
    IntakeClock,
    decode,
    encode,
    encode_data,
    event_id,
    ordering_key,
    source_version,
)
from waybill.ledger import (
    IntakeCommit,
    PageMark,
    Position,
    commit_intake,
    note_run,
    read_position,
)
from waybill.operations.claims import check_in
from waybill.operations.ingest_traces import PageTraces
from waybill.operations.settling import Settling
from waybill.operations.undeliverable import Undeliverable
from waybill.parking import Packer, ParkedEvent, Parking, SegmentDescriptor, new_key
from waybill.pipelines import EventDeclaration, Pipeline, topic_of
from waybill.producer import LosslessProducer
from waybill.stages import Counts
from waybill.storage import ObjectStore, TrackerStore
from waybill.tracing import Recorder

_STORE_AWAY_LIMIT_S = 600.0
_Unfinished = dict[str, deque["_Left"]]
"""Event id to its records behind the log's last mark."""


class _Left(NamedTuple):
    """One event that a dead run left in the log, behind its last mark."""

    event_name: str
    key: str
    minute: int
    lsn: int
    taken_us: int


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What one run of a connector did."""

    pipeline: str
    read: int
    """Rows read, good and bad."""
    accepted: int
    """Events in the log, by this run or found there from one that died."""
    parked: int
    """Rows that could not become events."""
    refused: int
    """Events of the log that Kafka refused for good, parked since this run opened it."""
    resumed: int
    """Events of an unfinished page that were found in the log."""
    pages: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)


@dataclass(slots=True)
class Intake:
    """What ingestion stands on, opened."""

    pipeline: Pipeline
    connector: Connector
    producer: LosslessProducer
    tracker: TrackerStore
    parking: Parking
    objects: ObjectStore
    recorder: Recorder | None = None
    undeliverable: Undeliverable | None = None
    """Parks what Kafka refuses, if the producer was opened with it; else that stops the run."""


def ingest(
    intake: Intake, *, on_progress: Callable[[int, int | None], None] | None = None
) -> IngestReport:
    """Read all that the source has behind the cursor; safe to run again after any death.

    Raises:
        RetryError: Kafka, the tracker or the object store is away; run it again.
        InputError: the source cannot be read as declared.
    """
    return _Run(intake, on_progress).run()


class _Run:
    def __init__(
        self, intake: Intake, on_progress: Callable[[int, int | None], None] | None
    ) -> None:
        self._intake = intake
        self._on_progress = on_progress
        self._clock = IntakeClock()
        pipeline = intake.pipeline
        self._topic = topic_of(pipeline)
        self._event = _declared(pipeline)
        self._accepted = self._parked = self._resumed = self._pages = 0
        self._settling = Settling(
            intake.tracker, intake.producer, pipeline.id, lambda: self._clock.stamp()[1]
        )

    def run(self) -> IngestReport:
        began = time.monotonic()
        intake = self._intake
        self._settling.begin()
        self._finish_marks()
        unfinished = _unfinished(intake.producer)
        position = read_position(intake.tracker, intake.pipeline.id)
        total = intake.connector.count()
        first = position.rows_read
        for page in intake.connector.read(position.cursor):
            position = self._page(page, position, unfinished)
            unfinished = {}
            if self._on_progress is not None:
                self._on_progress(position.rows_read, total)
        if unfinished:
            position = self._page(_nothing_at(position), position, unfinished)
        if left := intake.producer.flush(60.0):
            self._settling.broken_off(left)
            raise _not_delivered(left)
        self._settling.end(left=self._count_between(position.cursor, None))
        note_run(intake.tracker, intake.pipeline.id)
        return IngestReport(
            pipeline=intake.pipeline.name,
            read=position.rows_read - first,
            accepted=self._accepted,
            parked=self._parked,
            refused=intake.undeliverable.parked if intake.undeliverable else 0,
            resumed=self._resumed,
            pages=self._pages,
            seconds=round(time.monotonic() - began, 2),
        )

    def _finish_marks(self) -> None:
        """Commit pages that a dead run marked in the log but did not tell the tracker of."""
        for lsn, payload in self._intake.producer.recovered.marks:
            mark = orjson.loads(payload)
            self._commit(mark, self._settling.recovered(mark["counts"]))
            self._intake.producer.confirm(lsn)

    def _page(self, page: Page, position: Position, unfinished: _Unfinished) -> Position:
        intake = self._intake
        counts = Counts()
        passed = PageTraces()
        packer = Packer()
        for row in page.rows:
            self._row(row, counts, passed, packer, unfinished)
        for bad in page.bad:
            self._bad(bad, counts, packer)
        counted = self._count_between(page.start, page.cursor)
        ingested = counts.total("in_first")
        self._adopt(unfinished, counts, passed)
        sequence = position.sequence + 1
        rows = len(page.rows) + len(page.bad)
        mark: dict[str, Any] = {
            "sequence": sequence,
            "cursor": page.cursor,
            "rows": rows,
            "counts": list(counts.by_pipeline()),
            "parked": self._put_parked(packer),
            "counted": None if counted is None else [counted, ingested],
        }
        self._trace(passed, sequence)
        lsn = intake.producer.mark(orjson.dumps(mark))
        self._commit(mark, self._settling.page(lsn, mark["counts"]))
        intake.producer.confirm(lsn)
        self._pages += 1
        self._accepted += counts.total("passed")
        self._parked += counts.total("parked")
        return Position(sequence, page.cursor, position.rows_read + rows)

    def _count_between(self, start: Cursor | None, end: Cursor | None) -> int | None:
        """Return how many records the source itself counts; None: it cannot."""
        source = self._intake.connector
        return source.count_between(start, end) if isinstance(source, CountingConnector) else None

    def _adopt(self, unfinished: _Unfinished, counts: Counts, passed: PageTraces) -> None:
        """Count the events that a dead run put into the log, and that no row was found for."""
        for identity, found in unfinished.items():
            for left in found:
                key = (self._intake.pipeline.id, left.event_name, "ingestion", left.minute)
                for name in ("in_first", "passed", "out"):
                    counts.add(key, name)
                passed.add(identity, left.key, left.minute, left.lsn, left.taken_us)
                self._resumed += 1

    def _row(
        self,
        row: dict[str, Any],
        counts: Counts,
        passed: PageTraces,
        packer: Packer,
        unfinished: _Unfinished,
    ) -> None:
        pipeline = self._intake.pipeline
        try:
            event, value = self._build(row)
        except ParkError as error:
            self._park(orjson_or_repr(row), error.code, error.message, error.where, counts, packer)
            return
        found = unfinished.get(event.id)
        if found:
            left = found.popleft()
            minute, lsn, taken_us = left.minute, left.lsn, left.taken_us
            self._resumed += 1
        else:
            minute, taken_us = event.intake_minute, event.intake_version
            lsn = self._intake.producer.produce(self._topic, value, event.key.encode())
        passed.add(event.id, event.key, minute, lsn, taken_us)
        key = (pipeline.id, event.name, "ingestion", minute)
        for name in ("in_first", "passed", "out"):
            counts.add(key, name)

    def _build(self, row: dict[str, Any]) -> tuple[Event, bytes]:
        pipeline, declared = self._intake.pipeline, self._event
        key = ordering_key(row, declared.key)
        version = source_version(row, declared.version)
        content = encode_data(row)
        identity = event_id(pipeline.id, declared.name, key, version=version, content=content)
        intake_version, minute = self._clock.stamp()
        moment = datetime.fromtimestamp(intake_version / 1_000_000, UTC)
        event = Event(
            id=identity,
            pipeline_id=pipeline.id,
            team=pipeline.team,
            name=declared.name,
            key=key,
            source_version=0 if version is None else version,
            intake_version=intake_version,
            intake_minute=minute,
            time=moment.isoformat().replace("+00:00", "Z"),
            data=row,
        )
        check_in(self._intake.objects, event, content, name=identity)
        return event, encode(event, content=content)

    def _bad(self, bad: BadRow, counts: Counts, packer: Packer) -> None:
        self._park(bad.raw, bad.code, bad.message, f"line {bad.line}", counts, packer)

    def _park(
        self, raw: bytes, code: str, message: str, where: str, counts: Counts, packer: Packer
    ) -> None:
        pipeline = self._intake.pipeline
        micros, minute = self._clock.stamp()
        moment = datetime.fromtimestamp(micros / 1_000_000, UTC)
        at = moment.isoformat().replace("+00:00", "Z")
        key = (pipeline.id, self._event.name, "ingestion", minute)
        counts.add(key, "in_first")
        counts.add(key, "parked")
        packer.add(
            ParkedEvent(
                pipeline_id=pipeline.id,
                event_name=self._event.name,
                stage="ingestion",
                error_type=code,
                message=message,
                where=where,
                stack_hash="",
                pipeline_version=pipeline.version,
                event_at=at,
                parked_at=at,
                topic="",
                kafka_partition=-1,
                kafka_offset=-1,
                attempt=0,
                value=raw,
            )
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

    def _commit(self, mark: dict[str, Any], watermark: PageMark) -> None:
        intake = self._intake
        parked = mark["parked"]

        def record_parked(connection: Connection, number: int) -> None:
            if parked is not None:
                intake.parking.record(
                    connection,
                    key=parked["key"],
                    size=parked["size"],
                    segments=[SegmentDescriptor.from_json(s) for s in parked["segments"]],
                    scope=f"ingestion/{intake.pipeline.id}",
                    commit_number=number,
                )

        commit = IntakeCommit(
            pipeline_id=intake.pipeline.id,
            sequence=mark["sequence"],
            cursor=mark["cursor"],
            rows=mark["rows"],
            counts=mark["counts"],
            watermark=_with_counts(watermark, mark.get("counted")),
        )
        commit_intake(intake.tracker, commit, record_parked)

    def _trace(self, passed: PageTraces, sequence: int) -> None:
        recorder = self._intake.recorder
        if recorder is not None:
            name, topic = self._event.name, self._topic
            recorder.write(
                passed.batches(self._intake.pipeline.id, name, topic=topic, sequence=sequence)
            )


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
        minute, taken_us = event.intake_minute, event.intake_version
        left = _Left(event.name, event.key, minute, record.lsn, taken_us)
        found.setdefault(event.id, deque()).append(left)
    return found


def _nothing_at(position: Position) -> Page:
    """Return a page without rows where the source gave none, for what a dead run left."""
    cursor = dict(position.cursor or {})
    return Page([], [], cursor=cursor, start=cursor)


def _with_counts(watermark: PageMark, counted: list[int] | None) -> PageMark:
    if counted is None:
        return watermark
    return replace(watermark, counted=counted[0], ingested=counted[1])


def _not_delivered(left: int) -> Exception:
    return RetryError(
        f"{left} events are safe in the write-ahead log, but neither acknowledged by Kafka nor "
        "parked; the next run sends them"
    )


def orjson_or_repr(row: Any) -> bytes:  # noqa: ANN401 - a row that may have no JSON form
    """Return a refused row's bytes: JSON where it has a JSON form, else its repr."""
    try:
        return encode_data(row)
    except ParkError:
        return repr(row).encode("utf-8", "backslashreplace")
