"""Parked events whose object is gone: made again from Kafka, or told as unrecoverable."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import orjson
import pytest
from sqlalchemy import text
from tests.integration.test_lost_objects import MINUTE, Processed, loads  # noqa: F401 - fixture
from tests.support.user_code import sandbox
from typer.testing import CliRunner

from waybill.access import Decision
from waybill.cli import app
from waybill.errors import RetryError
from waybill.events import Event, encode
from waybill.ledger import commit_batch
from waybill.parking import ObjectDescriptor, Packer, ParkedGroupFilter, Parking, new_key
from waybill.parking.packed import CorruptSegmentError
from waybill.parking.quarantine import quarantine_missing
from waybill.pipelines import team_of
from waybill.processing import Chunk
from waybill.processing.failed_events import identity_of, parked_event
from waybill.reconciliation.balance_report import balance
from waybill.recovery.parked_objects import WHO, lost_parked, recover_parked
from waybill.recovery.past_stages import failures_at
from waybill.retention.records import trim_log
from waybill.services.reconciliation import watch
from waybill.settings import KafkaSettings, Settings

pytestmark = pytest.mark.serves
BAD = "no number"


class Parked(Processed):
    """Orders in Kafka, processed by hand by two tasks a batch: what fails is parked."""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.parking = Parking(self.loads.tracker, self.loads.objects)
        self.find = failures_at(self.loads.tracker, fetch=self.loads.objects.get, code=sandbox())
        self.next = 0

    def order(self, number: int, amount: object = BAD) -> bytes:
        data = {"number": number, "amount": amount, "note": "n"}
        return encode(
            Event(
                f"e{number}",
                "test-orders",
                team_of(self.topic.name),
                "order",
                f"[{number}]",
                0,
                number,
                MINUTE,
                "2026-01-01T00:00:00Z",
                data,
                stage="transformation",
            )
        )

    def park(self, *messages: bytes, objects: int = 1) -> list[str]:
        """Send messages and commit a batch of them; returns its parked objects, in order."""
        failures = self._failures(0, self.next, messages)
        start, self.next = self.next, self.next + len(messages)
        tasks = [failures[task::objects] for task in range(objects)]
        return self._commit(tasks, batch_of(self, (0, start, self.next)))

    def park_in_both(self, zero: list[bytes], one: list[bytes]) -> list[str]:
        """Park messages of two partitions in one batch of two tasks; nothing was sent before."""
        tasks = [self._failures(number, 0, sent) for number, sent in enumerate((zero, one))]
        return self._commit(tasks, batch_of(self, (0, 0, len(zero)), (1, 0, len(one))))

    def _failures(self, partition: int, start: int, messages) -> list:
        from confluent_kafka import Producer

        producer, name = Producer({"bootstrap.servers": self._servers}), self.topic.name
        for message in messages:
            producer.produce(name, message, partition=partition)
        assert producer.flush(30) == 0
        end = start + len(messages)
        records = [one for _, one in self.log.records(name, {partition: (start, end)})]
        chunk = Chunk(
            list(messages),
            [partition] * len(messages),
            [one.offset for one in records],
            [one.at_ms * 1000 for one in records],
        )
        return list(self.find(chunk, name, datetime.now(UTC), ()))

    def _commit(self, tasks, done) -> list[str]:
        described = []
        for failures in tasks:
            packer = Packer()
            for failure in failures:
                event = parked_event(failure, self.topic.name, "2026-01-01T00:00:00Z")
                packer.add(event, identity_of(failure))
            body, found = packer.finish()
            key = new_key()
            self.loads.objects.put(key, body)
            described.append(ObjectDescriptor(key, len(body), found))
        scope = self.loads.name

        def record(connection, number):
            self.parking.record_once(connection, described, scope=scope, commit_number=number)
            return [one.key for one in described]

        self.commit = commit_batch(self.loads.tracker, done, record)
        return [one.key for one in described]

    def lose(self, *keys: str) -> None:
        self.loads.objects.delete(list(keys))
        gone = self.parking.check_objects(datetime.now(UTC)).missing
        quarantine_missing(self.loads.tracker, gone, who=WHO)

    def recover_parked(self, objects=None, *, again=False):
        where = self.loads.objects if objects is None else objects
        return recover_parked(self.loads.tracker, where, self.log, self.find, again=again)

    def events(self) -> list:
        """All that is parked, by offset; when it was parked may be another moment."""
        found = [
            replace(event, parked_at="")
            for one in self.parking.partitions()
            for event in self.parking.events(one.id)
        ]
        return sorted(found, key=lambda event: event.kafka_offset)

    def sums(self) -> list:
        return self.loads.sql(
            "SELECT error_type, parked, quarantined, parked_partitions.bytes, (SELECT sum(bytes) "
            "FROM segments WHERE partition_id = parked_partitions.id AND state = 'parked') "
            "FROM parked_partitions ORDER BY 1"
        )


def batch_of(parked, *ranges):
    from tests.support.books import batch

    return batch(
        parked.loads._epoch, *ranges, destination=parked.loads.name,
        topic=parked.topic.name, cluster_id=parked.topic.cluster_id,
        topic_id=parked.topic.topic_id,
    )  # fmt: skip


@pytest.fixture
def parked(loads, kafka, tmp_path):  # noqa: F811
    return Parked(loads, kafka, tmp_path)


def test_a_parked_object_that_is_gone_is_made_again_from_kafka_once(parked):
    gone, kept = parked.park(
        parked.order(1),
        parked.order(2),
        parked.order(3, 9),
        b"no event",
        b"nor this",
        parked.order(4),
        b"\xff",
        objects=2,
    )
    parked.park(parked.order(5))
    before = parked.events()
    assert len(before) == 7
    parked.lose(gone)
    assert len(parked.events()) < 7
    assert sum(one.events for one in lost_parked(parked.loads.tracker)) == 3
    assert parked.recover_parked().recovered == 3
    assert parked.events() == before
    for _, held, apart, size, real in parked.sums():
        assert (apart, size) == (0, real)
        assert held
    assert parked.recover_parked().recovered == 0, "once"
    assert lost_parked(parked.loads.tracker) == []
    parked.lose(kept)
    parked.recover_parked()
    assert parked.events() == before


def test_the_watch_of_each_minute_does_it_and_a_replay_takes_the_events(parked, kafka):
    [gone] = parked.park(parked.order(1), parked.order(2))
    before = parked.events()
    parked.loads.objects.delete([gone])
    settings = Settings(
        tracker=parked.loads.tracker_settings,
        s3=parked.loads.s3,
        kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap_servers),
    )
    watched = watch(settings)
    assert not any("parked" in problem for problem in watched.problems), watched.problems
    assert parked.events() == before
    actions = [row[0] for row in parked.loads.sql("SELECT action FROM audit_log")]
    assert {"object_missing", "quarantine", "parked_object_recovered"} <= set(actions)
    [partition] = parked.parking.partitions()
    replay = parked.parking.begin_replay(partition.id, who="ann", run_id="r1")
    taken = [
        replace(event, parked_at="")
        for segment in parked.parking.replay_segments(replay.id)
        for event in parked.parking.read(segment)
    ]
    assert taken == before


def test_what_a_replay_found_damaged_is_made_again(parked):
    [gone] = parked.park(parked.order(1), parked.order(2))
    before = parked.events()
    parked.loads.objects.put(gone, b"x" * len(parked.loads.objects.get(gone)))
    [partition] = parked.parking.partitions()
    replay = parked.parking.begin_replay(partition.id, who="ann", run_id="r1")
    for segment in parked.parking.replay_segments(replay.id):
        with pytest.raises(CorruptSegmentError) as failed:
            list(parked.parking.read(segment))
        parked.parking.quarantine(replay.id, [(segment, failed.value)])
    assert parked.recover_parked().recovered == 2
    assert parked.events() == before


@pytest.mark.parametrize("damage", ["cut", "other bytes"])
def test_the_watch_finds_what_is_damaged_before_a_replay_does(parked, damage):
    [damaged] = parked.park(parked.order(1), parked.order(2))
    before = parked.events()
    body = parked.loads.objects.get(damaged)
    parked.loads.objects.put(damaged, body[:20] if damage == "cut" else b"x" * len(body))
    found = parked.parking.check_objects(datetime.now(UTC))
    assert (found.missing, found.suspect) == ([], [damaged]), "of another size, or by chance"
    assert parked.parking.quarantine_damaged(found.suspect, who=WHO) == 2
    assert parked.parking.quarantine_damaged(found.suspect, who=WHO) == 0, "once"
    told = "SELECT kind, detail->>'object_key' FROM notices WHERE kind = 'damage'"
    assert parked.loads.sql(told) == [("damage", damaged)]
    assert parked.recover_parked().recovered == 2
    assert parked.events() == before


def test_a_whole_object_is_left_alone_and_a_discarded_one_too(parked):
    [whole] = parked.park(parked.order(1))
    assert parked.parking.quarantine_damaged([whole], who=WHO) == 0
    parked.loads.objects.put(whole, b"x")
    parked.parking.discard(ParkedGroupFilter(pipeline_id="test-orders"), Decision("ann", "test"))
    assert parked.parking.quarantine_damaged([whole], who=WHO) == 0
    assert parked.loads.sql("SELECT quarantined FROM parked_partitions") == [(0,)]


def test_a_copy_that_was_left_out_is_left_out_again(parked):
    parked.park(parked.order(1))
    [gone] = parked.park(parked.order(1), parked.order(2))
    before = parked.events()
    assert len(before) == 2
    parked.lose(gone)
    assert parked.recover_parked().recovered == 1
    assert parked.events() == before


def test_a_kill_before_the_transaction_leaves_garbage_only(parked):
    [gone] = parked.park(parked.order(1), parked.order(2))
    before = parked.events()
    parked.lose(gone)

    class Killed(BaseException):
        pass

    class Dying(type(parked.loads.objects)):
        def put(self, *given, **more):
            super().put(*given, **more)
            raise Killed

    dying = Dying.__new__(Dying)
    dying.__dict__.update(parked.loads.objects.__dict__)
    with pytest.raises(Killed):
        parked.recover_parked(dying)
    assert len(list(parked.loads.objects.list("parked/cut/"))) == 1
    assert [sums[:3] for sums in parked.sums()] == [(parked.sums()[0][0], 0, 2)]
    assert parked.recover_parked().recovered == 2
    assert parked.events() == before


def test_an_object_that_is_back_is_taken_as_it_was(parked):
    [gone] = parked.park(parked.order(1), parked.order(2))
    body = parked.loads.objects.get(gone)
    before = parked.events()
    parked.lose(gone)
    parked.loads.objects.put(gone, body)
    assert parked.recover_parked().mended == 2
    assert parked.events() == before


def test_what_kafka_has_no_more_is_unrecoverable_and_told_once(parked, monkeypatch):
    [gone] = parked.park(parked.order(1), parked.order(2))
    parked.lose(gone)
    parked.log.delete_records(parked.topic.name, {0: 2})
    assert parked.recover_parked().unrecoverable == 2
    assert parked.recover_parked(again=True).unrecoverable == 0, "told once"
    [lost] = lost_parked(parked.loads.tracker)
    assert (lost.object_key, lost.events, lost.unrecoverable) == (gone, 2, 2)
    assert "Kafka does not have its events any more" in lost.problem
    told = "SELECT detail->>'unrecoverable' FROM notices WHERE detail ? 'unrecoverable'"
    assert parked.loads.sql(told) == [("2",)]
    assert [sums[:3] for sums in parked.sums()] == [(lost.error_type, 0, 2)]
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", parked.loads.tracker_settings.dsn.get_secret_value())
    shown = CliRunner().invoke(app, ["parked", "lost"])
    assert "2 events quarantined, 2 unrecoverable" in shown.output
    assert max(map(len, shown.output.splitlines())) <= 80
    said = orjson.loads(CliRunner().invoke(app, ["parked", "lost", "--json"]).stdout)
    assert said["unrecoverable"] == 2


def test_the_balance_tells_what_is_unrecoverable_from_what_waits_in_quarantine(parked):
    [gone], [other] = parked.park(parked.order(1), parked.order(2)), parked.park(parked.order(4))
    parked.lose(gone, other)
    parked.log.delete_records(parked.topic.name, {0: 2})
    found = balance(parked.loads.tracker, parked.log)
    assert (found.quarantined, found.unrecoverable) == (3, 0)
    find = parked.find

    def away(*_):
        raise RetryError("a payload's store is away")

    parked.find = away
    with pytest.raises(RetryError):
        parked.recover_parked()
    found = balance(parked.loads.tracker, parked.log)
    assert (found.quarantined, found.unrecoverable, found.parked) == (1, 2, 0)
    assert [one.unrecoverable for one in found.pipelines] == [{"mapping": 2}]
    parked.find = find
    parked.recover_parked()
    found = balance(parked.loads.tracker, parked.log)
    assert (found.quarantined, found.unrecoverable, found.parked) == (0, 2, 1)


def test_what_fails_otherwise_now_is_left(parked):
    [gone] = parked.park(parked.order(1), parked.order(2))
    parked.lose(gone)
    parked.find = lambda *_: []
    assert parked.recover_parked().unrecoverable == 2
    assert "0 fail now as they did, not " in lost_parked(parked.loads.tracker)[0].problem


def test_records_are_kept_while_parked_events_of_them_are_to_be_made_again(parked):
    [gone] = parked.park(parked.order(1), parked.order(2))
    parked.park(parked.order(3))
    loads_ = parked.loads
    loads_.sql(
        "INSERT INTO load_positions (destination, last_commit) VALUES (:d, :n) "
        "ON CONFLICT (destination) DO UPDATE SET last_commit = excluded.last_commit",
        d=loads_.name, n=parked.commit,
    )  # fmt: skip
    loads_.sql(
        "UPDATE topic_offsets SET cluster_id = :c, topic_id = :t, known_since = 'epoch'",
        c=parked.topic.cluster_id, t=parked.topic.topic_id,
    )  # fmt: skip
    topics = {parked.topic.name: loads_.name}
    parked.lose(gone)
    [trim] = trim_log(loads_.tracker, parked.log, topics, kept_s=0)
    assert (trim.deleted, trim.problem) == (0, "")
    assert parked.recover_parked().recovered == 2
    [trim] = trim_log(loads_.tracker, parked.log, topics, kept_s=0)
    assert (trim.deleted, trim.problem) == (2, "")


def settled_cut(parked, partition: int, cut_at: int | None) -> None:
    """Leave what `waybill topics settle` leaves of a log that was cut."""
    tracker, topic = parked.loads.tracker, parked.topic
    with tracker.transaction() as connection:
        connection.execute(
            text(
                "INSERT INTO topic_stops (topic, partition, kind, words, detail, settled_at, settlement) "
                "VALUES (:topic, :partition, 'cut', 'cut', CAST(:detail AS jsonb), clock_timestamp(), "
                "CAST(:settlement AS jsonb))"
            ),
            {
                "topic": topic.name, "partition": partition,
                "detail": orjson.dumps({"cut_at": cut_at}).decode(),
                "settlement": orjson.dumps({"topic_id": topic.topic_id}).decode(),
            },
        )  # fmt: skip
        changed = connection.execute(
            text(
                "UPDATE topic_offsets SET known_since = clock_timestamp() "
                "WHERE topic = :topic AND partition = :partition"
            ),
            {"topic": topic.name, "partition": partition},
        )
        assert changed.rowcount == 1


def test_events_below_a_cut_that_was_settled_are_made_again_and_those_above_are_not(parked):
    [below] = parked.park(parked.order(1), parked.order(2))
    [above] = parked.park(parked.order(4), parked.order(5))
    before = parked.events()
    settled_cut(parked, 0, cut_at=3)
    parked.lose(below, above)
    assert parked.recover_parked().to_json() == {
        "recovered": 2, "mended": 0, "waiting": 0, "unrecoverable": 2,
    }  # fmt: skip
    assert parked.events() == before[:2]
    [left] = lost_parked(parked.loads.tracker)
    assert (left.first_offset, left.events) == (2, 2)
    assert "from offset 3 on" in left.problem


def test_where_a_log_was_cut_at_nobody_knows_what_nothing_older_is_made_again(parked):
    [lost] = parked.park(parked.order(1), parked.order(2))
    settled_cut(parked, 0, cut_at=None)
    parked.lose(lost)
    assert parked.recover_parked().unrecoverable == 2


def test_a_cut_of_one_kafka_partition_gives_up_nothing_of_another_of_the_same_commit(parked):
    [first, second] = parked.park_in_both(
        [parked.order(1), parked.order(2)], [parked.order(4), parked.order(5)]
    )
    settled_cut(parked, 0, cut_at=0)
    parked.lose(first, second)
    done = parked.recover_parked()
    assert (done.recovered, done.unrecoverable) == (2, 2)
    [left] = lost_parked(parked.loads.tracker)
    assert (left.kafka_partition, left.events) == (0, 2)
    assert [event.kafka_partition for event in parked.events()] == [1, 1]
