"""Batches whose events teach something: kept by the driver, run again, committed once.

Tasks are the real ones, in this process, over an object store and a tracker in memory; what Spark
does between (a task each share of the records, collected) is a loop.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.support.evolving import kafka_records
from tests.unit.processing.made import event, pipeline

from waybill.deployment import DeployedOnTopic
from waybill.errors import RetryError
from waybill.events import encode
from waybill.mappings import InForce, NameRules, rules_of, with_learned
from waybill.pipelines import Pipeline
from waybill.processing import LocalLearner, read_staged
from waybill.processing.code_runner import InProcess
from waybill.processing.spark import tasks, topic_group
from waybill.processing.spark.batches import read_descriptor
from waybill.processing.spark.executor_settings import ExecutorSettings
from waybill.processing.spark.learning_reports import report_of, reports_by_name
from waybill.processing.spark.plan_cache import TaskTexts
from waybill.processing.spark.tasks import StageTask, TopicPlan
from waybill.processing.spark.topic_consumer import TopicBatch
from waybill.processing.spark.topic_group import TopicGroup
from waybill.settings import Settings

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

    def read_mapped(self, topics: Sequence[str]) -> dict[str, DeployedOnTopic]:
        self.reads += 1
        return {
            topic: DeployedOnTopic(
                self.pipelines[topic],
                {n: one for n, one in self.mappings.items() if n[0] in self.pipelines[topic]},
            )
            for topic in topics
        }


class Consumer:
    """A topic, as a `TopicConsumer` with a tracker in memory."""

    def __init__(self, name: str, kept: Kept) -> None:
        self.name = name
        self.topic = SimpleNamespace(name=name)
        self._kept, self._texts, self._plans = kept, TaskTexts(), 0
        self.committed: list[TopicBatch] = []
        self.learned: list[dict[Any, Any]] = []
        self.away: Exception | None = None

    def plan(self, deployed: DeployedOnTopic, *, learns: bool = True) -> TopicPlan:
        self._plans += 1
        texts = self._texts.of(deployed.pipelines, deployed.mappings)
        return TopicPlan(f"{self.name} {self._plans}", texts, learns)

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

    def commit(self, batch: TopicBatch, storms: Any, *, took_ms: int) -> None:
        self.committed.append(batch)


class Group(TopicGroup):
    """A group whose records are in this process: {topic: messages of each task}."""

    def _most_tasks(self, spark: Any, ranges: Any) -> int:
        return 1

    def _numbers(self, spark: Any, tasks: int) -> Any:
        return spark

    def run(self, frame: Mapping[str, Sequence[Sequence[bytes]]]) -> None:
        ranges = {t: {0: (0, sum(map(len, shares)))} for t, shares in frame.items()}
        self._take_effect(frame, ranges)  # type: ignore[arg-type]


class Application:
    """A group over topics in memory; ``runs`` has the topics of each action."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **pipelines: Pipeline) -> None:
        self.kept = Kept({topic: {one.id: one} for topic, one in pipelines.items()})
        self.objects, self.recorder = Objects(), Recorder()
        self.consumers = {topic: Consumer(topic, self.kept) for topic in pipelines}
        self.runs: list[set[str]] = []
        own = ExecutorSettings.of(Settings(), "d1")
        worker: Any = tasks.Worker(os.getpid(), own, self.objects, self.recorder, None)  # type: ignore[arg-type]
        monkeypatch.setattr(tasks, "_WORKERS", [worker])
        monkeypatch.setattr(tasks, "PayloadReader", lambda objects: None)
        monkeypatch.setattr(topic_group, "run_tasks", self._run_tasks)
        monkeypatch.setattr(topic_group, "held_pipelines", lambda tracker: frozenset())
        parts: Any = SimpleNamespace(
            settings=Settings(),
            executor_settings=own,
            tracker=None,
            pipelines=self.kept,
            log=SimpleNamespace(states=lambda topics: {one.name: None for one in topics}),
            task=InProcessTask,
        )
        self.group = Group(parts, self.consumers.values(), name="g", checkpoint=Path("none"))  # type: ignore[arg-type]

    def _run_tasks(self, frame: Any, task: Any) -> dict[str, list[Any]]:
        self.runs.append(set(task._plan.topics))
        found: dict[str, list[Any]] = {}
        for topic in sorted(task._plan.topics):
            shares, first = frame[topic], 0
            for share in shares:
                run = pickle.loads(pickle.dumps(task))  # as it comes to a worker
                for row in run.run([kafka_records(topic, share, first=first)]):
                    told = read_descriptor(*(column[0].as_py() for column in row.columns))
                    found.setdefault(told["topic"], []).append(told)
                first += len(share)
        return found

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


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Application]]:
    yield lambda **pipelines: Application(monkeypatch, **pipelines)


