"""What one would write without Waybill, over the same topic: a Python UDF, and a plain loop.

The UDF's query writes to the local disk and keeps no books but Spark's own. The loop takes, parses
and writes one message after the other with the standard library; the tuned one takes them by the
thousand, and uses orjson. Both lose or double events when they die at the wrong moment.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

_LOOP = """
import json, sys, time
from confluent_kafka import Consumer, Producer, TopicPartition

servers, topic, target, partition, end, tuned = json.loads(sys.argv[1])
if tuned:
    from orjson import dumps, loads
else:
    from json import dumps, loads
consumer = Consumer({"bootstrap.servers": servers, "group.id": f"loop-{partition}",
                     "enable.auto.commit": False, "fetch.message.max.bytes": 8 * 1024**2})
producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 50,
                     "queue.buffering.max.messages": 500_000, "batch.size": 1_000_000})
consumer.assign([TopicPartition(topic, partition, 0)])
began, done = None, 0
while done < end:
    messages = consumer.consume(1_000, 1.0) if tuned else [m for m in [consumer.poll(1.0)] if m]
    if began is None:
        if not messages:
            continue
        began, cpu = time.perf_counter(), time.process_time()
    for message in messages:
        envelope = loads(message.value())
        order = envelope["data"]
        order["status"] = order["status"].upper()
        order["cents"] = round(order["amount"] * 100)
        del order["channel"]
        while True:
            try:
                producer.produce(target, dumps(envelope), message.key())
                break
            except BufferError:
                producer.poll(0.1)
    producer.poll(0)
    done += len(messages)
assert producer.flush(60) == 0
consumer.commit(asynchronous=False)
print(json.dumps([time.perf_counter() - began, time.process_time() - cpu]))
"""


def run_loop(
    servers: str, topic: str, target: str, ends: dict[int, int], *, tuned: bool
) -> dict[str, float]:
    """Run a consume-process-produce loop in a process a partition; the slowest ends the clock.

    Args:
        servers: of Kafka.
        topic: read from its first offset to ``ends``.
        target: the topic that it writes to.
        ends: {partition: its messages}.
        tuned: messages by the thousand, and orjson.
    """
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _LOOP, json.dumps([servers, topic, target, number, end, tuned])],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, end in ends.items()
    ]
    try:
        told = [child.communicate()[0] for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    if any(child.returncode for child in children):
        raise SystemExit("a loop ended with an error")
    took = [json.loads(line) for line in told]
    seconds = max(wall for wall, _ in took)
    return {"per_s": sum(ends.values()) / seconds, "cpu_s": sum(cpu for _, cpu in took)}


def start_udf(spark: Any, settings: Any, topic: str, folder: Path) -> Any:
    """Start a query that transforms row by row in a Python UDF, into Parquet on the local disk."""
    from pyspark.sql.functions import to_timestamp, udf
    from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

    kinds = {
        "number": LongType(), "customer": StringType(), "amount": DoubleType(),
        "currency": StringType(), "status": StringType(), "placed_at": StringType(),
        "cents": LongType(),
    }  # fmt: skip

    def transform(value: bytes) -> tuple[Any, ...]:
        order = json.loads(value)["data"]
        order["status"] = order["status"].upper()
        order["cents"] = round(order["amount"] * 100)
        del order["channel"]
        return tuple(order[name] for name in kinds)

    transformed = udf(
        transform, StructType([StructField(name, kind) for name, kind in kinds.items()])
    )
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.kafka.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", settings.spark.max_events_per_batch)
        .load()
        .select(transformed("value").alias("row"))
        .select("row.*")
        .withColumn("placed_at", to_timestamp("placed_at"))
    )
    return (
        rows.writeStream.format("parquet")
        .option("path", f"file://{folder / 'rows'}")
        .option("checkpointLocation", f"file://{folder / 'checkpoint'}")
        .trigger(processingTime="0 seconds")
        .start()
    )


class Memory:
    """The most memory that the processes below this one had together, servers aside.

    Args:
        servers: pids that do not count, nor do their children.
    """

    def __init__(self, servers: set[int]) -> None:
        self._servers = servers
        self.peak_mb = 0.0

    def look(self) -> None:
        """Measure once. Cost: some ms a process."""
        total = 0
        pending = [psutil.Process()]
        while pending:
            process = pending.pop()
            if process.pid in self._servers:
                continue
            try:
                total += process.memory_full_info().pss
                pending += process.children()
            except psutil.NoSuchProcess:
                continue
        self.peak_mb = max(self.peak_mb, total / 1024**2)


def batches_of(query: Any) -> list[tuple[int, float]]:
    """Return (events, seconds) of the batches that a query has run, by the offsets it planned.

    Rows are not counted: tasks of processing read Kafka past Spark. A topic begins at 0.
    """
    found, before = list[tuple[int, float]](), 0
    for progress in query.recentProgress:
        ends = [ast.literal_eval(one.endOffset) or {} for one in progress.sources]  # repr of a dict
        until = sum(sum(own.values()) for one in ends for own in one.values())
        if until > before:
            found.append((until - before, progress.durationMs["triggerExecution"] / 1000))
            before = until
    return found


def waited(query: Any, events: int, each: Callable[[], object] = bool) -> float:
    """Wait until a query has read so many events; return events/s by its triggers.

    Args:
        each: is called about once a second meanwhile.
    """
    looked = 0.0
    while sum(found for found, _ in batches_of(query)) < events:
        if not query.isActive:
            raise SystemExit(f"the query ended: {query.exception()}")
        if time.monotonic() - looked > 1:
            looked = time.monotonic()
            each()
        time.sleep(0.1)
    batches = batches_of(query)
    query.stop()
    return events / sum(seconds for _, seconds in batches)
