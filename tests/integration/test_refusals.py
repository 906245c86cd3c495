"""A message that Kafka refuses for good: parked once, neighbours flow on, the books balance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support import refusals
from tests.support.lost_commits import answer_lost, commits_changed, killed_before
from tests.support.parked_orders import order, parked
from tests.support.refusals import BIG, ROWS, delivered, numbers
from tests.support.replays import run_replay

from waybill import services
from waybill.errors import InputError, RetryError, StopError
from waybill.events import decode, encode
from waybill.ingestion.refused_messages import Undeliverable, delivery_error
from waybill.ledger import commit_refusal
from waybill.ledger.commit import write_counts
from waybill.parking import Packer, ParkedGroup, Parking, new_key
from waybill.processing import Counts
from waybill.producer import LosslessProducer, Undelivered
from waybill.reconciliation.balance_report import BalanceReport
from waybill.settings import Settings
from waybill.storage import TrackerStore, open_objects, open_tracker

pytestmark = pytest.mark.serves
OTHERS = [number for number in range(ROWS) if number != BIG]


@pytest.fixture
def settings(stack_settings: Settings, tmp_path: Path) -> Settings:
    return refusals.with_a_big_order(stack_settings, tmp_path)


@pytest.fixture
def tracker(settings: Settings) -> Iterator[TrackerStore]:
    with open_tracker(settings.tracker) as books:
        yield books


@pytest.fixture
def parking(settings: Settings, tracker: TrackerStore) -> Parking:
    return Parking(tracker, open_objects(settings.s3))


def told(report: BalanceReport) -> tuple[int, int, int, int, dict[str, int]]:
    found = (report.ingested, report.parked, report.replayed, report.in_flight)
    assert report.unaccounted == sum(abs(n) for g in report.pipelines for n in g.breaches.values())
    return (*found, report.pipelines[0].breaches)


def replay(settings: Settings, run: str, **changes: Any) -> Any:
    names = {
        "pipeline": "orders",
        "event_name": "order",
        "stage": "ingestion",
        "error_type": "delivery_too_large",
    }
    return run_replay(settings, **{**names, **changes}, who="test", run_id=run)


def names_of(partition: ParkedGroup) -> tuple[str, str, int, int]:
    return (partition.stage, partition.error_type, partition.parked, partition.replayed)


def test_one_refused_event_is_parked_looked_at_replayed_and_delivered(
    settings: Settings, parking: Parking
) -> None:
    report = services.run_ingest(settings, "orders")
    assert (report.read, report.accepted, report.parked, report.refused) == (ROWS, ROWS, 0, 1)
    assert numbers(delivered(settings)) == OTHERS
    assert told(services.balance(settings)) == (ROWS, 1, 0, ROWS - 1, {})

    (partition,) = services.parked_partitions(settings)
    assert names_of(partition) == ("ingestion", "delivery_too_large", 1, 0)
    assert partition.last_message.startswith("MSG_SIZE_TOO_LARGE: ")
    (held,) = parking.events(partition.id)
    event = decode(held.value)
    assert (event.data["number"], event.data["note"]) == (BIG, refusals.NOTE)
    assert (held.where, held.attempt) == (refusals.topic_of(settings), 0)
    assert held.pipeline_version == services.deployed_pipelines(settings)["test-orders"].version

    assert services.run_ingest(settings, "orders").refused == 0
    refusals.limit(settings, 1_000_000)
    done = replay(settings, "r1")
    assert (done.events, done.sent, done.refused) == (1, 1, 0)
    (back,) = [event for event in delivered(settings) if event.data["number"] == BIG]
    assert (back.id, back.stage, back.attempt) == (event.id, "transformation", 1)
    assert (back.intake_minute, back.intake_version) == (event.intake_minute, event.intake_version)
    assert told(services.balance(settings)) == (ROWS, 0, 1, ROWS, {})

    refusals.process(settings)
    report = services.balance(settings)
    assert told(report) == (ROWS, 0, 1, ROWS - 1, {})  # one is filtered on purpose
    stages = report.pipelines[0].stages
    assert (stages["transformation"].in_first, stages["transformation"].in_replayed) == (39, 1)
    assert (stages["ingestion"].passed, stages["ingestion"].out) == (39, 39)


def test_a_replay_that_kafka_refuses_leaves_the_event_parked_where_it_was(
    settings: Settings, parking: Parking
) -> None:
    services.run_ingest(settings, "orders")
    done = replay(settings, "r1")
    assert (done.events, done.sent, done.refused) == (1, 1, 1)
    (partition,) = services.parked_partitions(settings)
    assert names_of(partition) == ("ingestion", "delivery_too_large", 1, 1)
    (held,) = parking.events(partition.id)
    assert (held.attempt, decode(held.value).data["number"]) == (1, BIG)
    assert told(services.balance(settings)) == (ROWS, 1, 1, ROWS - 1, {})
    refusals.process(settings)
    assert told(services.balance(settings)) == (ROWS, 1, 1, ROWS - 2, {})

    refusals.limit(settings, 1_000_000)
    assert replay(settings, "r2").refused == 0
    assert told(services.balance(settings)) == (ROWS, 0, 2, ROWS - 1, {})
    (back,) = [event for event in delivered(settings) if event.attempt]
    assert (back.data["number"], back.attempt, back.stage) == (BIG, 2, "transformation")


def park_in_mapping(tracker: TrackerStore, parking: Parking, settings: Settings) -> None:
    """Park one big order in the mapping, and count it from its intake on."""
    event = order(BIG, "t", note=refusals.NOTE)
    event.stage = "mapping"
    packer, key, counts = Packer(), new_key(), Counts()
    packer.add(parked(event, "mapping", "not_null_violation"))
    packed = packer.finish()
    open_objects(settings.s3).put(key, packed.body)
    for stage in ("ingestion", "transformation"):
        for name in ("in_first", "passed", "out"):
            counts.add(("test-orders", "order", stage, event.intake_minute), name)
    for name in ("in_first", "parked"):
        counts.add(("test-orders", "order", "mapping", event.intake_minute), name)
    with tracker.transaction() as connection:
        write_counts(connection, "made", list(counts.by_pipeline()))
        parking.record(
            connection,
            key=key,
            size=len(packed.body),
            segments=packed.segments,
            scope="warehouse",
            commit_number=1,
        )


def test_a_refused_replay_from_a_later_stage_is_parked_again_at_that_stage(
    settings: Settings, tracker: TrackerStore, parking: Parking
) -> None:
    park_in_mapping(tracker, parking, settings)
    assert told(services.balance(settings)) == (1, 1, 0, 0, {})
    replay(settings, "r1", stage="mapping", error_type="not_null_violation")
    assert [names_of(p) for p in services.parked_partitions(settings)] == [
        ("mapping", "delivery_too_large", 1, 0),
        ("mapping", "not_null_violation", 0, 1),
    ]
    assert told(services.balance(settings)) == (1, 1, 1, 0, {})
    refusals.limit(settings, 1_000_000)
    replay(settings, "r2", stage="mapping")
    (back,) = delivered(settings)
    assert (back.stage, back.attempt, back.data["number"]) == ("mapping", 2, BIG)
    assert told(services.balance(settings)) == (1, 0, 2, 1, {})


def test_rows_that_never_were_events_are_not_replayed(settings: Settings) -> None:
    with pytest.raises(InputError, match=r"never were events.*delivery_too_large"):
        replay(settings, "r1", error_type="source_row_malformed")


def test_a_topic_that_is_not_there_parks_under_its_own_code(
    settings: Settings, tracker: TrackerStore, parking: Parking
) -> None:
    config = {
        "bootstrap.servers": settings.kafka.bootstrap_servers,
        "topic.metadata.propagation.max.ms": 1000,
    }
    refused = undeliverable(settings, tracker, parking)
    with LosslessProducer(
        settings.wal, config, name="nowhere", on_undeliverable=refused.park, marks=True
    ) as producer:
        producer.produce("events.nowhere", encode(order(1, "t")), b"[1]")
        assert producer.flush(30) == 0
    (partition,) = parking.partitions()
    assert names_of(partition) == ("ingestion", "delivery_topic_unknown", 1, 0)
    (held,) = parking.events(partition.id)
    assert held.where == "events.nowhere"


def undeliverable(settings: Settings, tracker: TrackerStore, parking: Parking) -> Undeliverable:
    return Undeliverable(tracker, parking, open_objects(settings.s3), pipeline_version="1")


def refused_order(number: int = 1, **changes: Any) -> Undelivered:
    value = encode(order(number, "t"))
    undelivered = Undelivered(
        number, "t", b"k", value, [], "MSG_SIZE_TOO_LARGE", "too large", "ab" * 16
    )
    return replace(undelivered, **changes)


def parked_now(parking: Parking) -> int:
    return sum(partition.parked for partition in parking.partitions())


def test_a_message_is_parked_once_by_log_and_lsn(
    settings: Settings, tracker: TrackerStore, parking: Parking
) -> None:
    first = undeliverable(settings, tracker, parking)
    for message in (refused_order(), refused_order(), refused_order(message="other words")):
        first.park(message)
    again = undeliverable(settings, tracker, parking)
    again.park(refused_order())
    assert (first.parked, again.parked, parked_now(parking)) == (1, 0, 1)
    again.park(refused_order(2))
    again.park(refused_order(wal_id="cd" * 16))
    assert (again.parked, parked_now(parking)) == (2, 3)


@pytest.mark.parametrize("what_happens", [answer_lost, killed_before])
def test_a_commit_that_broke_off_is_tried_again_and_parks_once(
    settings: Settings,
    tracker: TrackerStore,
    parking: Parking,
    what_happens: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken_off(*given: Any) -> bool:
        with commits_changed(tracker, what_happens):
            return commit_refusal(*given)

    refused = undeliverable(settings, tracker, parking)
    monkeypatch.setattr("waybill.ingestion.refused_messages.commit_refusal", broken_off)
    with pytest.raises(RetryError):
        refused.park(refused_order())
    monkeypatch.undo()
    refused.park(refused_order())
    assert parked_now(parking) == 1
    report = parking.refresh(grace_s=0)
    assert report.garbage_deleted == (0 if what_happens is answer_lost else 1)
    assert report.missing == ()
    assert len(list(parking.events(parking.partitions()[0].id))) == 1


def test_a_store_that_is_away_is_a_retry(
    settings: Settings, tracker: TrackerStore, parking: Parking, s3: Any
) -> None:
    refused = undeliverable(settings, tracker, parking)
    s3.stop()
    with pytest.raises(RetryError):
        refused.park(refused_order())
    s3.start()
    assert parked_now(parking) == 0
    refused.park(refused_order())
    assert parked_now(parking) == 1


def test_a_tracker_that_is_away_is_a_retry(
    settings: Settings, tracker: TrackerStore, parking: Parking, postgres: Any
) -> None:
    refused = undeliverable(settings, tracker, parking)
    postgres.stop()
    with pytest.raises(RetryError):
        refused.park(refused_order())
    postgres.start()
    refused.park(refused_order())
    assert parked_now(parking) == 1


def test_what_is_no_event_stops_loudly(
    settings: Settings, tracker: TrackerStore, parking: Parking
) -> None:
    with pytest.raises(StopError, match="is no Waybill event"):
        undeliverable(settings, tracker, parking).park(refused_order(value=b"alien"))
    assert parked_now(parking) == 0


@pytest.mark.parametrize(
    ("code", "error_type"),
    [
        ("RECORD_LIST_TOO_LARGE", "delivery_too_large"),
        ("_UNKNOWN_TOPIC", "delivery_topic_unknown"),
        ("TOPIC_AUTHORIZATION_FAILED", "delivery_unauthorized"),
        ("POLICY_VIOLATION", "delivery_refused"),
    ],
)
def test_kafkas_words_become_error_types(code: str, error_type: str) -> None:
    assert delivery_error(code) == error_type
