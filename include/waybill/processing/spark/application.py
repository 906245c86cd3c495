"""The processing application: one consumer (streaming query) a topic, of one virtual cluster.

Each micro-batch: offsets against the ledger, one Spark action, one tracker transaction. See the
package's invariants.
"""

from __future__ import annotations

import logging
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Self

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from waybill.deployment import ActivePipelines
from waybill.errors import RetryError, StopError
from waybill.ledger import (
    BatchCommit,
    LastRead,
    OffsetRange,
    StagedObject,
    acquire_lease,
    commit_batch,
    count_entries,
    read_positions,
    write_copies,
)
from waybill.parking import ObjectDescriptor, Parking, SegmentStream, held_pipelines, record_storm
from waybill.pipelines import topic_of
from waybill.processing import Counts, Storm, find_storms
from waybill.processing.spark.consumers import Consumers, Stopping, keep_running
from waybill.processing.spark.memory import give_memory_back
from waybill.processing.spark.plan_cache import TaskTexts, Texts
from waybill.processing.spark.session import open_session
from waybill.processing.spark.tasks import DESCRIPTOR_SCHEMA, StageTask, Task, TaskPlan
from waybill.settings import Settings
from waybill.storage import (
    KafkaLog,
    LogEnd,
    ObjectStore,
    TopicInfo,
    TrackerStore,
    open_log,
    open_owned_objects,
    open_tracker,
    refuse_foreign_bucket,
)
from waybill.topics import LogFault, examine, read_stops, record_stops, settled_holes, stop_error

_LOG = logging.getLogger(__name__)
_LOOK_FOR_TOPICS_S = 2.0
Holes = dict[int, list[tuple[int, int]]]
"""{partition: (first, after) of offsets without a record}."""


@dataclass(frozen=True, slots=True)
class SeenOffsets:
    """What the tasks of a batch saw of one partition."""

    first: int
    last: int
    count: int
    at_ms: int
    """Timestamp of the last record."""
    digest: str
    """Of the last record's value."""


@dataclass(frozen=True, slots=True)
class ProcessingParts:
    """What the consumers of one application share."""

    settings: Settings
    tracker: TrackerStore
    parking: Parking
    pipelines: ActivePipelines
    task: Callable[[TaskPlan], Task]
    """Makes what Spark runs in each task."""

    @classmethod
    def over(
        cls,
        settings: Settings,
        tracker: TrackerStore,
        objects: ObjectStore,
        *,
        task: Callable[[TaskPlan], Task] | None = None,
    ) -> Self:
        """Return the parts that stand on a tracker and an object store; ``task`` None: stages."""
        parking, pipelines = Parking(tracker, objects), ActivePipelines(tracker)
        return cls(settings, tracker, parking, pipelines, task or StageTask)


