"""How far many topics reach, and their oldest unread records, asked of Kafka at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.support import processes

from waybill.errors import AwayError, StopError
from waybill.settings import KafkaSettings
from waybill.storage import KafkaLog, TopicSpan
from waybill.storage import log as storage_log

pytestmark = pytest.mark.serves
NAMES = [f"events.spans{n}.x" for n in range(3)]


@pytest.fixture
def log(kafka: Any) -> KafkaLog:
    """Three topics of two partitions; of each topic's first partition 0, 1, 2 records are there."""
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_partitions=2)
    made = KafkaLog(settings)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for records, name in enumerate(NAMES):
        topic = made.ensure_topic(name)
        missing = records - made.watermarks(topic)[0][1]
        for _ in range(missing):
            producer.produce(name, b"{}", partition=0)
    assert producer.flush(120) == 0
    return made


def test_all_topics_at_once_say_what_each_says_alone(log: KafkaLog) -> None:
    found = log.spans([*NAMES, "events.not.there"])
    assert isinstance(found.pop("events.not.there"), StopError)
    for name, span in found.items():
        assert isinstance(span, TopicSpan)
        topic = log.describe(name)
        assert (span.topic, span.marks) == (topic, log.watermarks(topic))


def test_first_records_of_many_partitions_come_at_once(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_ANSWER_S", "_STUCK_S"):
        monkeypatch.setattr(storage_log, name, 240.0)
    began = time.monotonic()
    found = log.first_times({NAMES[1]: {0: 0, 1: 0}, NAMES[2]: {0: 1}})
    assert found[NAMES[1]] == {0: log.first(NAMES[1], {0: 0})[0][0], 1: None}
    assert found[NAMES[2]] == {0: log.first(NAMES[2], {0: 1})[0][0]}
    assert time.monotonic() - began < 120


def test_a_partition_that_is_not_there_is_left_out_and_holds_up_no_other(log: KafkaLog) -> None:
    found = log.first_times({NAMES[2]: {0: 0, 99: 0}})
    assert found[NAMES[2]].keys() == {0}


def test_topics_that_lead_can_be_read_and_one_that_is_not_there_is_not_told_of(
    log: KafkaLog,
) -> None:
    assert log.unreadable([*NAMES, "events.not.there"]) == {}


@pytest.fixture
def frozen(kafka: Any) -> Iterator[Callable[[], None]]:
    """Return what freezes the broker until the test ends; it answers again after that."""
    yield lambda: processes.freeze([kafka.pid])
    processes.wake([kafka.pid])
    KafkaLog(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)).wait_until_up(limit_s=60)


@pytest.mark.parametrize("amid", ["_describe", "_ask_offsets"])
def test_of_a_broker_that_freezes_amid_the_question_all_topics_are_named_in_time(
    log: KafkaLog, frozen: Callable[[], None], monkeypatch: pytest.MonkeyPatch, amid: str
) -> None:
    config = {**storage_log.client_config(log._settings), "socket.timeout.ms": 120_000}
    monkeypatch.setattr(storage_log, "client_config", lambda _settings: config)
    log._forget_admin()
    assert sorted(log.spans(NAMES)) == NAMES  # it is connected before it has little time
    monkeypatch.setattr(storage_log, "_SOON_S", 1.0)
    monkeypatch.setattr(storage_log, "_SPANS_S", 4.0)
    ask = getattr(log, amid)

    def freeze_first(*given: Any) -> Any:
        frozen()
        return ask(*given)

    monkeypatch.setattr(log, amid, freeze_first)
    began = time.monotonic()
    found = log.spans(NAMES)
    assert time.monotonic() - began < 60  # the client by itself takes 120
    assert sorted(found) == NAMES
    for name, error in found.items():
        assert isinstance(error, AwayError)
        assert name in str(error)
