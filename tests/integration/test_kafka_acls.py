"""``waybill access kafka-acls``: each reaches what is its own, and no more."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from pydantic import SecretStr
from tests import servers
from tests.support import guarded_kafka, orders, secured_kafka
from typer.testing import CliRunner

from waybill import services
from waybill.access import read_audit
from waybill.cli import app
from waybill.errors import InputError, RetryError
from waybill.producer import LosslessProducer
from waybill.settings import AccessSettings, KafkaSettings, Settings, WalSettings
from waybill.storage import KafkaAcl, KafkaAcls, librdkafka_config, open_log, open_tracker
from waybill.storage.range_reader import PartitionRange, RangeReader

pytestmark = pytest.mark.serves
OURS, CRM = f"User:{secured_kafka.USER}", f"User:{secured_kafka.OTHER}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[guarded_kafka.GuardedKafkaServer]:
    """A broker with access rules, and none of them made."""
    home = servers.new_home()
    with servers.started(guarded_kafka.start, home) as server:
        yield server
    servers.end_home(home)


@pytest.fixture
def settings(
    stack_settings: Settings,
    guarded: guarded_kafka.GuardedKafkaServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Settings:
    """Settings of an administrator; a pipeline of the team `shop` is deployed."""
    access = AccessSettings(kafka_principal=OURS, kafka_principals={"shop": (CRM,)})
    made = stack_settings.model_copy(
        update={"kafka": KafkaSettings(bootstrap_servers=guarded.bootstrap_servers)}
        | {"access": access}
    )
    services.migrate(made)
    home = orders.write_orders(tmp_path, rows=1)
    declared = (home / "pipeline.yaml").read_text().replace(orders.team_of(tmp_path), "shop")
    (home / "pipeline.yaml").write_text(declared)
    services.run_deploy(made, home, who="ann")
    for name, value in made.to_env().items():
        monkeypatch.setenv(name, value)
    yield made
    acls = KafkaAcls(made.kafka)
    acls.delete(acls.read())


def run(*options: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["access", "kafka-acls", *options])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def audited(settings: Settings) -> list[dict[str, Any]]:
    """Return the entries of the audit log about rules, in their order."""
    with open_tracker(settings.tracker) as tracker:
        entries = read_audit(tracker, None, limit=100)
    return [one for one in reversed(entries) if one["action"] == "apply_kafka_rules"]


def as_crm(guarded: guarded_kafka.GuardedKafkaServer) -> KafkaSettings:
    password = SecretStr(secured_kafka.OTHER_PASSWORD)
    return guarded.service.doors.by_login(
        "PLAIN", sasl_username=secured_kafka.OTHER, sasl_password=password
    )


def send(settings: KafkaSettings, topic: str) -> str:
    """Send a message; return the name of the error, or nothing."""
    said: list[str] = []
    producer = Producer({**librdkafka_config(settings), "message.timeout.ms": 30_000})
    producer.produce(
        topic, b"x", on_delivery=lambda error, _: said.append(error.name() if error else "")
    )
    producer.flush(60)
    return said[0]


def test_waybill_does_its_work_with_its_own_rules_alone(
    settings: Settings, guarded: guarded_kafka.GuardedKafkaServer, tmp_path: Path
) -> None:
    run(code=2)
    run("--apply", "--who", "ann")
    run()
    own = guarded.service.doors.by_login("PLAIN", topic_partitions=1)
    log = open_log(own)
    topic = log.ensure_topic("events.shop.warehouse")
    with LosslessProducer(
        WalSettings(dir=tmp_path / "wal"), librdkafka_config(own), name="orders"
    ) as producer:
        for number in range(10):
            producer.produce(topic.name, str(number), key="k")
        producer.flush()
    [(first, end)] = log.spans([topic.name])[topic.name].marks.values()
    with contextlib.closing(RangeReader(own)) as reader:
        found = [*reader.read([PartitionRange(topic.name, 0, first, end)])]
    assert [value for records in found for value in records.values] == [
        str(number).encode() for number in range(10)
    ]
    log.delete_records(topic.name, {0: 5})
    assert log.config(topic.name)
    elsewhere = open_log(own)
    with pytest.raises(RetryError, match=r"(?i)authorization"):
        elsewhere.ensure_topic("other.topic")


def test_a_team_writes_to_its_own_topics_and_reads_none(
    settings: Settings, guarded: guarded_kafka.GuardedKafkaServer
) -> None:
    run("--apply", "--who", "ann")
    for name in ("events.shop.warehouse", "events.web.warehouse"):
        open_log(settings.kafka).ensure_topic(name)
    crm = as_crm(guarded)
    assert send(crm, "events.shop.warehouse") == ""
    assert send(crm, "events.web.warehouse") in {"TOPIC_AUTHORIZATION_FAILED", "_MSG_TIMED_OUT"}
    consumer = Consumer({**librdkafka_config(crm), "group.id": "waybill-x"})
    consumer.assign([TopicPartition("events.shop.warehouse", 0, 0)])
    try:
        while (message := consumer.poll(30)) is not None and message.error() is None:
            pytest.fail("it read a message")
        assert message is None or "AUTHORIZATION" in message.error().name()
    except KafkaException as error:
        assert "AUTHORIZATION" in error.args[0].name()
    finally:
        consumer.close()


def test_rules_that_nothing_wants_are_told_and_taken_away_when_asked(
    settings: Settings,
) -> None:
    acls = KafkaAcls(settings.kafka)
    stranger = KafkaAcl("User:mallory", "topic", "events.shop.warehouse", "literal", "READ")
    wide = KafkaAcl("User:mallory", "topic", "ev", "prefixed", "WRITE")
    from_one_host = replace(stranger, host="10.0.0.5", operation="ALTER")
    forbids = replace(stranger, principal="User:dave", permission="DENY")
    groups = KafkaAcl("User:billing", "group", "*", "literal", "READ")
    beside = KafkaAcl("User:billing", "topic", "invoices", "literal", "READ")
    near = KafkaAcl("User:billing", "topic", "events-gateway", "literal", "READ")
    acls.create([stranger, wide, from_one_host, forbids, groups, beside, near])
    shown = " ".join(run("--apply", "--who", "ann", code=2).output.split())
    assert "User:mallory" in shown
    assert "2 rules of others" in shown
    assert "invoices" not in shown
    assert "events-gateway" not in shown
    run("--apply", "--prune", "--who", "ann", "--why", "it is not theirs")
    run("--apply", "--prune", "--who", "bob")  # nothing is left to do, nor to write down
    made, pruned = audited(settings)
    assert (made["who"], made["detail"]["taken"]) == ("ann", [])
    assert (pruned["detail"]["made"], pruned["detail"]["why"]) == ([], "it is not theirs")
    assert len(pruned["detail"]["taken"]) == 2
    left = acls.read()
    assert not {stranger, from_one_host} & left
    assert {wide, forbids, groups, beside, near} <= left
    with_json = json.loads(run("--json").stdout)
    assert (with_json["missing"], with_json["others"], len(with_json["wider"])) == ([], [], 3)
    assert max(map(len, run().output.splitlines())) <= 80


def test_options_that_do_not_fit_and_brokers_without_rules_are_told(
    settings: Settings, kafka: servers.KafkaServer
) -> None:
    run("--prune", code=1)
    run("--show", "--apply", code=1)
    open_to_all = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
    with pytest.raises(InputError, match="have no authorizer"):
        services.show_kafka_rules(settings.model_copy(update={"kafka": open_to_all}))
    nameless = settings.access.model_copy(update={"kafka_principal": ""})
    with pytest.raises(InputError, match="WAYBILL_ACCESS__KAFKA_PRINCIPAL"):
        services.show_kafka_rules(settings.model_copy(update={"access": nameless}))
