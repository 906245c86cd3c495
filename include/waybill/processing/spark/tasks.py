"""What a Spark task does with its share of a micro-batch: stages, two objects, a descriptor.

Runs on Python workers under ``mapInArrow``. In: the task's number, in a column ``id``; it reads its
share of the records from Kafka itself. Out: a row for each topic, its descriptor as JSON (offsets
seen, counts, keys of what was written) and the segments that it parked as a stream; or, where
events bring what their mapping has no room for, only what is to be learned from them; or, where
events are of pipelines that the task was not sent, only their ids: nothing is written then.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

import orjson
import pyarrow as pa

from waybill.errors import ParkError, StopError
from waybill.events import decode_head, read_heads
from waybill.mappings import LearnedFields, rules_of
from waybill.pipelines import Pipeline
from waybill.processing import (
    MOST_SLICE_BYTES,
    Chain,
    ChainResult,
    Chunk,
    CodeRunner,
    LocalLearner,
    Plan,
    Retries,
    TooMuchMadeError,
    TooSlowError,
    TopicOwner,
    sandbox_with,
)
from waybill.processing.spark.executor_settings import ExecutorSettings
from waybill.processing.spark.learning_reports import report_of
from waybill.processing.spark.memory import give_memory_back
from waybill.processing.spark.plan_cache import NotSentError, PipelineText, TopicPlans
from waybill.processing.spark.task_output import TaskOutput
from waybill.processing.spark.task_shares import Share
from waybill.storage import (
    ObjectStore,
    PayloadReader,
    RangeReader,
    Records,
    Unread,
    digest_of,
    open_objects_of,
)
from waybill.tracing import Recorder

DESCRIPTOR_SCHEMA = "descriptor binary, segments binary"
MOST_NEEDED = 20_000
"""Pipelines of one topic that a task tells it needs."""
_LOOKED_AT_ONCE = 1024
Task: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What Spark runs in each task: see `StageTask`."""


@dataclass(frozen=True)
class TopicPlan:
    """What tasks need of one topic of a batch."""

    batch_id: str
    """Of the ledger; each topic of a batch has its own."""
    pipelines: Mapping[str, PipelineText]
    """The topic's active pipelines, by id: those in use."""
    learns: bool = True
    """False: what events bring that their mapping has no room for parks."""
    ids: bytes = b""
    """Of all its active pipelines, as JSON; empty: all are in use."""
    owner: TopicOwner | None = None
    """What belongs to it; None: that is not looked at."""


@dataclass(frozen=True)
class TaskPlan:
    """What a driver sends to its tasks with each batch."""

    topics: Mapping[str, TopicPlan]
    shares: Sequence[Share]
    """What each task reads, by its number."""
    settings: ExecutorSettings
    held: frozenset[str] = frozenset()
    """Ids of pipelines whose events are parked as they came."""
    limit_s: float = math.inf
    """How long a task works on one topic; then it gives the topic up."""
    limit_bytes: float = math.inf
    """What a task makes of its records; beyond, it gives up the topic that it made the most of."""


@dataclass
class Worker:
    """What one worker process keeps between tasks."""

    pid: int
    settings: ExecutorSettings
    objects: ObjectStore
    recorder: Recorder
    reader: RangeReader
    topics: dict[str, TopicPlans] = field(default_factory=dict)
    made: int = 0
    """Plans so far."""
    kept: int = 0
    """How many of them the collector of garbage passes over."""

    def keep_plans(self) -> None:
        """Have the collector of garbage pass over what is there, if new plans are among it.

        Spark looks through everything behind each task: with the plans of a hundred topics that was
        a tenth of the CPU. What is passed over is still freed when nobody refers to it; only what
        refers to itself would stay, and no plan does.
        """
        if self.made > self.kept:
            self.kept = self.made
            gc.freeze()

    def _make(self, pipeline: Pipeline, *, learns: bool) -> Plan:
        self.made += 1
        return _plan_of(self.settings, pipeline, learns=learns)

    def plans(self, topic: str, *, learns: bool) -> TopicPlans:
        """Return a topic's plans; new ones, if those of the batch before learned and these do not.

        Or the other way round: a batch that no longer learns is rare.
        """
        plans = self.topics.get(topic)
        if plans is None or plans.learns != learns:
            make = partial(self._make, learns=learns)
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
        known = Worker(os.getpid(), settings, objects, recorder, RangeReader(settings.kafka))
        _WORKERS.insert(0, known)  # librdkafka ends a process that drops a client it inherited
    return known


