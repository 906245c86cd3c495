"""Running consumers meet topics that were cut, made anew, and have holes; a neighbour flows on."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.support import cut_logs

from waybill import services
from waybill.access import Decision
from waybill.ledger import read_positions
from waybill.parking import Parking
from waybill.parking.reading import segments_in_order
from waybill.processing.spark.application import fresh_checkpoints
from waybill.processing.spark.session import open_session
from waybill.processing.spark.topic_consumer import ProcessingParts, TopicConsumer
from waybill.processing.spark.topic_group import TopicGroup
from waybill.processing.spark.topic_groups import TopicGroups
from waybill.storage import open_log, open_objects, open_tracker
from waybill.topics import SettleRequest
from waybill.topics.stops import read_stops

pytestmark = [pytest.mark.serves, pytest.mark.campaign]
KINDS = ("cut", "anew", "hole", "whole")
ANN = Decision("ann", "the disk was put back")


class Running:
    """Consumers of several topics in one Spark session. No pipeline is deployed: all parks."""

    def __init__(self, settings: Any, kafka: Any) -> None:
        services.migrate(settings)
        self.settings, self.kafka = settings, kafka
        self.log = open_log(settings.kafka)
        self.tracker = open_tracker(settings.tracker)
        self.topics = {kind: f"events.{kind}.w{uuid.uuid4().hex[:8]}" for kind in KINDS}
        self._spark = open_session(settings.spark, name="stopped")
        self._folder = fresh_checkpoints(settings.spark.work_dir / "stopped")
        objects = open_objects(self.settings.s3)
        self._parts = ProcessingParts.over(self.settings, self.tracker, self.log, objects)
        self.consumers = TopicGroups(
            self._open,
            self._group,
            lambda group: group.start(self._spark),
            self.log.unreadable,
            most_topics=50,
        )

    def _open(self, name: str) -> TopicConsumer:
        topic = self.log.ensure_topic(name)
        consumer = TopicConsumer(self._parts, topic, destination="w", holder="test")
        consumer.open()
        return consumer

    def _group(self, consumers: Iterable[TopicConsumer], name: str, _number: int) -> TopicGroup:
        checkpoint = self._folder / uuid.uuid4().hex
        return TopicGroup(self._parts, consumers, name=name, checkpoint=checkpoint)

    def send(self, kind: str, tag: str, number: int) -> None:
        topic = self.topics[kind]
        values = [f"{kind} {tag} {n}".encode() for n in range(number)]
        cut_logs.send_one_by_one(self.kafka.bootstrap_servers, topic, values)

    def position(self, kind: str) -> int:
        topic = self.log.describe(self.topics[kind])
        known = read_positions(self.tracker, topic.name)
        own = known.get((topic.cluster_id, topic.topic_id), {})
        return own[0].next_offset if 0 in own else 0

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Keep the consumers running until something is so."""
        deadline = time.monotonic() + 300
        while not condition():
            self.consumers.look(self.topics.values())
            assert time.monotonic() < deadline, f"{what}: did not happen"
            time.sleep(0.2)

    def stops(self, kind: str) -> list[str]:
        return [stop.kind for stop in read_stops(self.tracker, self.topics[kind])]

    def settle(self, kind: str) -> None:
        plan = services.settlement(self.settings, SettleRequest(topic=self.topics[kind]))
        services.settle_topic(self.settings, plan, ANN)

    def parked(self) -> set[bytes]:
        parking = Parking(self.tracker, open_objects(self.settings.s3))
        return {
            event.value
            for segment in segments_in_order(self.tracker)
            for event in parking.read(segment)
        }

    def close(self) -> None:
        self.consumers.stop()
        self._spark.stop()
        self.tracker.close()


@pytest.fixture
def running(stack_settings, kafka, monkeypatch):
    settings = stack_settings.model_copy(
        update={
            "kafka": stack_settings.kafka.model_copy(update={"topic_partitions": 1}),
            "spark": stack_settings.spark.model_copy(update={"trigger_ms": 200}),
        }
    )
    for name, value in settings.to_env().items():
        monkeypatch.setenv(name, value)  # the workers read them
    made = Running(settings, kafka)
    yield made
    made.close()


def test_running_consumers_stop_at_another_log_for_good_and_read_all_once_it_is_settled(running):
    for kind in KINDS:
        running.log.ensure_topic(running.topics[kind])
        running.send(kind, "old", 30)
    running.until(lambda: {running.position(k) for k in KINDS} == {30}, "all are read")

    servers = running.kafka.bootstrap_servers
    cut_logs.send_in_transaction(servers, running.topics["hole"], [b"hole 1", b"hole 2"])
    running.until(lambda: running.stops("hole") == ["hole"], "a hole stops its topic")
    cut_logs.make_anew(servers, running.log, running.topics["anew"])
    running.send("anew", "new", 50)
    cut_logs.cut_logs(running.kafka, {(running.topics["cut"], 0): 20})
    running.send("cut", "new", 40)  # grown to 60, past the ledger
    running.send("whole", "new", 10)

    running.until(lambda: running.position("whole") == 40, "the neighbour is read on")
    running.until(lambda: running.stops("anew") == ["recreated"], "a topic made anew stops")
    running.until(lambda: running.stops("cut") == ["cut"], "a cut log stops its topic")
    stands = {kind: running.position(kind) for kind in KINDS}
    assert stands.pop("hole") in (30, 32)  # read before its transaction's marker came, or with it
    assert stands == {"cut": 30, "anew": 0, "whole": 40}

    for kind in ("cut", "anew", "hole"):
        running.settle(kind)
    wanted = {"cut": 60, "anew": 50, "hole": 33, "whole": 40}
    running.until(lambda: {kind: running.position(kind) for kind in KINDS} == wanted, "all is read")
    sent = {("old", 30): KINDS, ("new", 50): ("anew",), ("new", 40): ("cut",)}
    sent |= {("new", 10): ("whole",)}
    values = {
        f"{kind} {tag} {n}".encode()
        for (tag, number), kinds in sent.items()
        for kind in kinds
        for n in range(number)
    }
    assert running.parked() == values | {b"hole 1", b"hole 2"}
