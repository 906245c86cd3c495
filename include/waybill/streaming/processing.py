"""The processing application: one consumer (streaming query) a topic, of one virtual cluster.

Each micro-batch: offsets against the ledger, one Spark action, one tracker transaction. See the
package's invariants.
"""

from __future__ import annotations

import logging
import shutil
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from waybill.errors import StopError
from waybill.ledger import (
    BatchCommit,
    OffsetRange,
    acquire_lease,
    commit_batch,
    count_entries,
    topic_positions,
)
from waybill.ledger.commit import StagedObject, write_copies
from waybill.operations.registry import ActivePipelines
from waybill.parking import ObjectDescriptor, Parking
from waybill.parking.holds import held_pipelines, record_storm
from waybill.parking.segment_stream import SegmentStream
from waybill.pipelines import topic_of
from waybill.settings import Settings
from waybill.stages import Counts
from waybill.storage import KafkaLog, TopicInfo, TrackerStore, open_log, open_objects, open_tracker
from waybill.streaming.consumers import Consumers
from waybill.streaming.memory import give_memory_back
from waybill.streaming.session import open_session
from waybill.streaming.stopping import Stopping
from waybill.streaming.storms import Storm, find_storms
from waybill.streaming.task_texts import TaskTexts, Texts
from waybill.streaming.tasks import DESCRIPTOR_SCHEMA, StageTask, TaskPlan

_LOG = logging.getLogger(__name__)
_LOOK_FOR_TOPICS_S = 2.0


