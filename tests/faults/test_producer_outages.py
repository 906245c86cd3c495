"""Kafka goes and comes back, disks fill up: the producer waits, and loses and doubles nothing."""

import os
import subprocess
import threading
import time
import uuid
from collections import Counter

import pytest

from waybill.producer import LosslessProducer, WalFullError
from waybill.settings import WalSettings

pytestmark = [pytest.mark.serves, pytest.mark.slow]


@pytest.fixture
def topic(kafka):
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"outages-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    return name


def settings(path, **values):
    defaults = {
        "segment_bytes": 256 * 1024,
        "disk_floor_bytes": 0,
        "checkpoint_interval_ms": 100,
        "retry_interval_ms": 200,
    }
    return WalSettings(dir=path, **{**defaults, **values})


def config(kafka, **values):
    return {"bootstrap.servers": kafka.bootstrap_servers, **values}


def read_numbers(kafka, topic):
    """Return the numbers in a topic, in partition and offset order."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(config(kafka, **{"group.id": "x", "log_level": 0}))
    numbers = []
    for partition in (0, 1):
        at = TopicPartition(topic, partition, 0)
        _, high = consumer.get_watermark_offsets(at, 10)
        consumer.assign([at])
        last = -1
        while last < high - 1:
            for message in consumer.consume(1000, 0.1):
                assert message.error() is None
                numbers.append((message.key(), int(message.value().split(b" ")[0])))
                last = message.offset()
    consumer.close()
    return numbers


def test_a_broker_that_is_restarted_while_messages_flow_costs_nothing(kafka, topic, tmp_path):
    produced = 0
    done = threading.Event()
    with LosslessProducer(settings(tmp_path), config(kafka), name="p") as producer:

        def produce():
            nonlocal produced
            while not done.is_set():
                producer.produce(topic, b"%d" % produced, b"%d" % (produced % 11))
                produced += 1
                time.sleep(0.0005)

        thread = threading.Thread(target=produce)
        thread.start()
        for _ in range(2):
            time.sleep(0.5)
            kafka.stop()
            time.sleep(1.5)
            kafka.start()
        time.sleep(0.5)
        done.set()
        thread.join(30)
        assert producer.flush(60) == 0
        assert producer.stats.delivered == producer.stats.appended == produced
    found = read_numbers(kafka, topic)
    assert sorted(n for _, n in found) == list(range(produced))
    by_key = {}
    for key, number in found:
        by_key.setdefault(key, []).append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_kafka_may_be_away_at_the_start(kafka, topic, tmp_path):
    kafka.stop()
    began = time.monotonic()
    with LosslessProducer(settings(tmp_path), config(kafka), name="p") as producer:
        for n in range(100):
            producer.produce(topic, b"%d" % n)
        assert producer.flush(0.5) == 100
        assert time.monotonic() - began < 5
        assert producer.close(0.2) == 100
    kafka.start()
    with LosslessProducer(settings(tmp_path), config(kafka), name="p") as producer:
        assert producer.recovered.replayed + producer.recovered.found == 100
        assert producer.flush(0) == 0
    assert sorted(n for _, n in read_numbers(kafka, topic)) == list(range(100))


def test_messages_that_time_out_are_tried_again_and_arrive_once(kafka, topic, tmp_path):
    impatient = config(kafka, **{"message.timeout.ms": 1000, "socket.timeout.ms": 1000})
    with LosslessProducer(settings(tmp_path), impatient, name="p") as producer:
        for n in range(500):
            producer.produce(topic, b"%d" % n, b"%d" % (n % 5))
        kafka.stop()
        for n in range(500, 1000):
            producer.produce(topic, b"%d" % n, b"%d" % (n % 5))
        time.sleep(3)
        kafka.start()
        assert producer.flush(60) == 0
        assert producer.stats.retried > 0
        assert producer.stats.undeliverable == 0
    count = Counter(n for _, n in read_numbers(kafka, topic))
    assert sorted(count) == list(range(1000))
    assert max(count.values()) == 1


def test_a_full_log_waits_for_kafka_or_says_so_as_asked(kafka, topic, tmp_path):
    kafka.stop()
    raising = settings(tmp_path, disk_threshold_bytes=1024**2, when_full="raise")
    taken = 0
    with LosslessProducer(raising, config(kafka), name="r") as producer:
        with pytest.raises(WalFullError):
            while True:
                producer.produce(topic, b"%d " % taken + bytes(1000))
                taken += 1
        assert producer.stats.appended == taken
        waiting = settings(tmp_path, disk_threshold_bytes=1024**2)
        with LosslessProducer(waiting, config(kafka), name="w") as other:
            arrived = threading.Event()

            def produce():
                for n in range(10_000, 13_000):
                    other.produce(topic, b"%d " % n + bytes(1000))
                arrived.set()

            thread = threading.Thread(target=produce)
            thread.start()
            assert not arrived.wait(2)
            kafka.start()
            assert arrived.wait(60)
            thread.join()
            assert other.flush(60) == 0
        assert producer.flush(60) == 0
        producer.produce(topic, b"%d " % taken + bytes(1000))
    numbers = sorted(n for _, n in read_numbers(kafka, topic))
    assert numbers == [*range(taken + 1), *range(10_000, 13_000)]


def test_a_small_disk_filled_again_and_again_is_no_sigbus_and_no_loss(kafka, topic, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.strip()}")
    try:
        small = settings(disk, when_full="raise", disk_floor_bytes=64 * 1024)
        number = refused = 0
        with LosslessProducer(small, config(kafka), name="p") as producer:
            for _ in range(50):
                full = False
                while not full:
                    try:
                        producer.produce(topic, b"%d " % number + os.urandom(20_000))
                        number += 1
                    except WalFullError:
                        full = True
                        refused += 1
                assert producer.flush(60) == 0
        assert refused == 50
        assert sorted(n for _, n in read_numbers(kafka, topic)) == list(range(number))
    finally:
        subprocess.run(["umount", str(disk)], check=True)
