"""Protobuf: from bytes and the schema they were written with to JSON values.

The schema is a FileDescriptorProto, as registries give it for ``format=serialized``. Each schema
has a pool of its own, so that one cannot replace another's types.

| Protobuf | row |
|---|---|
| a field that may be absent, and is (``optional``, a message, of a ``oneof``) | null |
| integers of 64 bits | numbers, exact |
| bytes | base64 |
| enum | its name; a number that has none, as a number |
| map | an object; its keys as text |
| float, double | a number; NaN and Infinity as text |
| Timestamp, Duration, Struct, Value, ListValue, wrappers, FieldMask | as in Protobuf's JSON |
| Any | ``{"@type": …, "value": base64}`` |
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.internal import type_checkers
from google.protobuf.message import DecodeError

from waybill.errors import ParkError
from waybill.ingestion.connectors.kafka_topics.messages import MALFORMED
from waybill.ingestion.connectors.kafka_topics.schema_registry import (
    SCHEMA_UNKNOWN,
    Schema,
    SchemaRegistry,
)
from waybill.ingestion.connectors.kafka_topics.wire_format import message_place

_MOST_VALUES = 1_000_000
"""Of one message: an empty message of two bytes has as many values as its type has fields."""
_MOST_TEXT = 2 * 1024 * 1024
_FILE = "waybill/message.proto"
_MOST_SECONDS = 315_576_000_000
_NANOS = 1_000_000_000
_KNOWN_FILES = {
    f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2"
    for name in (
        "any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct",
        "timestamp", "type", "wrappers",
    )
} | {
    f"google/type/{name}.proto": f"google.type.{name}_pb2"
    for name in (
        "calendar_period", "color", "date", "datetime", "dayofweek", "decimal", "expr", "fraction",
        "interval", "latlng", "localized_text", "money", "month", "phone_number", "postal_address",
        "quaternion", "timeofday",
    )
}  # fmt: skip
"""Files that every schema may import."""
_NOT_READ = (
    DecodeError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError, AttributeError
)  # fmt: skip


class ProtobufSchema:
    """Reads the messages of one schema.

    Raises:
        ParkError: it cannot be used, or imports what is not there.
    """

    kind = "PROTOBUF"

    def __init__(self, schema: Schema, registry: SchemaRegistry) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        self._added: set[str] = set()
        try:
            for reference, referenced in registry.referenced(schema):
                self._add(_descriptor(referenced.text), reference.name)
            self._proto = _descriptor(schema.text)
            self._add(self._proto, _FILE)
        except ParkError:
            raise
        except _NOT_READ as error:
            raise ParkError(
                SCHEMA_UNKNOWN, f"its schema cannot be used: {error or type(error).__name__}"[:500]
            ) from error

    def decode(self, data: bytes) -> tuple[dict[str, Any], str]:
        """Return a message as an object, and its full name.

        Raises:
            ParkError: these are no bytes of this schema.
        """
        try:
            indexes, body = message_place(data)
            kind = self._kind(indexes)
            message = message_factory.GetMessageClass(kind)()
            message.ParseFromString(body)
            return _Values().of(message), str(kind.full_name)
        except _NOT_READ as error:
            raise ParkError(
                MALFORMED, f"it is not of its schema: {str(error)[:300]} ({type(error).__name__})"
            ) from error

    def _kind(self, indexes: tuple[int, ...]) -> Descriptor:
        """Return a message's type by its place in the file: of a nested one, its parents' first."""
        if min(indexes) < 0:
            raise ValueError(f"message index {min(indexes)}")
        proto = self._proto.message_type[indexes[0]]
        names = [proto.name]
        for index in indexes[1:]:
            proto = proto.nested_type[index]
            names.append(proto.name)
        package = [self._proto.package] if self._proto.package else []
        return self._pool.FindMessageTypeByName(".".join(package + names))

    def _add(self, proto: descriptor_pb2.FileDescriptorProto, name: str) -> None:
        proto.name = name
        for needed in proto.dependency:
            if needed in _KNOWN_FILES and needed not in self._added:
                self._add_known(needed)
        if name not in self._added:
            self._added.add(name)
            self._pool.Add(proto)
        self._pool.FindFileByName(name)

    def _add_known(self, name: str) -> None:
        proto = descriptor_pb2.FileDescriptorProto()
        import_module(_KNOWN_FILES[name]).DESCRIPTOR.CopyToProto(proto)
        self._add(proto, name)


def _descriptor(text: str) -> descriptor_pb2.FileDescriptorProto:
    if len(text) > _MOST_TEXT:
        raise ValueError(f"a schema of {len(text)} characters, more than {_MOST_TEXT}")
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError(
            "the registry gives its text, and no descriptor for `format=serialized`; use one that"
            " does"
        ) from None
    return descriptor_pb2.FileDescriptorProto.FromString(data)


class _Values:
    """Makes the values of one message; counts them."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def of(self, message: Any) -> Any:
        """Return a message."""
        kind = message.DESCRIPTOR
        known = _KNOWN.get(kind.full_name)
        if known is not None:
            return known(self, message)
        self._left -= len(kind.fields)
        if self._left < 0:
            raise ValueError(f"it makes more than {_MOST_VALUES} values")
        return {field.name: self._field(message, field) for field in kind.fields}

    def _field(self, message: Any, field: FieldDescriptor) -> Any:
        if field.is_repeated:
            value = getattr(message, field.name)
            self._left -= len(value)
            if _is_map(field):
                item = field.message_type.fields_by_name["value"]
                return {_map_key(key): self.one(value[key], item) for key in value}
            return [self.one(one, field) for one in value]
        if field.has_presence and not message.HasField(field.name):
            return None
        return self.one(getattr(message, field.name), field)

    def one(self, value: Any, field: FieldDescriptor) -> Any:
        """Return one value of a field."""
        kind = field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_MESSAGE:
            return self.of(value)
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            named = field.enum_type.values_by_number.get(value)
            return value if named is None else named.name
        if kind == FieldDescriptor.CPPTYPE_FLOAT:
            return number(type_checkers.ToShortestFloat(value))
        if kind == FieldDescriptor.CPPTYPE_DOUBLE:
            return number(value)
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value

    def struct(self, message: Any) -> Any:
        """Return a Struct, a Value or a ListValue."""
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"it makes more than {_MOST_VALUES} values")
        name = message.DESCRIPTOR.name
        if name == "Struct":
            return {key: self.struct(message.fields[key]) for key in message.fields}
        if name == "ListValue":
            return [self.struct(one) for one in message.values]
        kind = message.WhichOneof("kind")
        if kind is None or kind == "null_value":
            return None
        value = getattr(message, kind)
        if kind in {"struct_value", "list_value"}:
            return self.struct(value)
        return number(value) if kind == "number_value" else value


