"""Messages that say their schema by an id; it is looked up in a registry once."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from waybill.errors import ParkError, WaybillError
from waybill.ingestion.connectors.base import Record
from waybill.ingestion.connectors.kafka_topics.messages import MALFORMED, parsed, parsed_key
from waybill.ingestion.connectors.kafka_topics.schema_registry import (
    SCHEMA_UNKNOWN,
    SchemaId,
    SchemaRegistry,
)
from waybill.ingestion.connectors.kafka_topics.wire_format import (
    KEY_HEADER,
    VALUE_HEADER,
    framed,
    with_header,
)

_MOST_SCHEMAS = 1_000
_ASK_AGAIN_S = 10.0
"""After which a schema that was not there is asked for once more."""
_MOST_NAMED, _MOST_SUBJECTS = 20, 5


class Decoder(Protocol):
    """Reads the messages of one schema."""

    kind: str

    def decode(self, data: bytes) -> tuple[Any, str]:
        """Return a value and its record's full name; raises ``ParkError``."""
        ...


class FramedMessages:
    """Reads values and keys of messages by their schemas.

    Args:
        open_registry: returns the registry; called when it is first asked.
        kind: of the schemas of values: ``AVRO``, ``PROTOBUF``, ``JSON``; "": any.
        records: an event name for records by their full names.
    """

    def __init__(
        self, open_registry: Callable[[], SchemaRegistry], kind: str, records: Mapping[str, str]
    ) -> None:
        self._open_registry, self._kind, self._records = open_registry, kind, records
        self._registry: SchemaRegistry | None = None
        self._decoders: OrderedDict[SchemaId, Decoder] = OrderedDict()
        self._unknown: OrderedDict[SchemaId, tuple[float, ParkError]] = OrderedDict()
        self._name = ""
        self._read: Counter[SchemaId] = Counter()

    def close(self) -> None:
        """Give the connection to the registry back."""
        if self._registry is not None:
            self._registry.close()

    def bytes_of(self, message: Any) -> tuple[bytes | None, bytes | None]:
        """Return a message's key and value, each behind its schema's id."""
        self._name = ""
        key, value, headers = message.key(), message.value(), message.headers()
        if headers:
            key = None if key is None else with_header(key, headers, KEY_HEADER)
            value = None if value is None else with_header(value, headers, VALUE_HEADER)
        return key, value

    def value(self, data: bytes, what: str) -> Any:
        """Return a value.

        Raises:
            ParkError: it cannot be read, or the registry does not know its schema.
            RetryError: the registry does not answer.
            InputError: the registry refuses.
        """
        frame = framed(data, what)
        if self._kind == "JSON":
            self._count(frame.schema_id)
            return parsed(frame.data, what)
        value, self._name = self._decoded(frame.schema_id, frame.data, self._kind, what)
        self._count(frame.schema_id)
        return value

    def key(self, data: bytes, what: str) -> Any:
        """Return a key; one without a schema's id, as JSON or text.

        Raises:
            ParkError, RetryError, InputError: as ``value``.
        """
        if data[:1] not in {b"\0", b"\1"}:
            return parsed_key(data, what)
        frame = framed(data, what)
        if self._kind == "JSON":
            return parsed(frame.data, what)
        return self._decoded(frame.schema_id, frame.data, "", what)[0]

    def routed(self, record: Record | None) -> Record | None:
        """Return a record with the event name that its record's name has, if that is declared."""
        event = self._records.get(self._name)
        return record if record is None or event is None else replace(record, event=event)

    def notes(self) -> list[str]:
        """Return which schemas were read, and their subjects, for people."""
        found = []
        for schema_id, count in self._read.most_common(_MOST_NAMED):
            try:
                names = self._asked().subjects(schema_id)
                subjects = f" (subject {', '.join(names[:_MOST_SUBJECTS])})" if names else ""
            except WaybillError:
                subjects = ""
            found.append(f"schema {schema_id}{subjects}: {count} messages")
        return found

    def _count(self, schema_id: SchemaId) -> None:
        if schema_id in self._read or len(self._read) < _MOST_SCHEMAS:
            self._read[schema_id] += 1

    def _asked(self) -> SchemaRegistry:
        if self._registry is None:
            self._registry = self._open_registry()
        return self._registry

    def _decoded(self, schema_id: SchemaId, data: bytes, kind: str, what: str) -> tuple[Any, str]:
        try:
            decoder = self._decoders.get(schema_id)
            if decoder is None:
                decoder = self._looked_up(schema_id)
            _require_kind(decoder, kind)
            return decoder.decode(data)
        except ParkError as error:
            raise ParkError(
                error.code, f"{what}, schema {schema_id}: {error.message}"[:600]
            ) from error

    def _looked_up(self, schema_id: SchemaId) -> Decoder:
        unknown = self._unknown.get(schema_id)
        if unknown is not None and time.monotonic() - unknown[0] < _ASK_AGAIN_S:
            raise ParkError(unknown[1].code, unknown[1].message)
        try:
            decoder = self._made(schema_id)
        except ParkError as error:
            self._unknown[schema_id] = time.monotonic(), error
            if len(self._unknown) > _MOST_SCHEMAS:
                self._unknown.popitem(last=False)
            raise
        self._decoders[schema_id] = decoder
        if len(self._decoders) > _MOST_SCHEMAS:
            self._decoders.popitem(last=False)
        return decoder

    def _made(self, schema_id: SchemaId) -> Decoder:
        from waybill.ingestion.connectors.kafka_topics.avro import AvroSchema
        from waybill.ingestion.connectors.kafka_topics.protobuf import ProtobufSchema

        registry = self._asked()
        schema = registry.schema(schema_id)
        if schema.kind == "AVRO":
            return AvroSchema(schema, registry)
        if schema.kind == "PROTOBUF":
            return ProtobufSchema(schema, registry)
        if schema.kind == "JSON":
            return JsonSchema()
        raise ParkError(SCHEMA_UNKNOWN, f"it is of {schema.kind[:50]!r}, which is not read")


class JsonSchema:
    """Reads JSON behind the id of a schema; the schema itself is the producer's to keep to."""

    kind = "JSON"

    def decode(self, data: bytes) -> tuple[Any, str]:
        """Return a value, and no name.

        Raises:
            ParkError: it is not JSON.
        """
        return parsed(data, "it"), ""


def _require_kind(decoder: Decoder, kind: str) -> None:
    if kind and decoder.kind != kind:
        raise ParkError(MALFORMED, f"its schema is of {decoder.kind}, and not of {kind}")
