"""Topics of a real broker for one test, and what is in them."""

import time
import uuid

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from waybill.settings import WalSettings


def make_topic(kafka, partitions=2, **settings):
    """Make a topic of a new name; settings like max_message_bytes=3000."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    name = f"topic-{uuid.uuid4().hex[:12]}"
    config = {key.replace("_", "."): str(value) for key, value in settings.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)
    return name


def read_topic(kafka, topic):
    """Return all messages of a topic, in partition and offset order."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "x", "log_level": 0}
    )
    try:
        found = []
        for partition in consumer.list_topics(topic, 10).topics[topic].partitions:
            at = TopicPartition(topic, partition, 0)
            _, high = consumer.get_watermark_offsets(at, 10)
            consumer.assign([at])
            last = -1
            while last < high - 1:
                for message in consumer.consume(1000, 0.1):
                    assert message.error() is None
                    found.append(message)
                    last = message.offset()
        return found
    finally:
        consumer.close()


def small_log(path, **values):
    """Return settings with which little happens soon."""
    defaults = {
        "segment_bytes": 64 * 1024,
        "disk_floor_bytes": 0,
        "checkpoint_interval_ms": 50,
        "retry_interval_ms": 100,
    }
    return WalSettings(dir=path, **{**defaults, **values})


def until(condition, limit_s=10.0):
    """Wait for a condition."""
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.02)