def number(value: float) -> float | str:
    """Return a double; as text where JSON has no such number."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _is_map(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def _map_key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _timestamp(_: _Values, message: Any) -> str:
    if not 0 <= message.nanos < _NANOS:
        raise ValueError(f"{message.nanos} nanoseconds of a second")
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=message.seconds)
    return f"{moment.replace(tzinfo=None).isoformat()}{_fraction(message.nanos)}Z"


def _duration(_: _Values, message: Any) -> str:
    if abs(message.seconds) > _MOST_SECONDS or abs(message.nanos) >= _NANOS:
        raise ValueError("a duration of more than 10,000 years")
    sign = "-" if message.seconds < 0 or message.nanos < 0 else ""
    return f"{sign}{abs(message.seconds)}{_fraction(abs(message.nanos))}s"


def _fraction(nanos: int) -> str:
    if not nanos:
        return ""
    digits = f"{nanos:09d}"
    return "." + (digits[:6] if nanos % 1000 == 0 else digits)


def _wrapped(values: _Values, message: Any) -> Any:
    return values.one(message.value, message.DESCRIPTOR.fields_by_name["value"])


def _any(_: _Values, message: Any) -> dict[str, str]:
    return {"@type": message.type_url, "value": base64.b64encode(message.value).decode()}


_WRAPPERS = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_KNOWN: dict[str, Callable[[_Values, Any], Any]] = {
    "google.protobuf.Timestamp": _timestamp,
    "google.protobuf.Duration": _duration,
    "google.protobuf.FieldMask": lambda _, message: ",".join(message.paths),
    "google.protobuf.Any": _any,
    **dict.fromkeys(
        (f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue")), _Values.struct
    ),
    **dict.fromkeys((f"google.protobuf.{name}Value" for name in _WRAPPERS), _wrapped),
}
