"""Avro: from bytes and the schema they were written with to JSON values.

fastavro reads them. Types that JSON does not have are marked in the schema before, so that
fastavro itself gives what rows carry:

| Avro | row |
|---|---|
| bytes, fixed | base64 |
| decimal | text with all digits |
| timestamp, local-timestamp (millis, micros, nanos) | RFC 3339 in UTC |
| date, time | ISO 8601 |
| float, double | a number; NaN and Infinity as text |
| Debezium's and Connect's own types (``connect.name``) | as in their JSON with a schema |

What a schema lets few bytes become is bounded before any are read (``_Bounds``); types that contain
themselves are read by fastavro's Python reader, which ends at the interpreter's depth and not at
the C stack's.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import orjson
from fastavro import _read_py as python_reader
from fastavro.read import LOGICAL_READERS

from waybill.errors import ParkError
from waybill.ingestion.connectors.kafka_topics.debezium import CONVERTS, day, moment
from waybill.ingestion.connectors.kafka_topics.messages import MALFORMED
from waybill.ingestion.connectors.kafka_topics.protobuf import number
from waybill.ingestion.connectors.kafka_topics.schema_registry import (
    SCHEMA_UNKNOWN,
    Schema,
    SchemaRegistry,
)
from waybill.ingestion.connectors.kafka_topics.wire_format import zigzag

_MOST_DEPTH = 100
_MOST_TEXT = 1024 * 1024
_MOST_SCALE = 20_000
_MOST_AT_ONCE, _MOST_EACH = 20_000, 16
"""Values that take no bytes: of a whole message, and of one item of it."""
_KEPT = ("type", "name", "namespace", "symbols", "size")
_NOT_READ = (
    ValueError, TypeError, LookupError, ArithmeticError, EOFError, RecursionError, AttributeError,
    AssertionError, StopIteration, MemoryError,
)  # fmt: skip
"""What fastavro raises for bytes that are not of the schema."""


class AvroSchema:
    """Reads the messages of one schema.

    Raises:
        ParkError: it cannot be used, or is too large to be.
    """

    kind = "AVRO"

    def __init__(self, schema: Schema, registry: SchemaRegistry) -> None:
        names: dict[str, Any] = {}
        try:
            for _, referenced in registry.referenced(schema):
                fastavro.parse_schema(_marked(_json(referenced.text), 0), named_schemas=names)
            self._schema = fastavro.parse_schema(
                _marked(_json(schema.text), 0), named_schemas=names, _write_hint=True
            )
            bounds = _Bounds(names)
            bounds.require(self._schema)
        except (*_NOT_READ, fastavro.schema.SchemaParseException) as error:
            raise ParkError(
                SCHEMA_UNKNOWN, f"its schema cannot be used: {error or type(error).__name__}"[:500]
            ) from error
        self._names = names
        self._is_union = isinstance(self._schema, list)
        self._read: Callable[..., Any] = (
            python_reader.schemaless_reader if bounds.is_recursive else fastavro.schemaless_reader
        )

    def decode(self, data: bytes) -> tuple[Any, str]:
        """Return a value, and the full name of its record; "": it is none.

        Raises:
            ParkError: these are no bytes of this schema.
        """
        stream = io.BytesIO(data)
        try:
            value = self._read(stream, self._schema, None)
            name = self._record_name(data)
        except _NOT_READ as error:
            raise ParkError(
                MALFORMED, f"it is not of its schema: {str(error)[:300]} ({type(error).__name__})"
            ) from error
        if stream.tell() != len(data):
            raise ParkError(
                MALFORMED, f"it has {len(data) - stream.tell()} bytes more than its schema says"
            )
        return value, name

    def _record_name(self, data: bytes) -> str:
        schema: Any = self._schema
        kind = schema[zigzag(data, 0)[0]] if self._is_union else schema
        if isinstance(kind, str):
            return kind if kind in self._names else ""
        return str(kind.get("name", ""))


def _json(text: str) -> Any:
    if len(text) > _MOST_TEXT:
        raise ValueError(f"a schema of {len(text)} characters, more than {_MOST_TEXT}")
    try:
        return orjson.loads(text)
    except ValueError:
        if text.isidentifier():  # a primitive type's name, as some registries give it
            return text
        raise


def _marked(schema: Any, depth: int) -> Any:
    """Return a schema in which all has a mark that is not read as it is; no defaults, no words."""
    if depth > _MOST_DEPTH:
        raise ValueError(f"types nested more than {_MOST_DEPTH} deep")
    if isinstance(schema, list):
        return [_marked(one, depth + 1) for one in schema]
    if not isinstance(schema, dict):
        mark = _MARKS.get((str(schema), None))
        return schema if mark is None else {"type": schema, "logicalType": mark}
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _marked(kind, depth + 1)
    marked = {name: schema[name] for name in _KEPT if name in schema}
    if kind in {"record", "error"}:
        marked["type"] = "record"
        marked["fields"] = [
            {"name": field["name"], "type": _marked(field["type"], depth + 1)}
            for field in schema["fields"]
        ]
    elif kind == "array":
        marked["items"] = _marked(schema["items"], depth + 1)
    elif kind == "map":
        marked["values"] = _marked(schema["values"], depth + 1)
    return _with_mark(marked, schema)


def _with_mark(marked: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    kind, logical = schema["type"], schema.get("logicalType")
    connect = schema.get("connect.name")
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        scale = schema.get("scale", 0)
        if not isinstance(scale, int) or not 0 <= scale <= _MOST_SCALE:
            raise ValueError(f"a decimal's scale of {scale!r:.50}")
        return marked | {"logicalType": _DECIMAL, "waybill.scale": scale}
    if isinstance(connect, str) and connect in CONVERTS and logical is None:
        return marked | {"logicalType": _CONNECT, "waybill.connect": connect}
    mark = _MARKS.get((kind, logical if isinstance(logical, str) else None))
    mark = mark or _MARKS.get((kind, None))
    return marked if mark is None else marked | {"logicalType": mark}


class _Bounds:
    """What a parsed schema lets bytes become.

    A value takes a byte at least, but null, a fixed of no bytes, and a record beside its fields.
    So the values of a message are at most its bytes times what one item, or one branch of a union,
    has of these. An item of no bytes has no bound at all: ten bytes say 2^60 of them.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._free: dict[str, int] = {}
        self._open: set[str] = set()
        self._items: list[Any] = []
        self._depths: dict[str, int] = {}
        self.is_recursive = False

    def require(self, schema: Any) -> None:
        """Refuse a schema that is not bounded.

        Raises:
            ValueError: says why.
        """
        if self._free_of(schema) > _MOST_AT_ONCE:
            raise ValueError("it makes more than 20,000 values of no bytes")
        while self._items:
            if self._free_of(self._items.pop()) > _MOST_EACH:
                raise ValueError(f"items that make more than {_MOST_EACH} values of no bytes each")
        if self._depth(schema, set()) > _MOST_DEPTH and not self.is_recursive:
            raise ValueError(f"types nested more than {_MOST_DEPTH} deep")

    def _free_of(self, schema: Any) -> int:
        if isinstance(schema, list):
            self._items += schema
            return 0
        if isinstance(schema, str):
            if schema not in self._names:
                return int(schema == "null")
            return self._named(schema, self._names[schema])
        kind = schema["type"]
        if kind in {"record", "fixed", "enum"}:
            return self._named(schema["name"], schema)
        if kind == "array":
            if self._is_empty(schema["items"]):
                raise ValueError("an array whose items take no bytes")
            self._items.append(schema["items"])
        elif kind == "map":
            self._items.append(schema["values"])
        return self._free_of(kind) if kind == "null" else 0

    def _named(self, name: str, schema: Any) -> int:
        if name in self._free:
            return self._free[name]
        if name in self._open:
            raise ValueError(f"{name[:100]!r} contains itself without an end")
        self._open.add(name)
        free = 0
        if schema["type"] == "record":
            free = 1 + sum(self._free_of(field["type"]) for field in schema["fields"])
        elif schema["type"] == "fixed":
            if not isinstance(schema["size"], int) or schema["size"] < 0:
                raise ValueError(f"a fixed of size {schema['size']!r:.50}")
            free = int(schema["size"] == 0)
        self._open.discard(name)
        self._free[name] = free
        return free

    def _is_empty(self, schema: Any) -> bool:
        """Tell whether a value may take no bytes; what contains itself does elsewhere."""
        if isinstance(schema, str):
            schema = self._names.get(schema, schema)
        if not isinstance(schema, dict):
            return bool(schema == "null")
        kind = schema["type"]
        if kind == "record":
            self._free_of(schema)  # refuses what contains itself without an end
            return all(self._is_empty(field["type"]) for field in schema["fields"])
        return bool(kind == "null" or (kind == "fixed" and schema["size"] == 0))

    def _depth(self, schema: Any, above: set[str]) -> int:
        if isinstance(schema, list):
            return 1 + max((self._depth(one, above) for one in schema), default=0)
        if isinstance(schema, str):
            if schema not in self._names:
                return 1
            schema = self._names[schema]
        name = schema.get("name")
        if name in above:
            self.is_recursive = True
            return 1
        if name in self._depths:
            return self._depths[name]
        if len(above) > _MOST_DEPTH:
            raise ValueError(f"types nested more than {_MOST_DEPTH} deep")
        inner = set(above) | ({name} if name else set())
        parts = [field["type"] for field in schema.get("fields", ())]
        parts += [schema[part] for part in ("items", "values") if part in schema]
        depth = 1 + max((self._depth(one, inner) for one in parts), default=0)
        if name:
            self._depths[name] = depth
        return depth