class StageTask:
    """The callable that Spark runs in each task."""

    def __init__(self, plan: TaskPlan) -> None:
        self._plan = plan

    def runner(self, settings: ExecutorSettings) -> CodeRunner:
        """Return what runs user code."""
        return sandbox_with(settings.sandbox, settings.event_timeout_s)

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the share of this task, and yield what comes of it."""
        worker = this_worker(self._plan.settings)
        for batch in numbers:
            for number in batch.column("id").to_pylist():
                unwanted = set[str]()
                with closing(worker.reader.read(self._plan.shares[number], unwanted)) as records:
                    yield from self.run(records, unwanted)
        worker.keep_plans()

    def run(
        self, records: Iterable[Records | Unread], unwanted: set[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Run the stages over records and yield a descriptor for each topic.

        Of a topic that could not be read whole it tells that alone, and writes nothing.

        Args:
            records: of this task.
            unwanted: gets the topics of which no more records are wanted.
        """
        worker = this_worker(self._plan.settings)
        shares = dict[str, TopicShare | NeededPipelines]()
        unread = dict[str, Unread]()
        for found in gathered(
            records, lambda found: found.topic not in shares or shares[found.topic].is_enough(found)
        ):
            topic = found.topic
            if isinstance(found, Unread):
                unread[topic] = found
                shares.pop(topic, None)
            elif topic not in unread:
                with blamed_on(topic):
                    share = shares.pop(topic, None) or self._share(worker, topic)
                    shares[topic] = _taken(share, found, worker.topics[topic])
                    del share
                keep_within(self._plan.limit_bytes, shares.values())
                if unwanted is not None:
                    unwanted.update(name for name, own in shares.items() if own.is_through)
        for topic, found in unread.items():
            told = {"unread": str(found.error), "stops": isinstance(found.error, StopError)}
            yield descriptor_batch({"topic": topic, **told, "parked": None})
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

    def _share(self, worker: Worker, topic: str) -> TopicShare:
        plan, settings = self._plan.topics[topic], worker.settings
        attempts, backoff_s, budget_s = settings.transient
        retries = Retries(attempts, backoff_s=backoff_s, budget_s=budget_s)  # no neighbour's too
        plans = worker.plans(topic, learns=plan.learns)
        plans.take(plan.pipelines, plan.ids)
        chain = Chain(
            plans,
            code=self.runner(settings),
            fetch=PayloadReader(worker.objects),
            retries=retries,
            held=self._plan.held,
            owner=plan.owner,
        )
        output = TaskOutput(
            topic=topic, batch_id=plan.batch_id, known=plans, traced=settings.traced
        )
        limit_s, chain.result.most_bytes = self._plan.limit_s, self._plan.limit_bytes
        return TopicShare(chain, output, retries, learned=plans.learned, limit_s=limit_s)


class TopicShare:
    """A topic's records in one task: what came of them.

    Args:
        chain: runs the stages.
        output: collects what they make.
        retries: of the chain.
        learned: returns (pipeline id, event name, fields) of what the chain's plans learned.
        limit_s: after this the topic is given up for this batch: others of its query wait.
    """

    def __init__(
        self,
        chain: Chain,
        output: TaskOutput,
        retries: Retries,
        *,
        learned: Callable[[], Iterable[tuple[str, str, LearnedFields]]],
        limit_s: float,
    ) -> None:
        self._chain = chain
        self._output = output
        self._retries = retries
        self._learned = learned
        self._limit_s = limit_s
        self._seen: dict[int, SeenRecords] = {}
        self._took_s = 0.0
        self._gave_up = False
        self.traces: list[pa.RecordBatch] = []
        """To be recorded once the objects are written."""

    @property
    def is_through(self) -> bool:
        """Whether no more records are wanted: the topic was given up."""
        return self._gave_up

    @property
    def made_bytes(self) -> int:
        """Return what is held of what was made of its records."""
        return self._chain.result.made_bytes

    def give_up(self) -> None:
        """Give the topic up for this batch, and let go of what was made."""
        self._gave_up = True
        self._chain.result = ChainResult()
        self._output.drop()

    def is_enough(self, records: Records) -> bool:
        """Tell whether records are worth to be taken, or should wait for more."""
        return self._chain.is_enough(len(records.values), records.size_bytes)

    def take(self, records: Records) -> None:
        """Run the stages over records, in log order; none of a topic that was given up.

        Raises:
            NotSentError: an event's pipeline was not sent; nothing more can come of this share.
        """
        if self._gave_up:
            return
        began = time.monotonic()
        self._retries.deadline = began + self._limit_s - self._took_s
        try:
            self._chain.process(chunk_of(records, self._seen), self._output.take)
        except (TooSlowError, TooMuchMadeError):
            self.give_up()
        self._took_s += time.monotonic() - began
        if self._took_s > self._limit_s:
            self.give_up()

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
        descriptor["made_bytes"] = result.made_bytes
        descriptor["replayed"] = [[*key, n] for key, n in result.replayed.items()]
        descriptor["ranges"] = [span.to_json(n) for n, span in sorted(self._seen.items())]
        return descriptor_batch(descriptor, segments)


