"""A log that is not the one that the ledger knows: known for it, kept, settled by name.

With the real Kafka, whose files are cut while it is down, and the real tracker.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from tests.support import cut_logs
from tests.support.books import batch, nothing_parked, open_books

from waybill.access import Decision
from waybill.errors import InputError
from waybill.ledger import (
    LastRead,
    OffsetRange,
    acquire_lease,
    commit_batch,
    read_positions,
)
from waybill.reconciliation.offset_ranges import Reached, check_ranges
from waybill.settings import KafkaSettings
from waybill.storage import TopicInfo, open_log
from waybill.topics import SettleRequest
from waybill.topics.stops import (
    LogFault,
    Settlement,
    Step,
    apply_settlement,
    examine,
    plan_settlement,
    read_stops,
    record_stops,
    settled_holes,
)

pytestmark = pytest.mark.serves
ANN = Decision("ann", "the disk was put back")


class Topic:
    """A topic of one partition, and what processing commits of it, without its stages."""

    def __init__(self, kafka: Any, postgres: Any) -> None:
        self.kafka = kafka
        settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_partitions=1)
        self.log = open_log(settings)
        self.name = f"events.cut.w{uuid.uuid4().hex[:8]}"
        self.log.ensure_topic(self.name)
        self.tracker = open_books(postgres, "cut")
        self.read: list[bytes] = []

    def send(self, first: int, after: int, tag: str = "old") -> None:
        values = [b"%s %d" % (tag.encode(), number) for number in range(first, after)]
        cut_logs.send_one_by_one(self.kafka.bootstrap_servers, self.name, values)

    def faults(self) -> list[Any]:
        return examine(
            self.log.describe(self.name), read_positions(self.tracker, self.name), self.log
        )

    def process(self, most: int | None = None) -> None:
        """Commit what is unread, as processing does."""
        info = self.log.describe(self.name)
        end = self.log.ends(info)[0]
        start = self.position()
        until = end.offset if most is None else start + most
        records = [record for _, record in self.log.records(self.name, {0: (start, until)})]
        self.read += [record.value for record in records]
        newest = records[-1]
        last = LastRead(newest.offset, newest.at_ms, newest.digest, end.leader_epoch, end.offset)
        missing = sum(
            after - first for first, after in settled_holes(self.tracker, info).get(0, [])
        )
        part = OffsetRange(0, start, until, len(records), absent=missing, last=last)
        consumer = f"processing/{self.name}"
        done = batch(
            acquire_lease(self.tracker, consumer, holder="test"),
            consumer=consumer,
            topic=self.name,
            topic_id=info.topic_id,
            cluster_id=info.cluster_id,
            ranges=[part],
        )
        commit_batch(self.tracker, done, nothing_parked)

    def position(self) -> int:
        info = self.log.describe(self.name)
        own = read_positions(self.tracker, self.name).get((info.cluster_id, info.topic_id), {})
        return own[0].next_offset if own else 0

    def settle(self, **options: Any) -> Any:
        plan = plan_settlement(self.tracker, self.log, SettleRequest(topic=self.name, **options))
        apply_settlement(self.tracker, plan, ANN)
        return plan

    def range_faults(self) -> list[Any]:
        with self.tracker.transaction() as connection:
            return check_ranges(connection, Reached({}, {}), {self.name: "w"})


@pytest.fixture(scope="module")
def cut(_kafka, _postgres):
    """Topics that were processed, and cut, but for one, while the broker was down once."""
    _kafka.ensure()
    _postgres.ensure()
    made = {
        name: Topic(_kafka, _postgres)
        for name in ("read", "unread", "whole", "older", "late", "marked", "unmarked")
    }
    read = {"unread": 40, "whole": 40, "marked": 61, "unmarked": 61}
    for name, topic in made.items():
        topic.send(0, 60)
        if name in {"marked", "unmarked"}:
            cut_logs.send_in_transaction(_kafka.bootstrap_servers, topic.name, [b"old 60"])
        topic.process(most=read.get(name))
    with made["older"].tracker.transaction() as connection:
        connection.exec_driver_sql("UPDATE topic_offsets SET last_read = NULL")
    ends = {"read": 25, "unread": 45, "older": 20, "late": 10, "unmarked": 61}
    cut_logs.cut_logs(_kafka, {(made[name].name, 0): end for name, end in ends.items()})
    yield made
    for topic in made.values():
        topic.tracker.close()


@pytest.fixture
def topic(kafka, postgres):
    made = Topic(kafka, postgres)
    yield made
    made.tracker.close()


def test_a_log_that_was_cut_is_known_however_long_it_has_grown_and_settled_reads_all(cut):
    """The issue's sequence: cut to 25 of 60, grown to 95: 35 new events were never read."""
    topic = cut["read"]
    [fault] = topic.faults()
    assert (fault.kind, fault.detail["cut_at"]) == ("cut", 25)
    topic.send(0, 70, "new")
    [fault] = topic.faults()
    assert (fault.kind, fault.detail) == ("cut", {"cut_at": 25, "unread": 0})

    record_stops(topic.tracker, topic.name, topic.faults())
    record_stops(topic.tracker, topic.name, topic.faults())
    [stop] = read_stops(topic.tracker, topic.name)
    assert "35 new events" in stop.words
    plan = topic.settle()
    assert plan.steps[0].move == (60, 25)
    assert read_stops(topic.tracker, topic.name) == []
    assert topic.faults() == []
    topic.process()
    assert topic.read == [b"old %d" % n for n in range(60)] + [b"new %d" % n for n in range(70)]
    assert topic.faults() == []
    assert topic.range_faults() == []
    with topic.tracker.transaction() as connection:
        said = connection.exec_driver_sql("SELECT who, action, target FROM audit_log").all()
    assert [tuple(row) for row in said] == [("ann", "settle_topic", f"topic {topic.name}")]


