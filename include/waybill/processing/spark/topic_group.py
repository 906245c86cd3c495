"""One streaming query that serves the consumers of some topics, with a FAIR pool of its own.

Spark's Kafka source says where a batch ends, and is asked for no record: tasks read their ranges
themselves. Each micro-batch: offsets against the ledger, one Spark action over all topics, one
tracker transaction a topic. The action runs again for topics whose events taught something, once
that is kept, for those with a storm, and for those with events of pipelines that tasks were not
sent. A topic whose share is not committed is left out of the batches that follow; the application
then gives it to another query (`TopicGroups`). What waits of a topic that is alone in its query,
and whose code is slow, is worked off in batches of some 20 s (`BatchSize`).
"""

from __future__ import annotations

import logging
import shutil
import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from waybill.deployment import DeployedOnTopic
from waybill.errors import RetryError, StopError, WaybillError
from waybill.ledger import tell_staged
from waybill.parking import held_pipelines
from waybill.processing import Counts, Storm, find_storms
from waybill.processing.spark.batch_size import MOST_BYTES, BatchSize
from waybill.processing.spark.batches import (
    Descriptor,
    Ranges,
    checkpoint_location,
    gave_up,
    needed_by,
    read_offsets,
    run_tasks,
    unread_of,
)
from waybill.processing.spark.consumers import BatchGate
from waybill.processing.spark.idle_trigger import IdleTrigger, staggered_ms
from waybill.processing.spark.learning_reports import is_cut, learned_of
from waybill.processing.spark.memory import give_memory_back
from waybill.processing.spark.task_shares import shares_of
from waybill.processing.spark.tasks import TaskPlan
from waybill.processing.spark.topic_consumer import ProcessingParts, TopicBatch, TopicConsumer
from waybill.storage import java_config

_LOG = logging.getLogger(__name__)
_TASKS_PER_CORE = 2
_EVENTS_PER_TASK = 50_000
"""Fewer are put together with others: a task and topic write an object each."""
_SLOW_S = 10.0
"""A topic whose tasks took longer for a batch is slow: 200,000 events of quick code take 3 s."""
BESIDE_OTHERS_S = 20.0
"""How long a task works on a topic while others of its query wait: 50,000 events of quick code take
a second. Then the topic is given up, and read again by a query of its own."""
_LARGE_SHARE = 0.25
"""A topic with more of a long, or of a full, batch than this is read by a query of its own."""
_LEARNING_RUNS = 3
"""Runs of a batch that learn from its events; one more parks what still has no room. The second
meets what tasks differed over, such as a type, the third what user code made anew. A run after
which tasks had more to tell than a report holds does not count,"""
_CUT_RUNS = 20
"""but for these: so many event names and fields at once have time until the next batches."""
_KAFKA_ANSWER_MS = "15000"


