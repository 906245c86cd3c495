"""Micro-batches in this process: what a driver and its tasks do, without servers and Spark.

Tasks are the real ones, over an object store and a tracker in memory; what Spark does between (a
task each share of the records, collected) is a loop.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.support.evolving import kafka_records
from tests.unit.processing.made import event

from waybill.deployment import ChoosePipelines, DeployedOnTopic
from waybill.errors import RetryError, StopError
from waybill.events import encode
from waybill.mappings import InForce, rules_of, with_learned
from waybill.pipelines import Pipeline
from waybill.processing import TopicOwner, read_staged
from waybill.processing.code_runner import InProcess
from waybill.processing.spark import tasks, topic_consumer, topic_group
from waybill.processing.spark.batch_size import BatchSize, QueriesAtWork
from waybill.processing.spark.batches import read_descriptor
from waybill.processing.spark.executor_settings import ExecutorSettings
from waybill.processing.spark.learning_reports import reports_by_name
from waybill.processing.spark.plan_cache import PipelinesInUse, TaskTexts
from waybill.processing.spark.tasks import StageTask, TopicPlan
from waybill.processing.spark.topic_consumer import TopicBatch, TopicConsumer
from waybill.processing.spark.topic_group import TopicGroup
from waybill.settings import Settings
from waybill.storage import Records, Unread

RULES = rules_of("postgres")


class Objects:
    """An object store in memory."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}

    def put_waiting(self, key: str, body: bytes, *, limit_s: float) -> None:
        self.bodies[key] = bytes(body)


class Recorder:
    """Keeps the batches whose traces were recorded."""

    def __init__(self) -> None:
        self.batches: list[str] = []

    def write(self, traces: Sequence[pa.RecordBatch]) -> None:
        for trace in traces:
            self.batches += [one for one in trace.column("batch").unique().to_pylist() if one]


@dataclass
class Kept:
    """What the tracker holds of mappings; deploys change it as well."""

    pipelines: dict[str, dict[str, Pipeline]]
    mappings: dict[tuple[str, str], InForce] = field(default_factory=dict)
    reads: int = 0
    ids: dict[str, frozenset[str]] = field(default_factory=dict)

    def read_mapped(
        self, topics: Sequence[str], choose: ChoosePipelines
    ) -> dict[str, DeployedOnTopic]:
        self.reads += 1
        return {topic: self._deployed(topic, choose) for topic in topics}

    def _deployed(self, topic: str, choose: ChoosePipelines) -> DeployedOnTopic:
        if self.ids.get(topic) != self.pipelines[topic].keys():
            self.ids[topic] = frozenset(self.pipelines[topic])
        chosen = choose(topic, self.ids[topic])
        return DeployedOnTopic(
            {ident: self.pipelines[topic][ident] for ident in chosen},
            {name: one for name, one in self.mappings.items() if name[0] in chosen},
            self.ids[topic],
        )


class Consumer(TopicConsumer):
    """A topic, with a tracker in memory."""

    def __init__(self, name: str, kept: Kept) -> None:
        self.name = name
        self.destination = f"of {name}"
        self.topic = SimpleNamespace(name=name)  # type: ignore[assignment]
        self._kept, self._texts, self._plans = kept, TaskTexts(), 0
        self._in_use, self._positions, self.batch_size = PipelinesInUse(), {}, BatchSize()
        self._owner = TopicOwner("team")
        self._tracker = SimpleNamespace(transaction=nullcontext)  # type: ignore[assignment]
        self.committed: list[TopicBatch] = []
        self.learned: list[dict[Any, Any]] = []
        self.away: Exception | None = None

    def plan(self, deployed: DeployedOnTopic, *, learns: bool = True) -> TopicPlan:
        self._plans += 1
        plan = super().plan(deployed, learns=learns)
        return replace(plan, batch_id=f"{self.name} {self._plans}")

    def learn(self, deployed: DeployedOnTopic, descriptors: Sequence[Any]) -> bool:
        if self.away is not None:
            raise self.away
        reports = reports_by_name(descriptors)
        self.learned.append(reports)
        later = False
        for name, learned in reports.items():
            declared = deployed.pipelines[name[0]].events[name[1]]
            kept = self._kept.mappings.get(name) or InForce(0, declared)
            roomy = kept.declaration
            for fields in learned:
                roomy = with_learned(roomy, fields, RULES) or roomy
            if roomy != kept.declaration:
                self._kept.mappings[name] = InForce(kept.number + 1, roomy)
                later = True
        return later

    def check_same_log(self, state: Any) -> None:
        pass

    def commit(self, batch: TopicBatch, storms: Any, *, took_ms: int) -> int:
        self.committed.append(batch)
        self._go_on_behind(batch)
        return len(self.committed)


