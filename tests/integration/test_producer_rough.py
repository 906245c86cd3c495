"""Rough handling: closed under load, interrupted, forked in odd places, files damaged or taken."""

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from tests.support.topics import new_topic, read_all, small_log, until

from waybill.errors import InputError, StopError
from waybill.producer import LosslessProducer, ProducerBusyError, WalFullError

pytestmark = pytest.mark.serves
NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


@pytest.fixture
def config(kafka):
    return {"bootstrap.servers": kafka.bootstrap_servers, "topic.metadata.propagation.max.ms": 1000}


def test_closing_while_threads_produce_leaves_the_directory_to_the_next(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "rough")
    returned, refused, odd = [], [], []
    for round_ in range(6):
        producer = LosslessProducer(small_log(tmp_path), config, name="p")

        def produce(thread, producer=producer, round_=round_):
            for n in range(100_000):
                try:
                    producer.produce(topic, b"%d.%d.%d" % (round_, thread, n))
                except StopError as error:
                    refused.append(error)
                    return
                except BaseException as error:
                    odd.append(error)
                    raise
                returned.append((round_, thread, n))

        threads = [threading.Thread(target=produce, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        producer.close(0)
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:
        assert producer.recovered.quarantined == producer.recovered.torn == 0
    assert (odd, len(refused)) == ([], 48)
    found = [
        tuple(map(int, m.value().split(b"."))) for m in read_all(config["bootstrap.servers"], topic)
    ]
    assert len(found) == len(set(found))
    assert set(returned) <= set(found)
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["checkpoint", "lock"]


INTERRUPTED = """
import random, signal, sys
from pathlib import Path
from waybill.producer import LosslessProducer
from waybill.errors import StopError
from waybill.settings import WalSettings

def interrupt(*_):
    raise KeyboardInterrupt

order = random.Random(7)
settings = WalSettings(dir=Path(sys.argv[2]), disk_floor_bytes=0, segment_bytes=1 << 20)
signal.signal(signal.SIGALRM, interrupt)
for number in range(60):
    producer = LosslessProducer(settings, {"bootstrap.servers": sys.argv[1]}, name="p")
    try:
        # after seconds again: what interrupts a finalizer is swallowed
        signal.setitimer(signal.ITIMER_REAL, order.uniform(0.0005, 0.01), 2)
        while True:
            producer.produce(sys.argv[3], b"x" * 100, b"k", {"h": b"1"})
    except KeyboardInterrupt:
        pass
    except TypeError as error:
        assert "header" in str(error)  # of librdkafka's binding, when it is interrupted there
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert not producer._gate.locked()
    producer.close(0.05)
print("all closed", flush=True)
"""


def test_an_interrupt_at_any_point_leaves_no_lock_held(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "rough", 1)
    command = [sys.executable, "-c", INTERRUPTED, config["bootstrap.servers"], str(tmp_path), topic]
    path = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=540,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout == "all closed\n", done.stderr[-2000:]


def test_a_callable_that_flushes_in_the_producer_s_own_thread_does_not_wait_for_itself(
    tmp_path, config, kafka
):
    topic = new_topic(kafka.bootstrap_servers, "rough", 1)
    left = []
    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:
        producer.produce("no-such-topic", b"in doubt for a second")
        producer.produce(topic, b"1", on_delivery=lambda e, m: left.append(producer.flush()))
        until(lambda: left)
        until(lambda: producer.stats.parked == 1)
    assert left in ([0], [1])  # what was in doubt at that moment; it did not wait for it


def test_a_callable_that_raises_stops_no_other(tmp_path, config, kafka, caplog):
    topic = new_topic(kafka.bootstrap_servers, "rough", 1)
    told = []

    def failing(error, message):
        raise ValueError("of the caller")

    producer = LosslessProducer(small_log(tmp_path), config, name="p")
    producer.produce(topic, b"0", on_delivery=failing)
    for _ in range(10):
        producer.produce(topic, b"x", on_delivery=lambda e, m: told.append(e))
    until(lambda: len(told) == 10)
    time.sleep(0.5)
    assert len([r for r in caplog.records if "on_delivery failed" in r.message]) == 1
    with pytest.raises(ValueError, match="of the caller"):
        producer.close()
    assert producer.closed


def test_a_batch_keeps_headers_of_an_iterator_and_checks_every_member_first(
    tmp_path, config, kafka
):
    topic = new_topic(kafka.bootstrap_servers, "rough", 1)
    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:
        for bad in ({"value": "\ud800"}, {"partition": 2**31}, {"timestamp": 2**63}):
            with pytest.raises(InputError, match="message 1 of the batch"):
                producer.produce_batch(topic, [{"value": b"a"}, bad])
        for bad in ({"partition": 0.9}, {"on_delivery": 5}):
            with pytest.raises(TypeError, match="message 1 of the batch"):
                producer.produce_batch(topic, [{"value": b"a"}, bad])
        assert producer.stats.appended == 0
        producer.produce_batch(topic, [{"value": b"g", "headers": ((k, b"v") for k in "ab")}])
    (message,) = read_all(config["bootstrap.servers"], topic)
    assert message.headers()[:-1] == [("a", b"v"), ("b", b"v")]


def test_a_full_parking_place_does_not_keep_the_log_from_opening(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "rough", 1, max_message_bytes=2000)
    tight = small_log(tmp_path, disk_threshold_bytes=1024**2, when_full="raise")
    taken = 0
    producer = LosslessProducer(tight, config, name="p")
    with pytest.raises(WalFullError):
        while True:
            producer.produce(topic, os.urandom(5000))
            taken += 1
    producer.close(1)
    with LosslessProducer(tight, config, name="p") as producer:
        assert producer.flush(30) == 0
        assert len(producer.parked) == taken
        assert producer.discard_parked() == taken
        until(lambda: producer.stats.wal_bytes <= 1024**2)
        producer.produce(topic, b"there is room again")
    assert [m.value() for m in read_all(config["bootstrap.servers"], topic)] == [
        b"there is room again"
    ]


def zero(path):
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    "damage", [zero, lambda path: path.write_bytes(b""), lambda path: path.unlink()]
)
@pytest.mark.parametrize("folder", ["retry", "parked"])
def test_damage_beside_the_log_is_counted(tmp_path, kafka, folder, damage):
    """The main log's watermark has passed these records: nothing else knows of them."""
    slow = {**NOWHERE, "message.timeout.ms": 200}
    given = slow if folder == "retry" else {**NOWHERE, "message.max.bytes": 2000}
    producer = LosslessProducer(small_log(tmp_path), given, name="p")
    for _ in range(7):
        producer.produce("t", bytes(5000) if folder == "parked" else b"x")
    field = "retrying" if folder == "retry" else "parked"
    until(lambda: getattr(producer.stats, field) == 7)
    until(lambda: producer.components.deliveries.low == 8)
    producer.close(0)
    (segment,) = (tmp_path / "p" / folder).glob("seg-*.wal")
    damage(segment)
    again = LosslessProducer(small_log(tmp_path), NOWHERE, name="p")
    assert again.recovered.quarantined == 7
    assert getattr(again.stats, field) == 0
    again.close(0)


def test_a_fork_inside_a_callable_leaves_the_parent_s_log_alone(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "rough", 1)
    calls = tmp_path / "calls"
    children = []

    def forks(error, message):
        with calls.open("ab") as file:
            file.write(b"1")
        if not children:
            pid = os.fork()
            if pid:
                children.append(pid)
            else:  # it goes back into librdkafka without its threads, and may crash there
                faulthandler.disable()

    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:
        for _ in range(5):
            producer.produce(topic, b"x", on_delivery=forks)
        until(lambda: len(calls.read_bytes()) >= 5 if calls.exists() else False)
        time.sleep(0.5)
        producer.produce(topic, b"y")
        assert producer.flush(30) == 0
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)
    assert calls.read_bytes() == b"11111"
    assert len(read_all(config["bootstrap.servers"], topic)) == 6


