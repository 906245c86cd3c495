"""Deploy and balance on the real PostgreSQL and Kafka."""

from __future__ import annotations

import io
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sqlalchemy import text
from tests.support import orders
from tests.support.books import batch, counts, joined, nothing_parked, open_books, staged

from waybill.cli.demo import Figures, table
from waybill.deployment import (
    ActivePipelines,
    active_heads,
    active_pipeline,
    active_pipelines,
    deploy,
    elsewhere,
    pipeline_of,
)
from waybill.errors import InputError
from waybill.events import Event, encode
from waybill.ledger import (
    IntakeCommit,
    LoadCommit,
    acquire_lease,
    commit_batch,
    commit_intake,
    commit_load,
)
from waybill.pipelines import load_pipeline, topic_of
from waybill.reconciliation.balance_report import BalanceReport, balance
from waybill.settings import KafkaSettings
from waybill.storage import KafkaLog, TrackerStore, open_log

pytestmark = pytest.mark.serves


@pytest.fixture
def tracker(postgres: Any) -> Iterator[TrackerStore]:
    with open_books(postgres, "operations") as books:
        yield books


def query(tracker: TrackerStore, sql: str, **values: Any) -> list[Any]:
    with tracker.transaction() as connection:
        found = connection.execute(text(sql), values)
        return [tuple(row) for row in found] if found.returns_rows else []


def edited(folder: Path, **words: str) -> Path:
    """Write the orders pipeline with lines of its declaration changed; another pipeline is of the team of ``a``."""
    home = orders.write_orders(folder, rows=1)
    path = home / "pipeline.yaml"
    if "id" in words:
        words = {"team": orders.team_of(folder.parent / "a"), **words}
    for name, value in words.items():
        old = next(line for line in path.read_text().splitlines() if line.startswith(f"{name}:"))
        path.write_text(path.read_text().replace(old, f"{name}: {value}"))
    if "name" in words:
        home = home.rename(folder / words["name"])
    return home


def test_a_deploy_writes_a_version_and_who_did_it(tracker: TrackerStore, tmp_path: Path) -> None:
    home = orders.write_orders(tmp_path, rows=1)
    report = deploy(tracker, home, who="ann")
    assert (report.pipeline, report.number, report.changed) == ("orders", 1, True)
    assert active_pipelines(tracker) == {"test-orders": load_pipeline(home)}
    assert query(tracker, "SELECT who, action, target, detail->>'version' FROM audit_log") == [
        ("ann", "deploy", "test-orders", report.version)
    ]


def test_a_deploy_of_the_active_version_changes_nothing(
    tracker: TrackerStore, tmp_path: Path
) -> None:
    home = orders.write_orders(tmp_path, rows=1)
    first = deploy(tracker, home, who="ann")
    again = deploy(tracker, home, who="bob")
    assert (again.version, again.number, again.changed) == (first.version, 1, False)
    assert query(tracker, "SELECT count(*) FROM audit_log") == [(1,)]


def test_versions_go_forth_and_back_and_the_newest_deploy_is_active(
    tracker: TrackerStore, tmp_path: Path
) -> None:
    first = deploy(tracker, orders.write_orders(tmp_path, rows=1), who="ann")
    fixed = deploy(tracker, orders.write_orders(tmp_path, rows=1, fixed=True), who="ann")
    back = deploy(tracker, orders.write_orders(tmp_path, rows=1), who="bob")
    assert [first.number, fixed.number, back.number] == [1, 2, 3]
    assert back.version == first.version != fixed.version
    assert active_pipeline(tracker, "orders").version == first.version
    assert query(tracker, "SELECT number, deployed_by FROM pipeline_versions ORDER BY 1") == [
        (1, "ann"),
        (2, "ann"),
        (3, "bob"),
    ]


def test_a_version_is_read_once_and_a_newer_one_at_the_next_look(
    tracker: TrackerStore, tmp_path: Path
) -> None:
    deploy(tracker, orders.write_orders(tmp_path / "a", rows=1), who="ann")
    deploy(tracker, edited(tmp_path / "b", id="second", name="second"), who="ann")
    reader = ActivePipelines(tracker)
    first, again = reader.read(), reader.read()
    assert {name: again[name] is first[name] for name in again} == {
        "test-orders": True,
        "second": True,
    }
    fixed = deploy(tracker, orders.write_orders(tmp_path / "a", rows=1, fixed=True), who="ann")
    newer = reader.read()
    assert newer["test-orders"].version == fixed.version
    assert newer["second"] is first["second"]
    assert newer == active_pipelines(tracker)


