"""ClickHouse's types, limits, errors and statements.

Columns beside the user's and Waybill's own: ``_waybill_is_deleted``, and ``_waybill_version``, one
number of 128 bits that the server makes of source version and intake version, with their signs
turned, so that the greater pair is the greater number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date

import pyarrow as pa

from waybill.destinations.drivers import ErrorMap
from waybill.destinations.limits import ValueLimits
from waybill.destinations.merging import DELETED_AT, KEPT_COLUMNS
from waybill.destinations.per_table.sql_table import LakeSql
from waybill.destinations.per_table.table import (
    DELETE,
    OP,
    SOFT_DELETE,
    TOUCH,
    ShapePlan,
    type_name,
)
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


BOOKS = "waybill"
LOADS_TABLE = "_waybill_loads"
LOADS = f"{quoted(BOOKS)}.{quoted(LOADS_TABLE)}"
VERSION, IS_DELETED = "_waybill_version", "_waybill_is_deleted"
INTERNAL = (VERSION, IS_DELETED)
VERSIONS = ("_waybill_source_version", "_waybill_intake_version")
_DEDUPLICATED = "non_replicated_deduplication_window = 10000"


def _turned(name: str) -> str:
    return f"toUInt128(bitXor(reinterpretAsUInt64({quoted(name)}), 9223372036854775808))"


_VERSION_COLUMN = (
    f"{quoted(VERSION)} UInt128 MATERIALIZED "
    f"bitOr(bitShiftLeft({_turned(VERSIONS[0])}, 64), {_turned(VERSIONS[1])})"
)
CREATE_BOOKS = (
    f"CREATE DATABASE IF NOT EXISTS {quoted(BOOKS)}",
    f"CREATE TABLE IF NOT EXISTS {LOADS} (place String, sequence Int64, id String, "
    "destination String, number Int64, statement String, token String, record String, "
    "done UInt8, at DateTime64(6, 'UTC')) ENGINE = MergeTree ORDER BY (place, sequence) "
    f"SETTINGS {_DEDUPLICATED}",
)


def creation(
    database: str, name: str, schema: pa.Schema, key: Sequence[str], partitions: Sequence[str]
) -> list[str]:
    """Return the statements that make a database and a table.

    Args:
        database: of the table.
        name: of the table.
        schema: its columns.
        key: what makes a row one of its kind.
        partitions: columns of a table that is only ever appended to; empty: a user's.
    """
    place = f"{quoted(database)}.{quoted(name)}"
    columns = list(schema)
    columns += [pa.field(column, pa.int64()) for column in VERSIONS if column not in schema.names]
    columns = [f.with_nullable(f.nullable and f.name not in VERSIONS) for f in columns]
    listed = ", ".join(f"{quoted(f.name)} {sql_type(f)}" for f in columns)
    order = ", ".join(quoted(column) for column in (partitions or key))
    table = (
        f"CREATE TABLE IF NOT EXISTS {place} ({listed}) ENGINE = MergeTree ORDER BY ({order})"
        if partitions
        else f"CREATE TABLE IF NOT EXISTS {place} ({listed}, {_VERSION_COLUMN}, "
        f"{quoted(IS_DELETED)} UInt8) ENGINE = ReplacingMergeTree({quoted(VERSION)}, "
        f"{quoted(IS_DELETED)}) ORDER BY ({order}) SETTINGS {_DEDUPLICATED}"
    )
    return [f"CREATE DATABASE IF NOT EXISTS {quoted(database)}", table]


def stage_table(stage: str, columns: Sequence[pa.Field], key: Sequence[str]) -> str:
    """Return the statement that makes a load's working table."""
    shape = [f.with_nullable(f.name not in key) for f in columns]
    listed = ", ".join(f"{quoted(f.name)} {sql_type(f)}" for f in shape)
    return (
        f"CREATE TABLE {quoted(BOOKS)}.{quoted(stage)} ({listed}, {quoted(OP)} String) "
        "ENGINE = MergeTree ORDER BY tuple()"
    )


def insertion(
    place: str, stage: str, known: pa.Schema, staged: Sequence[str], key: Sequence[str],
    *, joined: bool,
) -> str:  # fmt: skip
    """Return the statement that inserts a stage's rows.

    Args:
        place: the table, qualified.
        stage: the working table.
        known: the table's columns.
        staged: those of the stage.
        key: of the table.
        joined: some rows only move versions on or mark a soft delete, or are items that go: the
            rest of their values is the table's own.
    """
    names = [f.name for f in known if joined or f.name in staged]
    values = [_value(name, staged, key) if joined else f"s.{quoted(name)}" for name in names]
    join = ""
    if joined:
        on = " AND ".join(f"t.{quoted(column)} = s.{quoted(column)}" for column in key)
        join = f" LEFT JOIN (SELECT * FROM {place} FINAL) AS t ON {on}"
    listed = ", ".join(quoted(name) for name in (*names, IS_DELETED))
    return (
        f"INSERT INTO {place} ({listed}) "
        f"SELECT {', '.join(values)}, s.{quoted(OP)} = '{DELETE}' "
        f"FROM {quoted(BOOKS)}.{quoted(stage)} AS s{join}"
    )


def _value(name: str, staged: Sequence[str], key: Sequence[str]) -> str:
    own, held = f"s.{quoted(name)}", f"t.{quoted(name)}"
    if name in VERSIONS:  # of an item that goes they are those of its row
        return f"coalesce({own}, {held}, 0)"
    if name in key or name == KEPT_COLUMNS[0][0]:
        return own
    if name not in staged:
        return held
    ops = f"'{TOUCH}'" if name == DELETED_AT else f"'{TOUCH}', '{SOFT_DELETE}'"
    return f"if(s.{quoted(OP)} IN ({ops}), {held}, {own})"


def alterations(place: str, known: pa.Schema, plan: ShapePlan) -> list[str]:
    """Return the statements that bring a table's columns to a plan."""
    statements = [
        f"ALTER TABLE {place} ADD COLUMN IF NOT EXISTS {quoted(f.name)} {sql_type(f)}"
        for f in plan.add
    ]
    fields = {f.name: f for f in known} | {f.name: f for f in plan.widen}
    for name in dict.fromkeys([*(f.name for f in plan.widen), *plan.loosen]):
        item = fields[name].with_nullable(fields[name].nullable or name in plan.loosen)
        statements.append(f"ALTER TABLE {place} MODIFY COLUMN {quoted(name)} {sql_type(item)}")
    return statements


def ranges(known: pa.Schema) -> dict[str, str]:
    """Return, in Spark's SQL, what values days and times may have; by a name for people."""
    low, high = LIMITS.first_day, LIMITS.last_day
    beyond = date(high.year + 1, 1, 1)
    conditions = {}
    for item in known:
        name = "`" + item.name.replace("`", "``") + "`"
        kind = "DATE" if pa.types.is_date(item.type) else "TIMESTAMP"
        if pa.types.is_date(item.type) or pa.types.is_timestamp(item.type):
            conditions[f"{item.name} is of the years {low.year} to {high.year}"] = (
                f"{name} IS NULL OR ({name} >= {kind} '{low}' AND {name} < {kind} '{beyond}')"
            )
    return conditions


SQL = LakeSql(
    quoted,
    literal,
    day="toDate32('{}')",
    count="count()",
    create_books=CREATE_BOOKS,
    loads=LOADS,
)
