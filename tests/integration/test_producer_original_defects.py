"""What the Java producer whose idea this follows does wrong, and ours does not: a test for each.

Most of them let a child produce to an address where no broker is and die by SIGKILL: what it left
is in its log alone. Then the log is opened over the real broker.
"""

import signal
import subprocess
import sys
import time

import pytest
from tests.support import topics

from waybill.producer import LosslessProducer, WalFullError
from waybill.producer.client import HEADER
from waybill.settings import WalSettings

pytestmark = pytest.mark.serves

NOWHERE = "127.0.0.1:1"
ENDS_WITHIN_S = 240

OPEN = """
import os, signal, sys, threading, time
from pathlib import Path
from waybill.producer import LosslessProducer
from waybill.settings import WalSettings

servers, topic, home = sys.argv[1:]
settings = WalSettings(
    dir=Path(home), segment_bytes=64 * 1024, disk_floor_bytes=0, checkpoint_interval_ms=50
)

def open_producer():
    return LosslessProducer(settings, {"bootstrap.servers": servers, "log_level": 0}, name="p")

def wait_for_checkpoint(lsn):
    limit = time.monotonic() + 120
    while producer.components.maintenance.floor_lsn < lsn:
        assert time.monotonic() < limit, producer.components.maintenance.floor_lsn
        time.sleep(0.02)

def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""


def child(servers, topic, home, code):
    """Start a process that runs ``code`` behind `OPEN`."""
    return subprocess.Popen(
        [sys.executable, "-c", OPEN + code, servers, topic, str(home)],
        stdout=subprocess.PIPE,
        text=True,
    )


def run_to_kill(servers, topic, home, code):
    process = child(servers, topic, home, f"producer = open_producer()\n{code}\ndie()\n")
    process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == -signal.SIGKILL


def settings(path, **values):
    defaults = {"segment_bytes": 64 * 1024, "disk_floor_bytes": 0, "checkpoint_interval_ms": 50}
    return WalSettings(dir=path, **{**defaults, **values})


@pytest.fixture
def servers(kafka):
    return kafka.bootstrap_servers


def recover(servers, path):
    """Open what is left of a log, and close it; return what recovery did."""
    with LosslessProducer(settings(path), {"bootstrap.servers": servers}, name="p") as producer:
        return producer.recovered


def test_at_the_disk_threshold_a_message_is_refused_aloud_and_no_other_is_lost(servers, tmp_path):
    """The original drops it and says nothing."""
    topic = topics.new_topic(servers, "threshold")
    tight = settings(tmp_path, disk_threshold_bytes=1024**2, when_full="raise")
    nowhere = {"bootstrap.servers": NOWHERE, "log_level": 0}
    taken = 0
    with LosslessProducer(tight, nowhere, name="p") as producer:
        with pytest.raises(WalFullError):
            for _ in range(2000):  # twice the threshold
                producer.produce(topic, b"%d " % taken + bytes(1000))
                taken += 1
        assert producer.stats.appended == producer.stats.in_doubt == taken
        assert producer.close(0.1) == taken
    assert taken > 800
    assert recover(servers, tmp_path).replayed == taken
    numbers = [int(m.value().split(b" ")[0]) for m in topics.read_all(servers, topic)]
    assert numbers == list(range(taken))


def test_a_recovered_message_has_its_headers(servers, tmp_path):
    """The original does not store them."""
    topic = topics.new_topic(servers, "headers")
    given = [("trace", b"1"), ("trace", None), ("empty", b""), ("bytes", bytes(range(256)))]
    run_to_kill(NOWHERE, topic, tmp_path, f"producer.produce(topic, b'v', b'k', {given!r})")
    assert recover(servers, tmp_path).replayed == 1
    (message,) = topics.read_all(servers, topic)
    assert [header for header in message.headers() if header[0] != HEADER] == given


def test_a_recovered_message_has_the_time_at_which_it_was_produced(servers, tmp_path):
    """The original does not store it: a recovered message is of the time of the recovery."""
    topic = topics.new_topic(servers, "times")
    before_ms = int(time.time() * 1000)
    run_to_kill(NOWHERE, topic, tmp_path, "producer.produce(topic, b'v')")
    after_ms = int(time.time() * 1000)
    time.sleep(0.01)
    assert recover(servers, tmp_path).replayed == 1
    (message,) = topics.read_all(servers, topic)
    assert before_ms <= message.timestamp()[1] <= after_ms


def test_a_recovered_message_has_the_time_that_it_was_given(servers, tmp_path):
    topic = topics.new_topic(servers, "times")
    given_ms = 1_234_567_890_123
    code = f"producer.produce(topic, b'v', timestamp={given_ms})"
    run_to_kill(NOWHERE, topic, tmp_path, code)
    assert recover(servers, tmp_path).replayed == 1
    (message,) = topics.read_all(servers, topic)
    assert message.timestamp()[1] == given_ms


def test_a_recovered_message_is_in_the_partition_that_it_was_given(servers, tmp_path):
    """The original loses it: the partitioner decides anew."""
    topic = topics.new_topic(servers, "partitions", 5)
    code = """
