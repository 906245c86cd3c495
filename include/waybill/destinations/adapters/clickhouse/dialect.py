"""ClickHouse's types, limits and errors."""

from __future__ import annotations

import re
from datetime import date

import pyarrow as pa

from waybill.destinations.drivers import ErrorMap
from waybill.destinations.limits import ValueLimits
from waybill.destinations.per_table.shape import type_name
from waybill.pipelines import MAX_DECIMAL_DIGITS, arrow_type

_GRANT = (
    "grant the destination's user CREATE DATABASE, CREATE TABLE, DROP TABLE, ALTER TABLE, SELECT "
    "and INSERT on database waybill and on the databases of the mappings"
)
_LOGIN = "check user and password in the destination's dsn"
ERRORS = ErrorMap(
    retry={
        "60": "a table is gone; it is looked for again",
        "81": "a database is gone; it is looked for again",
        "159": "the query took too long",
        "202": "too many queries at a time",
        "203": "no connection is free",
        "209": "the network timed out",
        "210": "the network failed",
        "225": "the replicas' keeper is away",
        "241": "the server lacks memory now",
        "242": "the table takes no writes now",
        "243": "the disk is full",
        "252": "too many parts: the server merges them first",
        "319": "it is not known whether the insert was done: it is done again",
        "394": "the query was cancelled",
        "439": "no thread is free",
        "999": "the replicas' keeper is away",
    },
    advice={
        "36": "see whether the table is a ReplacingMergeTree that Waybill made",
        "164": "let the destination's user write: its profile is readonly",
        "192": _LOGIN,
        "291": "grant the destination's user the database",
        "469": "a constraint of the table refuses a load as a whole: take it off the table, or "
        "correct the rows at their source",
        "497": _GRANT,
        "516": _LOGIN,
        "524": "ClickHouse does not alter a column of a table's key: make a table with the wider "
        "type, INSERT INTO it SELECT from this one, and EXCHANGE TABLES",
    },
    refused={},
)
LIMITS = ValueLimits(first_day=date(1900, 1, 1), last_day=date(2299, 12, 31))
_TYPES = {
    "bool": "Bool",
    "int32": "Int32",
    "int64": "Int64",
    "float64": "Float64",
    "string": "String",
    "timestamp": "DateTime64(6, 'UTC')",
    "date": "Date32",
    "bytes": "String",
}
_FOUND = {text: name for name, text in _TYPES.items() if name != "bytes"}
_NULLABLE = re.compile(r"Nullable\((.*)\)")
_DECIMAL = re.compile(r"Decimal\((\d+), (\d+)\)")


def sql_type(column: pa.Field) -> str:
    """Return the type of a column."""
    kind = column.type
    name = None if pa.types.is_decimal(kind) else type_name(kind)
    plain = f"Decimal({kind.precision}, {kind.scale})" if name is None else _TYPES[name]
    return f"Nullable({plain})" if column.nullable else plain


def field_of(name: str, text: str) -> pa.Field:
    """Return a column as the catalogue spells it; one of a type that is not Waybill's is null's."""
    match = _NULLABLE.fullmatch(text)
    plain = match[1] if match else text
    decimal = _DECIMAL.fullmatch(plain)
    kind = pa.null()
    if decimal is not None and int(decimal[1]) <= MAX_DECIMAL_DIGITS:
        kind = pa.decimal128(int(decimal[1]), int(decimal[2]))
    elif plain in _FOUND:
        kind = arrow_type(_FOUND[plain])
    return pa.field(name, kind, nullable=match is not None or pa.types.is_null(kind))


def quoted(name: str) -> str:
    """Return an identifier as ClickHouse quotes it."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def literal(text: str) -> str:
    """Return a text as ClickHouse quotes it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
