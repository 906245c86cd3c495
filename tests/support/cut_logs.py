"""Damage to a real broker's topics: a log that lost its tail, one made anew, one with holes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from waybill.stack.service import ServiceError

_HEADER = struct.Struct(">qi")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_DELTA_AT = 23
"""Byte of a record batch where its last offset's distance from its first one stands."""


def cut_logs(kafka: Any, ends: Mapping[tuple[str, int], int]) -> None:
    """Stop the broker, cut the logs of partitions so that they end at offsets, start it again.

    Records were sent one at a time around the ends: a batch is not cut in two.

    Args:
        kafka: the broker.
        ends: {(topic, partition): offset after the last record that stays}.
    """
    kafka.stop()
    folder = Path(kafka.service.home) / "kafka" / "data"
    for (topic, partition), end in ends.items():
        _cut_files(folder / f"{topic}-{partition}", end)
    (folder / ".kafka_cleanshutdown").unlink(missing_ok=True)
    try:
        kafka.start()
    except ServiceError:  # a busy machine: it takes longer
        kafka.start()


def _cut_files(folder: Path, at: int) -> None:
    for segment in sorted(folder.glob("*.log")):
        content = segment.read_bytes()
        end = _end_of(content, at)
        if end < len(content):
            with segment.open("r+b") as file:
                file.truncate(end)
    for pattern in ("*.index", "*.timeindex", "*.snapshot"):
        for stale in folder.glob(pattern):
            stale.unlink()


def _end_of(content: bytes, at: int) -> int:
    """Return after which byte a segment's records up to an offset end."""
    place = 0
    while place + _HEADER.size <= len(content):
        base, length = _HEADER.unpack_from(content, place)
        [delta] = _LAST_OFFSET_DELTA.unpack_from(content, place + _DELTA_AT)
        if base >= at:
            return place
        assert base + delta < at, f"offsets {base} to {base + delta} are in one batch"
        place += _HEADER.size + length
    return place


def send_one_by_one(
    servers: str, topic: str, values: list[bytes], partition: int = 0, key: bytes | None = None
) -> None:
    """Send values, each in a batch of its own."""
    _send(servers, topic, values, partition, key, **{"batch.num.messages": 1})


def send_at_once(servers: str, topic: str, values: list[bytes], partition: int = 0) -> None:
    """Send values in one batch: nobody reads some of them before the others are there."""
    _send(servers, topic, values, partition, None, **{"linger.ms": 5_000})


def _send(
    servers: str,
    topic: str,
    values: list[bytes],
    partition: int,
    key: bytes | None,
    **config: int,
) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "log_level": 2, **config})
    for value in values:
        producer.produce(topic, value, key, partition=partition)
    assert producer.flush(60) == 0


def send_in_transaction(servers: str, topic: str, values: list[bytes], partition: int = 0) -> None:
    """Send values in a transaction: its marker takes an offset that has no record.

    It is over when this returns: a broker that dies before writes the marker once more.
    """
    from confluent_kafka import Producer

    config = {"bootstrap.servers": servers, "transactional.id": f"hole-{topic}", "log_level": 2}
    producer = Producer(config)
    producer.init_transactions(60)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=partition)
    producer.commit_transaction(60)  # decided; the marker may still be on its way
    Producer(config).init_transactions(60)  # waits for the end of the one before


def make_anew(servers: str, log: Any, topic: str) -> None:
    """Delete a topic and make it again under the same name."""
    from confluent_kafka.admin import AdminClient
    from tests.servers import wait_for

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    admin.delete_topics([topic], operation_timeout=30)[topic].result(300)
    wait_for(lambda: topic not in log.topics())
    log.ensure_topic(topic)


def delete_records(servers: str, topic: str, partition: int, before: int) -> None:
    """Have Kafka delete records before an offset."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    place = TopicPartition(topic, partition, before)
    admin.delete_records([place])[place].result(300)


def compact(servers: str, log: Any, topic: str, *, key: bytes) -> None:
    """Have Kafka delete all but the newest record of a key in partition 0, at an end of the log."""
    from tests.servers import wait_for

    end = log.ends(log.describe(topic))[0].offset
    log.set_config(
        topic,
        {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"},
    )

    def compacted() -> bool:
        send_one_by_one(servers, topic, [b"later"], key=key)  # only a record rolls a segment
        return bool(log.missing(topic, 0, end - 1, end))

    wait_for(compacted)  # the cleaner looks every 15 s
