"""Kafka goes and comes back, disks fill up: the producer waits, and loses and doubles nothing."""

import errno
import os
import subprocess
import threading
import time
from collections import Counter

import pytest
from tests.servers import wait_for
from tests.support import topics

from waybill.errors import StopError
from waybill.producer import LosslessProducer, WalFullError
from waybill.settings import WalSettings

pytestmark = [pytest.mark.serves, pytest.mark.slow]


@pytest.fixture
def topic(kafka):
    return topics.new_topic(kafka.bootstrap_servers, "outages", 2)


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
    found = topics.read_all(kafka.bootstrap_servers, topic)
    return [(message.key(), int(message.value().split(b" ")[0])) for message in found]


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
        thread.join(300)
        assert producer.flush(300) == 0
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
        assert time.monotonic() - began < 60
        assert producer.close(0.2) == 100
    kafka.start()
    with LosslessProducer(settings(tmp_path), config(kafka), name="p") as producer:
        assert producer.recovered.replayed + producer.recovered.found == 100
        assert producer.flush(0) == 0
    assert sorted(n for _, n in read_numbers(kafka, topic)) == list(range(100))


def test_messages_that_time_out_are_tried_again_and_arrive_once(kafka, topic, tmp_path):
    # not less: a broker that was just started, or has no processor, may answer so late that messages
    # come twice
    impatient = config(kafka, **{"message.timeout.ms": 15_000, "socket.timeout.ms": 15_000})
    with LosslessProducer(settings(tmp_path), impatient, name="p") as producer:
        for n in range(500):
            producer.produce(topic, b"%d" % n, b"%d" % (n % 5))
        kafka.stop()
        for n in range(500, 1000):
            producer.produce(topic, b"%d" % n, b"%d" % (n % 5))
        wait_for(lambda: producer.stats.retrying)
        kafka.start()
        assert producer.flush(300) == 0
        assert producer.stats.retried > 0
        assert producer.stats.undeliverable == 0
    count = Counter(n for _, n in read_numbers(kafka, topic))
    assert sorted(count) == list(range(1000))
    assert max(count.values()) == 1


@pytest.mark.campaign
def test_five_outages_longer_than_the_message_timeout_lose_and_double_nothing(
    kafka, topic, tmp_path
):
    timeouts = {"message.timeout.ms": 500, "socket.timeout.ms": 500}
    impatient = config(kafka, **timeouts, **{"reconnect.backoff.max.ms": 200})
    number = 0
    with LosslessProducer(settings(tmp_path), impatient, name="p") as producer:

        def produce(count):
            nonlocal number
            for _ in range(count):
                producer.produce(topic, b"%d" % number, b"%d" % (number % 5))
                number += 1

        for _ in range(5):
            retried = producer.stats.retried
            produce(100)  # some are on their way when it stops
            kafka.stop()
            produce(100)
            time.sleep(0.6)
            produce(100)
            kafka.start()  # takes seconds
            produce(100)
            assert producer.flush(300) == 0
            assert producer.stats.retried > retried
        assert producer.stats.undeliverable == 0
        assert producer.stats.delivered == producer.stats.appended == number == 2000
    found = read_numbers(kafka, topic)
    assert sorted(n for _, n in found) == list(range(number))
    by_key = {}
    for key, its_number in found:
        by_key.setdefault(key, []).append(its_number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


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
            assert arrived.wait(300)
            thread.join()
            assert other.flush(300) == 0
        assert producer.flush(300) == 0
        producer.produce(topic, b"%d " % taken + bytes(1000))
    numbers = sorted(n for _, n in read_numbers(kafka, topic))
    assert numbers == [*range(taken + 1), *range(10_000, 13_000)]


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 2 MB."""
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
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def fill_and_drain(producer, topic, number):
    """Produce until the log is full, then let Kafka take all; return the number after the last."""
    while True:
        try:
            producer.produce(topic, b"%d " % number + os.urandom(20_000))
        except WalFullError:
            assert producer.flush(300) == 0
            return number
        number += 1


def test_a_small_disk_filled_again_and_again_is_no_sigbus_and_no_loss(kafka, topic, small_disk):
    small = settings(small_disk, when_full="raise", disk_floor_bytes=64 * 1024)
    number = 0
    with LosslessProducer(small, config(kafka), name="p") as producer:
        for _ in range(50):
            number = fill_and_drain(producer, topic, number)
    assert sorted(n for _, n in read_numbers(kafka, topic)) == list(range(number))


def test_a_disk_that_refuses_blocks_though_it_said_there_were_some_is_no_sigbus_and_no_loss(
    kafka, topic, small_disk, monkeypatch
):
    """No floor, and somebody else is always faster: room is there when asked, gone when taken."""
    refused = 0
    allocate, ask = os.posix_fallocate, os.statvfs

    def counted(*arguments):
        nonlocal refused
        try:
            allocate(*arguments)
        except OSError as error:
            refused += error.errno == errno.ENOSPC
            raise

    monkeypatch.setattr(os, "posix_fallocate", counted)
    monkeypatch.setattr(os, "statvfs", lambda _: ask("/proc/self/cwd"))
    number = 0
    with LosslessProducer(
        settings(small_disk, when_full="raise"), config(kafka), name="p"
    ) as producer:
        for _ in range(50):
            number = fill_and_drain(producer, topic, number)
    assert refused >= 50
    assert sorted(n for _, n in read_numbers(kafka, topic)) == list(range(number))


def fill_to_the_last_block(path):
    with path.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))


def test_a_disk_that_a_neighbour_fills_to_the_last_block_stops_nothing_for_good(
    kafka, topic, small_disk, caplog
):
    """Not even a checkpoint can be written then: it says so, and goes on when there is room."""
    number = 0

    def produce_until_refused(producer):
        nonlocal number
        limit = time.monotonic() + 300
        while time.monotonic() < limit:
            try:
                producer.produce(topic, b"%d " % number + os.urandom(20_000))
                number += 1
            except (WalFullError, StopError):
                return
        raise AssertionError("it never was full")

    def produces_again(producer):
        nonlocal number
        try:
            producer.produce(topic, b"%d " % number)
            number += 1
        except (WalFullError, StopError):
            return False
        return True

    small = settings(small_disk, when_full="raise")
    neighbour = small_disk / "neighbour"
    with LosslessProducer(small, config(kafka), name="p") as producer:
        for _ in range(5):
            fill_to_the_last_block(neighbour)
            produce_until_refused(producer)
            time.sleep(1)  # several checkpoints
            neighbour.unlink()
            wait_for(lambda: produces_again(producer))
            assert producer.flush(300) == 0
    assert any("No space" in str(record.exc_info) for record in caplog.records)
    assert sorted(n for _, n in read_numbers(kafka, topic)) == list(range(number))
