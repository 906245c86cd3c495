"""What a Spark task does with its share of a micro-batch: stages, two objects, a descriptor.

Runs on Python workers under ``mapInArrow``. In: columns ``topic, value, partition, offset, at_us``.
Out: a row for each topic, its descriptor as JSON (offsets seen, counts, keys of what was written)
and the segments that it parked as a stream; or, where events bring what their mapping has no room
for, only what is to be learned from them: nothing is written then.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from waybill.mappings import LearnedFields, rules_of
from waybill.pipelines import Pipeline
from waybill.processing import (
    Chain,
    Chunk,
    CodeRunner,
    LocalLearner,
    Plan,
    Retries,
    TooSlowError,
    sandbox_with,
)
from waybill.processing.spark.executor_settings import ExecutorSettings
from waybill.processing.spark.learning_reports import report_of
from waybill.processing.spark.memory import give_memory_back
from waybill.processing.spark.plan_cache import PipelineText, TopicPlans
from waybill.processing.spark.task_output import TaskOutput
from waybill.storage import ObjectStore, PayloadReader, digest_of, open_objects_of
from waybill.tracing import Recorder

DESCRIPTOR_SCHEMA = "descriptor binary, segments binary"
Task: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What Spark runs in each task: see `StageTask`."""


@dataclass(frozen=True)
class TopicPlan:
    """What tasks need of one topic of a batch."""

    batch_id: str
    """Of the ledger; each topic of a batch has its own."""
    starts: Mapping[int, int]
    """Partition to the first offset that the ledger does not have."""
    pipelines: Mapping[str, PipelineText]
    """The topic's active pipelines, by id."""
    learns: bool = True
    """False: what events bring that their mapping has no room for parks."""


@dataclass(frozen=True)
class TaskPlan:
    """What a driver sends to its tasks with each batch."""

    topics: Mapping[str, TopicPlan]
    settings: ExecutorSettings
    held: frozenset[str] = frozenset()
    """Ids of pipelines whose events are parked as they came."""
    limit_s: float = math.inf
    """How long a task works on one topic; then it gives the topic up."""


@dataclass
class Worker:
    """What one worker process keeps between tasks."""

    pid: int
    settings: ExecutorSettings
    objects: ObjectStore
    recorder: Recorder
    topics: dict[str, TopicPlans] = field(default_factory=dict)

    def plans(self, topic: str, *, learns: bool) -> TopicPlans:
        """Return a topic's plans; new ones, if those of the batch before learned and these do not.

        Or the other way round: a batch that no longer learns is rare.
        """
        plans = self.topics.get(topic)
        if plans is None or plans.learns != learns:
            make = partial(_plan_of, self.settings, learns=learns)
            plans = self.topics[topic] = TopicPlans(make, learns=learns)
        return plans


_WORKERS: list[Worker] = []


def this_worker(settings: ExecutorSettings) -> Worker:
    """Return this process's worker state; made after the fork, once.

    Raises:
        SettingsMismatchError: the settings are not for this worker.
    """
    known = _WORKERS[0] if _WORKERS else None
    if (
        known is None
        or known.pid != os.getpid()
        or known.settings.fingerprint != settings.fingerprint
    ):
        settings.refuse_mismatch(os.environ)
        folder, most_bytes = settings.spool
        objects = open_objects_of(settings.s3, settings.deployment)
        recorder = Recorder(folder, disk_threshold_bytes=most_bytes)
        known = Worker(os.getpid(), settings, objects, recorder)
        _WORKERS[:] = [known]
    return known


