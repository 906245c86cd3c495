"""Topics on the real broker: made for one test, read whole; and logs in which much happens soon."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from waybill.settings import WalSettings


def new_topic(servers: str, name: str, partitions: int = 1, **settings: object) -> str:
    """Make a topic whose name begins with ``name``; settings like ``max_message_bytes=3000``."""
    from confluent_kafka.admin import AdminClient, NewTopic

    config = {key.replace("_", "."): str(value) for key, value in settings.items()}
    full = f"{name}-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})
    admin.create_topics([NewTopic(full, partitions, 1, config=config)])[full].result(30)
    return full


def read_all(servers: str, topic: str) -> list[Any]:
    """Return every message of a topic, in partition and offset order."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "x", "log_level": 0})
    found = []
    try:
        for partition in sorted(consumer.list_topics(topic, 10).topics[topic].partitions):
            at = TopicPartition(topic, partition, 0)
            high = _end(consumer, at)
            consumer.assign([at])
            last = -1
            while last < high - 1:
                for message in consumer.consume(1000, 0.1):
                    assert message.error() is None, message.error()
                    found.append(message)
                    last = message.offset()
    finally:
        consumer.close()
    return found


def _end(consumer: Any, at: Any) -> int:
    """Return where a partition ends; a broker that was just started may not lead it yet."""
    from confluent_kafka import KafkaError, KafkaException

    limit = time.monotonic() + 30
    while True:
        try:
            return int(consumer.get_watermark_offsets(at, 10)[1])
        except KafkaException as error:
            code = error.args[0].code()
            if code != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > limit:
                raise
            time.sleep(0.1)


def small_log(path: Path, **values: Any) -> WalSettings:
    """Return settings with small segments and short intervals."""
    defaults: dict[str, Any] = {
        "segment_bytes": 64 * 1024,
        "disk_floor_bytes": 0,
        "checkpoint_interval_ms": 50,
        "retry_interval_ms": 100,
    }
    return WalSettings(dir=path, **{**defaults, **values})


def until(condition: Callable[[], Any], limit_s: float = 60.0) -> None:
    """Wait for a condition."""
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.02)
