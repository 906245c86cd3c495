"""The loading application: one consumer a destination, its offsets the tracker's commit numbers.

A load: staged objects are read, the destination merges them in its own transaction (which stores
the outcome of each commit number), and the tracker is told from those stored outcomes. A repeat, or
a second loader that wakes up, finds the outcomes and changes nothing.

Traces are written before the destination commits, as only that load knows what became of each row.
One that fails afterwards is tried again and writes them again: of two traces with the same event,
batch and row number (``kafka_offset``) the later one counts.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from waybill.destinations import (
    Commit,
    Destination,
    LoadOutcome,
    RefusedRow,
    Rows,
    open_destination,
)
from waybill.errors import InputError, RetryError
from waybill.ledger import LoadCommit, acquire_lease, commit_load, load_position
from waybill.ledger.commit import write_copies
from waybill.operations.refused import park_refused
from waybill.operations.registry import ActivePipelines
from waybill.parking import ObjectDescriptor, Parking, SegmentDescriptor
from waybill.parking.recording import OF_LOADS
from waybill.settings import Settings
from waybill.stages import Counts, StagedFrame, read_staged
from waybill.storage import ObjectStore, TrackerStore, open_objects, open_tracker
from waybill.streaming.consumers import Consumers
from waybill.streaming.load_traces import load_traces
from waybill.streaming.loading_source import StagedSource
from waybill.streaming.processing import (
    fresh_checkpoints,
    read_offsets,
)
from waybill.streaming.session import open_session
from waybill.streaming.stopping import Stopping
from waybill.tracing import Recorder, open_recorder

_LOG = logging.getLogger(__name__)
_LOOK_FOR_DESTINATIONS_S = 2.0
_LONGEST_WAIT_S = 30.0
_READERS = 4


class Loader:
    """Loads commits into one destination and keeps the tracker's books of it."""

    def __init__(
        self,
        tracker: TrackerStore,
        objects: ObjectStore,
        destination: Destination,
        *,
        name: str,
        recorder: Recorder | None = None,
    ) -> None:
        self._tracker = tracker
        self._objects = objects
        self._parking = Parking(tracker, objects)
        self._destination = destination
        self._name = name
        self._recorder = recorder
        self.consumer = f"loading/{name}"
        self._epoch = acquire_lease(tracker, self.consumer, holder=str(uuid.uuid4()))

    def load(self, references: Sequence[tuple[int, str]], *, after: int, until: int) -> int:
        """Load commits ``after`` + 1 to ``until`` and acknowledge them; returns rows read.

        Args:
            references: (commit number, staged object's key).
            after: where the destination stands.
            until: last commit of this load.

        Raises:
            RetryError: the destination, the store or the tracker is away; nothing is half done.
            StopError: fenced, or a staged object is damaged.
        """
        frames = self._frames(references)
        commits = [
            Commit(
                number,
                tuple(
                    Rows(f.pipeline_id, f.event_name, f.table, f.data)
                    for found, f in frames
                    if found == number
                ),
            )
            for number in range(after + 1, until + 1)
        ]
        teams = {(f.pipeline_id, f.event_name): (f.team, f.pipeline_version) for _, f in frames}
        refused: list[RefusedRow] = []

        def park(rows: Sequence[RefusedRow]) -> Mapping[str, object] | None:
            refused.extend(rows)
            return park_refused(self._objects, rows, teams)

        def note(outcomes: Sequence[LoadOutcome]) -> None:
            self._trace(outcomes, {row.event_id: row.error_code for row in refused})

        outcomes = self._destination.load(commits, park, note)
        self._acknowledge(outcomes, after=after, until=until)
        return sum(f.data.num_rows for _, f in frames)

    def _frames(self, references: Sequence[tuple[int, str]]) -> list[tuple[int, StagedFrame]]:
        with ThreadPoolExecutor(_READERS) as pool:
            bodies = pool.map(lambda item: self._objects.get(item[1]), references)
            return [
                (number, frame)
                for (number, key), body in zip(references, bodies, strict=True)
                for frame in read_staged(body, key=key)
            ]

    def _acknowledge(self, outcomes: Sequence[LoadOutcome], *, after: int, until: int) -> None:
        counts = {
            outcome.commit_number: list(_counts(outcome).by_pipeline()) for outcome in outcomes
        }
        replays = _of_replays(outcomes)
        commit = LoadCommit(self.consumer, self._epoch, self._name, after, until, counts, replays)
        parked = {item["key"]: item for outcome in outcomes for item in outcome.parked}

        def record_parked(connection: Any) -> None:  # noqa: ANN401 - a connection
            new = [
                _parked_object(item)
                for key, item in sorted(parked.items())
                if not self._parking.knows(connection, key)
            ]
            copies = self._parking.record_once(
                connection, new, scope=f"{OF_LOADS}{self._name}", commit_number=after + 1
            )
            write_copies(connection, f"load:{self._name}:{after + 1}", copies)

        commit_load(self._tracker, commit, record_parked)

    def _trace(self, outcomes: Sequence[LoadOutcome], codes: Mapping[str, str]) -> None:
        if self._recorder is None:
            return
        batches = load_traces(self._name, outcomes, codes, now_us=time.time_ns() // 1000)
        self._recorder.write(batches)


def _of_replays(outcomes: Sequence[LoadOutcome]) -> dict[str, Counter[str]]:
    """Return replay id to outcome to rows, over several commits."""
    found: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        for replay_id, numbers in outcome.replays.items():
            found.setdefault(replay_id, Counter()).update(numbers)
    return found


def _counts(outcome: LoadOutcome) -> Counts:
    counts = Counts()
    for row in outcome.counts:
        key = (row.pipeline_id, row.event_name, "destination", row.intake_minute)
        for name, number in (
            ("in_first", row.in_first),
            ("in_replayed", row.in_replayed),
            ("passed", row.delivered),
            ("out", row.delivered),
            ("superseded", row.superseded),
            ("duplicate", row.duplicate),
            ("parked", row.parked),
        ):
            if number:
                counts.add(key, name, number)
    return counts


class LoadingConsumer:
    """One destination: its loader, its position, its query."""

    def __init__(
        self, settings: Settings, tracker: TrackerStore, loader: Loader, name: str, checkpoint: Path
    ) -> None:
        self._settings = settings
        self._loader = loader
        self._name = name
        self._checkpoint = checkpoint
        self._position = load_position(tracker, name)

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the query where the destination stands."""
        _LOG.info("%s: starts after commit %d", self._loader.consumer, self._position)
        return (
            spark.readStream.format("waybill_staged")
            .option("destination", self._name)
            .load()
            .writeStream.queryName(f"load-{self._name}")
            .foreachBatch(self._on_batch)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(processingTime=f"{self._settings.spark.trigger_ms} milliseconds")
            .start()
        )

    def _on_batch(self, frame: DataFrame, spark_batch_id: int) -> None:
        until = int(read_offsets(self._checkpoint, spark_batch_id)["commit"])
        if until <= self._position:
            return
        references = [
            (row.commit_number, row.key)
            for row in frame.collect()
            if row.commit_number > self._position
        ]
        began = time.monotonic()
        rows = self._load_patiently(references, until)
        self._position = until
        _LOG.info(
            "%s: loaded to commit %d, %d rows in %.2f s",
            self._loader.consumer,
            until,
            rows,
            time.monotonic() - began,
        )

    def _load_patiently(self, references: Sequence[tuple[int, str]], until: int) -> int:
        """Load; while the destination is away, wait: the staged objects keep."""
        wait_s = 0.5
        while True:
            try:
                return self._loader.load(references, after=self._position, until=until)
            except RetryError as error:
                _LOG.warning("%s waits %.1f s: %s", self._loader.consumer, wait_s, error)
                time.sleep(wait_s)
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


def _parked_object(item: Mapping[str, Any]) -> ObjectDescriptor:
    """Return the descriptor of an object that holds rows which the destination refused."""
    segments = tuple(map(SegmentDescriptor.from_json, item["segments"]))
    return ObjectDescriptor(item["key"], item["size"], segments)


def run_loading(settings: Settings, *, cluster: str) -> None:
    """Run until told to stop (SIGTERM).

    Raises:
        StopError: another application took a consumer over.
        RetryError: the tracker is away; the supervisor starts the application again.
    """
    stopping = Stopping()
    checkpoints = fresh_checkpoints(settings.spark.work_dir / f"loading-{cluster}")
    objects = open_objects(settings.s3)
    recorder = open_recorder(settings.traces) if settings.traces.enabled else None
    destinations: dict[str, Destination] = {}
    with open_tracker(settings.tracker) as tracker:
        spark = open_session(settings.spark, name=f"waybill-loading-{cluster}")
        spark.dataSource.register(StagedSource)

        def start(name: str) -> StreamingQuery:
            opened = destinations.pop(name, None)
            if opened is not None:  # it stopped; begin with a new connection
                opened.close()
            destination = destinations[name] = _open(settings, name)
            loader = Loader(tracker, objects, destination, name=name, recorder=recorder)
            checkpoint = checkpoints / f"{name}-{uuid.uuid4().hex}"
            return LoadingConsumer(settings, tracker, loader, name, checkpoint).start(spark)

        consumers, pipelines = Consumers(start), ActivePipelines(tracker)
        while not stopping.asked:
            consumers.look(sorted({p.destination for p in pipelines.read().values()}))
            stopping.wait(_LOOK_FOR_DESTINATIONS_S)
        consumers.stop()
        spark.stop()
        for destination in destinations.values():
            destination.close()


def _open(settings: Settings, name: str) -> Destination:
    found = settings.destinations.get(name)
    if found is None:
        known = ", ".join(sorted(settings.destinations)) or "none"
        example = orjson.dumps({name: {"kind": "postgres", "dsn": "postgresql://…"}}).decode()
        raise InputError(
            f"destination {name!r} is not configured (known: {known}); set "
            f"WAYBILL_DESTINATIONS={example}"
        )
    return open_destination(name, found)