class StageTask:
    """The callable that Spark runs in each task."""

    def __init__(self, plan: TaskPlan) -> None:
        self._plan = plan

    def runner(self, settings: ExecutorSettings) -> CodeRunner:
        """Return what runs user code."""
        return sandbox_with(settings.sandbox, settings.event_timeout_s)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the stages over all batches of this task and yield a descriptor for each topic."""
        worker, shares = this_worker(self._plan.settings), dict[str, TopicShare]()
        attempts, backoff_s, budget_s = worker.settings.transient
        retries = Retries(attempts, backoff_s=backoff_s, budget_s=budget_s)
        for batch in batches:
            for topic, part in by_topic(batch):
                if topic in self._plan.topics:  # of others the ledger has all
                    with blamed_on(topic):
                        if topic not in shares:
                            shares[topic] = self._share(worker, topic, retries)
                        shares[topic].take(part)
        traces: list[pa.RecordBatch] = []
        while shares:
            topic, share = shares.popitem()
            with blamed_on(topic):
                descriptor = share.write(topic, worker.objects)
            traces += share.traces
            del share
            yield descriptor
        worker.recorder.write(traces)
        del traces
        give_memory_back()

    def _share(self, worker: Worker, topic: str, retries: Retries) -> TopicShare:
        plan, settings = self._plan.topics[topic], worker.settings
        plans = worker.plans(topic, learns=plan.learns)
        plans.take(plan.pipelines)
        chain = Chain(
            plans,
            code=self.runner(settings),
            fetch=PayloadReader(worker.objects),
            retries=retries,
            held=self._plan.held,
        )
        output = TaskOutput(
            topic=topic, batch_id=plan.batch_id, known=plans, traced=settings.traced
        )
        limit_s = self._plan.limit_s
        return TopicShare(
            plan.starts, chain, output, retries, learned=plans.learned, limit_s=limit_s
        )


class TopicShare:
    """A topic's records in one task: what came of them.

    Args:
        starts: partition to the first offset that the ledger does not have.
        chain: runs the stages.
        output: collects what they make.
        retries: of the chain.
        learned: returns (pipeline id, event name, fields) of what the chain's plans learned.
        limit_s: after this the topic is given up for this batch: others of its query wait.
    """

    def __init__(
        self,
        starts: Mapping[int, int],
        chain: Chain,
        output: TaskOutput,
        retries: Retries,
        *,
        learned: Callable[[], Iterable[tuple[str, str, LearnedFields]]],
        limit_s: float,
    ) -> None:
        self._starts = starts
        self._chain = chain
        self._output = output
        self._retries = retries
        self._learned = learned
        self._limit_s = limit_s
        self._seen: dict[int, SeenRecords] = {}
        self._took_s = 0.0
        self.traces: list[pa.RecordBatch] = []
        """To be recorded once the objects are written."""

    @property
    def _gave_up(self) -> bool:
        return self._took_s > self._limit_s

    def take(self, batch: pa.RecordBatch) -> None:
        """Run the stages over records, in log order; none of a topic that was given up."""
        if self._gave_up:
            return
        began = time.monotonic()
        self._retries.deadline = began + self._limit_s - self._took_s
        try:
            self._chain.process(chunk_of(batch, self._starts, self._seen))
            self._output.take(self._chain.result)
        except TooSlowError:
            self._took_s = math.inf
        self._took_s += time.monotonic() - began

    def write(self, topic: str, objects: ObjectStore) -> pa.RecordBatch:
        """Write the objects; return the topic's descriptor.

        Nothing is written of a topic that was given up, nor where something was learned: rows would
        be mapped by what nobody keeps.
        """
        if self._gave_up:
            return descriptor_batch({"topic": topic, "gave_up": True, "parked": None})
        learned, more = report_of(self._learned())
        if learned:
            told = {"topic": topic, "learned": learned, "learned_more": more, "parked": None}
            return descriptor_batch(told)
        self.traces = self._output.traces
        result = self._chain.result
        descriptor, segments = self._output.write(result, objects)
        descriptor["topic"] = topic
        descriptor["took_s"] = round(self._took_s, 3)
        descriptor["replayed"] = [[*key, n] for key, n in result.replayed.items()]
        descriptor["ranges"] = [span.to_json(n) for n, span in sorted(self._seen.items())]
        return descriptor_batch(descriptor, segments)


@contextmanager
def blamed_on(topic: str) -> Iterator[None]:
    """Have an error name the topic: its query goes on without it (`TopicGroups`)."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while the records of {topic} were processed")
        raise


def by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the runs of records of one topic, without copying. Cost: a few ns a record."""
    runs = pc.run_end_encode(batch.column("topic"))
    start = 0
    for topic, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield topic, batch.slice(start, end - start)
        start = end


def descriptor_batch(descriptor: Mapping[str, Any], segments: bytes = b"") -> pa.RecordBatch:
    """Return a descriptor as the row that a task yields."""
    columns = {"descriptor": [orjson.dumps(descriptor)], "segments": [segments]}
    return pa.RecordBatch.from_pydict(columns)


@dataclass(slots=True)
class SeenRecords:
    """What one task saw of a partition."""

    first: int
    last: int
    count: int
    at_us: int
    """Timestamp of the last record."""
    value: bytes
    """Of the last record."""

    def to_json(self, partition: int) -> list[Any]:
        """Return [partition, first, last, count, the last one's time in ms, its digest]."""
        digest = digest_of(self.value)
        return [partition, self.first, self.last, self.count, self.at_us // 1000, digest]


def chunk_of(
    batch: pa.RecordBatch, starts: Mapping[int, int], seen: dict[int, SeenRecords]
) -> Chunk:
    """Return a batch as a chunk without what the ledger has; note in ``seen`` what was seen.

    Cost: about 0.15 µs a message.
    """
    partitions = batch.column("partition").to_numpy()
    offsets = batch.column("offset").to_numpy()
    fresh = np.ones(len(offsets), dtype=bool)
    for number in np.unique(partitions).tolist():
        fresh &= (partitions != number) | (offsets >= starts.get(number, 0))
    if not fresh.all():
        batch = batch.filter(pa.array(fresh))
        partitions, offsets = partitions[fresh], offsets[fresh]
    values = batch.column("value").to_pylist()
    if batch.column("value").null_count:
        values = [b"" if value is None else value for value in values]
    times = batch.column("at_us").to_numpy()
    for number in np.unique(partitions).tolist():
        places = np.flatnonzero(partitions == number)
        mine = offsets[places]
        place = int(places[mine.argmax()])
        last = SeenRecords(
            int(mine.min()), int(mine.max()), len(mine), int(times[place]), values[place]
        )
        if (before := seen.get(number)) is not None:
            last.first, last.count = min(last.first, before.first), last.count + before.count
            if before.last > last.last:
                last.last, last.at_us, last.value = before.last, before.at_us, before.value
        seen[number] = last
    return Chunk(values, partitions.tolist(), offsets.tolist(), times.tolist())


def _plan_of(settings: ExecutorSettings, pipeline: Pipeline, *, learns: bool) -> Plan:
    rules = rules_of(settings.destination_kinds.get(pipeline.destination, "postgres"))
    return Plan(pipeline, learner=LocalLearner(rules, learns=learns))
