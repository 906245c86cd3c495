"""Topics on the real broker: made for one test, read whole; and logs in which much happens soon."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from waybill.settings import WalSettings

_LIMIT_S = 600.0
"""Of one request: a broker that has just started, on a busy machine."""


def new_topic(servers: str, name: str, partitions: int = 1, **settings: object) -> str:
    """Make a topic whose name begins with ``name``; settings like ``max_message_bytes=3000``.

    The broker knows it, and leads its partitions.
    """
    from confluent_kafka.admin import AdminClient, NewTopic

    config = {key.replace("_", "."): str(value) for key, value in settings.items()}
    full = f"{name}-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})
    new = NewTopic(full, partitions, 1, config=config)
    admin.create_topics([new], request_timeout=_LIMIT_S)[full].result(2 * _LIMIT_S)
    until(lambda: _is_led(admin.list_topics(full, _LIMIT_S).topics[full], partitions))
    return full


def _is_led(topic: Any, partitions: int) -> bool:
    """Say whether the broker has what the controller wrote: that takes a moment."""
    leaders = [partition.leader for partition in topic.partitions.values() if not partition.error]
    return topic.error is None and len(leaders) == partitions and min(leaders) >= 0


def read_all(servers: str, topic: str) -> list[Any]:
    """Return every message of a topic, in partition and offset order."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "x", "log_level": 0})
    found = []
    try:
        for partition in sorted(consumer.list_topics(topic, _LIMIT_S).topics[topic].partitions):
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

    early = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}
    limit = time.monotonic() + _LIMIT_S
    while True:
        try:
            return int(consumer.get_watermark_offsets(at, _LIMIT_S)[1])
        except KafkaException as error:
            if error.args[0].code() not in early or time.monotonic() > limit:
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


def until(condition: Callable[[], Any], limit_s: float = 300.0) -> None:
    """Wait for a condition."""
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.02)