class ProcessingConsumer:
    """One topic: its lease, its positions, its query."""

    def __init__(  # noqa: PLR0913 - what one consumer stands on
        self,
        settings: Settings,
        tracker: TrackerStore,
        parking: Parking,
        topic: TopicInfo,
        *,
        destination: str,
        holder: str,
        checkpoint: Path,
        pipelines: ActivePipelines | None = None,
        identity: bool = False,
    ) -> None:
        self._settings = settings
        self._tracker = tracker
        self._parking = parking
        self._topic = topic
        self._destination = destination
        self._checkpoint = checkpoint
        self._identity = identity
        self._pipelines = ActivePipelines(tracker) if pipelines is None else pipelines
        self._texts = TaskTexts()
        self.name = f"processing/{topic.name}"
        self._epoch = acquire_lease(tracker, self.name, holder=holder)
        self._positions: dict[int, int] = {}

    def start(self, spark: SparkSession, log: KafkaLog) -> StreamingQuery:
        """Start the query where the ledger stands.

        Raises:
            StopError: the log begins above, or ends below, what the ledger says.
        """
        topic = self._topic
        known = topic_positions(
            self._tracker,
            cluster_id=topic.cluster_id,
            topic_id=topic.topic_id,
            topic=topic.name,
        )
        self._positions = {number: known.get(number, 0) for number in range(topic.partitions)}
        check_log_covers(topic, self._positions, log.watermarks(topic))
        starting = {topic.name: {str(n): offset for n, offset in self._positions.items()}}
        _LOG.info("%s: epoch %d, starts at %s", self.name, self._epoch, self._positions)
        frame = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._settings.kafka.bootstrap_servers)
            .option("subscribe", topic.name)
            .option("startingOffsets", orjson.dumps(starting).decode())
            .option("failOnDataLoss", "true")
            .option("maxOffsetsPerTrigger", self._settings.spark.max_events_per_batch)
            .load()
            .selectExpr("value", "partition", "offset", "unix_micros(timestamp) AS at_us")
        )
        return (
            frame.writeStream.queryName(topic.name)
            .foreachBatch(self._on_batch)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(processingTime=f"{self._settings.spark.trigger_ms} milliseconds")
            .start()
        )

    def _on_batch(self, frame: DataFrame, spark_batch_id: int) -> None:
        ends = read_offsets(self._checkpoint, spark_batch_id)[self._topic.name]
        wanted = {int(n): int(end) for n, end in ends.items()}
        ranges = {
            number: (self._positions.get(number, 0), end)
            for number, end in wanted.items()
            if end > self._positions.get(number, 0)
        }
        if not ranges:
            return
        self._take_effect(frame, ranges)
        give_memory_back()

    def _take_effect(self, frame: DataFrame, ranges: dict[int, tuple[int, int]]) -> None:
        began = time.monotonic()
        pipelines, mappings = self._pipelines.read_mapped(self._topic.name)
        texts = self._texts.of(pipelines, mappings)
        commit, descriptors, storms = self._run(frame, ranges, texts)
        commit = replace(commit, took_ms=round((time.monotonic() - began) * 1000))
        parked = [d["parked"] for d in descriptors if d["parked"]]

        def record_parked(connection: Any, number: int) -> None:  # noqa: ANN401 - a connection
            copies = self._parking.record_once(
                connection, parked, scope=self._destination, commit_number=number
            )
            write_copies(connection, str(commit.batch_id), copies)
            for storm in storms:
                cause = storm.to_cause(pipelines[storm.pipeline_id].version)
                record_storm(connection, storm.pipeline_id, cause)

        number = commit_batch(self._tracker, commit, record_parked)
        self._positions.update({n: end for n, (_, end) in ranges.items()})
        _LOG.info(
            "%s: commit %d, %d events in %.2f s",
            self.name,
            number,
            sum(item.count for item in commit.ranges),
            time.monotonic() - began,
        )

    def _run(
        self,
        frame: DataFrame,
        ranges: dict[int, tuple[int, int]],
        texts: Texts,
    ) -> tuple[BatchCommit, list[dict[str, Any]], list[Storm]]:
        """Run a batch; once more with a storm's pipeline held, for each one that turns up.

        What the run before wrote is garbage: no row names its objects, nor its batch the traces.
        """
        held, storms = held_pipelines(self._tracker), list[Storm]()
        parking = self._settings.parking
        while True:
            plan = TaskPlan(
                batch_id=str(uuid.uuid4()),
                topic=self._topic.name,
                starts={number: start for number, (start, _) in ranges.items()},
                pipelines=texts.pipelines,
                held=held,
                mappings=texts.mappings,
                identity=self._identity,
            )
            rows = frame.mapInArrow(StageTask(plan), DESCRIPTOR_SCHEMA).collect()
            descriptors = []
            while rows:  # each is freed once it is read
                descriptors.append(read_descriptor(*rows.pop(0)))
            counts = counts_of(descriptors)
            found = [
                storm
                for storm in find_storms(
                    counts,
                    (row for descriptor in descriptors for row in descriptor["failures"]),
                    share=parking.storm_share,
                    min_events=parking.storm_min_events,
                )
                if storm.pipeline_id not in held  # what no hold can help with parks
            ]
            if not found:
                commit = self._commit_of(uuid.UUID(plan.batch_id), ranges, descriptors, counts)
                return commit, descriptors, storms
            for storm in found:
                _LOG.warning("%s: held, the batch runs again: %s", self.name, storm)
            storms += found
            held |= {storm.pipeline_id for storm in found}

    def _commit_of(
        self,
        batch_id: uuid.UUID,
        ranges: dict[int, tuple[int, int]],
        descriptors: Sequence[dict[str, Any]],
        counts: Counts,
    ) -> BatchCommit:
        seen = ranges_seen(descriptors)
        check_ranges_seen(self._topic.name, ranges, seen)
        return BatchCommit(
            batch_id=batch_id,
            consumer=self.name,
            epoch=self._epoch,
            cluster_id=self._topic.cluster_id,
            topic_id=self._topic.topic_id,
            topic=self._topic.name,
            destination=self._destination,
            ranges=[
                OffsetRange(number, start, end, seen[number][2])
                for number, (start, end) in ranges.items()
            ],
            counts=list(counts.by_pipeline()),
            staged=[
                StagedObject(d["staged"]["key"], d["staged"]["rows"], d["staged"]["bytes"])
                for d in descriptors
                if d["staged"]
            ],
            replayed=count_entries(row for d in descriptors for row in d["replayed"]),
        )


def counts_of(descriptors: Sequence[dict[str, Any]]) -> Counts:
    """Return the counts of all tasks."""
    counts = Counts()
    for descriptor in descriptors:
        counts.merge(Counts.from_json(descriptor["counts"]))
    return counts


def read_descriptor(descriptor: bytes, segments: bytes) -> dict[str, Any]:
    """Return what a task tells; ``parked`` is an ``ObjectDescriptor``, or None."""
    told: dict[str, Any] = orjson.loads(descriptor)
    if told["parked"]:
        told["parked"] = ObjectDescriptor(**told["parked"], segments=SegmentStream(segments))
    return told


