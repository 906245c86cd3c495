"""Eager checks over a real tracker: measured, told once in words, over by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import Producer
from sqlalchemy import text
from tests.support.books import batch, counts, joined, nothing_parked, open_books, staged
from tests.unit.destinations.orders import Order, clean_database, rows_of

from waybill.access import Decision
from waybill.destinations import Commit, open_destination
from waybill.errors import AwayError
from waybill.events import Event, encode
from waybill.ledger import LoadCommit, acquire_lease, commit_batch, commit_load, note_run
from waybill.pipelines import (
    Column,
    EventDeclaration,
    Pipeline,
    Source,
    TableSpec,
    cron_schedule,
    topic_of,
)
from waybill.reconciliation import close_breach, read_breaches
from waybill.reconciliation.checks.limits import DriftLimits, WatchLimits
from waybill.reconciliation.checks.run import WatchParts, tell, watch
from waybill.settings import DestinationSettings, KafkaSettings
from waybill.storage import KafkaLog, TrackerStore

pytestmark = pytest.mark.serves
NOW = datetime(2026, 3, 4, 14, 30, tzinfo=UTC)  # a Wednesday
MINUTE = int(NOW.timestamp() // 60)
WEEK = 7 * 24 * 60


class NoLog:
    """A log without topics."""

    def topics(self) -> set[str]:
        return set()


class AwayLog:
    """A log that does not answer."""

    def topics(self) -> set[str]:
        raise AwayError("no Kafka broker answers", setting="WAYBILL_KAFKA__BOOTSTRAP_SERVERS")


def declared(**changes: Any) -> Pipeline:
    table = TableSpec(
        schema_name="shop", name="orders", columns=(Column(name="id", type="int64"),), key=("id",)
    )
    values: dict[str, Any] = {
        "id": "p",
        "name": "orders",
        "team": "t",
        "owner": "ops",
        "source": Source(connector="csv", event="order", path="x"),
        "events": {"order": EventDeclaration(name="order", key=("id",), table=table)},
        "transformation_code": "",
        "destination": "w",
        "schema_name": "shop",
    }
    return Pipeline(**(values | changes))


@pytest.fixture(scope="module")
def opened(_postgres: Any) -> Iterator[TrackerStore]:
    _postgres.ensure()
    with open_books(_postgres, "watching") as books:
        yield books


@pytest.fixture
def tracker(opened: TrackerStore) -> TrackerStore:
    with opened.transaction() as connection:
        connection.execute(
            text(
                "TRUNCATE pipelines, pipeline_versions, ledger, ledger_minutes, breaches, notices, "
                "batches, load_positions, commit_sequences, consumers, topic_offsets, "
                "staged_objects, connector_positions, undeployments"
            )
        )
    deploy(opened, declared())
    return opened


def deploy(tracker: TrackerStore, pipeline: Pipeline) -> None:
    with tracker.transaction() as connection:
        connection.execute(
            text(
                "INSERT INTO pipelines (id, name, team) VALUES (:id, :name, :team) "
                "ON CONFLICT DO NOTHING"
            ),
            {"id": pipeline.id, "name": pipeline.name, "team": pipeline.team},
        )
        connection.execute(
            text(
                "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, "
                "deployed_by) SELECT :id, count(*) + 1, :version, CAST(:said AS jsonb), 'test' "
                "FROM pipeline_versions WHERE pipeline_id = :id"
            ),
            {"id": pipeline.id, "version": pipeline.version, "said": pipeline.model_dump_json()},
        )


def lived(tracker: TrackerStore, first: int, last: int, *, parked: int = 0, step: int = 1) -> None:
    """Let 20 events come in each minute from ``first`` to ``last``, ``parked`` of them park."""
    statement = text(
        "INSERT INTO ledger_minutes (pipeline_id, event_name, stage, minute, in_first, parked) "
        "SELECT 'p', 'order', stage, minute, 20, "
        "CASE stage WHEN 'mapping' THEN CAST(:parked AS bigint) ELSE 0 END "
        "FROM generate_series(CAST(:first AS int), CAST(:last AS int), CAST(:step AS int)) "
        "AS minute, unnest(ARRAY['ingestion', 'mapping']) AS stage "
        "ON CONFLICT (pipeline_id, event_name, stage, minute) DO UPDATE SET "
        "parked = excluded.parked"
    )
    with tracker.transaction() as connection:
        given = {"first": first, "last": last, "parked": parked, "step": step}
        connection.execute(statement, given)


def looked(tracker: TrackerStore, now: datetime = NOW, log: Any = None, **given: Any) -> list[Any]:
    """Look and tell; return what is open."""
    parts = WatchParts(tracker, log or NoLog(), given.pop("destinations", {}), WatchLimits(**given))
    watched = watch(parts, now)
    tell(tracker, watched)
    return [one for one in read_breaches(tracker) if one.state == "open"]


def notices(tracker: TrackerStore) -> list[str]:
    with tracker.transaction() as connection:
        rows = connection.execute(text("SELECT detail ->> 'breach' FROM notices ORDER BY id"))
        return [str(row[0]) for row in rows]


def test_a_pipeline_gone_quiet_is_told_once_with_its_habit_and_ends_when_events_come(tracker):
    lived(tracker, MINUTE - 5 * WEEK - 8, MINUTE - 48, step=10)
    [breach] = looked(tracker)
    assert breach.key.kind == "quiet"
    assert breach.words == (
        "orders usually brings 80 events between 13:43 and 14:30 (median of 4 weeks); 0 since 13:42"
    )
    [same] = looked(tracker, NOW + timedelta(days=40))  # no habit is left of it by then
    assert same.id == breach.id
    lived(tracker, MINUTE + 100, MINUTE + 100)
    assert looked(tracker, NOW + timedelta(minutes=101)) == []
    assert notices(tracker) == ["quiet, opened", "quiet, explained"]


def test_a_silence_that_somebody_closed_is_not_told_again_but_the_next_one_is(tracker):
    lived(tracker, MINUTE - 5 * WEEK - 8, MINUTE - 48, step=10)
    [breach] = looked(tracker)
    close_breach(tracker, breach.id, Decision("uma", "the shop moves house"))
    assert looked(tracker, NOW + timedelta(hours=5)) == []
    lived(tracker, MINUTE + 400, MINUTE + 430)
    assert looked(tracker, NOW + timedelta(minutes=431)) == []
    [second] = looked(tracker, NOW + timedelta(minutes=580))
    assert second.id != breach.id


def test_nights_and_weekends_are_no_silence(tracker):
    for day in range(36):
        at = MINUTE - (36 - day) * 24 * 60
        if datetime.fromtimestamp(at * 60, UTC).weekday() < 5:
            lived(tracker, at - 330, at + 150, step=10)  # 09:00 to 17:00
    saturday = NOW + timedelta(days=-4, hours=5)
    assert looked(tracker, saturday) == []
    assert looked(tracker, NOW.replace(hour=6)) == []
    [breach] = looked(tracker, NOW.replace(hour=12))
    assert breach.key.kind == "quiet"
    assert "0 since 17:00 on Tue 03 Mar" in breach.words


def test_a_jump_of_parked_events_is_told_once_and_ends_when_it_falls(tracker):
    lived(tracker, MINUTE - 3000, MINUTE - 1)
    assert looked(tracker) == []
    lived(tracker, MINUTE - 8, MINUTE - 1, parked=15)
    [breach] = looked(tracker)
    assert breach.key.kind == "parked_jump"
    assert breach.words == (
        "orders: 40.0% of the events of the last 15 minutes parked (120 of 300); "
        "usually at most 0.0%"
    )
    lived(tracker, MINUTE, MINUTE + 600, parked=15)
    [same] = looked(tracker, NOW + timedelta(minutes=600))
    assert same.id == breach.id
    lived(tracker, MINUTE + 601, MINUTE + 616)
    assert looked(tracker, NOW + timedelta(minutes=617)) == []
    assert notices(tracker) == ["parked_jump, opened", "parked_jump, explained"]


def test_a_scheduled_run_that_does_not_come_is_late_and_one_that_found_nothing_is_not(tracker):
    deploy(tracker, declared(schedule="@hourly"))
    now = datetime.now(UTC).replace(minute=5)
    with tracker.transaction() as connection:
        connection.execute(
            text(
                "INSERT INTO connector_positions (pipeline_id, sequence, cursor, rows_read, "
                "updated_at) VALUES ('p', 1, '{}', 1, :at)"
            ),
            {"at": now - timedelta(hours=2)},
        )
    [breach] = looked(tracker, now)
    assert (breach.key.kind, breach.key.stage) == ("late", "ingestion")
    assert "a run of orders was due at" in breach.words
    minute = int(str(cron_schedule("@hourly", "p")).partition(" ")[0])
    assert f":{minute:02} on " in breach.words
    note_run(tracker, "p")
    assert looked(tracker, now) == []


def in_flight(tracker: TrackerStore) -> None:
    """Commit a batch with five rows that wait to be loaded."""
    epoch = acquire_lease(tracker, "processing/events.t.w", holder="h")
    told = joined(
        counts("transformation", in_first=5, passed=5, out=5), counts("staged", in_first=5)
    )
    commit_batch(tracker, batch(epoch, (0, 0, 5), counts=told, staged=staged("a")), nothing_parked)


def test_rows_that_wait_for_their_destination_are_late_until_they_are_loaded(tracker):
    in_flight(tracker)
    soon, later = (datetime.now(UTC) + timedelta(minutes=m) for m in (10, 20))
    assert looked(tracker, soon) == []
    [breach] = looked(tracker, later)
    assert (breach.key.kind, breach.key.stage) == ("late", "destination")
    assert "w commit 1; 5 events wait there" in breach.words
    assert breach.words.endswith("the objective is 15 min")
    epoch = acquire_lease(tracker, "loading/w", holder="h")
    load = LoadCommit(
        consumer="loading/w", epoch=epoch, destination="w", after=0, until=1, counts={}
    )
    commit_load(tracker, load, lambda _connection: None)
    assert looked(tracker, later) == []


def test_the_oldest_event_in_the_log_is_late_beyond_its_objective(tracker, kafka):
    pipeline = declared(team=uuid4().hex)
    deploy(tracker, pipeline)
    log = KafkaLog(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
    topic = log.ensure_topic(topic_of(pipeline))
    soon, later = (datetime.now(UTC) + timedelta(minutes=m) for m in (9, 15))
    assert looked(tracker, later, log) == []
    send(kafka.bootstrap_servers, topic.name, "e-1", "e-2")
    assert looked(tracker, soon, log) == []
    [breach] = looked(tracker, later, log)
    assert (breach.key.pipeline_id, breach.key.stage) == ("p", "transformation")
    assert "orders: the oldest event in the log waits for 1" in breach.words
    assert f"{topic.name}, partition" in breach.words
    assert breach.detail["event_id"] == "e-1"
    with tracker.transaction() as connection:
        for partition in range(topic.partitions):
            connection.execute(
                text("INSERT INTO topic_offsets VALUES (:cluster, :id, :number, :name, 2)"),
                {
                    "cluster": topic.cluster_id,
                    "id": topic.topic_id,
                    "number": partition,
                    "name": topic.name,
                },
            )
    assert looked(tracker, later, log) == []


def send(servers: str, topic: str, *ids: str) -> None:
    """Send events of pipeline ``p`` to a topic's first partition."""
    producer = Producer({"bootstrap.servers": servers, "log_level": 3})
    for event_id in ids:
        event = Event(
            id=event_id,
            pipeline_id="p",
            team="t",
            name="order",
            key="k",
            source_version=1,
            intake_version=1,
            intake_minute=MINUTE,
            time="2026-03-04T14:30:00Z",
            data={"id": 1},
        )
        producer.produce(topic, encode(event), b"k", partition=0)
    assert producer.flush(30) == 0