def test_a_name_that_belongs_to_another_pipeline_is_refused(
    tracker: TrackerStore, tmp_path: Path
) -> None:
    deploy(tracker, orders.write_orders(tmp_path / "a", rows=1), who="ann")
    with pytest.raises(InputError, match="'orders' exists with id 'test-orders'"):
        deploy(tracker, edited(tmp_path / "b", id="another"), who="ann")
    assert set(active_pipelines(tracker)) == {"test-orders"}
    assert query(tracker, "SELECT count(*) FROM audit_log") == [(1,)]


def test_a_pipeline_may_be_renamed_but_not_onto_another(
    tracker: TrackerStore, tmp_path: Path
) -> None:
    deploy(tracker, orders.write_orders(tmp_path, rows=1), who="ann")
    deploy(tracker, edited(tmp_path, name="renamed"), who="ann")
    assert active_pipeline(tracker, "renamed").id == "test-orders"
    assert active_pipeline(tracker, "test-orders").name == "renamed"
    with pytest.raises(InputError, match=r"no pipeline 'orders' is deployed .*renamed"):
        active_pipeline(tracker, "orders")


def test_a_pipeline_is_read_by_name_or_id_and_no_other_is(
    tracker: TrackerStore, tmp_path: Path
) -> None:
    deploy(tracker, edited(tmp_path / "a", name="first"), who="ann")
    deploy(tracker, edited(tmp_path / "b", id="orders", name="second"), who="ann")
    # as an older Waybill allowed it
    query(tracker, "UPDATE pipelines SET name = 'orders' WHERE id = 'test-orders'")
    deploy(tracker, edited(tmp_path / "c", id="third", name="third"), who="ann")
    query(
        tracker,
        "UPDATE pipeline_versions SET declaration = CAST('{\"id\": 1}' AS jsonb) "
        "WHERE pipeline_id = 'third'",
    )
    assert active_pipeline(tracker, "orders").id == "test-orders"  # the name comes first
    assert active_pipeline(tracker, "second") == pipeline_of(tracker, "orders")
    with pytest.raises(InputError, match="no pipeline with id 'second' is deployed"):
        pipeline_of(tracker, "second")
    with pytest.raises(InputError, match="stored Pipeline cannot be read"):
        active_pipeline(tracker, "third")


def test_a_deploy_names_another_that_writes_its_table_as_one_of_items(
    tracker: TrackerStore, tmp_path: Path
) -> None:
    deploy(tracker, edited(tmp_path / "b", id="second", name="second"), who="ann")
    table = '{"schema_name": "shop", "name": "others", "children": [{"name": "orders"}]}'
    query(
        tracker,
        "UPDATE pipeline_versions "
        "SET declaration = jsonb_set(declaration, '{events,order,table}', CAST(:spec AS jsonb))",
        spec=table,
    )
    [warning] = deploy(tracker, orders.write_orders(tmp_path / "a", rows=1), who="ann").warnings
    assert "pipelines 'orders' and 'second' both write table shop.orders of" in warning


def test_a_head_is_the_newest_version_without_event_names_and_code(
    tracker: TrackerStore, tmp_path: Path
) -> None:
    deploy(tracker, orders.write_orders(tmp_path / "a", rows=1), who="ann")
    deploy(tracker, edited(tmp_path / "b", id="second", name="second"), who="ann")
    deploy(tracker, orders.write_orders(tmp_path / "a", rows=1, fixed=True), who="ann")
    whole = active_pipelines(tracker)
    assert {pipeline_id: head.to_json() for pipeline_id, head in active_heads(tracker).items()} == {
        pipeline_id: one.model_dump(
            mode="json", exclude={"events", "transformation_code", "shared_code"}
        )
        for pipeline_id, one in whole.items()
    }


def test_pipelines_that_send_to_another_topic_are_told(
    tracker: TrackerStore, tmp_path: Path
) -> None:
    deploy(tracker, orders.write_orders(tmp_path / "a", rows=1), who="ann")
    deploy(tracker, edited(tmp_path / "b", id="second", name="second"), who="ann")
    [first] = [one for one in active_pipelines(tracker).values() if one.id != "second"]
    ids = [first.id, "second", "nobody", "x'; DROP TABLE pipelines; --", ""]
    with tracker.transaction() as connection:
        connection.execute(text("UPDATE pipelines SET team = 'red' WHERE id = 'second'"))
        assert elsewhere(connection, ids, topic_of(first)) == {"second"}
        there = f"events.red.{first.destination}"
        assert elsewhere(connection, ids, there) == {first.id}
        assert elsewhere(connection, [], there) == frozenset()