class ProcessingConsumer:
    """One topic: its lease, its positions, its query.

    Args:
        parts: shared with the other consumers.
        topic: that it reads.
        destination: of the topic's events.
        holder: of the lease.
        checkpoint: Spark's folder; empty.
    """

    def __init__(
        self,
        parts: ProcessingParts,
        topic: TopicInfo,
        *,
        destination: str,
        holder: str,
        checkpoint: Path,
    ) -> None:
        tracker = parts.tracker
        self._settings = parts.settings
        self._tracker = tracker
        self._parking = parts.parking
        self._topic = topic
        self._destination = destination
        self._checkpoint = checkpoint
        self._pipelines = parts.pipelines
        self._task = parts.task
        self._texts = TaskTexts()
        self.name = f"processing/{topic.name}"
        self._epoch = acquire_lease(tracker, self.name, holder=holder)
        self._positions: dict[int, int] = {}
        self._holes: Holes = {}
        self._ends: dict[int, LogEnd] = {}

    def start(self, spark: SparkSession, log: KafkaLog) -> StreamingQuery:
        """Start the query where the ledger stands.

        Raises:
            StopError: the log is not the one that the ledger knows, or was not when it was last
                looked at: the stop is in the tracker until somebody settles it.
            RetryError: Kafka or the tracker does not answer.
        """
        topic = self._topic
        self._log = log
        if stops := read_stops(self._tracker, topic.name):
            raise stop_error(stops, topic.name)
        known = read_positions(self._tracker, topic.name)
        self._ends = log.ends(topic)  # before the log is examined: see ``_check_same_log``
        if faults := examine(topic, known, log):
            self._stop(faults)
        own = known.get((topic.cluster_id, topic.topic_id), {})
        numbers = range(topic.partitions)
        self._positions = {n: own[n].next_offset if n in own else 0 for n in numbers}
        self._holes = settled_holes(self._tracker, topic)
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

    def _stop(self, faults: Sequence[LogFault]) -> NoReturn:
        record_stops(self._tracker, self._topic.name, faults)
        raise stop_error(faults, self._topic.name)

    def _check_same_log(self) -> None:
        """Refuse a batch while whose records were read the log may have become another one.

        A log loses records only where its leader changes, and each change has a new epoch. While
        all epochs are those from before the log was examined, the records that were read follow
        those that the ledger has. If one is not, the consumer starts anew: it examines the log and
        reads the batch again.

        Cost: two requests, about 10 ms a batch.

        Raises:
            RetryError: a leader changed, or the topic was made anew, or Kafka does not answer.
        """
        topic = self._topic
        ends = self._log.ends(topic)
        changed = [
            number
            for number, end in ends.items()
            if end.leader_epoch != self._ends[number].leader_epoch
        ]
        if changed or self._log.topic_id(topic.name) != topic.topic_id:
            what = f"partitions {changed} changed their leader" if changed else "it was made anew"
            raise RetryError(
                f"{topic.name}: {what} since the log was held against the ledger; that is done "
                "again, and the batch is read again"
            )
        self._ends = ends

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

        def record_parked(connection: Any, number: int) -> list[str]:
            copies = self._parking.record_once(
                connection, parked, scope=self._destination, commit_number=number
            )
            write_copies(connection, str(commit.batch_id), copies)
            for storm in storms:
                cause = storm.to_cause(pipelines[storm.pipeline_id].version)
                record_storm(connection, storm.pipeline_id, cause)
            return [item.key for item in parked]

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
            )
            descriptors = run_tasks(frame, self._task(plan))
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
        self._check_same_log()
        absent = self._check_whole(ranges, seen)
        return BatchCommit(
            batch_id=batch_id,
            consumer=self.name,
            epoch=self._epoch,
            cluster_id=self._topic.cluster_id,
            topic_id=self._topic.topic_id,
            topic=self._topic.name,
            destination=self._destination,
            ranges=[
                OffsetRange(
                    number,
                    start,
                    end,
                    seen[number].count if number in seen else 0,
                    absent=absent[number],
                    last=self._last_read(number, seen.get(number)),
                )
                for number, (start, end) in ranges.items()
            ],
            counts=list(counts.by_pipeline()),
            staged=[
                StagedObject(
                    d["staged"]["key"],
                    d["staged"]["rows"],
                    d["staged"]["bytes"],
                    [[self._topic.name, n, first, last + 1] for n, first, last, *_ in d["ranges"]],
                )
                for d in descriptors
                if d["staged"]
            ],
            replayed=count_entries(row for d in descriptors for row in d["replayed"]),
        )

    def _last_read(self, number: int, seen: SeenOffsets | None) -> LastRead | None:
        if seen is None:
            return None
        end = self._ends[number]
        return LastRead(seen.last, seen.at_ms, seen.digest, end.leader_epoch, end.offset)

    def _check_whole(
        self, ranges: dict[int, tuple[int, int]], seen: dict[int, SeenOffsets]
    ) -> dict[int, int]:
        """Return {partition: offsets without a record, all of them settled as such}.

        Raises:
            StopError: other offsets have no record: the stop is in the tracker from now on.
            RetryError: records were not read that are in the log.
        """
        try:
            return check_ranges_seen(self._topic.name, ranges, seen, self._holes)
        except HoleError as error:
            faults = [self._hole(number, *ranges[number]) for number in error.partitions]
            if found := [fault for fault in faults if fault is not None]:
                self._stop(found)
            raise RetryError(f"{error}, but the log has them: they are read again") from error

    def _hole(self, number: int, start: int, end: int) -> LogFault | None:
        settled = self._holes.get(number, [])
        missing = [
            pair
            for pair in self._log.missing(self._topic.name, number, start, end)
            if pair not in settled
        ]
        if not missing:
            return None
        words = (
            f"{self._topic.name}/{number} has no record at {sum(b - a for a, b in missing):,} of "
            f"the offsets {start:,} to {end - 1:,}: the log has a hole"
        )
        return LogFault("hole", number, words, {"missing": [list(pair) for pair in missing]})


class HoleError(StopError):
    """Some records of a batch did not come.

    Args:
        message: which.
        partitions: their numbers.
    """

    def __init__(self, message: str, partitions: Sequence[int]) -> None:
        super().__init__(message)
        self.partitions = partitions


