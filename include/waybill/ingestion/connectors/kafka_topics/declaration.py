"""What a declaration, and a connection, say of topics to read."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from waybill.errors import InputError
from waybill.ingestion.connectors.connections import Connection
from waybill.ingestion.connectors.opening import Opening, Options

_EXTRAS = frozenset(
    "bootstrap.servers security.protocol sasl.mechanism sasl.mechanisms sasl.username"
    " sasl.password sasl.oauthbearer.config ssl.ca.location ssl.ca.pem ssl.certificate.location"
    " ssl.certificate.pem ssl.key.location ssl.key.pem ssl.key.password"
    " ssl.endpoint.identification.algorithm enable.ssl.certificate.verification".split()
)
"""What a connection's extra may say to the client; all else there is for others."""


class KafkaOptions(Options):
    """``source.options`` of ``kafka``."""

    topics: dict[str, str] = Field(
        min_length=1, description="for each event name the topic that has its records"
    )
    format: Literal["json", "debezium", "avro", "protobuf", "json_schema"] = Field(
        "json",
        description="json, avro, protobuf, json_schema: a value is a record; debezium: a change",
    )
    registry: str | None = Field(
        None, description="the connection of the schema registry; with it, debezium is of a schema"
    )
    records: dict[str, str] = Field(
        {}, description="for a record's full name in Avro or Protobuf, the event name it has"
    )
    key: Literal["value", "message"] = Field(
        "value", description="value: the key's fields are in the value; message: in Kafka's key"
    )
    version: Literal["order", "position"] = Field(
        "order",
        description="order: the topic's order decides; position: of debezium, the source's log",
    )
    idle_s: float = Field(
        5.0, ge=0, le=3600, description="seconds without a message after which a run ends"
    )
    run_s: float = Field(300.0, ge=1, le=86400, description="seconds after which a run ends")

    @field_validator("topics")
    @classmethod
    def _are_topics(cls, value: dict[str, str]) -> dict[str, str]:
        if len(set(value.values())) < len(value):
            raise ValueError("a topic is named twice")
        return value


def read_options(opening: Opening) -> KafkaOptions:
    """Return the options of a declaration.

    Raises:
        InputError: they are wrong, or do not fit the pipeline's event names.
    """
    opening.refuse("path", "order_by", "null_values", "columns")
    opening.require_connection()
    options = opening.options(KafkaOptions)
    for option, names in (("topics", options.topics), ("records", options.records.values())):
        unknown = sorted(set(names) - set(opening.events))
        if opening.events and unknown:
            raise InputError(
                f"source.options.{option}: {unknown[0]!r} is not under `events`; there are "
                + ", ".join(opening.events)
            )
    if options.format in {"avro", "protobuf"} and not options.registry:
        raise InputError(
            f"source.options.registry: format: {options.format} needs the connection of a schema"
            " registry"
        )
    if options.format == "json" and options.registry:
        raise InputError(
            "source.options.registry: format: json has no schemas; write avro, protobuf,"
            " json_schema or debezium"
        )
    if options.records and options.format not in {"avro", "protobuf"}:
        raise InputError("source.options.records: they are for format: avro and protobuf alone")
    if options.version == "position" and options.format != "debezium":
        raise InputError("source.options.version: position is for format: debezium alone")
    return options


def client_config(connection: Connection) -> dict[str, Any]:
    """Return the client's configuration; it holds the connection's secrets.

    Raises:
        InputError: the connection names no server.
    """
    config: dict[str, Any] = {
        "log_level": 2,
        "socket.timeout.ms": 10_000,
        "socket.connection.setup.timeout.ms": 10_000,
        "socket.keepalive.enable": True,
    }
    config |= {
        name: str(value)
        for name, value in connection.extra.items()
        if name in _EXTRAS and value is not None
    }
    if connection.host:
        port = f":{connection.port}" if connection.port else ""
        config.setdefault("bootstrap.servers", f"{connection.host}{port}")
    if connection.login:
        config.setdefault("sasl.username", connection.login)
        config.setdefault("sasl.password", connection.password.get_secret_value())
    if "bootstrap.servers" not in config:
        raise InputError(
            f"connection {connection.name!r} names no server: give it a host, or"
            ' "bootstrap.servers" in its extra'
        )
    return config