def evolving(code: str | None = None, ident: str = "p1", **types: str) -> Pipeline:
    options = {} if code is None else {"code": code}
    return pipeline(ident=ident, policy="evolve", **options, **types)


def test_a_batch_with_nothing_to_learn_runs_once_and_asks_the_tracker_once(application):
    made = application(t=evolving())
    made.group.run({"t": [messages({"n": 1}, {"n": 2}), messages({"n": 3})]})
    assert (made.runs, made.kept.reads) == ([{"t"}], 1)
    assert [row["n"] for row in made.rows("t")] == [1, 2, 3]


def test_what_two_tasks_learn_is_kept_at_once_and_all_rows_have_it(application):
    made = application(t=evolving())
    made.group.run({"t": [messages({"n": 1}, {"n": 2**70}), messages({"x": "a"}), messages({})]})
    assert made.runs == [{"t"}, {"t"}]
    assert [len(learned[("p1", "order")]) for learned in made.consumers["t"].learned] == [2]
    names = [column.name for column in made.kept.mappings["p1", "order"].declaration.table.columns]
    assert names == ["id", "n", "x"]
    assert [(row["n"], row["x"]) for row in made.rows("t")] == [
        (1, None), (2**70, None), (None, "a"), (None, None),
    ]  # fmt: skip
    [batch] = made.consumers["t"].committed
    assert batch.plan.batch_id == "t 2"


def test_of_the_first_run_nothing_is_named_and_its_learning_tasks_wrote_nothing(application):
    made = application(t=evolving())
    made.group.run({"t": [messages({"n": 1}), messages({"new": 1}, {"n": "no number"})]})
    committed = {
        told[kind]["key"] if kind == "staged" else told[kind].key
        for batch in made.consumers["t"].committed
        for told in batch.descriptors
        for kind in ("staged", "parked")
        if told[kind]
    }
    garbage = made.objects.bodies.keys() - committed
    assert committed <= made.objects.bodies.keys()
    assert len(garbage) == 1, "of the first run's task that learned nothing"
    assert made.parked("t") == [("mapping", "type_mismatch", 1)]
    assert set(made.recorder.batches) == {"t 1", "t 2"}


def test_neighbours_of_a_topic_that_learns_are_committed_before_and_once(application):
    made = application(t=evolving(), other=evolving(ident="p2"))
    others = [encode(event(n, {"id": n, "n": n}, pipeline_id="p2")) for n in range(3)]
    made.group.run({"t": [messages({"new": 1})], "other": [others]})
    assert made.runs == [{"t", "other"}, {"t"}]
    assert [len(made.consumers[topic].committed) for topic in ("t", "other")] == [1, 1]
    assert len(made.rows("other")) == 3


def test_a_tracker_that_is_away_leaves_the_topic_out_and_nothing_is_committed(application):
    made = application(t=evolving(), other=evolving(ident="p2"))
    made.consumers["t"].away = RetryError("the tracker is away")
    others = [encode(event(1, {"id": 1, "n": 1}, pipeline_id="p2"))]
    made.group.run({"t": [messages({"new": 1})], "other": [others]})
    assert list(made.group.errors) == ["t"]
    assert isinstance(made.group.errors["t"], RetryError)
    assert (made.consumers["t"].committed, len(made.rows("other"))) == ([], 1)
    made.consumers["t"].away = None
    made.group.run({"t": [messages({"n": 5}), messages({"new": 1})]})
    assert [row["new"] for row in made.rows("t")] == [None, 1], "a worker forgets what was not kept"


def test_a_worker_maps_by_nothing_that_was_not_kept(application):
    made = application(t=evolving())
    made.consumers["t"].away = RetryError("the tracker is away")
    made.group.run({"t": [messages({"new": 1})]})
    made.group.run({"t": [messages({"n": 5})]})
    assert made.rows("t") == [{"id": 1, "n": 5}]