def test_two_deploys_of_one_pipeline_at_once_number_their_versions(
    tracker: TrackerStore, tmp_path: Path
) -> None:
    first = orders.write_orders(tmp_path, rows=1)
    versions = []
    for n in range(4):  # the same team, so the same topic; four versions of the code
        home = tmp_path / f"v{n}" / "orders"
        shutil.copytree(first, home)
        code = f"def transform(event):\n    return {n + 1} and event\n"
        (home / "transformation.py").write_text(code)
        versions.append(home)
    errors: list[BaseException] = []

    def run(home: Path) -> None:
        try:
            deploy(tracker, home, who="ann")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(home,)) for home in versions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert errors == []
    assert query(tracker, "SELECT number FROM pipeline_versions ORDER BY 1") == [
        (1,),
        (2,),
        (3,),
        (4,),
    ]


def test_two_pipelines_that_want_one_name_at_once_get_one_and_an_error(
    tracker: TrackerStore, tmp_path: Path
) -> None:
    """The second waits at the unique index, where only the database knows of the first."""
    home = orders.write_orders(tmp_path, rows=1)
    results: list[BaseException | None] = []

    def late() -> None:
        try:
            deploy(tracker, home, who="late")
            results.append(None)
        except BaseException as error:
            results.append(error)

    with tracker.transaction() as connection:
        connection.execute(
            text("INSERT INTO pipelines (id, name, team) VALUES ('other', 'orders', 't')")
        )
        thread = threading.Thread(target=late)
        thread.start()
        thread.join(0.5)
        assert results == [], "it did not wait"
    thread.join(240)
    assert isinstance(results[0], InputError)


@pytest.fixture
def log(kafka: Any) -> KafkaLog:
    return open_log(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))


def event(number: int, **changes: Any) -> Event:
    values = {"stage": "transformation", "attempt": 0, **changes}
    return Event(
        f"e{number}",
        "test-orders",
        "t",
        "order",
        f"[{number}]",
        0,
        1,
        29_000_000,
        "2026",
        {},
        **values,
    )


