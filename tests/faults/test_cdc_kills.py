"""SIGKILL while changes of others are read: what is in Kafka ends as the source is."""

from __future__ import annotations

import json
import random
import secrets
from typing import Any

import pytest
from confluent_kafka import Producer
from pydantic import SecretStr
from tests.support import cdc, children

from waybill import services
from waybill.events import decode
from waybill.ingestion import run as ingestion_run
from waybill.ingestion.connectors.postgres_cdc.connector import PostgresCdcConnector
from waybill.pipelines import topic_name
from waybill.producer import LosslessProducer
from waybill.settings import SourceSettings
from waybill.storage import open_log

pytestmark = pytest.mark.serves
SEED = 20261126
ROWS, HIGHEST = 300, 350
POINTS = [
    (LosslessProducer, "produce"),
    (LosslessProducer, "mark"),
    (ingestion_run, "commit_intake"),
    (PostgresCdcConnector, "confirm"),
]


class Shop:
    """A source with a pipeline that reads it."""

    def __init__(self, dsn: str, settings: Any) -> None:
        self.team = f"t{secrets.token_hex(4)}"
        sources = SourceSettings(connections={"shop": SecretStr(dsn)})
        folder = settings.home / "pipelines"
        self.settings = settings.model_copy(update={"sources": sources, "pipelines_dir": folder})
        self.sql = cdc.connected(dsn)
        self.sql.execute("CREATE TABLE orders (id int PRIMARY KEY, name text, big text)")
        self.sql.execute("ALTER TABLE orders ALTER big SET STORAGE EXTERNAL")
        home = cdc.write_pipeline(folder, team=self.team)
        services.migrate(self.settings)
        services.run_deploy(self.settings, home, who="test")

    def ingest(self) -> Any:
        return services.run_ingest(self.settings, "orders")

    def check(self) -> list[Any]:
        """Fail unless Kafka's newest of each key is the table, and the books add up."""
        log = open_log(self.settings.kafka)
        topic = log.describe(topic_name(self.team, "warehouse"))
        events = [decode(value) for value in log.read(topic.name, log.watermarks(topic))]
        newest: dict[int, Any] = {}
        for event in events:
            known = newest.get(event.data["id"])
            if known is None or known.source_version < event.source_version:
                newest[event.data["id"]] = event
        found = {key: event.data for key, event in newest.items() if event.op == "upsert"}
        rows = self.sql.execute("SELECT id, name, big FROM orders").fetchall()
        assert found == {row[0]: dict(zip(("id", "name", "big"), row, strict=True)) for row in rows}
        report = services.balance(self.settings)
        assert report.unaccounted == 0
        assert report.ingested == len(events)
        return events


@pytest.fixture
def shop(postgres, stack_settings):
    shop = Shop(postgres.database("shop"), stack_settings)
    yield shop
    shop.sql.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        " WHERE database = current_database() AND NOT active"
    )
    shop.sql.close()


def test_a_killed_run_loses_nothing_and_ends_as_the_table_is(shop):
    kill_and_check(shop, 2)


@pytest.mark.campaign
def test_twenty_kills_lose_nothing_and_end_as_the_table_is(shop):
    kill_and_check(shop, 20)


def kill_and_check(shop, kills):
    chance = random.Random(SEED)
    shop.sql.execute(
        "INSERT INTO orders SELECT g, 'name ' || g FROM generate_series(1, %s::int) g", [ROWS]
    )
    for number in range(kills):
        owner, name = POINTS[number % len(POINTS)]
        most = {"produce": 30}.get(name, 1)  # each run has more
        children.killed((owner, name, chance.randint(1, most)), shop.ingest)
        for _ in range(120):
            cdc.change_orders(shop.sql, chance, highest=HIGHEST)
    shop.ingest()
    shop.check()
    assert shop.ingest().read == 0


@pytest.mark.campaign
def test_a_source_that_is_restarted_under_its_slot_is_read_on(stack_settings):
    with cdc.source_server() as server:
        shop = Shop(server.create_database("shop"), stack_settings)
        chance = random.Random(SEED)
        shop.sql.execute("INSERT INTO orders SELECT g FROM generate_series(1, 100) g")
        shop.ingest()
        for _ in range(60):
            cdc.change_orders(shop.sql, chance, highest=HIGHEST)
        children.killed((LosslessProducer, "produce", 20), shop.ingest)
        server.stop()
        server.start()
        shop.sql = cdc.connected(server.dsn("shop"))
        for _ in range(60):
            cdc.change_orders(shop.sql, chance, highest=HIGHEST)
        shop.ingest()
        shop.check()
        shop.sql.close()


@pytest.mark.campaign
def test_a_killed_run_over_a_topic_has_each_of_its_messages(stack_settings):
    team = f"t{secrets.token_hex(4)}"
    address = stack_settings.kafka.bootstrap_servers
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": address}}
    sources = SourceSettings(connections={"theirs": SecretStr(json.dumps(connection))})
    folder = stack_settings.home / "pipelines"
    settings = stack_settings.model_copy(update={"sources": sources, "pipelines_dir": folder})
    log, theirs = open_log(settings.kafka), f"theirs-{team}"
    log.create_topic(theirs, 3)
    producer = Producer({"bootstrap.servers": address})
    for number in range(ROWS):
        producer.produce(theirs, json.dumps({"id": number}), str(number), number % 3)
    assert producer.flush(30) == 0
    home = cdc.write_pipeline(folder, team=team)
    options = f"  connection: theirs\n  options: {{idle_s: 0.5, topics: {{order: {theirs}}}}}\n"
    text = (home / "pipeline.yaml").read_text().replace("postgres_cdc", "kafka")
    begin, end = text.index("  connection:"), text.index("events:")
    text = text[:begin] + "  event: order\n  page_rows: 40\n" + options + text[end:]
    (home / "pipeline.yaml").write_text(text)
    services.migrate(settings)
    services.run_deploy(settings, home, who="test")
    chance = random.Random(SEED)
    for owner, name in POINTS[:3]:
        most = {"produce": 30}.get(name, 1)  # each run has more
        point = (owner, name, chance.randint(1, most))
        children.killed(point, lambda: services.run_ingest(settings, "orders"))
    services.run_ingest(settings, "orders")
    topic = log.describe(topic_name(team, "warehouse"))
    found = [decode(value) for value in log.read(topic.name, log.watermarks(topic))]
    assert sorted(event.data["id"] for event in found) == list(range(ROWS))
    report = services.balance(settings)
    assert (report.ingested, report.unaccounted) == (ROWS, 0)
    log.delete_topic(theirs)
