"""Ingestion: pages of a source into the write-ahead log and Kafka, each page exactly once.

A page: read at the cursor; its events appended; their traces written; then one *mark* in the log
with the cursor behind it, its counts and what it parked; then the tracker, by compare-and-set; then
the mark is confirmed.

Who dies when: before the mark, the log holds the beginning of a page; the next run reads the page
again (a connector gives the same page at the same cursor), appends only what is not there, and
writes the traces of all of it: see ``ingest_traces`` why that doubles none. After the mark, the
next run commits the mark first. After the tracker's commit, the mark is found done.
An event that Kafka refuses is counted with its page all the same: see ``undeliverable``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from sqlalchemy import Connection

from waybill.connectors import BadRow, Connector, Page
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
from waybill.ledger import IntakeCommit, Position, commit_intake, read_position
from waybill.operations.claims import check_in
from waybill.operations.ingest_traces import PageTraces
from waybill.operations.undeliverable import Undeliverable
from waybill.parking import Packer, ParkedEvent, Parking, SegmentDescriptor, new_key
from waybill.pipelines import EventDeclaration, Pipeline, topic_of
from waybill.producer import LosslessProducer
from waybill.stages import Counts
from waybill.storage import ObjectStore, TrackerStore
from waybill.tracing import Recorder

_STORE_AWAY_LIMIT_S = 600.0
_Unfinished = dict[str, deque[tuple[int, int]]]
"""Event id to (intake minute, lsn) of each of its records behind the log's last mark."""


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

    def run(self) -> IngestReport:
        began = time.monotonic()
        intake = self._intake
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
        if left := intake.producer.flush(60.0):
            raise _not_delivered(left)
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
            self._commit(orjson.loads(payload))
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
        sequence = position.sequence + 1
        rows = len(page.rows) + len(page.bad)
        mark = {
            "sequence": sequence,
            "cursor": page.cursor,
            "rows": rows,
            "counts": list(counts.by_pipeline()),
            "parked": self._put_parked(packer),
        }
        self._trace(passed, sequence)
        lsn = intake.producer.mark(orjson.dumps(mark))
        self._commit(mark)
        intake.producer.confirm(lsn)
        self._pages += 1
        self._accepted += counts.total("passed")
        self._parked += counts.total("parked")
        return Position(sequence, page.cursor, position.rows_read + rows)

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
            minute, lsn = found.popleft()
            self._resumed += 1
        else:
            minute = event.intake_minute
            lsn = self._intake.producer.produce(self._topic, value, event.key.encode())
        passed.add(event.id, event.key, minute, lsn)
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

    def _commit(self, mark: dict[str, Any]) -> None:
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
        found.setdefault(event.id, deque()).append((event.intake_minute, record.lsn))
    return found


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