FORKS_WHILE_OPENING = """
import os, sys, threading, time
from pathlib import Path
from waybill.producer import LosslessProducer
from waybill.settings import WalSettings
settings = WalSettings(dir=Path(sys.argv[1]), disk_floor_bytes=0, segment_bytes=1 << 20)
nowhere = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
first = LosslessProducer(settings, nowhere, name="p")
first.produce("t", b"in doubt")
first.close(0)
lock = Path(sys.argv[1]) / "p" / "lock"
lock.write_text("")
opening = threading.Thread(
    target=lambda: LosslessProducer(settings, nowhere, name="p"), daemon=True
)
opening.start()
while opening.is_alive() and lock.read_text() != str(os.getpid()):  # it has the lock, and waits for Kafka
    time.sleep(0.01)
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)  # by the child: what a fork does in it is done
    time.sleep(300)
    os._exit(0)
time.sleep(300)
"""


def test_a_fork_during_an_opening_does_not_keep_its_lock(tmp_path):
    path = os.pathsep.join(path for path in sys.path if path)
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKS_WHILE_OPENING, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    child = int(parent.stdout.readline())
    try:
        with pytest.raises(ProducerBusyError):
            LosslessProducer(small_log(tmp_path), NOWHERE, name="p")
        parent.kill()
        parent.wait(60)
        os.kill(child, 0)  # it lives
        from waybill.producer.forks import DirectoryLock

        DirectoryLock(tmp_path / "p").release()
    finally:
        os.kill(child, signal.SIGKILL)
        parent.kill()
        parent.communicate()
