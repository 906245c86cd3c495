"""``waybill topics`` and ``waybill pipelines reread``, on the real Kafka and tracker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import text
from tests.support import cut_logs, orders
from tests.support.books import batch, nothing_parked
from typer.testing import CliRunner

from waybill import services
from waybill.cli import app
from waybill.errors import InputError
from waybill.ledger import LastRead, OffsetRange, acquire_lease, commit_batch
from waybill.services.ingestion import run_ingest
from waybill.storage import config_faults, open_log, open_tracker, safe_config

pytestmark = pytest.mark.serves
ROWS = 120


class Shop:
    """The orders pipeline, its topic, and the command line."""

    def __init__(self, settings: Any, kafka: Any) -> None:
        self.settings = settings
        self.servers = kafka.bootstrap_servers
        self.topic = orders.topic_of(settings.pipelines_dir)
        self.log = open_log(settings.kafka)

    def run(self, *arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*arguments])
        assert done.exit_code == code, (done.output, done.exception)
        return done.output

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code))

    def sql(self, query: str) -> list[Any]:
        with open_tracker(self.settings.tracker) as tracker, tracker.transaction() as connection:
            return list(connection.execute(text(query)).all())


@pytest.fixture
def shop(stack_settings, kafka, tmp_path, monkeypatch):
    folder = tmp_path / "pipelines"
    orders.write_orders(folder, rows=ROWS)
    kafka_settings = stack_settings.kafka.model_copy(update={"topic_partitions": 1})
    settings = stack_settings.model_copy(update={"pipelines_dir": folder, "kafka": kafka_settings})
    services.migrate(settings)
    services.run_deploy(settings, folder / "orders", who="test")
    for name, value in settings.to_env().items():
        monkeypatch.setenv(name, value)
    return Shop(settings, kafka)


def read_ten(shop):
    """Commit the topic's first ten records, as processing does."""
    topic = shop.log.describe(shop.topic)
    [(_, newest)] = [r for r in shop.log.records(shop.topic, {0: (9, 10)})]
    end = shop.log.ends(topic)[0]
    with open_tracker(shop.settings.tracker) as tracker:
        last = LastRead(9, newest.at_ms, newest.digest, end.leader_epoch, end.offset)
        consumer = f"processing/{shop.topic}"
        epoch = acquire_lease(tracker, consumer, holder="test")
        done = batch(
            epoch,
            consumer=consumer,
            topic=shop.topic,
            topic_id=topic.topic_id,
            cluster_id=topic.cluster_id,
            ranges=[OffsetRange(0, 0, 10, 10, last=last)],
        )
        commit_batch(tracker, done, nothing_parked)


def test_a_dangerous_topic_is_refused_and_mended_by_the_command_that_the_error_names(shop):
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": shop.servers, "log_level": 2})
    config = {"cleanup.policy": "compact", "retention.ms": "604800000"}
    admin.create_topics([NewTopic(shop.topic, 1, 1, config=config)])[shop.topic].result(30)
    with pytest.raises(InputError, match=f"waybill topics configure {shop.topic}") as refused:
        run_ingest(shop.settings, "orders")
    assert "cleanup.policy=compact" in str(refused.value)
    assert "retention.ms=604800000" in str(refused.value)

    [line] = shop.json("topics", "list", code=2)
    assert line["state"] == "unsafe"
    shown = CliRunner().invoke(app, ["topics", "configure", shop.topic], input="n\n")
    assert "retention.ms: 604800000 -> -1" in shown.output
    assert shown.exit_code == 1
    assert shop.json("topics", "list", code=2)[0]["state"] == "unsafe"
    changed = shop.json("topics", "configure", shop.topic, "--yes", "--who", "ann")["changed"]
    assert changed["cleanup.policy"] == {"before": "compact", "after": "delete"}
    assert config_faults(shop.log.config(shop.topic), 1) == []
    assert shop.json("topics", "list")[0]["state"] == "ok"
    assert run_ingest(shop.settings, "orders").accepted > 0
    [(who, action)] = shop.sql("SELECT who, action FROM audit_log WHERE action LIKE 'configure%'")
    assert (who, action) == ("ann", "configure_topic")


def test_topics_are_made_with_the_configuration_that_is_checked(shop):
    shop.log.ensure_topic(shop.topic)
    found = shop.log.config(shop.topic)
    assert {name: found[name] for name in safe_config(1)} == safe_config(1)
    assert safe_config(1)["min.insync.replicas"] == "1"
    assert safe_config(3)["min.insync.replicas"] == "2"