MAKES_UP = """
import uuid
def transform(event):
    event.data[f"made_up_{uuid.uuid4()}"] = 1
    return event
"""


def test_code_that_brings_other_fields_each_time_runs_four_times_and_parks(application):
    made = application(t=evolving(MAKES_UP))
    made.group.run({"t": [messages({"n": 1}, {"n": 2})]})
    assert made.runs == [{"t"}] * 4
    assert made.parked("t") == [("mapping", "unknown_column", 1)] * 2
    made.group.run({"t": [messages({"n": 3})]})
    assert made.runs == [{"t"}] * 8, "each batch is bounded"


def test_runs_whose_reports_are_cut_do_not_use_up_those_that_learn(application, monkeypatch):
    monkeypatch.setattr(tasks, "report_of", partial(report_of, most_bytes=10))
    made = application(t=evolving())
    fields = {f"field_{number}": number for number in range(12)}
    made.group.run({"t": [messages(fields, fields)]})
    assert made.parked("t") == []
    assert [len(row) for row in made.rows("t")] == [14, 14]
    assert len(made.runs) == 13, "one field is told a run"
    assert made.group.take_apart() == set()


def test_reports_that_are_cut_for_ever_end_too(application, monkeypatch):
    monkeypatch.setattr(tasks, "report_of", partial(report_of, most_bytes=10))
    made = application(t=evolving())
    payload = {f"field_{number}": number for number in range(100)}
    made.group.run({"t": [messages(payload)]})
    assert len(made.runs) == 20 + 3 + 1
    assert made.parked("t") == [("mapping", "unknown_column", 1)]
    assert made.group.take_apart() == {"t"}, "its neighbours wait no more"


def test_where_nothing_more_can_be_kept_the_next_run_is_the_last(application, monkeypatch):
    made = application(t=evolving())
    monkeypatch.setattr(made.consumers["t"], "learn", lambda deployed, told: False)
    made.group.run({"t": [messages({"n": 1}, {"x": 1})]})
    assert made.runs == [{"t"}] * 2
    assert made.parked("t") == [("mapping", "unknown_column", 1)]
    assert [row["n"] for row in made.rows("t")] == [1]


def test_a_task_that_learns_although_it_was_told_not_to_makes_no_batch_run_for_ever(
    application, monkeypatch
):
    def learns_anyway(rules: NameRules, *, learns: bool) -> LocalLearner:
        del learns
        return LocalLearner(rules)

    made = application(t=evolving(MAKES_UP))
    monkeypatch.setattr(tasks, "LocalLearner", learns_anyway)
    made.group.run({"t": [messages({"n": 1})]})
    assert len(made.runs) == 4
    assert made.consumers["t"].committed == []
    assert "told not to learn" in str(made.group.errors["t"])


def test_a_deploy_between_the_runs_is_what_the_second_one_maps_by(application):
    made = application(t=evolving())
    consumer = made.consumers["t"]
    learn = consumer.learn

    def learn_and_deploy(*given: Any) -> bool:
        later = learn(*given)
        made.kept.pipelines["t"] = {"p1": evolving("def transform(event):\n    return None\n")}
        return later

    consumer.learn = learn_and_deploy
    made.group.run({"t": [messages({"x": 1})]})
    assert made.rows("t") == []
    [batch] = consumer.committed
    assert batch.counts.total("filtered") == 1


def test_a_hostile_payload_tells_the_driver_no_more_than_may_be_told(application, monkeypatch):
    made = application(t=evolving())
    names = [f"{number:04}{'x' * 990}" for number in range(1_500)]
    payloads = [dict.fromkeys(names[first : first + 300], 1) for first in range(0, 1_500, 300)]
    told: list[int] = []
    run = made._run_tasks

    def measured(frame: Any, task: Any) -> Any:
        found = run(frame, task)
        told.extend(len(str(one.get("learned", ""))) for one in found["t"])
        return found

    monkeypatch.setattr(topic_group, "run_tasks", measured)
    made.group.run({"t": [messages(*payloads)]})
    assert max(told) < 300_000
    assert len(made.runs) == 4
    assert made.parked("t")
