"""What Kafka refuses: parked beside the log for good refusals, the retry log for the others."""

import pytest
from tests.support.topics import new_topic, read_all, small_log, until

from waybill.errors import InputError, RetryError
from waybill.producer import LosslessProducer

pytestmark = pytest.mark.serves


@pytest.fixture
def config(kafka):
    return {"bootstrap.servers": kafka.bootstrap_servers, "topic.metadata.propagation.max.ms": 1000}


def raise_limit(kafka, topic, limit):
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    entry = ConfigEntry(
        "max.message.bytes", str(limit), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(60)


def test_without_a_taker_an_undeliverable_message_is_parked_until_it_is_sent_again(
    tmp_path, config, kafka
):
    topic = new_topic(kafka.bootstrap_servers, "refused", 1, max_message_bytes=2000)
    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:
        lsn = producer.produce(topic, bytes(5000), b"k", {"h": b"1"}, timestamp=1234)
        producer.produce(topic, b"small")
        producer.produce("no such topic", b"nowhere")
        assert producer.flush(30) == 0
        stats = producer.stats
        assert (stats.undeliverable, stats.parked, stats.delivered) == (2, 2, 1)
    with LosslessProducer(small_log(tmp_path), config, name="p") as producer:
        assert producer.recovered.replayed == producer.recovered.found == 0
        first, second = producer.parked
        assert (first.lsn, first.code, first.value) == (lsn, "MSG_SIZE_TOO_LARGE", bytes(5000))
        assert (first.headers, first.timestamp_ms, first.key) == ([("h", b"1")], 1234, b"k")
        assert second.topic == "no such topic"
        with pytest.raises(InputError, match="not parked"):
            producer.replay_parked([999])
        assert producer.replay_parked([lsn]) == 1
        assert producer.flush(30) == 0
        assert [one.topic for one in producer.parked] == ["no such topic", topic]  # again
        raise_limit(kafka, topic, 100_000)
        assert producer.discard_parked([second.lsn]) == 1
        until(lambda: producer.replay_parked() == 1 and producer.flush(30) == 0)
        assert producer.parked == []
        assert producer.discard_parked() == 0
    values = [(m.key(), len(m.value())) for m in read_all(kafka.bootstrap_servers, topic)]
    assert values == [(None, 5), (b"k", 5000)]
    assert sorted(p.name for p in (tmp_path / "p").iterdir()) == ["checkpoint", "lock"]


def test_a_taker_that_is_busy_is_asked_again(tmp_path, config):
    given = []

    def busy(undelivered):
        given.append(undelivered.lsn)
        if len(given) < 3:
            raise RetryError("the store is away")

    with LosslessProducer(small_log(tmp_path), config, name="p", on_undeliverable=busy) as producer:
        producer.produce("no such topic", b"x")
        assert producer.flush(30) == 0
        assert producer.stats.undeliverable == 1
    assert given == [1, 1, 1]


def test_messages_that_time_out_leave_the_log_and_hold_up_their_key_only(tmp_path, kafka):
    topic = new_topic(kafka.bootstrap_servers, "refused", 1)
    patient = {"bootstrap.servers": kafka.bootstrap_servers}
    hasty = {**patient, "message.timeout.ms": 500, "socket.timeout.ms": 500}
    producer = LosslessProducer(small_log(tmp_path), hasty, name="p")
    try:
        kafka.stop()
        for n in range(300):
            producer.produce(topic, b"%d" % n, b"%d" % (n % 3), {"n": str(n)}, timestamp=n + 1)
        until(lambda: producer.stats.retrying == 300)
        # the log is not kept for them: the watermark has passed
        until(lambda: producer.components.deliveries.low == 301)
        assert producer.stats.in_doubt == 300
        assert len(list((tmp_path / "p" / "retry").iterdir())) == 1
        assert producer.close(0) == 300
    finally:
        producer.close(0)
        kafka.start()
    # a broker that was just started may answer late: no message times out on its way to it
    with LosslessProducer(small_log(tmp_path), patient, name="p") as again:
        assert again.recovered.retrying == 300
        again.produce(topic, b"300", b"0")
        again.produce(topic, b"free", b"other")
        assert again.flush(120) == 0
        assert again.stats.retrying == 0
    found = read_all(kafka.bootstrap_servers, topic)
    by_key = {}
    for message in found:
        by_key.setdefault(message.key(), []).append(message.value())
    for n in range(3):
        expected = [b"%d" % m for m in range(n, 300, 3)]
        assert by_key[b"%d" % n] == expected + [b"300"] * (n == 0)
    kept = {m.value(): (m.timestamp()[1], dict(m.headers()).get("n")) for m in found}
    assert all(kept[b"%d" % n] == (n + 1, b"%d" % n) for n in range(300))
    assert sorted(p.name for p in (tmp_path / "p").iterdir()) == ["checkpoint", "lock"]