def test_what_a_source_has_is_read_again_once_it_is_asked_for(shop):
    assert shop.json("pipelines", "reread", "orders", "--why", "x", "--yes")["never_read"]
    first = run_ingest(shop.settings, "orders")
    assert first.read == ROWS
    assert run_ingest(shop.settings, "orders").read == 0
    shop.run("pipelines", "reread", "orders", "--yes", code=1)  # no reason
    asked = shop.json("pipelines", "reread", "orders", "--why", "lost", "--who", "ann", "--yes")
    assert not asked["never_read"]
    again = run_ingest(shop.settings, "orders")
    assert (again.read, again.accepted) == (ROWS, first.accepted)
    assert run_ingest(shop.settings, "orders").read == 0
    assert ("ann",) in shop.sql("SELECT who FROM audit_log WHERE action = 'reread_source'")
    assert services.balance(shop.settings).unaccounted == 0


def test_a_list_says_what_a_start_would_say_before_any_consumer_ran(shop):
    run_ingest(shop.settings, "orders")
    read_ten(shop)
    assert shop.json("topics", "list")[0]["state"] == "ok"
    cut_logs.delete_records(shop.servers, shop.topic, 0, 25)
    [line] = shop.json("topics", "list", code=2)
    assert (line["state"], line["stops"]) == ("stopped", [])
    assert [fault["kind"] for fault in line["log_faults"]] == ["deleted"]
    shown = shop.run("topics", "list", code=2)
    assert "15 events were deleted unread" in " ".join(shown.split())
    assert f"waybill topics settle {shop.topic}" in shown
    assert shop.sql("SELECT count(*) FROM topic_stops") == [(0,)]


def test_what_was_deleted_unread_is_settled_with_a_reread_by_the_command(shop):
    run_ingest(shop.settings, "orders")
    read_ten(shop)
    cut_logs.delete_records(shop.servers, shop.topic, 0, 25)

    plan = shop.json("topics", "settle", shop.topic, "--plan")
    assert (plan["settled"], plan["lost"]) == (False, 15)
    assert shop.json("topics", "show", shop.topic)["state"] == "stopped"
    shown = CliRunner().invoke(app, ["topics", "settle", shop.topic, "--why", "x"], input="n\n")
    assert "15 events" in shown.output
    assert "waybill pipelines reread" in shown.output
    assert max(map(len, shop.run("topics", "list", code=2).splitlines()[:6])) <= 80
    shop.run("topics", "settle", shop.topic, "--yes", code=1)  # no reason
    done = shop.json("topics", "settle", shop.topic, "--why", "x", "--reread", "--yes")
    assert (done["settled"], done["reread"]) == (True, True)
    [line] = shop.json("topics", "list")
    assert (line["state"], line["partitions"][0]["position"]) == ("ok", 25)
    assert line["settled"][0]["settlement"]["lost"] == 15
    assert run_ingest(shop.settings, "orders").read == ROWS
    told = shop.sql("SELECT pipeline_id, detail ->> 'topic' FROM notices WHERE kind = 'topic'")
    assert [tuple(row) for row in told] == [("test-orders", shop.topic)]


def test_two_stops_of_one_partition_are_settled_at_one_offset(shop, kafka):
    """A log that lost its tail, and of which unread records were deleted since."""
    shop.log.ensure_topic(shop.topic)
    cut_logs.send_one_by_one(shop.servers, shop.topic, [b"%d" % n for n in range(40)])
    read_ten(shop)
    cut_logs.cut_logs(kafka, {(shop.topic, 0): 30})
    shop.json("topics", "settle", shop.topic, "--plan")
    cut_logs.delete_records(shop.servers, shop.topic, 0, 15)
    plan = shop.json("topics", "settle", shop.topic, "--partition", "0", "--at", "15", "--plan")
    assert [(step["kind"], step["move"]) for step in plan["steps"]] == [
        ("cut", [10, 15]), ("deleted", [15, 15]),
    ]  # fmt: skip
    assert plan["lost"] == 10 + 5
    shop.run("topics", "settle", shop.topic, "--partition=0", "--at=15", "--why=x", "--yes")
    [line] = shop.json("topics", "list")
    assert (line["state"], line["partitions"][0]["position"]) == ("ok", 15)
    assert len(line["settled"]) == 2