for number in range(100):
    producer.produce(topic, b"%d" % number, b"same key", partition=number % 5)
"""
    run_to_kill(NOWHERE, topic, tmp_path, code)
    assert recover(servers, tmp_path).replayed == 100
    found = topics.read_all(servers, topic)
    assert len(found) == 100
    assert [m.partition() for m in found] == [int(m.value()) % 5 for m in found]


GIVEN = [(None, b"tombstone"), (b"no key", None), (None, None), (b"", b""), (b"", None)]


def test_null_keys_and_tombstones_are_taken_and_stay_null(servers, tmp_path):
    """The original fails on them."""
    topic = topics.new_topic(servers, "nulls")
    code = f"for value, key in {GIVEN!r}:\n    producer.produce(topic, value, key)"
    run_to_kill(NOWHERE, topic, tmp_path, code)
    kafka = {"bootstrap.servers": servers}
    with LosslessProducer(settings(tmp_path), kafka, name="p") as producer:
        assert producer.recovered.replayed == len(GIVEN)
        for value, key in GIVEN:
            producer.produce(topic, value, key)
    found = [(message.value(), message.key()) for message in topics.read_all(servers, topic)]
    assert found == GIVEN * 2


ENDS = {
    "closed": "producer.close()",
    "killed with a checkpoint": "wait_for_checkpoint(1001)",
    "killed at once": "",
}


@pytest.mark.parametrize("end", ENDS)
def test_no_message_of_a_fully_acknowledged_log_is_produced_again(servers, tmp_path, end):
    """The original produces 100 again."""
    topic = topics.new_topic(servers, "acknowledged")
    code = f"""
for number in range(1000):
    producer.produce(topic, b"%d" % number)
assert producer.flush(120) == 0
{ENDS[end]}
"""
    run_to_kill(servers, topic, tmp_path, code)
    recovered = recover(servers, tmp_path)
    assert recovered.replayed == 0
    if end != "killed at once":
        assert recovered.found == 0
    numbers = [int(message.value()) for message in topics.read_all(servers, topic)]
    assert sorted(numbers) == list(range(1000))


CLOSING = """
def tasks():
    return sorted(os.listdir("/proc/self/task"))

before = tasks()
producer = open_producer()
for number in range(100):
    producer.produce(topic, b"%d" % number)
print(producer.close(0.5 if servers == "127.0.0.1:1" else 120), flush=True)
assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
limit = time.monotonic() + 120
while tasks() != before:  # the kernel lists a thread for a moment after its end
    assert time.monotonic() < limit, (before, tasks())
    time.sleep(0.01)
"""


@pytest.mark.parametrize("there", [True, False], ids=["Kafka there", "Kafka away"])
def test_close_ends_all_threads_and_so_the_process(servers, tmp_path, there):
    """The original's close leaves threads that keep the process alive."""
    topic = topics.new_topic(servers, "closing")
    process = child(servers if there else NOWHERE, topic, tmp_path, CLOSING)
    try:
        left = process.stdout.readline()
        assert process.wait(ENDS_WITHIN_S) == 0
    finally:
        process.kill()
        process.communicate()
    in_doubt = 0 if there else 100
    assert int(left) == recover(servers, tmp_path).replayed == in_doubt
    assert len(topics.read_all(servers, topic)) == 100


def test_a_program_that_forgets_to_close_ends_too_and_loses_nothing(servers, tmp_path):
    topic = topics.new_topic(servers, "forgotten")
    code = """
producer = open_producer()
for number in range(100):
    producer.produce(topic, b"%d" % number)
print("end of the program", flush=True)
"""
    process = child(servers, topic, tmp_path, code)
    try:
        assert process.stdout.readline()
        assert process.wait(ENDS_WITHIN_S) == 0
    finally:
        process.kill()
        process.communicate()
    recover(servers, tmp_path)
    numbers = [int(message.value()) for message in topics.read_all(servers, topic)]
    assert sorted(numbers) == list(range(100))
