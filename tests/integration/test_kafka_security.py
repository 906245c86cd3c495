"""Kafka behind TLS and logins: the right certificate and password work, nothing else does."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests import servers
from tests.support import children, topics
from tests.support.certificates import Authority
from tests.support.identity_provider import CLIENT, SECRET, IdentityProvider
from tests.support.secured_kafka import PASSWORD, Doors

from waybill.errors import InputError, RetryError
from waybill.producer import LosslessProducer
from waybill.settings import KafkaSettings, WalSettings
from waybill.storage import librdkafka_config, open_log
from waybill.storage.range_reader import PartitionRange, RangeReader

pytestmark = pytest.mark.serves
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture
def doors(kafka: servers.KafkaServer) -> Doors:
    """The ways into the broker that ask who one is."""
    return kafka.doors


def refused(settings: KafkaSettings, why: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what is said of settings with which no broker answers, once it says why."""
    monkeypatch.setattr("waybill.storage.log._SOON_S", 0.5)
    log = open_log(settings)
    messages: list[str] = []

    def told() -> bool:
        with pytest.raises(RetryError) as caught:
            log.wait_until_up(limit_s=0.0)
        messages.append(str(caught.value))
        return bool(re.search(why, messages[-1]))

    children.wait_until(told, limit_s=60.0, what=f"{why!r} in what is said")
    return messages[-1]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login_works_and_a_wrong_password_is_told_and_not_shown(
    doors: Doors, monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    assert open_log(doors.by_login(mechanism)).topics() is not None
    wrong = doors.by_login(mechanism, sasl_password=SecretStr("wrong-password"))
    assert "wrong-password" not in refused(wrong, "Authentication failed", monkeypatch)


def test_a_certificate_works_and_another_authoritys_or_none_does_not(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_log(doors.by_certificate()).topics() is not None
    other = Authority.made("tests").identity("carol")  # the name of the right one
    stranger = doors.by_certificate(
        ssl_certificate_pem=other.certificate, ssl_private_key_pem=SecretStr(other.key)
    )
    nobody = doors.by_certificate(ssl_certificate_pem="", ssl_private_key_pem=None)
    for settings in (stranger, nobody):
        refused(settings, "(?i)ssl|certificate", monkeypatch)


@pytest.mark.parametrize("door", ["login", "certificate"])
def test_a_broker_whom_nobody_trusted_vouches_for_is_not_talked_to(
    doors: Doors, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    other = Authority.made("tests").certificate
    system = ""
    for trusted in (other, system):
        wrong = (
            doors.by_login("PLAIN", ssl_ca_pem=trusted)
            if door == "login"
            else doors.by_certificate(ssl_ca_pem=trusted)
        )
        refused(wrong, "certificate", monkeypatch)


def test_a_broker_with_the_certificate_of_another_address_is_not_talked_to(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_name = {"bootstrap_servers": f"localhost:{doors.login}"}  # it is vouched for 127.0.0.1
    refused(doors.by_login("PLAIN", **by_name), "(?i)certificate|hostname", monkeypatch)


def test_without_tls_nothing_comes_through_the_doors(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    for port in (doors.login, doors.mutual):
        plain = KafkaSettings(bootstrap_servers=f"127.0.0.1:{port}")
        refused(plain, "no Kafka broker answers", monkeypatch)


def test_a_token_of_the_identity_provider_works_and_who_gets_none_is_told(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    with IdentityProvider(doors.provider_key) as provider:
        ours = {
            "sasl_username": CLIENT,
            "sasl_password": SecretStr(SECRET),
            "sasl_token_url": provider.url,
            "sasl_scope": "kafka",
        }
        assert open_log(doors.by_login("OAUTHBEARER", **ours)).topics() is not None
        assert provider.scopes == ["kafka"]
        wrong = doors.by_login("OAUTHBEARER", **ours | {"sasl_password": SecretStr("not-ours")})
        assert "not-ours" not in refused(wrong, "invalid_client|401", monkeypatch)


def test_a_key_with_a_password_and_files_work_as_texts_do(doors: Doors, tmp_path: Path) -> None:
    own = doors.authority.identity("carol", password="of the key")
    paths = {
        "ssl_ca_file": doors.authority.certificate,
        "ssl_certificate_file": own.certificate,
        "ssl_private_key_file": own.key,
    }
    for name, text in paths.items():
        (tmp_path / name).write_text(text)
    files = {name: tmp_path / name for name in paths}
    none = {"ssl_ca_pem": "", "ssl_certificate_pem": "", "ssl_private_key_pem": None}
    right = doors.by_certificate(**none, **files, ssl_private_key_password=SecretStr("of the key"))
    assert open_log(right).topics() is not None
    with pytest.raises(InputError, match="SSL_CA_FILE"):
        (tmp_path / "ssl_ca_file").unlink()
        open_log(right).topics()


@pytest.mark.parametrize("way", ["certificate", *MECHANISMS])
def test_what_the_producer_sends_a_task_reads(
    doors: Doors, kafka: servers.KafkaServer, tmp_path: Path, way: str
) -> None:
    settings = doors.by_certificate() if way == "certificate" else doors.by_login(way)
    topic = topics.new_topic(kafka.bootstrap_servers, f"by-{way.lower()}")
    wal = WalSettings(dir=tmp_path)
    with LosslessProducer(wal, librdkafka_config(settings), name="orders") as producer:
        for number in range(100):
            producer.produce(topic, str(number), key="k")
        producer.flush()
    [(first, end)] = open_log(settings).spans([topic])[topic].marks.values()
    reader = RangeReader(settings)
    with contextlib.closing(reader):
        found = list(reader.read([PartitionRange(topic, 0, first, end)]))
    values = [value for records in found for value in records.values]
    assert sorted(values, key=int) == [str(number).encode() for number in range(100)]
    assert PASSWORD not in repr(settings)
