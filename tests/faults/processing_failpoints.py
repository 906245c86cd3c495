"""Failpoints of the processing application: its driver, its Python workers, user code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from tests.faults import failpoints
from tests.faults.failpoints import before, behind, reached

from waybill.ledger import FencedError
from waybill.processing.spark.tasks import StageTask

BATCH = (
    "topic committed",
    "number taken",
    "tasks done",
    "offsets moved",
    "batch begun",
    "lease checked",
    "batch committed",
)
"""Steps of the commit protocol, in the driver. The last one is before Spark's own commit."""
IN_TRANSACTION = ("number taken", "lease checked", "offsets moved")
BEFORE_TRANSACTION = ("tasks done", "batch begun")
TASK = ("objects written", "task begun")
"""In a Python worker."""
ASLEEP = "event asleep"
"""A process of user code that sleeps in an event is told; it goes on."""
SLEEPS = 1_000_005
"""The amount of an order whose transformation sleeps."""
FENCED = "fenced"


def in_processing(cluster: str) -> None:
    """Put failpoints into the driver in this process, and into the tasks that it sends."""
    from waybill.ledger import commit
    from waybill.processing.spark import topic_consumer, topic_group

    failpoints.take_role(cluster)
    before(topic_group.TopicGroup, "_take_effect", "batch begun")
    behind(topic_group, "run_tasks", "tasks done")
    before(commit, "_move_offsets", "lease checked")
    behind(commit, "_move_offsets", "offsets moved")
    behind(commit, "write_numbered", "number taken")
    behind(topic_consumer, "commit_batch", "topic committed")
    behind(topic_group.TopicGroup, "_take_effect", "batch committed")
    topic_consumer.TopicConsumer.commit = _noting(topic_consumer.TopicConsumer.commit)  # type: ignore[method-assign]
    topic_consumer.StageTask = FailingTask  # type: ignore[misc]


def _noting(commit: Any) -> Any:
    """Note each commit that is refused since another application has the topic."""

    def noting(*args: Any, **named: Any) -> Any:
        try:
            return commit(*args, **named)
        except FencedError:
            failpoints.note(FENCED)
            raise

    return noting


class FailingTask(StageTask):
    """Comes to failpoints in a worker, which finds it by its name."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the stages."""
        reached("task begun")
        for descriptor in super().__call__(batches):
            reached("objects written")  # nobody was told of them
            yield descriptor

    def runner(self, settings: Any) -> Any:
        """Return a sandbox that tells which process is asleep."""
        sandbox = super().runner(settings)
        ask = type(sandbox).ask

        def asking(process: Any, asked: Any, body: Any) -> Any:
            if any(str(SLEEPS).encode() in part for part in body):
                reached(ASLEEP, pid=process.pid)
            return ask(sandbox, process, asked, body)

        sandbox.ask = asking  # type: ignore[method-assign]
        return sandbox
