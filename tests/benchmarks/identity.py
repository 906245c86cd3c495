"""The rivals of ``make bench-processing``: the same job without its stages, or without processes.

Without its stages: Spark's Kafka source, Arrow batches into the same Python workers, one object a
task into the same object store with the same codec, same descriptor, same tracker transaction; but
the messages' bytes go out as they came, undecoded. A second one reads as the stages' tasks do,
without Spark's source (ADR 21).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from waybill.processing import CodeRunner, InProcess
from waybill.processing.spark.executor_settings import ExecutorSettings
from waybill.processing.spark.tasks import StageTask, TaskPlan, descriptor_batch, this_worker
from waybill.processing.spark.topic_group import TopicGroup
from waybill.storage import ObjectStore, digest_of

_LIMIT_S = 600.0


class IdentityTask:
    """Takes the place of ``StageTask``."""

    def __init__(self, plan: TaskPlan) -> None:
        [self._topic] = plan.topics
        self._settings = plan.settings

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all batches and yield one descriptor."""
        descriptor = _written(batches, this_worker(self._settings).objects)
        yield descriptor_batch({"topic": self._topic, "took_s": 0.0, **descriptor})


class OwnReaderTask(IdentityTask):
    """Reads its share as ``StageTask`` does."""

    def __init__(self, plan: TaskPlan) -> None:
        super().__init__(plan)
        self._shares = plan.shares

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write what is read and yield one descriptor."""
        reader = this_worker(self._settings).reader
        for batch in numbers:
            for number in batch.column("id").to_pylist():
                yield from super().__call__(map(_columns, reader.read(self._shares[number])))


def _columns(records: Any) -> pa.RecordBatch:
    """Return records as the columns of Spark's source."""
    count = len(records.offsets)
    return pa.record_batch(
        {
            "topic": pa.repeat(records.topic, count),
            "value": pa.array(records.values, pa.binary()),
            "partition": pa.array(records.partitions, pa.int32()),
            "offset": pa.array(records.offsets, pa.int64()),
            "at_us": pa.array([time_ms * 1000 for time_ms in records.times_ms], pa.int64()),
        }
    )


class SparkSourceGroup(TopicGroup):
    """Gives its tasks the records that Spark's source reads."""

    def _on_batch(self, frame: DataFrame, spark_batch_id: int) -> None:
        self._records = frame.selectExpr(
            "topic", "value", "partition", "offset", "unix_micros(timestamp) AS at_us"
        )
        super()._on_batch(frame, spark_batch_id)

    def _numbers(self, spark: SparkSession, tasks: int) -> DataFrame:
        del spark, tasks
        return self._records


def _written(batches: Iterator[pa.RecordBatch], objects: ObjectStore) -> dict[str, Any]:
    """Write all batches as one Arrow IPC object (zstd) and return the task's descriptor."""
    seen: dict[int, list[Any]] = {}
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
    writer = None
    rows = row_bytes = 0
    for batch in batches:
        if writer is None:
            writer = pa.ipc.new_stream(sink, batch.schema, options=options)
        writer.write_batch(batch)
        rows, row_bytes = rows + batch.num_rows, row_bytes + batch.nbytes
        partition, offsets = batch.column("partition"), batch.column("offset")
        span = seen.setdefault(partition[0].as_py(), [offsets[0].as_py(), 0, 0, 0, b""])
        span[1], span[2] = offsets[-1].as_py(), span[2] + batch.num_rows
        span[3:] = batch.column("at_us")[-1].as_py() // 1000, batch.column("value")[-1].as_py()
    staged = None
    if writer is not None:
        writer.close()
        body = sink.getvalue().to_pybytes()
        key = f"identity/{uuid.uuid4()}"
        objects.put_waiting(key, body, limit_s=_LIMIT_S)
        staged = {"key": key, "rows": rows, "bytes": len(body), "row_bytes": row_bytes}
    ranges = [[n, *span[:-1], digest_of(span[-1] or b"")] for n, span in sorted(seen.items())]
    nothing: dict[str, Any] = {"counts": [], "parked": None, "failures": [], "replayed": []}
    return {"ranges": ranges, "staged": staged, **nothing}


class InWorkerTask(StageTask):
    """All stages, user code in Spark's own Python worker."""

    def runner(self, settings: ExecutorSettings) -> CodeRunner:
        """Return what runs user code: this process."""
        del settings
        return InProcess()


class UntracedTask(StageTask):
    """All stages, without a trace of any event."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the stages over all batches of this task, and yield what `StageTask` does."""
        worker = this_worker(self._plan.settings)
        settings = worker.settings
        traces = {**settings.values["traces"], "enabled": False}
        worker.settings = replace(settings, values={**settings.values, "traces": traces})
        try:
            yield from super().__call__(batches)
        finally:
            worker.settings = settings