class Group(TopicGroup):
    """A group whose records are in this process: {topic: messages of each task}."""

    def _most_tasks(self, spark: Any, ranges: Any) -> int:
        return 1

    def _numbers(self, spark: Any, tasks: int) -> Any:
        return spark

    def run(self, frame: Mapping[str, Sequence[Sequence[bytes]]]) -> None:
        ranges = {t: {0: (0, sum(map(len, shares)))} for t, shares in frame.items()}
        with self._parts.at_work.batch(self.name):
            self._take_effect(frame, ranges)  # type: ignore[arg-type]


class Application:
    """A group over topics in memory.

    ``runs`` has the topics of each action, ``sent_plans`` what its tasks were sent.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **pipelines: Pipeline) -> None:
        self.kept = Kept({topic: {one.id: one} for topic, one in pipelines.items()})
        self.objects, self.recorder = Objects(), Recorder()
        self.consumers = {topic: Consumer(topic, self.kept) for topic in pipelines}
        self.runs: list[set[str]] = []
        self.sent_plans: list[Mapping[str, TopicPlan]] = []
        self.unread: dict[tuple[str, int], StopError | RetryError] = {}
        """(topic, number of a task) to why it cannot read on behind its messages."""
        own = ExecutorSettings.of(Settings(), "d1")
        worker: Any = tasks.Worker(os.getpid(), own, self.objects, self.recorder, None)  # type: ignore[arg-type]
        monkeypatch.setattr(tasks, "_WORKERS", [worker])
        monkeypatch.setattr(tasks, "PayloadReader", lambda objects: None)
        monkeypatch.setattr(topic_consumer, "elsewhere", lambda *_: frozenset())
        monkeypatch.setattr(topic_group, "run_tasks", self._run_tasks)
        monkeypatch.setattr(topic_group, "held_pipelines", lambda tracker: frozenset())
        self.told: list[set[str]] = []
        """Destinations, of each telling of commits."""
        monkeypatch.setattr(topic_group, "tell_staged", lambda _, names: self.told.append(names))
        parts: Any = SimpleNamespace(
            settings=Settings(),
            executor_settings=own,
            tracker=None,
            pipelines=self.kept,
            log=SimpleNamespace(states=lambda topics: {one.name: None for one in topics}),
            task=InProcessTask,
            at_work=QueriesAtWork(),
        )
        self.group = Group(parts, self.consumers.values(), name="g", checkpoint=Path("none"))  # type: ignore[arg-type]

    def _run_tasks(self, frame: Any, task: Any) -> dict[str, list[Any]]:
        self.runs.append(set(task._plan.topics))
        self.sent_plans.append(task._plan.topics)
        found: dict[str, list[Any]] = {}
        for topic in sorted(task._plan.topics):
            shares, first = frame[topic], 0
            for number, share in enumerate(shares):
                run = pickle.loads(pickle.dumps(task))  # as it comes to a worker
                records: list[Records | Unread] = [kafka_records(topic, share, first=first)]
                if (error := self.unread.get((topic, number))) is not None:
                    records.append(Unread(topic, 0, error))
                for row in run.run(records):
                    told = read_descriptor(*(column[0].as_py() for column in row.columns))
                    found.setdefault(told["topic"], []).append(told)
                first += len(share)
        return found

    def plans(self, topic: str) -> list[TopicPlan]:
        """Return what tasks were sent of a topic, a run each."""
        return [plans[topic] for plans in self.sent_plans if topic in plans]

    def rows(self, topic: str) -> list[dict[str, Any]]:
        """Return what the committed batches of a topic staged."""
        return [
            {n: v for n, v in row.items() if not n.startswith("_waybill_")}
            for batch in self.consumers[topic].committed
            for told in batch.descriptors
            if told["staged"]
            for frame in read_staged(self.objects.bodies[told["staged"]["key"]])
            for row in frame.data.to_pylist()
        ]

    def parked(self, topic: str) -> list[tuple[str, str, int]]:
        """Return (stage, error type, count) of what the committed batches parked."""
        return [
            (segment.stage, segment.error_type, segment.count)
            for batch in self.consumers[topic].committed
            for told in batch.descriptors
            if told["parked"]
            for segment in told["parked"].segments
        ]


class InProcessTask(StageTask):
    """Runs user code in this process."""

    def runner(self, settings: Any) -> InProcess:
        del settings
        return InProcess()


def messages(*payloads: dict[str, Any]) -> list[bytes]:
    return [encode(event(n, {"id": n, **payload})) for n, payload in enumerate(payloads, 1)]
