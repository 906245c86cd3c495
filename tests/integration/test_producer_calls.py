"""The caller's side of the producer: callbacks, batches, partitions, text, what it counts."""

import threading
import time

import pytest
from tests.support.topics import new_topic, read_all, small_log, until

from waybill.errors import InputError, StopError
from waybill.producer import LosslessProducer

pytestmark = pytest.mark.serves


@pytest.fixture
def config(kafka):
    return {"bootstrap.servers": kafka.bootstrap_servers, "topic.metadata.propagation.max.ms": 1000}


def test_a_callback_is_called_once_for_each_message_with_its_place(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "calls", 1)
    told = []
    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:
        for n in range(1000):
            producer.produce(topic, b"%d" % n, on_delivery=lambda e, m, n=n: told.append((n, e, m)))
        assert producer.flush(30) == 0
        assert [(n, e) for n, e, _ in told] == [(n, None) for n in range(1000)]
        assert [m.offset() for _, _, m in told] == list(range(1000))
        assert told[7][2].value() == b"7"


def test_callbacks_come_without_a_poll_and_from_outside_every_lock(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "calls", 1)
    deep = threading.Event()
    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:

        def again(error, message):
            assert error is None
            producer.poll(0)
            producer.flush(0.01)
            producer.produce(topic, b"from a callback", on_delivery=lambda e, m: deep.set())

        producer.produce(topic, b"first", on_delivery=again)
        assert deep.wait(240)
    assert len(read_all(kafka.bootstrap_servers, topic)) == 2


def test_what_a_callback_raises_comes_out_of_flush_and_costs_no_message(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "calls", 1)
    told = []

    def failing(error, message):
        told.append(message.value())
        if message.value() == b"3":
            raise ValueError("of the caller")

    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:
        for n in range(10):
            producer.produce(topic, b"%d" % n, on_delivery=failing)
        with pytest.raises(ValueError, match="of the caller"):
            producer.flush(30)
            producer.poll(0)
        assert producer.flush(30) == 0
        assert sorted(told) == [b"%d" % n for n in range(10)]
        assert producer.stats.delivered == 10


def test_closing_inside_a_callback_of_the_producer_s_own_thread_is_refused(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "calls", 1)
    raised = []
    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:

        def close(error, message):
            try:
                producer.close()
            except StopError as problem:
                raised.append(problem)

        producer.produce(topic, b"x", on_delivery=close)
        until(lambda: raised)
        producer.produce(topic, b"still works")
    assert len(read_all(kafka.bootstrap_servers, topic)) == 2


def test_a_message_given_up_is_told_to_its_own_callback_only(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "calls", 1, max_message_bytes=3000)
    told, given = [], []
    with LosslessProducer(
        small_log(tmp_path), config, name="p", on_undeliverable=given.append
    ) as producer:
        for n in range(6):
            size = 5000 if n == 3 else 10
            producer.produce(
                topic,
                bytes(size),
                on_delivery=lambda e, m, n=n: told.append((n, e and e.name(), len(m.value()))),
            )
        assert producer.flush(30) == 0
    assert sorted(told) == [
        (n, "MSG_SIZE_TOO_LARGE" if n == 3 else None, 5000 if n == 3 else 10) for n in range(6)
    ]
    assert [one.lsn for one in given] == [4]


