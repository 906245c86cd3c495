"""The lossless producer against a real broker: what it promises, and what it does with refusals."""

import os
from functools import partial

import pytest
from tests.support.topics import new_topic, read_all, until

from waybill.errors import InputError, StopError
from waybill.producer import LosslessProducer, ProducerBusyError, WalFullError
from waybill.producer.client import HEADER, read_stamp
from waybill.settings import WalSettings

pytestmark = pytest.mark.serves


@pytest.fixture
def config(kafka):
    return {"bootstrap.servers": kafka.bootstrap_servers, "topic.metadata.propagation.max.ms": 1000}


@pytest.fixture
def make_topic(kafka):
    def make(partitions=2, **settings):
        return new_topic(kafka.bootstrap_servers, "producer", partitions, **settings)

    return make


@pytest.fixture
def read(kafka):
    return partial(read_all, kafka.bootstrap_servers)


def settings(path, **values):
    defaults = {
        "segment_bytes": 64 * 1024,
        "disk_floor_bytes": 0,
        "checkpoint_interval_ms": 50,
        "retry_interval_ms": 100,
    }
    return WalSettings(dir=path, **{**defaults, **values})


def values_of(messages):
    return sorted(message.value() for message in messages)


def test_messages_arrive_once_in_order_per_key_with_their_stamps(
    tmp_path, config, make_topic, read
):
    topic = make_topic()
    with LosslessProducer(settings(tmp_path), config, name="p") as producer:
        lsns = [
            producer.produce(
                topic, b"%d" % n, b"key-%d" % (n % 5), {"n": str(n)}, timestamp=1000 + n
            )
            for n in range(3000)
        ]
        assert producer.flush(30) == 0
        assert producer.stats.delivered == producer.stats.appended == 3000
        wal_id = producer.wal_id
    assert lsns == list(range(1, 3001))
    messages = read(topic)
    assert sorted(int(m.value()) for m in messages) == list(range(3000))
    by_key = {}
    for message in messages:
        by_key.setdefault(message.key(), []).append(int(message.value()))
        headers = dict(message.headers())
        n = int(message.value())
        assert headers["n"] == b"%d" % n
        assert message.timestamp()[1] == 1000 + n
        stamp = read_stamp(headers[HEADER])
        assert stamp is not None
        assert (stamp[0].hex(), stamp[2]) == (wal_id, n + 1)
    assert all(found == sorted(found) for found in by_key.values())
    assert sorted(p.name for p in (tmp_path / "p").iterdir()) == ["checkpoint", "lock"]


def test_null_empty_and_repeated_headers_arrive_as_given(tmp_path, config, make_topic, read):
    topic = make_topic(1)
    given = [(None, b"k"), (b"", b"k"), (b"v", None), (b"v", b""), (None, None)]
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    with LosslessProducer(settings(tmp_path), config, name="p") as producer:
        for value, key in given:
            producer.produce(topic, value, key, headers)
    found = read(topic)
    assert [(m.value(), m.key()) for m in found] == given
    assert all(m.headers()[:-1] == headers for m in found)


def test_a_log_of_acknowledged_messages_is_given_free_and_sends_nothing_again(
    tmp_path, config, make_topic, read
):
    topic = make_topic()
    small = settings(tmp_path, disk_threshold_bytes=1024**2)
    with LosslessProducer(small, config, name="p") as producer:
        for n in range(5000):  # five times the threshold
            producer.produce(topic, b"%04d" % n * 250)
        assert producer.stats.wal_bytes <= 1024**2
        assert producer.flush(30) == 0
    with LosslessProducer(small, config, name="p") as producer:
        assert producer.recovered.replayed == producer.recovered.found == 0
        assert producer.produce(topic, b"next") == 5001
    assert len(read(topic)) == 5001