def test_a_check_that_cannot_look_keeps_what_it_told_and_holds_up_no_other(tracker):
    lived(tracker, MINUTE - 5 * WEEK - 8, MINUTE - 48, step=10)
    with tracker.transaction() as connection:
        connection.execute(
            text(
                "INSERT INTO breaches (pipeline_id, stage, kind, detail) VALUES "
                "('p', 'transformation', 'late', '{\"words\": \"told\"}')"
            )
        )
    parts = WatchParts(tracker, AwayLog(), {})  # type: ignore[arg-type]
    watched = watch(parts, NOW)
    assert [one.kind for one in watched.findings] == ["quiet", "late"]
    assert watched.problems == ["no Kafka broker answers"]
    assert {one.key.kind for one in looked(tracker, log=AwayLog())} == {"quiet", "late"}
    assert {one.key.kind for one in looked(tracker)} == {"quiet"}


def test_a_table_that_lost_rows_is_told_and_right_again_once_they_are_back_or_accepted(
    tracker, postgres
):
    dsn = clean_database(postgres)
    pipeline = declared()
    spec = pipeline.events["order"].table
    given = {"destinations": {"w": DestinationSettings(dsn=dsn)}, "drift": DriftLimits(every_s=0)}
    with open_destination("w", given["destinations"]["w"]) as destination:
        rows = rows_of([Order(n, 1, 1) for n in range(5)], spec)
        destination.load([Commit(1, (rows,))], lambda _refused: None)
    with tracker.transaction() as connection:  # as the load's commit in the ledger does
        counted = (
            "INSERT INTO ledger_totals VALUES (:id, 'order', 'destination') ON CONFLICT DO NOTHING"
        )
        connection.execute(text(counted), {"id": pipeline.id})
    assert looked(tracker, **given) == []
    ask(dsn, "DELETE FROM shop.orders WHERE id < 2")
    [breach] = looked(tracker, **given)
    assert (breach.key.kind, breach.key.event_name, breach.gap) == ("drift", "order", 2)
    assert "shop.orders has 3 rows, loads put 5 there: 2 were deleted" in breach.words
    ask(dsn, "INSERT INTO shop.orders SELECT n, 'x', 1, 1, now() FROM generate_series(0, 1) AS n")
    assert looked(tracker, **given) == []
    ask(dsn, "DELETE FROM shop.orders WHERE id < 3")
    [breach] = looked(tracker, **given)
    close_breach(tracker, breach.id, Decision("uma", "asked for by the law"))
    assert looked(tracker, **given) == []
    ask(dsn, "DELETE FROM shop.orders WHERE id = 3")
    [breach] = looked(tracker, **given)
    assert breach.gap == 1
    away = {"w": DestinationSettings(dsn="postgresql://127.0.0.1:1/none")}
    parts = WatchParts(tracker, NoLog(), away)  # type: ignore[arg-type]
    watched = watch(parts, NOW)
    assert [one.kind for one in watched.findings] == ["drift"]
    assert len(watched.problems) == 1