def ranges_seen(descriptors: Sequence[dict[str, Any]]) -> dict[int, tuple[int, int, int]]:
    """Return {partition: (first, last, count)} over all tasks."""
    seen: dict[int, tuple[int, int, int]] = {}
    for descriptor in descriptors:
        for number, first, last, count in descriptor["ranges"]:
            before = seen.get(number, (first, last, 0))
            seen[number] = (min(before[0], first), max(before[1], last), before[2] + count)
    return seen


def check_ranges_seen(
    topic: str, ranges: dict[int, tuple[int, int]], seen: dict[int, tuple[int, int, int]]
) -> None:
    """Refuse a batch whose records are not exactly the offsets it is to cover.

    Raises:
        StopError: a hole, or records outside the ranges.
    """
    for number, (start, end) in ranges.items():
        first, last, count = seen.get(number, (0, -1, 0))
        if (first, last, count) != (start, end - 1, end - start):
            raise StopError(
                f"{topic}/{number}: offsets {start} to {end - 1} were asked for, {count} records "
                f"from {first} to {last} came: the log has a hole"
            )
    if extra := set(seen) - set(ranges):
        raise StopError(f"{topic}: records of partitions {sorted(extra)} that no one asked for")


def check_log_covers(
    topic: TopicInfo, positions: dict[int, int], watermarks: dict[int, tuple[int, int]]
) -> None:
    """Refuse a log that lost what the ledger still needs.

    Raises:
        StopError: it begins above or ends below a position.
    """
    for number, position in positions.items():
        low, high = watermarks[number]
        if low > position:
            raise StopError(
                f"{topic.name}/{number} begins at offset {low}, the ledger stands at {position}: "
                f"{low - position} events were deleted unread; they must be sent again"
            )
        if high < position:
            raise StopError(
                f"{topic.name}/{number} ends at offset {high}, the ledger stands at {position}: "
                "the log was cut; nothing is read until somebody looks"
            )


def read_offsets(checkpoint: Path, spark_batch_id: int) -> dict[str, Any]:
    """Return the end offsets that Spark wrote for a batch before it ran."""
    text = (checkpoint / "offsets" / str(spark_batch_id)).read_text(encoding="utf-8")
    offsets: dict[str, Any] = orjson.loads(text.strip().splitlines()[-1])
    return offsets


def run_processing(settings: Settings, *, cluster: str) -> None:
    """Run until told to stop (SIGTERM).

    Raises:
        StopError: another application took a consumer over.
        RetryError: Kafka or the tracker is away; the supervisor starts the application again.
    """
    stopping = Stopping()
    checkpoints = fresh_checkpoints(settings.spark.work_dir / f"processing-{cluster}")
    shutil.rmtree(settings.spark.work_dir / "markers", ignore_errors=True)
    log = open_log(settings.kafka)
    log.wait_until_up(limit_s=600)
    with open_tracker(settings.tracker) as tracker:
        parking = Parking(tracker, open_objects(settings.s3))
        spark = open_session(settings.spark, name=f"waybill-processing-{cluster}")
        pipelines = ActivePipelines(tracker)
        destinations: dict[str, str] = {}

        def start(name: str) -> StreamingQuery:
            consumer = ProcessingConsumer(
                settings,
                tracker,
                parking,
                log.ensure_topic(name),
                destination=destinations[name],
                holder=f"{cluster}:{uuid.uuid4()}",
                checkpoint=checkpoints / f"{name}-{uuid.uuid4().hex}",
                pipelines=pipelines,
            )
            return consumer.start(spark, log)

        consumers = Consumers(start)
        while not stopping.asked:
            destinations.update({topic_of(p): p.destination for p in pipelines.read().values()})
            consumers.look(destinations)
            stopping.wait(_LOOK_FOR_TOPICS_S)
        consumers.stop()
        spark.stop()


def fresh_checkpoints(folder: Path) -> Path:
    """Return a new, empty folder for Spark's disposable checkpoints; older ones are removed."""
    shutil.rmtree(folder, ignore_errors=True)
    fresh = folder.resolve() / uuid.uuid4().hex
    fresh.mkdir(parents=True)
    return fresh