def test_a_batch_that_is_too_large_costs_none_of_its_small_messages(
    tmp_path, config, make_topic, read
):
    topic = make_topic(1, max_message_bytes=3000)
    given = []
    with LosslessProducer(
        settings(tmp_path), config, name="p", on_undeliverable=given.append
    ) as producer:
        for n in range(20):
            producer.produce(topic, b"%02d" % n * 350, b"key")
        big = producer.produce(topic, bytes(5000), b"big", {"h": b"1"})
        producer.produce(topic, b"last", b"big")
        assert producer.flush(30) == 0
        assert producer.stats.undeliverable == 1
    (refused,) = given
    assert (refused.lsn, refused.topic, refused.key, refused.value) == (
        big,
        topic,
        b"big",
        bytes(5000),
    )
    assert refused.headers == [("h", b"1")]
    assert refused.code == "MSG_SIZE_TOO_LARGE"
    assert values_of(read(topic)) == sorted([*(b"%02d" % n * 350 for n in range(20)), b"last"])


def test_failed_messages_of_equal_content_are_told_apart_by_the_topic_s_tail(
    tmp_path, config, make_topic, read
):
    """Same topic, key and value, other headers: most of them fail, the reports do not say which."""
    topic = make_topic(1, max_message_bytes=3000)
    given = []
    with LosslessProducer(
        settings(tmp_path), {**config, "linger.ms": 50}, name="p", on_undeliverable=given.append
    ) as producer:
        producer.produce("no-such-topic", b"holds the low watermark for a second")
        producer.produce(topic, b"x" * 700, b"k", {"n": "0"})
        until(lambda: producer.stats.delivered == 1)
        for n in range(1, 8):
            producer.produce(topic, b"x" * 700, b"k", {"n": str(n)})
        assert producer.flush(30) == 0
    assert len(given) == 1
    assert sorted(dict(m.headers())["n"] for m in read(topic)) == [b"%d" % n for n in range(8)]


def test_a_message_larger_than_the_client_allows_is_given_to_the_caller(
    tmp_path, config, make_topic, read
):
    topic = make_topic(1)
    given = []
    with LosslessProducer(
        settings(tmp_path), config, name="p", on_undeliverable=given.append
    ) as producer:
        producer.produce(topic, bytes(3_000_000))
        producer.produce(topic, b"small")
        assert producer.flush(30) == 0
    assert [one.code for one in given] == ["MSG_SIZE_TOO_LARGE"]
    assert values_of(read(topic)) == [b"small"]


@pytest.mark.parametrize("topic", ["no-such-topic", "no such topic", "x" * 300])
def test_a_topic_that_is_not_there_is_given_to_the_caller(tmp_path, config, topic):
    given = []
    with LosslessProducer(
        settings(tmp_path), config, name="p", on_undeliverable=given.append
    ) as producer:
        producer.produce(topic, b"1", b"k")
        producer.produce(topic, b"2", b"k")
        assert producer.flush(30) == 0
    assert sorted(one.value for one in given) == [b"1", b"2"]


def test_a_taker_that_fails_keeps_the_message_in_doubt(tmp_path, config):
    def failing(undelivered):
        raise OSError("no place")

    producer = LosslessProducer(settings(tmp_path), config, name="p", on_undeliverable=failing)
    producer.produce("no such topic", b"x")
    with pytest.raises(StopError, match="on_undeliverable failed"):
        producer.flush(30)
    assert producer.close() == 1


def test_a_full_queue_waits_and_appends_once(tmp_path, config, make_topic, read):
    topic = make_topic()
    tight = settings(tmp_path, max_in_flight=10)
    with LosslessProducer(tight, config, name="p") as producer:
        for n in range(500):
            producer.produce(topic, b"%d" % n)
        assert producer.stats.appended == 500
    assert sorted(int(m.value()) for m in read(topic)) == list(range(500))


