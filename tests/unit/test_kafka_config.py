"""What clients of Kafka are told of certificates and logins."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from waybill.errors import InputError
from waybill.settings import KafkaSettings
from waybill.storage import java_config, librdkafka_config, with_files_read

KEY = "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n"
LOGIN = KafkaSettings(
    bootstrap_servers="h:1",
    security_protocol="SASL_SSL",
    sasl_mechanism="SCRAM-SHA-512",
    sasl_username='car"ol',
    sasl_password=SecretStr('a"b\\c; d=e'),
    ssl_ca_pem="authority",
)


def test_without_security_nothing_is_told_but_the_address() -> None:
    plain = KafkaSettings(bootstrap_servers="h:1")
    assert librdkafka_config(plain) == {"bootstrap.servers": "h:1"}
    assert java_config(plain) == {}


def test_a_login_is_told_alike_and_its_text_ends_no_word_of_java() -> None:
    assert librdkafka_config(LOGIN) == {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_SSL",
        "ssl.ca.pem": "authority",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": 'car"ol',
        "sasl.password": 'a"b\\c; d=e',
    }
    assert java_config(LOGIN) == {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "authority",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required"
            ' username="car\\"ol" password="a\\"b\\\\c; d=e";'
        ),
    }


def test_files_are_read_and_a_certificate_is_told_as_text(tmp_path: Path) -> None:
    texts = {"ca": "-----BEGIN CERTIFICATE-----ca", "certificate": "-----BEGIN CERTIFICATE-----c"}
    for name, text in (texts | {"key": KEY}).items():
        (tmp_path / name).write_text(text)
    settings = KafkaSettings(
        security_protocol="SSL",
        ssl_ca_file=tmp_path / "ca",
        ssl_certificate_file=tmp_path / "certificate",
        ssl_private_key_file=tmp_path / "key",
        ssl_private_key_password=SecretStr("of the key"),
    )
    read = with_files_read(settings)
    assert (read.ssl_ca_file, read.ssl_private_key_file) == (None, None)
    told = librdkafka_config(settings)
    assert told == librdkafka_config(read)
    assert (told["ssl.key.pem"], told["ssl.key.password"]) == (KEY, "of the key")
    java = java_config(settings)
    assert java["ssl.keystore.key"] == KEY
    assert java["ssl.keystore.certificate.chain"] == texts["certificate"]
    assert KEY not in repr(read)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff\xfe", "it is no text"),
        (b"no certificate", "holds no PEM"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    if content is not None:
        (tmp_path / "ca.pem").write_bytes(content)
    settings = KafkaSettings(security_protocol="SSL", ssl_ca_file=tmp_path / "ca.pem")
    with pytest.raises(InputError, match=f"WAYBILL_KAFKA__SSL_CA_FILE: .*ca.pem.*{why}"):
        librdkafka_config(settings)


def test_a_key_that_java_cannot_read_is_refused_with_the_remedy() -> None:
    settings = KafkaSettings(
        security_protocol="SSL",
        ssl_certificate_pem="c",
        ssl_private_key_pem=SecretStr("-----BEGIN EC PRIVATE KEY-----\nsecret"),
    )
    with pytest.raises(InputError, match="openssl pkcs8 -topk8") as caught:
        librdkafka_config(settings)
    assert "secret" not in str(caught.value)
