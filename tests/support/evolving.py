"""A pipeline whose table evolves, and its batches: in this process, or in one that can be killed.

``python -m tests.support.evolving FIRST FIELD GATE``: settings are in the environment. Runs a batch
of one task over three events from number FIRST on that have FIELD, which prints a line and waits
for one at GATE: ``learn`` (before the version is made) or ``put`` (before the objects are written).
Prints what `run_batch` returns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
from tests.support.orders import team_of

from waybill.deployment import ActivePipelines, DeployedOnTopic
from waybill.events import Event, encode
from waybill.mappings import rules_of
from waybill.pipelines import topic_of
from waybill.processing import read_staged
from waybill.processing.spark import tasks, topic_consumer
from waybill.processing.spark.executor_settings import ExecutorSettings
from waybill.processing.spark.learning_reports import reports_by_name
from waybill.processing.spark.plan_cache import TaskTexts
from waybill.settings import Settings
from waybill.storage import ObjectStore, Records, deployment_id, open_objects, open_tracker

DECLARATION = """
id: test-evolving
name: evolving
team: {team}
owner: shop@example.com
source:
  connector: csv
  path: orders.csv
  event: order
  order_by: [number]
  columns: {{number: int64, amount: int64}}
events:
  order:
    key: [number]
    table: orders
    policy: {policy}
    nested: flatten
    arrays: child
    columns:
      number: int64
      amount: {amount}
transformation: transformation.py
destination: {{name: warehouse, schema: shop}}
"""
PASSES = "def transform(event):\n    return event\n"


def write_evolving(
    folder: Path,
    *,
    rows: int = 0,
    policy: str = "evolve",
    amount: str = "int32",
    code: str = PASSES,
) -> Path:
    """Write the pipeline into ``folder / "evolving"`` and return that folder."""
    home = folder / "evolving"
    home.mkdir(parents=True, exist_ok=True)
    lines = ["number,amount", *(f"{number},{number}" for number in range(rows))]
    (home / "orders.csv").write_text("\n".join(lines) + "\n")
    text = DECLARATION.format(team=team_of(folder), policy=policy, amount=amount)
    (home / "pipeline.yaml").write_text(text)
    (home / "transformation.py").write_text(code)
    return home


def order(number: int, **fields: Any) -> bytes:
    """Return a message with an order."""
    return encode(
        Event(
            id=f"e{number}", pipeline_id="test-evolving", team="team", name="order",
            key=f"[{number}]", source_version=number, intake_version=number,
            intake_minute=29_000_000, time="2026-01-01T00:00:00Z",
            data={"number": number, **fields},
        )
    )  # fmt: skip


def deployed_now(settings: Settings) -> tuple[str, DeployedOnTopic]:
    """Return the topic, and what its events are processed with."""
    with open_tracker(settings.tracker) as tracker:
        reader = ActivePipelines(tracker)
        [topic] = {topic_of(one) for one in reader.read().values()}
        return topic, reader.read_mapped([topic])[topic]


def plan_of(settings: Settings) -> tasks.TaskPlan:
    """Return what a driver would send to tasks now, for a batch of partition 0."""
    return sent(settings, *deployed_now(settings))


def sent(
    settings: Settings, topic: str, deployed: DeployedOnTopic, *, learns: bool = True
) -> tasks.TaskPlan:
    """Return what a driver sends to tasks, for a batch of partition 0."""
    texts = TaskTexts().of(deployed.pipelines, deployed.mappings)
    plan = tasks.TopicPlan("batch", texts, learns)
    return tasks.TaskPlan({topic: plan}, [], executor_settings(settings))


def executor_settings(settings: Settings) -> ExecutorSettings:
    """Return what tasks get of the settings."""
    return ExecutorSettings.of(settings, deployment_id(settings.tracker))


def run_batch(
    settings: Settings, *shares: Sequence[bytes], deployed: DeployedOnTopic | None = None
) -> list[dict[str, Any]]:
    """Run a batch of a task for each share as the driver does, until there is nothing to learn.

    Args:
        settings: of the servers.
        shares: messages of each task.
        deployed: what the driver knows at the beginning; None: what is in force.
    """
    topic, now = deployed_now(settings)
    deployed = deployed or now
    for _ in range(3):
        plan = sent(settings, topic, deployed)
        told = [run_task(settings, values, plan) for values in shares]
        if not any("learned" in one for one in told):
            return told
        with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
            topic_consumer.keep_learned(
                connection,
                deployed,
                reports_by_name(told),
                rules_of("postgres"),
                f"processing/{topic}",
            )
        _, deployed = deployed_now(settings)
    raise AssertionError("there is always something more to learn")


def run_task(
    settings: Settings, values: Sequence[bytes], plan: tasks.TaskPlan | None = None
) -> dict[str, Any]:
    """Run what Spark runs over messages, as a worker that starts anew; return its descriptor."""
    with mock.patch.object(tasks, "_WORKERS", []):
        return again(values, plan or plan_of(settings))


def kafka_records(
    topic: str, values: Sequence[bytes], *, partition: int = 0, first: int = 0
) -> Records:
    """Return what a task reads: messages of a partition, from an offset on."""
    count = len(values)
    offsets = list(range(first, first + count))
    return Records(topic, [partition] * count, list(values), offsets, [10**12] * count)


def again(values: Sequence[bytes], plan: tasks.TaskPlan) -> dict[str, Any]:
    """Run one task more of the worker of this process; return its descriptor."""
    [topic] = plan.topics
    [answer] = tasks.StageTask(plan).run([kafka_records(topic, values)])
    told: dict[str, Any] = orjson.loads(answer.column(0)[0].as_py())
    return told


def staged(settings: Settings, told: dict[str, Any]) -> list[Any]:
    """Return the frames that a task wrote."""
    return read_staged(open_objects(settings.s3).get(told["staged"]["key"]))


def staged_rows(frames: Iterable[Any]) -> list[dict[str, Any]]:
    """Return their rows, without system columns."""
    return [
        {name: value for name, value in row.items() if not name.startswith("_waybill_")}
        for frame in frames
        for row in frame.data.to_pylist()
    ]


def _gate(word: str) -> None:
    print(word, flush=True)
    sys.stdin.readline()


def main(first: int, name: str, gate: str) -> None:
    """Run one batch; see the module."""
    learn_once, put = topic_consumer.learn_once, ObjectStore.put_waiting

    def gated_learning(*args: Any, **options: Any) -> Any:
        if gate == "learn":
            _gate("learn")
        return learn_once(*args, **options)

    def gated_put(store: ObjectStore, key: str, body: bytes, **options: Any) -> str:
        if gate == "put":
            _gate("put")
        return put(store, key, body, **options)

    settings = Settings()
    values = [order(first + n, **{name: 2**40 + n}) for n in range(3)]
    with (
        mock.patch.object(topic_consumer, "learn_once", gated_learning),
        mock.patch.object(ObjectStore, "put_waiting", gated_put),
    ):
        [told] = run_batch(settings, values)
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