def test_a_batch_is_checked_whole_then_appended_in_order(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "calls", 3)
    told = []
    with LosslessProducer(small_log(tmp_path, durability="each"), config, name="p") as producer:
        with pytest.raises(TypeError, match="message 2 of the batch"):
            producer.produce_batch(topic, [{"value": b"a"}, {}, {"value": 5}])
        with pytest.raises(InputError, match="message 0 .*'valeu'"):
            producer.produce_batch(topic, [{"valeu": b"a"}])
        assert producer.stats.appended == 0
        lsns = producer.produce_batch(
            topic,
            (
                {"value": f"{n}", "key": "k", "headers": {"n": str(n)}, "timestamp": 5000 + n}
                for n in range(100)
            ),
            on_delivery=lambda e, m: told.append(m.offset()),
            partition=2,
        )
        assert lsns == list(range(1, 101))
        assert producer.components.log.synced_lsn == 100
        assert producer.flush(30) == 0
    assert sorted(told) == list(range(100))
    found = read_all(kafka.bootstrap_servers, topic)
    assert [(m.partition(), m.value(), m.key()) for m in found] == [
        (2, b"%d" % n, b"k") for n in range(100)
    ]
    assert [m.timestamp()[1] for m in found] == [5000 + n for n in range(100)]
    assert [dict(m.headers())["n"] for m in found] == [b"%d" % n for n in range(100)]


def test_a_partition_that_is_not_there_is_given_up_and_parked(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "calls", 1)
    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:
        producer.produce(topic, b"lost?", partition=7)
        producer.produce(topic, b"fine", partition=0)
        assert producer.flush(30) == 0
        assert [(one.value, one.partition, one.code) for one in producer.parked] == [
            (b"lost?", 7, "_UNKNOWN_PARTITION")
        ]
    assert [m.value() for m in read_all(kafka.bootstrap_servers, topic)] == [b"fine"]


def test_what_is_counted(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "calls", 1)
    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:
        for n in range(640):
            producer.produce(topic, b"%d" % n)
        assert producer.flush(30) == 0
        stats = producer.stats
        assert (stats.appended, stats.delivered, stats.in_doubt) == (640, 640, 0)
        assert stats.append_latency.count == 10
        assert 1 <= stats.append_latency.at_most_us(0.5) <= stats.append_latency.at_most_us(1)
        assert len(producer) == 0
        assert stats.wal_bytes >= 64 * 1024
        until(lambda: producer.stats.checkpoint_age_s < 1)


def test_closing_ends_every_thread_even_while_kafka_is_away(tmp_path, kafka):
    before = set(threading.enumerate())
    config = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    producer = LosslessProducer(small_log(tmp_path, max_in_flight=5), config, name="p")
    stopped = []

    def produce():
        try:
            for n in range(100):
                producer.produce("t", b"%d" % n)
        except StopError as error:
            stopped.append(error)

    thread = threading.Thread(target=produce)
    thread.start()
    until(lambda: len(producer) == 6)  # five in librdkafka's queue, one that waits for a place
    began = time.monotonic()
    assert producer.close(0.2) == 6
    assert time.monotonic() - began < 60, "librdkafka gives messages up after 300 s"
    thread.join(60)
    assert len(stopped) == 1
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("headers", [0, 3, "name", b"x", [("a",)], ["ab", 5]])
def test_what_are_no_headers_is_refused(tmp_path, config, headers):
    """A bare producer has the partition in their place."""
    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:
        with pytest.raises(InputError, match="header"):
            producer.produce("t", b"v", b"k", headers)
        assert producer.stats.appended == 0


def test_callback_is_another_name_of_on_delivery(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "calls", 1)
    told = []
    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:
        producer.produce(topic, b"x", callback=lambda e, m: told.append(m.offset()))
        assert producer.flush(30) == 0
    assert told == [0]


def test_a_failing_callable_of_the_configuration_costs_no_message(tmp_path, config, kafka):
    topic = new_topic(kafka.bootstrap_servers, "calls", 1)

    fails = [True]

    def failing(text):
        if fails:
            raise ValueError("of stats_cb")

    given = {**config, "stats_cb": failing, "statistics.interval.ms": 50}
    with LosslessProducer(small_log(tmp_path), given, name="p") as producer:
        until(lambda: producer.components.callbacks._raised is not None)
        producer.produce(topic, b"x")
        with pytest.raises(ValueError, match="of stats_cb"):
            producer.flush(30)
        fails.clear()
        producer.components.callbacks._raised = None  # it may have failed once more meanwhile
    assert [m.value() for m in read_all(kafka.bootstrap_servers, topic)] == [b"x"]