class TopicGroup:
    """One query over the topics of some consumers.

    Args:
        parts: of the application.
        consumers: open; this group alone uses them while it runs.
        name: of the query, for people.
        number: of the query in its application, from 1: see `staggered_ms`.
        checkpoint: Spark's folder; empty.
        pool: Spark's scheduler pool; empty: one of the query's own, of its name.
    """

    def __init__(
        self,
        parts: ProcessingParts,
        consumers: Iterable[TopicConsumer],
        *,
        name: str,
        number: int = 1,
        checkpoint: Path,
        pool: str = "",
    ) -> None:
        self._parts = parts
        self._consumers = {consumer.topic.name: consumer for consumer in consumers}
        self.name = name
        self._checkpoint = checkpoint
        self._pool = pool or name
        self._gate = BatchGate()
        spark_settings = parts.settings.spark
        self._trigger_ms = staggered_ms(spark_settings.trigger_ms, number)
        self._trigger = IdleTrigger(self._trigger_ms, spark_settings.idle_trigger_ms)
        self._left_out: set[str] = set()
        """Topics whose share of a batch was not committed: this query reads no more of them."""
        self.errors: dict[str, WaybillError] = {}
        """By topic: why it is left out."""
        self._apart: deque[str] = deque()
        self._parts_before = PartsBefore()

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the query where the consumers stand."""
        settings = self._parts.settings
        starting = {
            topic: {str(number): offset for number, offset in consumer.positions.items()}
            for topic, consumer in self._consumers.items()
        }
        secured = {f"kafka.{name}": text for name, text in java_config(settings.kafka).items()}
        frame = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", settings.kafka.bootstrap_servers)
            .options(**secured)
            .option("subscribe", ",".join(self._consumers))
            .option("startingOffsets", orjson.dumps(starting).decode())
            .option("failOnDataLoss", "true")
            .option("kafka.default.api.timeout.ms", _KAFKA_ANSWER_MS)
            .option("kafka.request.timeout.ms", _KAFKA_ANSWER_MS)
            .option("fetchOffset.numRetries", "1")
            .option("maxOffsetsPerTrigger", settings.spark.max_events_per_batch)
            .load()  # evaluated by nobody: it says where a batch ends
        )
        # The query's thread inherits the pool of the thread that starts it.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._pool)
        query = (  # named after its checkpoint: Spark knows one's name for a while after its end
            frame.writeStream.queryName(self._checkpoint.name)
            .foreachBatch(self._on_batch)
            .option("checkpointLocation", checkpoint_location(self._checkpoint))
            .trigger(processingTime=f"{self._trigger_ms} milliseconds")
            .start()
        )
        self._trigger.watch(query)
        return query

    def look(self) -> None:
        """Do what is due beside the batches."""
        self._trigger.look()

    def end(self, query: StreamingQuery) -> bool:
        """Stop the query, unless a batch runs: see `BatchGate.end`."""
        if not self._gate.end(query):
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Remove Spark's checkpoint, once the query has ended."""
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    @property
    def busy_cores(self) -> float:
        """The cores that its batches keep busy; see `QueriesAtWork.cores_of`."""
        return self._parts.at_work.cores_of(self.name)

    def take_apart(self) -> set[str]:
        """Return the topics that should be read by a query of their own, since this was last asked.

        Those that their neighbours wait for, or that are replayed; most go on here meanwhile.
        """
        return {self._apart.popleft() for _ in range(len(self._apart))}

    def _on_batch(self, frame: DataFrame, spark_batch_id: int) -> None:
        with self._gate.batch() as is_wanted:
            if not is_wanted:  # Spark forgets this batch with its checkpoint: it is read again
                return
            self._trigger.worked()
            offsets = read_offsets(self._checkpoint, spark_batch_id)
            self._parts_before = PartsBefore()
            with self._parts.at_work.batch(self.name):
                self._work_off(frame.sparkSession, offsets)

    def _work_off(self, spark: SparkSession, offsets: Mapping[str, Mapping[str, int]]) -> None:
        while (fresh := self._fresh(offsets)) and not self._gate.is_closed:
            try:
                self._take_effect(spark, fresh)
            except RetryError as error:  # a server is away, for all of them
                self._leave_out(dict.fromkeys(fresh, error))
            give_memory_back()

    def _fresh(self, ends: Mapping[str, Mapping[str, int]]) -> dict[str, Ranges]:
        """Return what is to be read up to these offsets; of a topic with slow code some of it."""
        ranges = {
            topic: consumer.ranges_until(ends[topic])
            for topic, consumer in self._consumers.items()
            if topic in ends and topic not in self._left_out
        }
        if self._is_one:
            ranges = {topic: self._size(topic).of(own) for topic, own in ranges.items()}
        return {topic: own for topic, own in ranges.items() if own}

    @property
    def _is_one(self) -> bool:
        """Whether a topic has the query to itself."""
        return len(self._consumers) == 1

    def _size(self, topic: str) -> BatchSize:
        return self._consumers[topic].batch_size

    def _leave_out(self, errors: Mapping[str, WaybillError]) -> None:
        self._left_out.update(errors)
        self.errors.update(errors)

    def _take_effect(self, spark: SparkSession, ranges: Mapping[str, Ranges]) -> None:
        """Run a batch and commit it; again for topics that are not decided by the first run.

        They taught something, have a storm, need pipelines that were not sent, or have events of
        pipelines that send elsewhere.

        What the runs before wrote of these is garbage: no row names its objects, nor its batch the
        traces.
        """
        began = time.monotonic()
        deployed = self._read_deployed(ranges)
        context = RunContext(deployed, held_pipelines(self._parts.tracker))
        pending = set(ranges)
        while pending:
            fresh = {topic: ranges[topic] for topic in sorted(pending)}
            batches, learned, needed = self._run(spark, fresh, context)
            pending = self._refuse_foreign(batches)
            own = {topic: batch for topic, batch in batches.items() if topic not in pending}
            pending |= self._hold(own, context)
            decided = {topic: batch for topic, batch in batches.items() if topic not in pending}
            if decided:
                self._commit(decided, context.storms, began=began)
                if self._is_one:
                    self._parts_before.add(decided.values())
            if again := self._learn(learned, context) | self._need(needed):
                context.deployed |= self._read_deployed(again)
            pending |= again

    def _read_deployed(self, topics: Collection[str]) -> dict[str, DeployedOnTopic]:
        """Return what is in force now of topics: of their pipelines, those in use."""
        return self._parts.pipelines.read_mapped(
            topics, lambda topic, ids: self._consumers[topic].in_use(ids)
        )

    def _refuse_foreign(self, batches: Mapping[str, TopicBatch]) -> set[str]:
        """Find events of pipelines that send to another topic; return the topics that run again.

        Their events are to be in no books but those of nobody.
        """
        found = set()
        for topic, batch in batches.items():
            named, consumer = batch.counts.pipeline_ids, self._consumers[topic]
            if some := consumer.find_foreign(batch.deployed, named):
                shown = ", ".join(sorted(some)[:3])
                _LOG.warning("%s: runs again: pipelines of other topics: %s", topic, shown)
                found.add(topic)
        return found

    def _hold(self, batches: Mapping[str, TopicBatch], context: RunContext) -> set[str]:
        """Hold pipelines with a storm; return their topics, which run again."""
        stormy = set()
        for topic, batch in batches.items():
            for storm in self._storms(batch, context.held):
                _LOG.warning("%s: held, the batch runs again: %s", topic, storm)
                context.storms[topic].append(storm)
                stormy.add(topic)
                self._parts_before.forget(storm.pipeline_id)
        context.held |= {storm.pipeline_id for topic in stormy for storm in context.storms[topic]}
        return stormy

    def _learn(self, learned: Mapping[str, Sequence[Descriptor]], context: RunContext) -> set[str]:
        """Keep what tasks learned; return the topics that run again.

        One that cannot be learned for keeps no other from it.
        """
        kept = set()
        for topic, descriptors in learned.items():
            with self._left_out_if_it_fails(topic, "what its events taught was not kept"):
                if context.learning_runs[topic] <= 0:
                    raise StopError(f"{topic}: a task learned that was told not to learn any more")
                later = self._consumers[topic].learn(context.deployed[topic], descriptors)
                context.learned(topic, later=later, cut=any(map(is_cut, descriptors)))
                kept.add(topic)
        # others of the query wait for who learns for ever
        self._apart.extend(topic for topic in kept if context.learning_runs[topic] <= 0)
        return kept

    def _need(self, needed: Mapping[str, Collection[str]]) -> set[str]:
        """Take pipelines into use that tasks were not sent; return the topics that run again."""
        taken = set()
        for topic, pipeline_ids in needed.items():
            with self._left_out_if_it_fails(topic, "pipelines that its events need were not taken"):
                self._consumers[topic].need(pipeline_ids)
                some = ", ".join(sorted(pipeline_ids)[:3])
                _LOG.info(
                    "%s: runs again with %d more pipelines: %s", topic, len(pipeline_ids), some
                )
                taken.add(topic)
        return taken

    def _run(
        self, spark: SparkSession, ranges: Mapping[str, Ranges], context: RunContext
    ) -> tuple[dict[str, TopicBatch], dict[str, list[Descriptor]], dict[str, set[str]]]:
        """Run the stages over a batch's records.

        Returns:
            {topic: what its tasks tell}, of topics that taught something {topic: descriptors}, and
            of topics whose tasks were not sent all that they need {topic: ids of pipelines}; what
            these taught, the next run meets again. None of topics that were given up, or not read.
        """
        plans = {
            topic: self._consumers[topic].plan(
                context.deployed[topic], learns=context.learning_runs[topic] > 0
            )
            for topic in ranges
        }
        limit_s, limit_bytes = BESIDE_OTHERS_S, float(MOST_BYTES)
        if self._is_one:
            [(topic, own)] = ranges.items()
            size = self._size(topic)
            limit_s, limit_bytes = size.limit_s(own), size.limit_bytes(own)
        shares = shares_of(ranges, self._most_tasks(spark, ranges))
        settings = self._parts.executor_settings
        plan = TaskPlan(plans, shares, settings, context.held, limit_s, limit_bytes)
        descriptors = run_tasks(self._numbers(spark, len(shares)), self._parts.task(plan))
        unread = unread_of(descriptors)
        self._leave_out(unread)
        given_up = {topic for topic in plans if gave_up(descriptors.get(topic, ()), limit_bytes)}
        needed = {
            topic: pipeline_ids
            for topic, found in descriptors.items()
            if topic not in given_up | unread.keys() and (pipeline_ids := needed_by(found))
        }
        undecided = given_up | unread.keys() | needed.keys()
        learned = {
            topic: found
            for topic, found in descriptors.items()
            if topic not in undecided and any(map(learned_of, found))
        }
        batches = {
            topic: TopicBatch.of(
                ranges[topic], own, context.deployed[topic], descriptors.get(topic, ())
            )
            for topic, own in plans.items()
            if topic not in undecided and topic not in learned
        }
        for topic in given_up:
            self._size(topic).gave_up()
        for topic, batch in batches.items():
            self._size(topic).worked(batch.events, batch.took_s)
            if self._is_one:
                self._size(topic).took(batch.events, batch.longest_s, batch.made_bytes)
        took_s = sum(batch.took_s for batch in batches.values())
        self._parts.at_work.worked(self.name, took_s, is_full=self._is_full(batches))
        self._left_out |= set() if self._is_one else given_up
        self._apart.extend(given_up | self._topics_apart(batches))
        return batches, learned, needed

    def _topics_apart(self, batches: Mapping[str, TopicBatch]) -> set[str]:
        """Return the topics that much of a batch was made of, if it was a long or a full one.

        And those with events of a replay: how fast it may go is told from what its batches take.
        """
        took_s = sum(batch.took_s for batch in batches.values())
        events = sum(batch.events for batch in batches.values())
        is_full = self._is_full(batches)
        return {
            topic
            for topic, batch in batches.items()
            if (batch.took_s > _SLOW_S and batch.took_s > _LARGE_SHARE * took_s)
            or (is_full and batch.events > _LARGE_SHARE * events)
            or any(item["replayed"] for item in batch.descriptors)
        }

    def _is_full(self, batches: Mapping[str, TopicBatch]) -> bool:
        """Tell whether a batch has as many events as Spark gives one: more wait."""
        events = sum(batch.events for batch in batches.values())
        return events >= 0.9 * self._parts.settings.spark.max_events_per_batch

    def _most_tasks(self, spark: SparkSession, ranges: Mapping[str, Ranges]) -> int:
        """Return how many tasks are of use.

        A task and topic write an object each: few records in many tasks would be many objects. A
        topic whose code is slow, or slower than that of others that fall behind, has no more of
        them than the other queries at work leave cores: else theirs would wait for its tasks, which
        Spark counts and does not time.
        """
        events = sum(end - start for own in ranges.values() for start, end in own.values())
        cores: int = spark.sparkContext.defaultParallelism
        most = max(_TASKS_PER_CORE * cores, events // _EVENTS_PER_TASK)
        at_work = self._parts.at_work
        left, turn_s = at_work.cores_for(self.name, cores), at_work.turn_s(self.name)
        is_long = self._is_one and all(self._size(one).is_long(events, turn_s) for one in ranges)
        return left if is_long and left < cores else most

    def _numbers(self, spark: SparkSession, tasks: int) -> DataFrame:
        """Return so many tasks, each with its number as its row."""
        return spark.range(0, tasks, 1, tasks)

    def _storms(self, batch: TopicBatch, held: frozenset[str]) -> list[Storm]:
        parking = self._parts.settings.parking
        return [
            storm
            for storm in find_storms(
                *self._parts_before.and_of(batch),
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
        began: float,
    ) -> None:
        """Commit each topic's share; one that cannot be keeps no other from it."""
        committed = set[str]()
        infos = [self._consumers[topic].topic for topic in batches]
        states = self._parts.log.states(infos)
        for topic, batch in batches.items():
            consumer, state = self._consumers[topic], states[topic]
            if isinstance(state, WaybillError):
                self._leave_out({topic: state})
                continue
            with self._left_out_if_it_fails(topic, "its share of a batch was not committed"):
                consumer.check_same_log(state)
                took_ms = round((time.monotonic() - began) * 1000)
                consumer.commit(batch, storms[topic], took_ms=took_ms)
                committed.add(consumer.destination)
        if committed:
            tell_staged(self._parts.tracker, committed)

    @contextmanager
    def _left_out_if_it_fails(self, topic: str, message: str) -> Iterator[None]:
        """Leave a topic out where something fails that is its own."""
        try:
            yield
        except WaybillError as error:
            self._leave_out({topic: error})
        except Exception as error:  # noqa: BLE001 - one topic's defect is not its neighbours'
            _LOG.exception("%s: %s", topic, message)
            self._leave_out({topic: WaybillError(f"{type(error).__name__}: {error}")})


class PartsBefore:
    """What came of the earlier parts of a batch that is worked off in parts.

    A storm is one of all of them: of slow code no part alone has as many events as a storm.
    """

    def __init__(self) -> None:
        self._counts = Counts()
        self._failures: list[Sequence[Any]] = []

    def add(self, batches: Iterable[TopicBatch]) -> None:
        """Add what was committed."""
        for batch in batches:
            self._counts.merge(batch.counts)
            self._failures += batch.failures

    def forget(self, pipeline_id: str) -> None:
        """Forget a pipeline that is held from now on; its neighbours' storms may go on."""
        self._counts.drop(pipeline_id)
        self._failures = [row for row in self._failures if row[0] != pipeline_id]

    def and_of(self, batch: TopicBatch) -> tuple[Counts, list[Sequence[Any]]]:
        """Return counts and tallies of failures of these parts and one more."""
        counts = Counts()
        counts.merge(self._counts)
        counts.merge(batch.counts)
        return counts, [*self._failures, *batch.failures]


@dataclass(slots=True)
class RunContext:
    """What the runs of one batch go on with."""

    deployed: dict[str, DeployedOnTopic]
    """By topic; read again where something was learned, or more pipelines are needed."""
    held: frozenset[str]
    """Ids of pipelines whose events park as they came."""
    storms: defaultdict[str, list[Storm]] = field(default_factory=lambda: defaultdict(list))
    """By topic: those that were found."""
    learning_runs: defaultdict[str, int] = field(
        default_factory=lambda: defaultdict(lambda: _LEARNING_RUNS)
    )
    """By topic: how many runs may still learn."""
    cut_runs: Counter[str] = field(default_factory=Counter)
    """By topic: runs after which a report was cut."""

    def learned(self, topic: str, *, later: bool, cut: bool) -> None:
        """Count a run that learned.

        Args:
            topic: whose events taught something.
            later: whether something of it was kept.
            cut: whether tasks had more to tell.
        """
        self.cut_runs[topic] += cut
        if not later:
            self.learning_runs[topic] = 0
        elif not cut or self.cut_runs[topic] > _CUT_RUNS:
            self.learning_runs[topic] -= 1
