"""Forks: the child opens a log of its own; what a dead child left is settled by the next opening."""

import os
import signal
import threading

import pytest
from tests.support.topics import new_topic, read_all, small_log, until

from waybill.errors import StopError
from waybill.producer import LosslessProducer

pytestmark = pytest.mark.serves


@pytest.fixture
def config(kafka):
    return {"bootstrap.servers": kafka.bootstrap_servers}


def in_child(work):
    """Run ``work`` in a forked child and return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = work() or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_fork_opens_its_own_log_and_the_parent_goes_on(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "forks", 2)
    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:
        producer.produce(topic, b"before")
        assert producer.flush(30) == 0  # see "A fork" in docs/producer.md
        parent = producer.wal_id

        def work():
            producer.produce(topic, b"child")
            assert producer.wal_id != parent
            assert producer.flush(30) == 0
            assert producer.stats.appended == 1
            producer.close()

        assert in_child(work) == 0
        assert in_child(work) == 0  # takes the same place
        producer.produce(topic, b"after")
        assert producer.flush(30) == 0
        assert producer.stats.appended == 2
    assert sorted(m.value() for m in read_all(kafka.bootstrap_servers, topic)) == [
        b"after", b"before", b"child", b"child",
    ]  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p", "p+1"]


def test_two_children_at_once_have_two_logs(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "forks", 2)
    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:

        def outer():
            producer.produce(topic, b"outer")
            assert producer.flush(30) == 0

            def inner():
                producer.produce(topic, b"inner")
                producer.close()

            assert in_child(inner) == 0
            producer.close()

        assert in_child(outer) == 0
    assert sorted(m.value() for m in read_all(kafka.bootstrap_servers, topic)) == [
        b"inner",
        b"outer",
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p", "p+1", "p+2"]


def test_what_a_killed_child_left_is_settled_by_the_next_opening(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "forks", 2)
    slow = {**config, "linger.ms": 60_000}  # nothing is sent before the child dies
    with LosslessProducer(small_log(tmp_path), slow, name="p") as producer:

        def work():
            for n in range(100):
                producer.produce(topic, b"%d" % n)
            os.kill(os.getpid(), signal.SIGKILL)

        assert in_child(work) == -signal.SIGKILL
    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:
        assert producer.recovered.replayed == 100
    assert sorted(int(m.value()) for m in read_all(kafka.bootstrap_servers, topic)) == list(
        range(100)
    )


def test_a_log_with_marks_does_not_work_in_a_fork(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "forks", 2)
    with LosslessProducer(small_log(tmp_path), config, name="p", marks=True) as producer:

        def work():
            refused = 0
            for use in (
                lambda: producer.produce(topic, b"child"),
                lambda: producer.mark(b"child"),
                lambda: producer.flush(1),
            ):
                try:
                    use()
                except StopError as error:
                    refused += "fork" in str(error)
            producer.close()
            return refused

        assert in_child(work) == 3
        producer.produce(topic, b"parent")
    assert [m.value() for m in read_all(kafka.bootstrap_servers, topic)] == [b"parent"]


def test_threads_of_a_fork_wait_until_its_log_is_recovered(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "forks", 1)
    slow = {**config, "linger.ms": 5000}
    with LosslessProducer(small_log(tmp_path), slow, name="p") as producer:

        def dies():
            for n in range(10):
                producer.produce(topic, b"%d" % n)
            os.kill(os.getpid(), signal.SIGKILL)

        assert in_child(dies) == -signal.SIGKILL

        def threads():
            def produce(thread):
                for n in range(50):
                    producer.produce(topic, b"%d" % (100 * thread + n))

            workers = [threading.Thread(target=produce, args=(n,)) for n in (1, 2, 3)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(120)
            assert producer.recovered.replayed == 10
            return producer.close(120)

        assert in_child(threads) == 0
    found = [int(m.value()) for m in read_all(kafka.bootstrap_servers, topic)]
    assert found[:10] == list(range(10))
    assert sorted(found) == [*range(10), *range(100, 150), *range(200, 250), *range(300, 350)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p", "p+1"]


def test_what_a_dead_fork_had_in_its_retry_log_is_tried_again(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "forks", 1)
    hasty = {**config, "message.timeout.ms": 300, "socket.timeout.ms": 300}
    producer = LosslessProducer(small_log(tmp_path), hasty, name="p")
    kafka.stop()
    try:

        def dies():
            for n in range(20):
                producer.produce(topic, b"%d" % n, b"k")
            until(lambda: producer.stats.retrying == 20)
            until(lambda: producer.components.maintenance.floor_lsn == 21)
            os.kill(os.getpid(), signal.SIGKILL)

        assert in_child(dies) == -signal.SIGKILL
        producer.close(0)
    finally:
        kafka.start()
    # a broker that was just started may answer late: no message times out on its way to it
    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:
        assert producer.recovered.retrying == 20
        until(lambda: len(read_all(kafka.bootstrap_servers, topic)) == 20)
    values = [int(m.value()) for m in read_all(kafka.bootstrap_servers, topic)]
    assert values == list(range(20))