def gathered(
    records: Iterable[Records | Unread], is_enough: Callable[[Records], bool]
) -> Iterator[Records | Unread]:
    """Yield records, those of a topic joined until there are as many as are worked on together.

    Args:
        records: in log order.
        is_enough: whether some of a topic are worth to be worked on.

    All topics wait with 24 MiB at the most; what is yielded has as much, and what came at once.
    """
    waiting = dict[str, Records]()
    for found in records:
        known = waiting.pop(found.topic, None)
        if isinstance(found, Unread):
            yield found
            continue
        joined = found if known is None else known.joined(found)
        if is_enough(joined):
            yield joined
            continue
        waiting[found.topic] = joined
        while sum(one.size_bytes for one in waiting.values()) > MOST_SLICE_BYTES:
            yield waiting.pop(max(waiting, key=lambda topic: waiting[topic].size_bytes))
    yield from waiting.values()


def _taken(
    share: TopicShare | NeededPipelines, records: Records, plans: TopicPlans
) -> TopicShare | NeededPipelines:
    """Have a share take records; return what goes on with the topic's next ones."""
    try:
        share.take(records)
    except NotSentError as error:
        share = NeededPipelines(plans, error.pipeline_id)
        share.take(records)
    return share


def keep_within(limit_bytes: float, shares: Iterable[TopicShare | NeededPipelines]) -> None:
    """Give up the topics of a task that most was made of, until the others are within a limit."""
    running = [share for share in shares if isinstance(share, TopicShare)]
    while sum(share.made_bytes for share in running) > limit_bytes:
        max(running, key=lambda share: share.made_bytes).give_up()


class NeededPipelines:
    """A topic's records in one task, from where one is of a pipeline that the task was not sent.

    It looks for more of these, runs no stage, and writes nothing. Where the task was sent none at
    all, as when the topic was just opened, it looks on only for as long as it finds some.
    Cost: some 1 µs an event, and reading.

    Args:
        plans: that were sent.
        pipeline_id: of the first such record.
    """

    traces: Sequence[pa.RecordBatch] = ()

    def __init__(self, plans: TopicPlans, pipeline_id: str) -> None:
        self._plans = plans
        self._first = pipeline_id
        self._ids = set[str]()
        self.is_through = False
        """Whether no more records are wanted."""

    def is_enough(self, records: Records) -> bool:
        """Tell whether records are worth to be looked at: any are."""
        return bool(records.values)

    def take(self, records: Records) -> None:
        """Look which pipelines records are of."""
        known = len(self._ids)
        for start in range(0, len(records.values), _LOOKED_AT_ONCE):
            ids = pipeline_ids(records.values[start : start + _LOOKED_AT_ONCE])
            self._ids |= self._plans.not_sent(ids)
        self.is_through = not self._plans and known == len(self._ids)

    def write(self, topic: str, objects: ObjectStore) -> pa.RecordBatch:
        """Return the descriptor: which pipelines are needed. Those left out the next run tells."""
        del objects
        needed = sorted(self._ids | {self._first})[:MOST_NEEDED]
        return descriptor_batch({"topic": topic, "needed": needed, "parked": None})


def pipeline_ids(values: Sequence[bytes]) -> set[str]:
    """Return the ids of the pipelines that messages are of; what is no event is left out."""
    groups = read_heads(values)
    if groups is not None:
        return {heads.pipeline_id for heads, _ in groups}
    found = set[str]()
    for value in values:
        with suppress(ParkError):
            found.add(decode_head(value).pipeline_id)
    return found


@contextmanager
def blamed_on(topic: str) -> Iterator[None]:
    """Have an error name the topic: its query goes on without it (`TopicGroups`)."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while the records of {topic} were processed")
        raise


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


def chunk_of(records: Records, seen: dict[int, SeenRecords]) -> Chunk:
    """Return records as a chunk; note in ``seen`` what was seen. Cost: some 0.1 µs a record."""
    values, offsets = records.values, records.offsets
    times_us = [time_ms * 1000 for time_ms in records.times_ms]
    start = 0
    for number, run in groupby(records.partitions):
        end = start + len([*run])
        last = SeenRecords(
            offsets[start], offsets[end - 1], end - start, times_us[end - 1], values[end - 1]
        )
        if (before := seen.get(number)) is not None:
            last.first, last.count = before.first, before.count + last.count
        seen[number] = last
        start = end
    return Chunk(values, records.partitions, offsets, times_us)


def _plan_of(settings: ExecutorSettings, pipeline: Pipeline, *, learns: bool) -> Plan:
    rules = rules_of(settings.destination_kinds.get(pipeline.destination, "postgres"))
    return Plan(pipeline, learner=LocalLearner(rules, learns=learns))
