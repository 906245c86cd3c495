"""One streaming query that serves the consumers of some topics, with a FAIR pool of its own.

Each micro-batch: offsets against the ledger, one Spark action over all topics, one tracker
transaction a topic. What is wrong with one topic ends the query once the others are committed; the
application then starts it without that one (`TopicGroups`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.streaming import StreamingQuery

from waybill.deployment import DeployedOnTopic
from waybill.errors import StopError, WaybillError
from waybill.ledger import FencedError
from waybill.parking import held_pipelines
from waybill.processing import Storm, find_storms
from waybill.processing.spark.batches import Ranges, read_offsets, run_tasks
from waybill.processing.spark.memory import give_memory_back
from waybill.processing.spark.tasks import TaskPlan
from waybill.processing.spark.topic_consumer import ProcessingParts, TopicBatch, TopicConsumer
from waybill.storage import LogState

_LOG = logging.getLogger(__name__)
_TASKS_PER_CORE = 2
_SLOW_S = 10.0
"""A topic whose tasks took longer for a batch is slow: 200,000 events of quick code take 3 s."""


class TopicGroup:
    """One query over the topics of some consumers.

    Args:
        parts: of the application.
        consumers: open; this group alone uses them while it runs.
        name: of the query, for people.
        checkpoint: Spark's folder; empty.
        pool: Spark's scheduler pool; empty: one of the query's own, of its name.
    """

    def __init__(
        self,
        parts: ProcessingParts,
        consumers: Iterable[TopicConsumer],
        *,
        name: str,
        checkpoint: Path,
        pool: str = "",
    ) -> None:
        self._parts = parts
        self._consumers = {consumer.topic.name: consumer for consumer in consumers}
        self.name = name
        self._checkpoint = checkpoint
        self._pool = pool or name
        self._tasks = 0
        self._batch = threading.Lock()
        """Held while a batch runs."""
        self._ending = False
        self.errors: dict[str, WaybillError] = {}
        """By topic: why its share of the last batch was not committed."""
        self._slow: set[str] = set()

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the query where the consumers stand."""
        settings = self._parts.settings
        starting = {
            topic: {str(number): offset for number, offset in consumer.positions.items()}
            for topic, consumer in self._consumers.items()
        }
        self._tasks = _TASKS_PER_CORE * spark.sparkContext.defaultParallelism
        frame = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", settings.kafka.bootstrap_servers)
            .option("subscribe", ",".join(self._consumers))
            .option("startingOffsets", orjson.dumps(starting).decode())
            .option("failOnDataLoss", "true")
            .option("maxOffsetsPerTrigger", settings.spark.max_events_per_batch)
            .load()
            .selectExpr("topic", "value", "partition", "offset", "unix_micros(timestamp) AS at_us")
        )
        # The query's thread inherits the pool of the thread that starts it.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._pool)
        return (
            frame.writeStream.queryName(self.name)
            .foreachBatch(self._on_batch)
            .option("checkpointLocation", f"file://{self._checkpoint.resolve()}")
            .trigger(processingTime=f"{settings.spark.trigger_ms} milliseconds")
            .start()
        )

    def end(self, query: StreamingQuery, *, wait_s: float) -> bool:
        """Stop the query once the batch that runs is over; none has an effect from now on.

        Returns:
            False: the batch still runs after ``wait_s``; ask again.
        """
        self._ending = True
        if not self._batch.acquire(timeout=wait_s):
            return False
        self._batch.release()
        query.stop()
        return True

    def take_slow(self) -> set[str]:
        """Return the topics that others waited for in a batch since this was last asked."""
        slow, self._slow = self._slow, set()
        return slow

    def _on_batch(self, frame: DataFrame, spark_batch_id: int) -> None:
        with self._batch:
            if self._ending:  # Spark forgets this batch with its checkpoint: it is read again
                return
            offsets = read_offsets(self._checkpoint, spark_batch_id)
            ranges = {
                topic: consumer.ranges_until(offsets[topic])
                for topic, consumer in self._consumers.items()
                if topic in offsets
            }
            if fresh := {topic: own for topic, own in ranges.items() if own}:
                self._take_effect(frame, fresh)
                give_memory_back()
            self._raise_errors()

    def _take_effect(self, frame: DataFrame, ranges: Mapping[str, Ranges]) -> None:
        """Run a batch and commit it; once more for topics with a storm, its pipeline held.

        What the run before wrote of these is garbage: no row names its objects, nor its batch the
        traces.
        """
        began = time.monotonic()
        deployed = self._parts.pipelines.read_mapped(ranges)
        held = held_pipelines(self._parts.tracker)
        storms: dict[str, list[Storm]] = {topic: [] for topic in ranges}
        pending = set(ranges)
        while pending:
            records = self._records_of(frame, pending, ranges)
            fresh = {topic: ranges[topic] for topic in sorted(pending)}
            batches = self._run(records, fresh, deployed, held)
            pending = set()
            for topic, batch in batches.items():
                for storm in self._storms(batch, held):
                    _LOG.warning("%s: held, the batch runs again: %s", topic, storm)
                    storms[topic].append(storm)
                    pending.add(topic)
            held |= {storm.pipeline_id for topic in pending for storm in storms[topic]}
            decided = {topic: batch for topic, batch in batches.items() if topic not in pending}
            self._commit(decided, storms, took_ms=round((time.monotonic() - began) * 1000))

    def _run(
        self,
        records: DataFrame,
        ranges: Mapping[str, Ranges],
        deployed: Mapping[str, DeployedOnTopic],
        held: frozenset[str],
    ) -> dict[str, TopicBatch]:
        """Run the stages over a batch's records; return {topic: what its tasks tell}."""
        plans = {
            topic: self._consumers[topic].plan(own, deployed[topic])
            for topic, own in ranges.items()
        }
        descriptors = run_tasks(records, self._parts.task(TaskPlan(plans, held)))
        batches = {
            topic: TopicBatch.of(ranges[topic], plan, deployed[topic], descriptors.get(topic, ()))
            for topic, plan in plans.items()
        }
        self._slow.update(topic for topic, batch in batches.items() if batch.took_s > _SLOW_S)
        return batches

    def _records_of(
        self, frame: DataFrame, pending: set[str], ranges: Mapping[str, Ranges]
    ) -> DataFrame:
        """Return the records of some of the batch's topics, in no more tasks than are of use.

        A task and topic write an object each: few records in many tasks would be many objects.
        """
        if len(pending) < len(ranges):
            frame = frame.where(col("topic").isin(*pending))
        if sum(len(own) for own in ranges.values()) > self._tasks:
            frame = frame.coalesce(self._tasks)
        return frame

    def _storms(self, batch: TopicBatch, held: frozenset[str]) -> list[Storm]:
        parking = self._parts.settings.parking
        return [
            storm
            for storm in find_storms(
                batch.counts,
                (row for descriptor in batch.descriptors for row in descriptor["failures"]),
                share=parking.storm_share,
                min_events=parking.storm_min_events,
            )
            if storm.pipeline_id not in held  # what no hold can help with parks
        ]

    def _commit(
        self,
        batches: Mapping[str, TopicBatch],
        storms: Mapping[str, Sequence[Storm]],
        *,
        took_ms: int,
    ) -> None:
        """Commit each topic's share; what is wrong with one is kept in ``errors``."""
        states = self._log_states(batches)
        for topic, batch in batches.items():
            state = states[topic]
            try:
                if isinstance(state, WaybillError):
                    raise state
                self._consumers[topic].check_same_log(state)
                self._consumers[topic].commit(batch, storms[topic], took_ms=took_ms)
            except WaybillError as error:
                self.errors[topic] = error

    def _log_states(self, topics: Iterable[str]) -> dict[str, LogState | WaybillError]:
        """Return the state of each topic's log, or why it is not known. Cost: about 10 ms."""
        infos = [self._consumers[topic].topic for topic in topics]
        log = self._parts.log
        states: dict[str, LogState | WaybillError] = {}
        try:
            states.update(log.states(infos))
        except WaybillError as together:
            states.update(dict.fromkeys(topics, together))
            for info in infos if len(infos) > 1 else ():  # one of them may be to blame
                try:
                    states.update(log.states([info]))
                except WaybillError as error:
                    states[info.name] = error
        return states

    def _raise_errors(self) -> None:
        """End the query where a topic's share was not committed."""
        for error in self.errors.values():
            if isinstance(error, FencedError):
                raise error
        if self.errors:
            first = next(iter(self.errors.values()))
            message = "; ".join(f"{topic}: {error}" for topic, error in self.errors.items())
            raise type(first)(message) if len(self.errors) == 1 else StopError(message)
