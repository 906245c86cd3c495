"""What clients of Kafka are told so that they reach it safely: librdkafka's words, and Java's.

Certificates and keys are handed on as text: a client opens no file, so an executor needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from waybill.errors import InputError
from waybill.settings import KafkaSettings

_PEMS = ("ca", "certificate", "private_key")
_LARGEST_PEM_BYTES = 1024**2
_KEY_KINDS = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_OIDC_CALLBACKS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


def librdkafka_config(settings: KafkaSettings) -> dict[str, Any]:
    """Return addresses, transport and login for a client of librdkafka.

    Raises:
        InputError: a file of a certificate or key cannot be read.
    """
    given = with_files_read(settings)
    config: dict[str, Any] = {"bootstrap.servers": given.bootstrap_servers}
    if given.security_protocol == "PLAINTEXT":
        return config
    config["security.protocol"] = given.security_protocol
    if given.encrypts:
        config |= _present(
            {
                "ssl.ca.pem": given.ssl_ca_pem,
                "ssl.certificate.pem": given.ssl_certificate_pem,
                "ssl.key.pem": given.ssl_private_key_pem,
                "ssl.key.password": given.ssl_private_key_password,
            }
        )
    if given.sasl_mechanism == "OAUTHBEARER":
        config |= _present(
            {
                "sasl.mechanism": given.sasl_mechanism,
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": given.sasl_token_url,
                "sasl.oauthbearer.client.id": given.sasl_username,
                "sasl.oauthbearer.client.secret": given.sasl_password,
                "sasl.oauthbearer.scope": given.sasl_scope,
            }
        )
    elif given.sasl_mechanism:
        config |= _present(
            {
                "sasl.mechanism": given.sasl_mechanism,
                "sasl.username": given.sasl_username,
                "sasl.password": given.sasl_password,
            }
        )
    return config


def java_config(settings: KafkaSettings) -> dict[str, str]:
    """Return the same for a client in a JVM, without addresses.

    Raises:
        InputError: as `librdkafka_config`.
    """
    given = with_files_read(settings)
    if given.security_protocol == "PLAINTEXT":
        return {}
    config: dict[str, str] = {"security.protocol": given.security_protocol}
    if given.encrypts and given.ssl_ca_pem:
        config |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": given.ssl_ca_pem}
    if given.encrypts and given.ssl_private_key_pem:
        config |= {"ssl.keystore.type": "PEM"}
        config |= _present(
            {
                "ssl.keystore.certificate.chain": given.ssl_certificate_pem,
                "ssl.keystore.key": given.ssl_private_key_pem,
                "ssl.key.password": given.ssl_private_key_password,
            }
        )
    if not given.sasl_mechanism:
        return config
    config["sasl.mechanism"] = given.sasl_mechanism
    if given.sasl_mechanism == "OAUTHBEARER":
        login = {
            "clientId": given.sasl_username,
            "clientSecret": given.sasl_password,
            "scope": given.sasl_scope,
        }
        config["sasl.login.callback.handler.class"] = _OIDC_CALLBACKS
        config["sasl.oauthbearer.token.endpoint.url"] = given.sasl_token_url or ""
    else:
        login = {"username": given.sasl_username, "password": given.sasl_password}
    module = _LOGIN_MODULES[given.sasl_mechanism]
    options = "".join(f" {name}={_quoted(text)}" for name, text in _present(login).items())
    config["sasl.jaas.config"] = f"{module} required{options};"
    return config


def with_files_read(settings: KafkaSettings) -> KafkaSettings:
    """Return settings with certificates and key as text, as a process without the files needs them.

    Raises:
        InputError: a file cannot be read; or the key is not in PKCS #8.
    """
    texts: dict[str, Any] = {f"ssl_{name}_file": None for name in _PEMS}
    for name in _PEMS:
        if (path := getattr(settings, f"ssl_{name}_file")) is not None:
            text = _pem(f"WAYBILL_KAFKA__SSL_{name.upper()}_FILE", path)
            texts[f"ssl_{name}_pem"] = SecretStr(text) if name == "private_key" else text
    given = settings.model_copy(update=texts)
    key = given.ssl_private_key_pem
    if key and not any(kind in key.get_secret_value() for kind in _KEY_KINDS):
        raise InputError(
            "the key of WAYBILL_KAFKA__SSL_PRIVATE_KEY_FILE (or _PEM) is not PKCS #8 in PEM,"
            " which Java needs: write it anew with `openssl pkcs8 -topk8 -in <key> -out <new key>`"
        )
    return given


def _pem(setting: str, path: Path) -> str:
    """Return the text of a file of certificates, or of a key.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_PEM_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InputError(f"{setting}: {path} cannot be read: {reason}") from None
    if "-----BEGIN " not in text:
        raise InputError(f"{setting}: {path} holds no PEM (-----BEGIN …-----)")
    return text


def _present(given: Mapping[str, str | SecretStr | None]) -> dict[str, str]:
    """Return what is set, as text."""
    texts = {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in given.items()
    }
    return {name: text for name, text in texts.items() if text}


def _quoted(text: str) -> str:
    """Return a value of a line of JAAS; settings refuse control characters in it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