def _number(value: float, *_: Any) -> float | str:
    return number(value)


def _base64(value: bytes, *_: Any) -> str:
    return base64.b64encode(value).decode()


def _decimal(value: bytes, schema: Mapping[str, Any], *_: Any) -> str:
    unscaled = int.from_bytes(value, signed=True)
    digits = tuple(map(int, str(abs(unscaled))))
    return f"{Decimal((int(unscaled < 0), digits, -schema['waybill.scale'])):f}"


def _connect(value: Any, schema: Mapping[str, Any], *_: Any) -> Any:
    return CONVERTS[schema["waybill.connect"]](value)


def _time(per_second: int) -> Callable[..., str]:
    def read(value: int, *_: Any) -> str:
        if not 0 <= value < 86_400 * per_second:
            raise ValueError(f"{value} is no time of a day")
        passed = timedelta(microseconds=value * 1_000_000 // per_second)
        return (datetime(1970, 1, 1, tzinfo=UTC) + passed).time().isoformat()

    return read


def _nanos(value: int, *_: Any) -> str:
    if value % 1000 == 0:
        return str(moment(1_000_000)(value // 1000))
    seconds, nanos = divmod(value, 1_000_000_000)
    return f"{moment(1)(seconds)[:-1]}.{nanos:09d}Z"


def _moment(per_second: int) -> Callable[..., str]:
    convert = moment(per_second)
    return lambda value, *_: convert(value)


_DECIMAL, _CONNECT = "waybill-decimal", "waybill-connect"
_MARKS: dict[tuple[str, str | None], str] = {
    ("bytes", None): "waybill-base64",
    ("fixed", None): "waybill-base64",
    ("float", None): "waybill-number",
    ("double", None): "waybill-number",
    ("int", "date"): "waybill-date",
    ("int", "time-millis"): "waybill-time-millis",
    ("long", "time-micros"): "waybill-time-micros",
    **{
        ("long", f"{local}timestamp-{unit}"): f"waybill-timestamp-{unit}"
        for local in ("", "local-")
        for unit in ("millis", "micros", "nanos")
    },
}
"""(type, logical type): its mark, a logical type that no one else has. Other logical types are
read as what they are made of."""
_READERS: dict[str, Callable[..., Any]] = {
    "bytes-waybill-base64": _base64,
    "fixed-waybill-base64": _base64,
    "float-waybill-number": _number,
    "double-waybill-number": _number,
    "bytes-waybill-decimal": _decimal,
    "fixed-waybill-decimal": _decimal,
    "int-waybill-date": lambda value, *_: day(value),
    "int-waybill-time-millis": _time(1_000),
    "long-waybill-time-micros": _time(1_000_000),
    "long-waybill-timestamp-millis": _moment(1_000),
    "long-waybill-timestamp-micros": _moment(1_000_000),
    "long-waybill-timestamp-nanos": _nanos,
    **{
        f"{kind}-{_CONNECT}": _connect
        for kind in ("int", "long", "string", "record", "bytes", "fixed", "double", "float")
    },
}
LOGICAL_READERS.update(_READERS)
