"""From a message of Debezium to a record.

A value is an envelope ``{before, after, source, op, ts_ms}``, alone or, with
``schemas.enable=true``, as the ``payload`` beside its ``schema``. With a schema, values that it
marks as decimals, dates and times get the form that rows have; without one they are as they come.

| op | record |
|---|---|
| c, u, r | upsert of ``after``; where the key changed, Debezium itself sends a delete before |
| d | delete of ``before`` and the message's key |
| t | parked: a truncation says of no row that it is gone |
| m, transaction marks, changes of schemas | none |
| no value (a tombstone) | none: it follows a delete |
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from waybill.errors import ParkError
from waybill.events import dumps, loads
from waybill.ingestion.connectors.base import Record
from waybill.ingestion.connectors.kafka_topics.messages import (
    MALFORMED,
    JsonMessages,
    Read,
    parsed,
    parsed_key,
)

UNAVAILABLE = "__debezium_unavailable_value"
"""Stands for a large value that an update did not touch."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BINLOG = re.compile(r".*\.([0-9]{1,9})")
_BINLOG_BITS = 33
_MOST_DIGITS = 20_000
"""Behind or before a decimal's point, as its scale says: each is a character of the row
(PostgreSQL's have 16,383 behind it at most)."""
_CHANGES, _UPSERTS = frozenset("cud"), frozenset("cur")


class DebeziumMessages:
    """Reads the messages of one event name.

    Args:
        event: its name.
        key_fields: of its key.
        version: ``position``: a change has its position in the source's log as its version, and a
            row of a snapshot none, which is lower; ``order``: none has.
        read_value, read_key: how bytes are read; as JSON, if not given.
    """

    def __init__(
        self,
        event: str,
        key_fields: tuple[str, ...],
        version: Literal["order", "position"],
        *,
        read_value: Read = parsed,
        read_key: Read = parsed_key,
    ) -> None:
        self._event, self._read_value = event, read_value
        self._keys = JsonMessages(event, key_fields, "message", read_key=read_key)
        self._has_version = version == "position"

    def record(self, key: bytes | None, value: bytes | None) -> Record | None:
        """Return the record of a message; None: it says nothing of a row.

        Raises:
            ParkError: it cannot be read.
        """
        if value is None:
            return None
        schema, envelope = _parts(self._read_value(value, "the value"))
        if not isinstance(envelope, dict):
            raise ParkError(MALFORMED, "the value is no envelope of Debezium")
        op = envelope.get("op")
        if op is not None and not isinstance(op, str):
            raise ParkError(MALFORMED, "the envelope's `op` is no text; is this of Debezium?")
        if op == "m" or (op is None and _is_about_no_row(envelope)):
            return None
        version = self._version(envelope) if self._has_version and op in _CHANGES else None
        if op in _UPSERTS:
            return Record(self._upserted(envelope, schema), self._event, version=version)
        if op == "d":
            return Record(self._deleted(envelope, schema, key), self._event, "delete", version)
        if op == "t":
            raise ParkError("source_truncated", "the table was truncated; its rows stay")
        raise ParkError(MALFORMED, f"the envelope's `op` is {op!r:.50}; is this of Debezium?")

    def _upserted(self, envelope: dict[str, Any], schema: Any) -> dict[str, Any]:
        data = self._row(envelope, schema, "after")
        lacking = sorted(name for name, value in data.items() if value == UNAVAILABLE)
        if lacking:
            raise ParkError(
                "source_value_invalid",
                f"Debezium was not given the large value of {lacking[0]!r}, which this change left"
                " as it was; give the table REPLICA IDENTITY FULL",
                where=lacking[0],
            )
        return data

    def _row(self, envelope: dict[str, Any], schema: Any, name: str) -> dict[str, Any]:
        row = envelope.get(name)
        if not isinstance(row, dict):
            raise ParkError(MALFORMED, f"the envelope's op is {envelope['op']!r}, without {name!r}")
        try:
            converts = _converters(schema, name)
            return {
                field: converts[field](value) if field in converts and value is not None else value
                for field, value in row.items()
            }
        except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
            raise ParkError(
                "source_value_invalid", f"a value is not what its schema says: {error!r}"[:500]
            ) from error

    def _deleted(self, envelope: dict[str, Any], schema: Any, key: bytes | None) -> dict[str, Any]:
        data = {} if envelope.get("before") is None else self._row(envelope, schema, "before")
        if key is None:
            return data
        given = self._keys.key_of(key)
        if set(given) >= {"schema", "payload"}:
            found = given["payload"]
            given = found if isinstance(found, dict) else {}
        return {**given, **{name: one for name, one in data.items() if one != UNAVAILABLE}}

    def _version(self, envelope: dict[str, Any]) -> int | None:
        source = envelope.get("source")
        if isinstance(source, dict):
            if isinstance(source.get("lsn"), int):
                return int(source["lsn"])
            found = _BINLOG.fullmatch(str(source.get("file", "")))
            if found and isinstance(source.get("pos"), int):
                return (int(found[1]) << _BINLOG_BITS) + int(source["pos"])
        raise ParkError(
            "source_version_invalid",
            "the envelope's source has neither `lsn` (PostgreSQL) nor `file` and `pos` (MySQL);"
            " declare version: order",
        )