def run_tasks(frame: DataFrame, task: Task) -> list[dict[str, Any]]:
    """Run a batch as one Spark action; return what its tasks tell."""
    rows = frame.mapInArrow(task, DESCRIPTOR_SCHEMA).collect()
    descriptors = []
    while rows:  # each is freed once it is read
        descriptors.append(read_descriptor(*rows.pop(0)))
    return descriptors


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


def ranges_seen(descriptors: Sequence[dict[str, Any]]) -> dict[int, SeenOffsets]:
    """Return what was seen of each partition over all tasks."""
    seen: dict[int, SeenOffsets] = {}
    for descriptor in descriptors:
        for number, *span in descriptor["ranges"]:
            found = SeenOffsets(*span)
            if (before := seen.get(number)) is not None:
                newest = max(found, before, key=lambda one: one.last)
                first, count = min(found.first, before.first), found.count + before.count
                found = replace(newest, first=first, count=count)
            seen[number] = found
    return seen


def check_ranges_seen(
    topic: str, ranges: dict[int, tuple[int, int]], seen: dict[int, SeenOffsets], holes: Holes
) -> dict[int, int]:
    """Refuse a batch whose records are not exactly the offsets it is to cover.

    Args:
        topic: its name, for words.
        ranges: {partition: (first offset, after the last)} asked for.
        seen: what came.
        holes: offsets that were settled as having no record.

    Returns:
        {partition: how many of its offsets have no record, all of them settled}.

    Raises:
        HoleError: others have none, or records came twice.
        StopError: records of other partitions.
    """
    absent = {}
    wrong = []
    for number, (start, end) in ranges.items():
        gaps = [(max(a, start), min(b, end)) for a, b in holes.get(number, ())]
        absent[number] = sum(b - a for a, b in gaps if a < b)
        there = seen.get(number)
        count = 0 if there is None else there.count
        inside = there is None or (there.first >= start and there.last < end)
        if not inside or count + absent[number] != end - start:
            wrong.append(number)
    if extra := set(seen) - set(ranges):
        raise StopError(f"{topic}: records of partitions {sorted(extra)} that no one asked for")
    if wrong:
        asked = "; ".join(
            f"{topic}/{n}: offsets {ranges[n][0]} to {ranges[n][1] - 1} were asked for, "
            f"{seen[n].count if n in seen else 0} records came"
            for n in wrong
        )
        raise HoleError(asked, wrong)
    return absent


def read_offsets(checkpoint: Path, spark_batch_id: int) -> dict[str, Any]:
    """Return the end offsets that Spark wrote for a batch before it ran."""
    text = (checkpoint / "offsets" / str(spark_batch_id)).read_text(encoding="utf-8")
    offsets: dict[str, Any] = orjson.loads(text.strip().splitlines()[-1])
    return offsets


def run_processing(settings: Settings, *, cluster: str) -> None:
    """Run until told to stop (SIGTERM).

    Raises:
        StopError: another application took a consumer over.
        RetryError: Kafka did not answer for 10 min at the start; the supervisor starts it again.
    """
    stopping = Stopping()
    checkpoints = fresh_checkpoints(settings.spark.work_dir / f"processing-{cluster}")
    log = open_log(settings.kafka)
    log.wait_until_up(limit_s=600)
    refuse_foreign_bucket(settings)
    with open_tracker(settings.tracker) as tracker:
        parts = ProcessingParts.over(settings, tracker, open_owned_objects(settings))
        spark = open_session(
            settings.spark,
            name=f"waybill-processing-{cluster}",
            max_cores=settings.spark.processing_max_cores,
        )
        destinations: dict[str, str] = {}

        def start(name: str) -> StreamingQuery:
            consumer = ProcessingConsumer(
                parts,
                log.ensure_topic(name),
                destination=destinations[name],
                holder=f"{cluster}:{uuid.uuid4()}",
                checkpoint=checkpoints / f"{name}-{uuid.uuid4().hex}",
            )
            return consumer.start(spark, log)

        def wanted() -> Iterable[str]:
            destinations.update(
                {topic_of(p): p.destination for p in parts.pipelines.read().values()}
            )
            return destinations

        consumers = Consumers(start)
        keep_running(consumers, wanted, stopping, every_s=_LOOK_FOR_TOPICS_S)
        consumers.stop()
        spark.stop()


def fresh_checkpoints(folder: Path) -> Path:
    """Return a new, empty folder for Spark's disposable checkpoints; older ones are removed."""
    shutil.rmtree(folder, ignore_errors=True)
    fresh = folder.resolve() / uuid.uuid4().hex
    fresh.mkdir(parents=True)
    return fresh