def send(kafka: Any, topic: str, values: list[bytes]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


@pytest.fixture
def books(tracker: TrackerStore, log: KafkaLog, kafka: Any, tmp_path: Path) -> TrackerStore:
    """Six events taken in, four of them processed; of those one parked, two loaded, one staged."""
    home = orders.write_orders(tmp_path, rows=1)
    deploy(tracker, home, who="ann")
    pipeline = load_pipeline(home)
    topic = log.ensure_topic(topic_of(pipeline))
    send(kafka, topic.name, [encode(event(n)) for n in range(6)])
    mine = {"pipeline": "test-orders"}
    taken = counts("ingestion", in_first=6, passed=6, out=6, **mine)
    commit_intake(tracker, IntakeCommit("test-orders", 1, {}, 6, taken), nothing_parked)
    own = {
        "cluster_id": topic.cluster_id,
        "topic_id": topic.topic_id,
        "topic": topic.name,
        "destination": "warehouse",
    }
    epoch = acquire_lease(tracker, "processing/events.t.w", holder="me")
    done = joined(
        counts("transformation", in_first=3, passed=2, out=2, parked=1, **mine),
        counts("mapping", in_first=2, passed=2, out=2, **mine),
        counts("staged", in_first=2, **mine),
    )
    commit_batch(tracker, batch(epoch, (0, 0, 3), counts=done, staged=staged("a"), **own), park_one)
    done = joined(
        counts("transformation", in_first=1, passed=1, out=1, **mine),
        counts("mapping", in_first=1, passed=1, out=1, **mine),
        counts("staged", in_first=1, **mine),
    )
    commit_batch(
        tracker, batch(epoch, (0, 3, 4), counts=done, staged=staged("b"), **own), nothing_parked
    )
    loader = acquire_lease(tracker, "loading/warehouse", holder="me")
    load = counts("destination", in_first=2, passed=2, out=2, **mine)
    commit = LoadCommit("loading/warehouse", loader, "warehouse", 0, 1, {1: load})
    commit_load(tracker, commit, nothing_parked)
    return tracker


def park_one(connection: Any, _number: int) -> None:
    connection.execute(
        text(
            "INSERT INTO parked_partitions (pipeline_id, event_name, stage, error_type, parked) "
            "VALUES ('test-orders', 'order', 'transformation', 'null_value', 1)"
        )
    )


def told(report: BalanceReport) -> tuple[int, int, int, int, int]:
    return (
        report.ingested,
        report.delivered,
        report.parked,
        report.in_flight,
        report.unaccounted,
    )


def test_the_balance_counts_what_is_in_the_log_and_staged(
    books: TrackerStore, log: KafkaLog
) -> None:
    report = balance(books, log)
    assert told(report) == (6, 2, 1, 3, 0)
    (group,) = report.pipelines
    assert (group.pipeline, group.breaches) == ("orders", {})
    assert group.stages["transformation"].in_flight == 2
    assert group.stages["destination"].in_flight == 1
    assert report.to_json()["minutes"][0]["breaches"] == {}
    assert told(balance(books, log, pipeline_id="test-orders")) == told(report)
    assert told(balance(books, log, pipeline_id="another")) == (0, 0, 0, 0, 0)
    assert told(balance(books, log, since_minute=29_000_001))[0] == 0


def test_the_demo_shows_what_is_on_the_way_and_an_event_that_is_counted_twice(
    books: TrackerStore, log: KafkaLog
) -> None:
    figures = Figures(balance(books, log).pipelines, [])
    assert str(figures).endswith("on the way 3")
    query(
        books,
        "UPDATE ledger_minutes SET in_first = 9, passed = 9, out = 9 WHERE stage = 'destination'",
    )
    figures = Figures(balance(books, log).pipelines, [])
    assert (figures.ingested, figures.delivered, figures.in_flight) == (6, 9, 3)
    assert "on the way 3  7 too many: see waybill balance" in str(figures)
    assert not figures.at_rest
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(table(figures))
    shown = console.file.getvalue()
    assert "orders: 7 too many; see waybill balance" in shown


def test_an_event_that_nobody_took_in_is_found_in_the_log(
    books: TrackerStore, log: KafkaLog, kafka: Any
) -> None:
    (topic,) = log.topics() & {topic_of(p) for p in active_pipelines(books).values()}
    send(kafka, topic, [encode(event(9))])
    report = balance(books, log)
    assert report.pipelines[0].breaches == {"transformation": -1}
    assert report.unaccounted == 1


def test_a_replay_under_way_is_in_flight_and_one_that_got_lost_is_a_breach(
    books: TrackerStore, log: KafkaLog, kafka: Any
) -> None:
    query(books, "UPDATE parked_partitions SET parked = 0, replayed = 1")
    report = balance(books, log)
    assert report.pipelines[0].breaches == {"transformation (replays)": 1}
    assert report.unaccounted == 1
    (topic,) = log.topics() & {topic_of(p) for p in active_pipelines(books).values()}
    send(kafka, topic, [encode(event(2, attempt=1, replay_id="r"))])
    assert told(balance(books, log)) == (6, 2, 0, 4, 0)


def test_parked_events_that_are_in_no_segment_are_a_breach(
    books: TrackerStore, log: KafkaLog
) -> None:
    query(books, "DELETE FROM parked_partitions")
    report = balance(books, log)
    assert report.pipelines[0].breaches == {"transformation (parked)": 1}
    assert report.unaccounted == 1


def test_segments_that_nobody_counted_are_a_breach(books: TrackerStore, log: KafkaLog) -> None:
    query(
        books,
        "INSERT INTO parked_partitions (pipeline_id, event_name, stage, error_type, discarded) "
        "VALUES ('test-orders', 'nobody', 'mapping', 'type_mismatch', 2)",
    )
    report = balance(books, log)
    assert [(g.event_name, g.breaches) for g in report.pipelines] == [
        ("nobody", {"mapping (parked)": -2}),
        ("order", {}),
    ]
    assert report.unaccounted == 2


def test_breaches_of_two_minutes_never_cancel_in_the_sum(
    books: TrackerStore, log: KafkaLog
) -> None:
    balance(books, log)
    query(
        books,
        "INSERT INTO ledger_minutes (pipeline_id, event_name, stage, minute, in_first) VALUES "
        "('test-orders', 'order', 'ingestion', 5, 2)",
    )
    query(
        books,
        "INSERT INTO ledger_minutes (pipeline_id, event_name, stage, minute, passed) VALUES "
        "('test-orders', 'order', 'ingestion', 6, 2)",
    )
    assert balance(books, log).unaccounted == 4