def test_a_tail_that_was_lost_unread_is_known_and_counted(cut):
    topic = cut["unread"]
    topic.send(0, 30, "new")
    [fault] = topic.faults()
    assert fault.detail == {"cut_at": 45, "unread": 15}
    plan = topic.settle()
    assert (plan.lost, topic.position()) == (15, 40)
    assert topic.faults() == []
    topic.process()
    assert topic.read[40:] == [b"old %d" % n for n in range(40, 45)] + [
        b"new %d" % n for n in range(30)
    ]


def test_a_restart_without_a_loss_stops_nothing(cut):
    topic = cut["whole"]
    topic.send(60, 70)
    assert topic.faults() == []
    topic.process()
    assert topic.faults() == []
    assert topic.read == [b"old %d" % n for n in range(70)]


def test_a_log_that_ended_with_a_marker_is_whole_however_it_goes_on(cut, kafka):
    """61 records and a marker were there when it was read last, and a leader came since."""
    topic = cut["marked"]
    assert topic.faults() == []
    cut_logs.send_in_transaction(kafka.bootstrap_servers, topic.name, [b"old 61"])
    assert topic.faults() == []
    record_stops(topic.tracker, topic.name, [LogFault("hole", 0, "w", {"missing": [[61, 62]]})])
    topic.settle()
    topic.process(most=2)
    assert topic.faults() == []
    assert topic.read == [b"old %d" % n for n in range(62)]


@pytest.mark.campaign
def test_a_log_that_lost_its_marker_and_ends_with_another_one_is_known(cut, kafka):
    """61 records stay, and where the marker was, another leader's record is, and its marker."""
    topic = cut["unmarked"]
    [fault] = topic.faults()
    assert fault.detail == {"cut_at": 61, "unread": 1}
    cut_logs.send_in_transaction(kafka.bootstrap_servers, topic.name, [b"new"])
    [fault] = topic.faults()
    assert fault.detail == {"cut_at": 61, "unread": 1}
    assert topic.settle().steps[0].move == (61, 61)
    assert topic.faults() == []
    topic.process(most=1)
    assert topic.faults() == []
    assert topic.read[61:] == [b"new"]


@pytest.mark.campaign
def test_a_record_that_was_compacted_is_no_cut(topic, kafka):
    servers = kafka.bootstrap_servers
    topic.send(0, 5)
    cut_logs.send_one_by_one(servers, topic.name, [b"old 5"], key=b"k")
    topic.process()
    cut_logs.compact(servers, topic.log, topic.name, key=b"k")
    assert topic.faults() == []