def _parts(whole: Any) -> tuple[Any, Any]:
    """Return the schema, if there is one, and the envelope."""
    if isinstance(whole, dict) and set(whole) == {"schema", "payload"}:
        return whole["schema"], whole["payload"]
    return None, whole


def _is_about_no_row(envelope: Mapping[str, Any]) -> bool:
    """Tell whether it is a change of a schema, or the mark of a transaction."""
    names = set(envelope)
    return bool(names & {"ddl", "tableChanges"}) or names >= {"status", "id"}


Convert = Callable[[Any], Any]


def _converters(schema: Any, part: str) -> dict[str, Convert]:
    """Return how fields of ``before`` or ``after`` are read that are not as they are."""
    if not isinstance(schema, dict):
        return {}
    fields: list[dict[str, Any]] = next(
        (
            one.get("fields", [])
            for one in schema.get("fields", [])
            if isinstance(one, dict) and one.get("field") == part
        ),
        [],
    )
    found: dict[str, Convert] = {}
    for field in fields:
        convert = CONVERTS.get(field.get("name", ""))
        if field.get("name") == _DECIMAL:
            found[field["field"]] = _decimal(int(field["parameters"]["scale"]))
        elif convert is not None:
            found[field["field"]] = convert
    return found


def _decimal(scale: int) -> Convert:
    def converted(value: Any) -> str:
        return _scaled(value, scale) if isinstance(value, str) else str(value)

    return converted


def _scaled(value: str, scale: int) -> str:
    if abs(scale) > _MOST_DIGITS:
        raise ValueError(f"a scale of {scale}, more than {_MOST_DIGITS}")
    unscaled = int.from_bytes(base64.b64decode(value, validate=True), signed=True)
    digits = tuple(map(int, str(abs(unscaled))))
    return f"{Decimal((int(unscaled < 0), digits, -scale)):f}"


def _variable(value: Any) -> str:
    return _scaled(value["value"], int(value["scale"]))


def day(value: Any) -> str:
    """Return a date from its days since 1970."""
    return (date(1970, 1, 1) + timedelta(days=value)).isoformat()


def moment(per_second: int) -> Convert:
    """Return how a time since 1970 is written, RFC 3339, from its units a second."""

    def converted(value: Any) -> str:
        if not isinstance(value, int):
            raise TypeError(f"a time as {type(value).__name__}")  # text would be repeated
        micros = value * 1_000_000 // per_second
        moment = _EPOCH + timedelta(microseconds=micros)
        return moment.isoformat().replace("+00:00", "Z")

    return converted


_DECIMAL = "org.apache.kafka.connect.data.Decimal"
CONVERTS: dict[str, Convert] = {
    "io.debezium.data.VariableScaleDecimal": _variable,
    "io.debezium.data.Json": lambda value: loads(value.encode()),
    "io.debezium.time.Date": day,
    "org.apache.kafka.connect.data.Date": day,
    "io.debezium.time.Timestamp": moment(1_000),
    "org.apache.kafka.connect.data.Timestamp": moment(1_000),
    "io.debezium.time.MicroTimestamp": moment(1_000_000),
    "io.debezium.time.NanoTimestamp": moment(1_000_000_000),
}
"""By the name of a type of Debezium or Kafka Connect."""


def raw_of(key: bytes | None, value: bytes | None) -> bytes:
    """Return what is kept of a message that cannot be read: its value, else its key."""
    if value is not None:
        return value
    return b"" if key is None else dumps({"key": key.decode("utf-8", "replace")})