def test_a_row_that_the_source_brings_back_ends_its_breach_and_of_two_one_stays(tracker, postgres):
    dsn = clean_database(postgres)
    pipeline = declared()
    spec = pipeline.events["order"].table
    given = {"destinations": {"w": DestinationSettings(dsn=dsn)}, "drift": DriftLimits(every_s=0)}

    def load(number, *orders):
        with open_destination("w", given["destinations"]["w"]) as destination:
            destination.load([Commit(number, (rows_of(orders, spec),))], lambda _refused: None)

    load(1, *(Order(n, 1, 1) for n in range(5)))
    with tracker.transaction() as connection:  # as the load's commit in the ledger does
        counted = (
            "INSERT INTO ledger_totals VALUES (:id, 'order', 'destination') ON CONFLICT DO NOTHING"
        )
        connection.execute(text(counted), {"id": pipeline.id})
    assert looked(tracker, **given) == []
    ask(dsn, "DELETE FROM shop.orders WHERE id = 1")
    [breach] = looked(tracker, **given)
    assert "has 4 rows, loads put 5 there: 1 was deleted" in breach.words
    load(2, Order(1, 2, 2), Order(9, 2, 2))
    assert looked(tracker, **given) == []
    ask(dsn, "DELETE FROM shop.orders WHERE id IN (1, 2)")
    load(3, Order(1, 3, 3))
    [breach] = looked(tracker, **given)
    assert (breach.gap, "has 5 rows, loads put 6 there" in breach.words) == (1, True)
    load(4, Order(2, 4, 4))
    assert looked(tracker, **given) == []


def ask(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement)