def test_marks_hold_records_until_they_are_confirmed(tmp_path, config, make_topic):
    topic = make_topic()
    with LosslessProducer(settings(tmp_path), config, name="p") as producer:
        for n in range(200):
            producer.produce(topic, b"%d" % n * 300)
        first = producer.mark(b"page 1")
        for n in range(200):
            producer.produce(topic, b"%d" % n * 300)
        second = producer.mark(b"page 2")
        producer.produce(topic, b"begun", b"k", {"h": b"1"})
        producer.confirm(first)
    with LosslessProducer(settings(tmp_path), config, name="p") as producer:
        assert producer.recovered.marks == [(second, b"page 2")]
        (begun,) = producer.recovered.unmarked
        assert (begun.topic, begun.key, begun.value) == (topic, b"k", b"begun")
        assert begun.headers == [("h", b"1")]
        assert producer.recovered.replayed == 0
        producer.confirm(second)
        third = producer.mark(b"page 3")
        producer.confirm(third)
        producer.confirm(first)  # an older one changes nothing
        with pytest.raises(InputError):
            producer.confirm(10_000)
    assert sorted(p.name for p in (tmp_path / "p").iterdir()) == ["checkpoint", "lock"]
    with LosslessProducer(settings(tmp_path), config, name="p") as producer:
        assert producer.recovered.marks == []
        assert producer.recovered.unmarked == []


def test_a_log_opened_for_marks_keeps_its_first_page_before_the_first_mark(
    tmp_path, config, make_topic
):
    topic = make_topic()
    with LosslessProducer(settings(tmp_path), config, name="p", marks=True) as producer:
        for n in range(500):
            producer.produce(topic, b"%d" % n * 300)
        assert producer.flush(30) == 0
    with LosslessProducer(settings(tmp_path), config, name="p", marks=True) as producer:
        assert [r.value for r in producer.recovered.unmarked] == [
            b"%d" % n * 300 for n in range(500)
        ]
        assert producer.recovered.replayed == producer.recovered.found == 0


def test_space_that_only_confirm_can_free_is_an_error_even_where_waiting_is_asked_for(
    tmp_path, config, make_topic
):
    topic = make_topic()
    small = settings(tmp_path, disk_threshold_bytes=1024**2, when_full="wait")
    with LosslessProducer(small, config, name="p", marks=True) as producer:
        with pytest.raises(WalFullError):
            while True:
                producer.produce(topic, bytes(10_000))
        appended = producer.stats.appended
        assert producer.flush(30) == 0
        with pytest.raises(WalFullError):
            producer.produce(topic, bytes(10_000))
        assert producer.stats.appended == appended


def test_one_live_producer_a_directory(tmp_path, config, make_topic):
    with LosslessProducer(settings(tmp_path), config, name="p") as producer:
        with pytest.raises(ProducerBusyError, match=str(os.getpid())):
            LosslessProducer(settings(tmp_path), config, name="p")
        with LosslessProducer(settings(tmp_path), config, name="q"):
            pass
        producer.produce(make_topic(), b"still works")
    with pytest.raises(StopError, match="closed"):
        producer.produce("t", b"x")
    assert producer.close() == 0


@pytest.mark.parametrize("durability", ["group", "each"])
def test_synced_durability_syncs_every_record(tmp_path, config, make_topic, durability):
    synced = settings(tmp_path, durability=durability, group_commit_ms=2)
    with LosslessProducer(synced, config, name="p") as producer:
        topic = make_topic()
        lsn = 0
        for _ in range(50):
            lsn = producer.produce(topic, b"x")
        if durability == "each":
            assert producer.components.log.synced_lsn == lsn
        until(lambda: producer.components.log.synced_lsn == lsn)


def test_a_checkpoint_that_fails_is_survived_and_said(tmp_path, config, make_topic, monkeypatch):
    topic = make_topic()
    with LosslessProducer(settings(tmp_path), config, name="p") as producer:

        def failing(checkpoint):
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(producer._maintenance._file, "save", failing)
            producer.produce(topic, b"1")
            until(lambda: producer._maintenance.trouble is not None)
            with pytest.raises(StopError, match="checkpoint"):
                producer.produce(topic, b"refused")
        until(lambda: producer._maintenance.trouble is None)
        producer.produce(topic, b"2")
        assert producer.flush(30) == 0
        until(lambda: producer.stats.checkpoint_age_s < 1)
