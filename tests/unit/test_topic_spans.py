"""How far topics reach is asked in few requests, and what one does not answer costs no other."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from waybill.errors import AwayError, RetryError, StopError
from waybill.settings import KafkaSettings
from waybill.storage import KafkaLog, TopicInfo, TopicSpan
from waybill.storage import log as storage_log

PARTITIONS = 4
NODE = SimpleNamespace(id=1)


def answered(value: Any = None, error: int | None = None) -> Future[Any]:
    future: Future[Any] = Future()
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(KafkaException(KafkaError(error)))
    return future


class Admin:
    """What ``KafkaLog`` asks of confluent_kafka's AdminClient; counts the calls."""

    def poll(self, timeout: float) -> int:
        return 0

    def __init__(self, topics: int) -> None:
        self.names = [f"topic-{n:04d}" for n in range(topics)]
        self.leaderless: set[str] = set()
        self.silent: set[tuple[str, int]] = set()
        """Partitions whose ends nobody tells."""
        self.frozen: set[tuple[str, int]] = set()
        """Partitions whose broker is silent; as a frozen one of two real ones did."""
        self.is_away = False
        self.silent_controllers = 0
        """Questions what topics are that nobody answers, before one is answered."""
        self.is_stuck = False
        """The client itself tells of no partition, not even that its broker is silent."""
        self.calls: list[str] = []

    def describe_topics(self, asked: Any, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout > 0
        self.calls.append("describe_topics")
        if self.silent_controllers:
            self.silent_controllers -= 1
            return {name: Future() for name in asked.topic_names}
        return {name: self._topic(name) for name in asked.topic_names}

    def _topic(self, name: str) -> Future[Any]:
        if name not in self.names:
            return answered(error=KafkaError.UNKNOWN_TOPIC_OR_PART)
        leaders = [None if name in self.leaderless and n == 2 else NODE for n in range(PARTITIONS)]
        partitions = [
            SimpleNamespace(id=n, leader=leader, replicas=[NODE])
            for n, leader in enumerate(leaders)
        ]
        return answered(SimpleNamespace(name=name, topic_id=f"id-{name}", partitions=partitions))

    def list_topics(self, topic: None, timeout: float) -> Any:
        assert timeout > 0
        self.calls.append("list_topics")
        if self.is_away:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        topics = {
            name: SimpleNamespace(
                partitions={
                    n: SimpleNamespace(leader=-1 if name in self.leaderless and n == 2 else 1)
                    for n in range(PARTITIONS)
                }
            )
            for name in self.names
        }
        return SimpleNamespace(topics=topics, cluster_id="c1")

    def list_offsets(self, asked: dict[Any, Any], request_timeout: float) -> dict[Any, Future[Any]]:
        assert request_timeout > 0
        self.calls.append("list_offsets")
        assert not {at.topic for at in asked} & self.leaderless
        if self.is_stuck:
            return {at: Future() for at in asked}
        latest = self.calls.count("list_offsets") > self.earliest
        return {
            at: answered(error=KafkaError._TIMED_OUT)
            if (at.topic, at.partition) in self.silent
            else answered(SimpleNamespace(offset=-1001, leader_epoch=-1))
            if (at.topic, at.partition) in self.frozen
            else answered(SimpleNamespace(offset=9 if latest else 2, leader_epoch=None))
            for at in asked
        }

    earliest = 0
    """Calls of ``list_offsets`` that are for the beginnings."""


class Log(KafkaLog):
    """One whose clients are all the same."""

    def __init__(self, admin: Admin) -> None:
        super().__init__(KafkaSettings(bootstrap_servers="nowhere:9092"))
        self._only = admin

    def _admin(self) -> Admin:
        return self._only


@pytest.mark.parametrize(("topics", "describes", "offsets"), [(0, 0, 0), (1, 1, 1), (5000, 10, 10)])
def test_requests_grow_with_hundreds_of_topics_not_with_each(topics, describes, offsets):
    admin = Admin(topics)
    admin.earliest = offsets
    spans = Log(admin).spans(admin.names)
    assert len(spans) == topics
    assert [admin.calls.count(name) for name in ("list_topics", "describe_topics")] == [
        1,
        describes,
    ]
    assert admin.calls.count("list_offsets") == 2 * offsets
    for span in spans.values():
        assert isinstance(span, TopicSpan)
        assert span.marks == dict.fromkeys(range(PARTITIONS), (2, 9))


def test_a_topic_that_does_not_answer_costs_no_other():
    admin = Admin(6)
    admin.earliest = 1
    admin.leaderless = {"topic-0001"}
    admin.silent = {("topic-0003", 1)}
    spans = Log(admin).spans([*admin.names, "not-there"])
    failed = {name: span for name, span in spans.items() if not isinstance(span, TopicSpan)}
    assert failed.keys() == {"topic-0001", "topic-0003", "not-there"}
    assert isinstance(failed["topic-0001"], RetryError)
    assert "partition 2 of 'topic-0001' has no leader" in str(failed["topic-0001"])
    assert isinstance(failed["topic-0003"], RetryError)
    assert "topic-0003/1" in str(failed["topic-0003"])
    assert isinstance(failed["not-there"], StopError)


def test_a_partition_whose_broker_is_silent_has_no_end():
    """Taken for one, nothing would wait to be read, whatever is unread."""
    admin = Admin(2)
    admin.earliest = 1
    admin.frozen = {("topic-0001", 3)}
    log = Log(admin)
    spans = log.spans(admin.names)
    assert isinstance(spans["topic-0000"], TopicSpan)
    assert isinstance(spans["topic-0001"], RetryError)
    topic = TopicInfo("topic-0001", "c1", "id-topic-0001", PARTITIONS)
    with pytest.raises(RetryError, match="topic-0001/3"):
        log.ends_now(topic, limit_s=2)


def test_a_controller_that_is_silent_is_looked_for_anew(monkeypatch):
    monkeypatch.setattr(storage_log, "_SOON_S", 0.05)
    admin = Admin(600)
    admin.earliest, admin.silent_controllers = 2, 1
    spans = Log(admin).spans(admin.names)
    assert all(isinstance(span, TopicSpan) for span in spans.values())
    asked = ["list_topics", *3 * ["describe_topics"]]
    assert admin.calls == [*asked, *4 * ["list_offsets"]]


@pytest.mark.parametrize("away", ["controller", "leaders"])
def test_whoever_is_silent_all_is_told_in_time_and_what_is_not_known_is_named(monkeypatch, away):
    monkeypatch.setattr(storage_log, "_SOON_S", 0.05)
    monkeypatch.setattr(storage_log, "_SPANS_S", 0.4)
    monkeypatch.setattr(storage_log, "_LATE_S", 0.05)
    admin = Admin(3)
    admin.silent_controllers = 9 if away == "controller" else 0
    admin.is_stuck = away == "leaders"
    began = time.monotonic()
    spans = Log(admin).spans([*admin.names])
    assert time.monotonic() - began < 60
    for name, error in spans.items():
        assert isinstance(error, AwayError)
        assert name in str(error)
    assert sorted(spans) == admin.names


def test_topics_that_cannot_be_read_are_known_by_two_requests():
    admin = Admin(300)
    admin.leaderless = {f"topic-{n:04d}" for n in range(100)}
    admin.silent = {("topic-0200", 1)}
    admin.frozen = {("topic-0201", 0)}
    found = Log(admin).unreadable([*admin.names, "not-there"])
    assert admin.calls == ["list_topics", "list_offsets"]
    assert found.keys() == {*admin.leaderless, "topic-0200", "topic-0201"}
    assert "partition 2 of 'topic-0001' has no leader" in str(found["topic-0001"])


def test_while_no_broker_answers_no_topic_can_be_read():
    admin = Admin(2)
    admin.is_away = True
    assert Log(admin).unreadable(admin.names).keys() == set(admin.names)


def test_a_client_that_connects_slowly_is_kept_until_it_answers_and_then_one_that_is_silent_is_not(
    monkeypatch,
):
    made: list[SlowAdmin] = []
    monkeypatch.setattr(
        "confluent_kafka.admin.AdminClient", lambda _: made.append(SlowAdmin()) or made[-1]
    )
    log = KafkaLog(KafkaSettings(bootstrap_servers="nowhere:9092"))
    assert list(log.unreadable(["t"])) == ["t"], "it has not connected within 5 s"
    assert log.unreadable(["t"]) == {}
    assert len(made) == 1
    made[0].connects_s = 60.0  # what it asked last is silent now
    with pytest.raises(AwayError):
        log._ask_metadata(None, 3.0)
    assert len(made) == 2
    assert log._ask_metadata(None, 4.0)
    assert len(made) == 2


class SlowAdmin:
    """A client that needs 6 s to connect, and goes on with that between two questions."""

    def __init__(self) -> None:
        self.connects_s = 6.0

    def poll(self, timeout: float) -> int:
        return 0

    def list_topics(self, topic: None, timeout: float) -> Any:
        self.connects_s -= timeout
        if self.connects_s > 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return SimpleNamespace(topics={}, cluster_id="c1")