def test_a_cut_that_an_older_release_cannot_tell_stays_a_stop_when_it_has_grown(cut):
    topic = cut["older"]
    record_stops(topic.tracker, topic.name, topic.faults())
    topic.send(0, 60, "new")
    assert topic.faults() == []  # nothing of the log tells it any more
    assert topic.settle().steps[0].move == (60, 20)  # but it was written down
    topic.process()
    assert topic.read[60:] == [b"new %d" % n for n in range(60)]


def test_a_settlement_that_is_late_changes_nothing(cut):
    topic = cut["late"]
    plan = plan_settlement(topic.tracker, topic.log, SettleRequest(topic=topic.name))
    apply_settlement(topic.tracker, plan, ANN)
    topic.send(0, 10, "new")
    topic.process()
    with pytest.raises(InputError, match="look again"):
        apply_settlement(topic.tracker, plan, ANN)
    assert topic.position() == 20
    with pytest.raises(InputError, match="nothing of topic"):
        plan_settlement(topic.tracker, topic.log, SettleRequest(topic=topic.name))


def test_holes_are_forgotten_where_a_log_was_cut_and_other_records_may_stand(postgres):
    """Else processing would wait for ever: more records than the settled hole leaves room for."""
    topic = TopicInfo("events.holes.w", "c", "t", 1)
    with open_books(postgres, "holes") as tracker:
        with tracker.transaction() as connection:
            connection.exec_driver_sql(
                "INSERT INTO topic_offsets (cluster_id, topic_id, partition, topic, next_offset) "
                "VALUES ('c', 't', 0, 'events.holes.w', 60)"
            )
        pairs = ((30, 31), (38, 44), (50, 52))
        for kind, more in (
            ("hole", {"missing": pairs}),
            ("cut", {"move": (60, 40)}),
            ("hole", {"missing": ((47, 48),)}),
        ):
            record_stops(tracker, topic.name, [LogFault(kind, 0, "words")])
            [stop] = read_stops(tracker, topic.name)
            step = Step(stop.id, kind, 0, "words", **more)
            apply_settlement(tracker, Settlement(topic, (step,), ()), ANN)
            if kind == "cut":
                assert settled_holes(tracker, topic) == {0: [(30, 31), (38, 40)]}
        assert settled_holes(tracker, topic) == {0: [(30, 31), (38, 40), (47, 48)]}


def test_what_was_deleted_unread_is_counted_and_what_was_read_may_be_deleted(topic, kafka):
    topic.send(0, 50)
    topic.process(most=30)
    info = topic.log.describe(topic.name)
    [at] = read_positions(topic.tracker, topic.name)[info.cluster_id, info.topic_id].values()
    assert at.deletable_before == 29
    cut_logs.delete_records(kafka.bootstrap_servers, topic.name, 0, at.deletable_before)
    assert topic.faults() == []
    cut_logs.delete_records(kafka.bootstrap_servers, topic.name, 0, 31)
    [fault] = topic.faults()
    assert fault.words.endswith(": 1 event was deleted unread")
    record_stops(topic.tracker, topic.name, [fault])
    [step] = plan_settlement(topic.tracker, topic.log, SettleRequest(topic=topic.name)).steps
    assert step.words.endswith(": the 1 event between was deleted unread")
    cut_logs.delete_records(kafka.bootstrap_servers, topic.name, 0, 36)
    [fault] = topic.faults()
    assert (fault.kind, fault.detail) == ("deleted", {"begins_at": 36, "unread": 6})
    assert topic.settle().lost == 6
    assert topic.faults() == []
    topic.process()
    assert topic.read == [b"old %d" % n for n in (*range(30), *range(36, 50))]
    assert topic.range_faults() == []


def test_a_topic_made_anew_is_read_from_its_beginning_once_settled(topic, kafka):
    topic.send(0, 20)
    topic.process(most=15)
    cut_logs.make_anew(kafka.bootstrap_servers, topic.log, topic.name)
    topic.send(0, 30, "new")
    [fault] = topic.faults()
    assert (fault.kind, fault.detail["unread"]) == ("recreated", 5)
    assert topic.settle().lost == 5
    assert topic.faults() == []
    topic.process()
    assert topic.read[15:] == [b"new %d" % n for n in range(30)]
    assert topic.range_faults() == []
