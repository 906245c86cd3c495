"""Staged and parked objects that are gone or damaged: set apart, told, made again from Kafka."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy import text, update
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event
from tests.support import orders
from tests.support.books import batch, counts, nothing_parked
from tests.support.loads import opened_loads, some
from tests.support.user_code import sandbox
from tests.unit.destinations.orders import clean_database

from waybill.access import Decision
from waybill.deployment import deploy
from waybill.events import Event, encode
from waybill.ledger import commit_batch, fold
from waybill.ledger.commit import StagedObject, write_counts
from waybill.loading.quarantine import lost_objects, recover_lost, settle_lost
from waybill.parking import new_staged_again_key
from waybill.parking.refreshing import refresh
from waybill.pipelines import load_pipeline, team_of, topic_of
from waybill.reconciliation import audit
from waybill.reconciliation.balance_report import balance
from waybill.recovery.past_stages import stages_at
from waybill.retention import trim_log, trim_payloads, trim_rows
from waybill.settings import KafkaSettings
from waybill.storage import open_log
from waybill.storage.tracker import COUNT_COLUMNS
from waybill.storage.tracker.tables import staged_objects

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
MINUTE = 29_000_000


@pytest.fixture
def loads(postgres, s3):
    with opened_loads(postgres, s3, clean_database(postgres)) as opened:
        yield opened


class Processed:
    """Orders in Kafka, processed by hand: commits with staged objects that know their offsets."""

    def __init__(self, loads, kafka, folder) -> None:
        self.loads = loads
        self.log = open_log(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
        home = orders.write_orders(folder, rows=1)
        deploy(loads.tracker, home, who="ann")
        self.home = home
        self.topic = self.log.ensure_topic(topic_of(load_pipeline(home)))
        self.run = stages_at(loads.tracker, fetch=loads.objects.get, code=sandbox())
        self._servers, self._end = kafka.bootstrap_servers, 0

    def process(self, *numbers: int) -> tuple[int, str]:
        """Send orders and commit a batch of them; returns its number and its staged object."""
        from confluent_kafka import Producer

        producer, name = Producer({"bootstrap.servers": self._servers}), self.topic.name
        for number in numbers:
            data = {"number": number, "amount": number * 3, "note": "n"}
            event = Event(
                f"e{number}", "test-orders", team_of(name), "order", f"[{number}]", 0, number, MINUTE,
                "2026-01-01T00:00:00Z", data, stage="transformation",
            )  # fmt: skip
            producer.produce(name, encode(event), partition=0)
        assert producer.flush(30) == 0
        start, self._end = self._end, self._end + len(numbers)
        values = list(self.log.read(name, {0: (start, self._end)}))
        result = self.run(values, name, datetime.now(UTC))
        rows, body = result.staged.rows, result.staged.finish()
        key = f"staged/2026/01/01/{numbers[0]}.wbs"
        self.loads.objects.put(key, body)
        done = batch(
            self.loads._epoch, (0, start, self._end), destination=self.loads.name,
            topic=name, cluster_id=self.topic.cluster_id, topic_id=self.topic.topic_id, counts=list(result.counts.by_pipeline()),
            staged=[StagedObject(key, rows, len(body), [[name, 0, start, self._end]])],
        )  # fmt: skip
        with self.loads.tracker.transaction() as connection:
            taken = len(numbers)
            write_counts(
                connection, f"taken:{key}",
                counts("ingestion", pipeline="test-orders", in_first=taken, passed=taken, out=taken),
            )  # fmt: skip
        return commit_batch(self.loads.tracker, done, nothing_parked), key

    def recover(self, *, again: bool = False):
        return recover_lost(self.loads.tracker, self.loads.objects, self.log, self.run, again=again)

    def balance(self):
        """The books, with each event counted as taken in."""
        return balance(self.loads.tracker, self.log)

    def numbers(self) -> list[int]:
        return [row[0] for row in self.loads.ask("SELECT number FROM shop.orders ORDER BY 1")]


@pytest.fixture
def processed(loads, kafka, tmp_path):
    return Processed(loads, kafka, tmp_path)


def test_a_lost_object_is_not_made_of_the_records_of_a_log_that_was_settled_since(loads, processed):
    last, key = processed.process(10, 11)
    loads.objects.delete([key])
    loads.deliver(loads.patience(), last)
    with loads.tracker.transaction() as connection:
        connection.execute(text("UPDATE topic_offsets SET known_since = clock_timestamp()"))
    assert (processed.recover().recovered, processed.recover().left) == (0, 1)
    [lost] = lost_objects(loads.tracker, "warehouse")
    assert "has another log since" in lost.not_recovered


@pytest.mark.parametrize("damage", ["gone", "damaged"])
def test_a_lost_staged_object_is_passed_told_and_made_again_from_kafka(loads, processed, damage):
    _, key = processed.process(10, 11, 12)
    last, _ = processed.process(13, 14)
    if damage == "gone":
        loads.objects.delete([key])
    else:
        loads.objects.put(key, b"other bytes")
    patience = loads.patience()
    loads.deliver(patience, last)
    assert processed.numbers() == [13, 14], "others of the destination go on"
    [lost] = lost_objects(loads.tracker, "warehouse")
    assert (lost.key, lost.rows) == (key, 3)
    assert loads.sql("SELECT kind, detail->>'object_key' FROM notices") == [("missing", key)]
    assert processed.recover().recovered == 1
    assert processed.recover().recovered == 0, "once"
    loads.deliver(patience, last + 1)
    assert processed.numbers() == [10, 11, 12, 13, 14]
    assert loads.counts() == {"in_first": 5, "passed": 5}
    in_mapping = "SELECT sum(\"out\")::int FROM ledger_totals WHERE stage = 'mapping'"
    assert loads.sql(in_mapping) == [(5,)], "counted once when it was processed"
    assert [action for _, action in loads.audited()] == [
        "staged_object_lost",
        "staged_object_recovered",
    ]


def test_what_would_be_other_rows_now_is_left_and_settled_by_name(loads, processed):
    last, key = processed.process(20, 21)
    loads.objects.delete([key])
    loads.sql("UPDATE staged_objects SET rows = 3")
    loads.deliver(loads.patience(), last)
    assert processed.recover().left == 1
    [lost] = lost_objects(loads.tracker)
    assert "give 2 rows now, not 3" in lost.not_recovered
    settle_lost(loads.tracker, "warehouse", Decision("ann", "they came from the source again"))
    assert lost_objects(loads.tracker) == []


def test_a_lost_object_of_an_older_release_says_why_it_stays(loads, kafka):
    last = loads.stage(some(1, 2))
    loads.objects.delete([row[0] for row in loads.sql("SELECT key FROM staged_objects")])
    loads.deliver(loads.patience(), last)
    assert loads.position == last
    log = open_log(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
    run = stages_at(loads.tracker, fetch=loads.objects.get, code=sandbox())
    assert recover_lost(loads.tracker, loads.objects, log, run).left == 1
    assert "older release" in lost_objects(loads.tracker)[0].not_recovered


@pytest.mark.parametrize("damage", ["gone", "damaged"])
def test_the_books_balance_at_each_step_of_a_lost_object(loads, processed, damage):
    _, key = processed.process(10, 11, 12)
    last, _ = processed.process(13, 14)
    if damage == "gone":
        loads.objects.delete([key])
    else:
        loads.objects.put(key, b"other bytes")
    patience = loads.patience()
    for moves, delivered in ((5, 0), (3, 2), (3, 2), (0, 5)):
        found = processed.balance()
        assert (found.unaccounted, found.unrecoverable) == (0, 0), found.pipelines
        assert (found.in_flight, found.delivered) == (moves, delivered)
        assert audit(loads.tracker, processed.log).opened == []
        if delivered == 0:
            loads.deliver(patience, last)
        elif loads.sql("SELECT 1 FROM staged_objects WHERE state = 'lost'"):
            assert processed.recover().recovered == 1
        else:
            loads.deliver(patience, last + 1)


def test_what_cannot_be_made_again_is_unrecoverable_also_once_it_is_given_up(loads, processed):
    _, key = processed.process(10, 11, 12)
    last, _ = processed.process(13, 14)
    loads.objects.delete([key])
    loads.deliver(loads.patience(), last)
    processed.log.delete_records(processed.topic.name, {0: 3})
    assert processed.recover().left == 1
    [lost] = lost_objects(loads.tracker)
    assert lost.to_json()["unrecoverable"] == 3
    assert "Kafka does not have its events any more" in lost.not_recovered
    told = "SELECT detail->>'unrecoverable' FROM notices WHERE detail ? 'unrecoverable'"
    assert (processed.recover(again=True).left, loads.sql(told)) == (1, [("3",)]), "told once"
    for step in ("lost", "given up"):
        found = processed.balance()
        assert (found.unaccounted, found.in_flight, found.unrecoverable) == (0, 0, 3), step
        assert found.ingested == found.delivered + found.unrecoverable == 5
        [group] = found.pipelines
        assert group.unrecoverable == {"destination": 3}
        assert [row.stage("destination").unrecoverable for row in found.minutes] == [3]
        assert audit(loads.tracker, processed.log).opened == []
        if step == "lost":
            settle_lost(loads.tracker, loads.name, Decision("ann", "nobody wants them"))


def test_of_two_lost_objects_of_a_commit_the_one_that_is_made_again_is_not_counted(
    loads, processed
):
    last, first = processed.process(10, 11)
    [[rows, size, offsets]] = loads.sql("SELECT rows, bytes, offsets FROM staged_objects")
    assert (rows, offsets[0][2:]) == (2, [0, 2])
    half = [[*offsets[0][:3], 1]]
    with loads.tracker.transaction() as connection:
        connection.execute(update(staged_objects).values(rows=1, offsets=half))
        connection.execute(
            staged_objects.insert().values(
                key="staged/2026/01/01/other.wbs",
                destination=loads.name,
                commit_number=last,
                rows=7,
                bytes=size,
                offsets=[[*offsets[0][:2], 1, 2]],
            )
        )
    loads.objects.delete([first])
    loads.deliver(loads.patience(), last)
    found = processed.balance()
    assert (found.unaccounted, found.in_flight, found.unrecoverable) == (0, 2, 0)
    assert (processed.recover().recovered, len(lost_objects(loads.tracker))) == (1, 1)
    found = processed.balance()
    assert (found.unaccounted, found.in_flight, found.unrecoverable) == (0, 1, 1)


def test_a_lost_object_that_an_older_release_did_not_count_is_made_again(loads, processed):
    last, key = processed.process(10, 11)
    loads.objects.delete([key])
    loads.deliver(loads.patience(), last)
    loads.sql("DELETE FROM ledger WHERE reference LIKE 'lost:%'")
    assert processed.balance().unaccounted == 2
    assert processed.recover().recovered == 1
    assert (processed.balance().unaccounted, processed.balance().in_flight) == (0, 2)


@pytest.mark.parametrize("recovered", [False, True])
def test_trimming_the_books_leaves_what_a_lost_object_waits_with(loads, processed, recovered):
    last, key = processed.process(10, 11, 12)
    other = "staged/2026/01/01/other.wbs"
    if recovered:  # a second one of the same commit, which was made again
        loads.sql(
            "INSERT INTO staged_objects (key, destination, commit_number, rows, bytes, state) "
            "SELECT :other, destination, commit_number, 1, 1, 'deleted' FROM staged_objects",
            other=other,
        )
    processed.process(13, 14)
    loads.objects.delete([key])
    loads.deliver(loads.patience(), last + 1)
    if recovered:
        with loads.tracker.transaction() as connection:
            back = [["order", "lost", MINUTE, _counts(in_first=-1)]]
            write_counts(connection, f"found:{other}", [("test-orders", back)])
    fold(loads.tracker)
    loads.sql("UPDATE staged_objects SET state = 'deleted' WHERE state = 'loaded'")
    loads.sql("UPDATE staged_objects SET loaded_at = now() - interval '100 days' "
              "WHERE state = 'deleted'")  # fmt: skip
    for table in ("batches", "ledger"):
        loads.sql(f"UPDATE {table} SET committed_at = committed_at - interval '100 days'")
    waiting = (3 - recovered, 0)
    for _ in range(2):
        found = processed.balance()
        assert (found.in_flight, found.unrecoverable) == waiting
        trim_rows(loads.tracker, kept_s=90 * 86_400)
    assert processed.recover().recovered == 1


def _counts(**numbers: int) -> list[int]:
    return [numbers.get(name, 0) for name in COUNT_COLUMNS]


def test_records_of_what_was_made_again_stay_until_it_is_loaded(loads, processed):
    _, key = processed.process(10, 11)
    last, _ = processed.process(12, 13)
    loads.objects.delete([key])
    patience = loads.patience()
    loads.deliver(patience, last)
    assert processed.recover().recovered == 1
    loads.sql("UPDATE batches SET committed_at = committed_at - interval '30 days'")
    loads.sql("UPDATE topic_offsets SET known_since = known_since - interval '10 years'")

    def trimmed() -> tuple[int, str]:
        topics = {processed.topic.name: loads.name}
        [found] = trim_log(loads.tracker, processed.log, topics, kept_s=86_400)
        return found.deleted, found.held

    kept = f"all are kept: commit {last + 1} was made again of them, and is not loaded yet"
    assert trimmed() == (0, kept)
    [(again,)] = loads.sql("SELECT key FROM staged_objects WHERE state = 'staged'")
    loads.objects.delete([again])
    loads.deliver(patience, last + 1)
    assert trimmed() == (0, kept), "it is lost again"
    assert processed.recover().recovered == 1
    loads.deliver(patience, last + 2)
    loads.sql("UPDATE batches SET committed_at = committed_at - interval '30 days'")
    assert trimmed() == (3, ""), "but for the last one that was read"
    assert processed.numbers() == [10, 11, 12, 13]


def test_payloads_of_a_lost_object_stay_while_its_records_do(loads, processed):
    last, key = processed.process(10, 11)
    payload = "payloads/test-orders/large"
    loads.objects.put(payload, b"{}")
    loads.objects.delete([key])
    loads.deliver(loads.patience(), last)
    loads.sql("UPDATE staged_objects SET not_recovered = 'its payload does not pass'")
    fold(loads.tracker)
    assert audit(loads.tracker, processed.log).opened == []
    loads.sql("DELETE FROM audit_minutes")  # the auditor is through: it is unrecoverable
    assert trim_payloads(loads.tracker, loads.objects, kept_s=-3600).deleted == 0
    settle_lost(loads.tracker, loads.name, Decision("ann", "nobody wants them"))
    assert trim_payloads(loads.tracker, loads.objects, kept_s=-3600).deleted == 1


def test_an_object_that_is_made_again_stays_while_who_made_it_is_frozen(
    loads, processed, monkeypatch
):
    last, key = processed.process(10, 11)
    loads.objects.delete([key])
    loads.deliver(loads.patience(), last)
    put = loads.objects.put

    def frozen_behind(new: str, body: bytes) -> None:
        put(new, body)
        loads.sql("UPDATE consumers SET seen_at = clock_timestamp() + interval '1 hour'")
        assert refreshed().garbage_kept_undecided == 1

    def refreshed():
        return refresh(loads.tracker, loads.objects, grace_s=0, staged_kept_s=86_400)

    with monkeypatch.context() as patch:
        patch.setattr(loads.objects, "put", frozen_behind)
        assert processed.recover().recovered == 1
    loads.deliver(loads.patience(), last + 1)
    assert processed.numbers() == [10, 11]
    [(new,)] = loads.sql("SELECT key FROM staged_objects WHERE state = 'loaded'")
    late = new_staged_again_key(key)
    put(late, b"of another process, which came too late")
    assert refreshed().garbage_deleted == 1
    assert (loads.objects.exists(late), loads.objects.exists(new)) == (False, True)


def test_a_parked_object_that_is_gone_is_told_by_the_look_of_each_minute(lot):
    gone, kept = lot.park([make_event(1)], 1), lot.park([make_event(2)], 2)
    assert lot.parking.check_objects(datetime.now(UTC)).missing == []
    body = lot.objects.get(gone)
    lot.objects.delete([gone])
    assert lot.parking.check_objects(datetime.now(UTC)).missing == [gone]
    assert kept in lot.keys()
    told = "SELECT count(*) FROM audit_log WHERE action = 'object_missing'"
    assert lot.sql(told) == [(1,)]
    lot.parking.check_objects(datetime.now(UTC))
    assert lot.sql(told) == [(1,)], "once"
    lot.objects.put(gone, body)
    assert lot.parking.check_objects(datetime.now(UTC)).missing == []
