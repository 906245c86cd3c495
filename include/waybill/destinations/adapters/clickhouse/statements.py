"""ClickHouse's statements: tables, changes of them, and the insert of a load.

Columns beside the user's and Waybill's own: ``_waybill_is_deleted``, and ``_waybill_version``, one
number of 128 bits that the server makes of source version and intake version, with their signs
turned, so that the greater pair is the greater number.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import pyarrow as pa

from waybill.destinations.adapters.clickhouse.dialect import LIMITS, literal, quoted, sql_type
from waybill.destinations.merging import DELETED_AT, KEPT_COLUMNS
from waybill.destinations.per_table.model import DELETE, OP, SOFT_DELETE, TOUCH, Bounds
from waybill.destinations.per_table.shape import ShapePlan

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
    columns += [pa.field(one, pa.int64()) for one in VERSIONS if one not in schema.names]
    columns = [f.with_nullable(f.nullable and f.name not in VERSIONS) for f in columns]
    listed = ", ".join(f"{quoted(f.name)} {sql_type(f)}" for f in columns)
    order = ", ".join(quoted(one) for one in (partitions or key))
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
        on = " AND ".join(f"t.{quoted(one)} = s.{quoted(one)}" for one in key)
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
    found = [
        f"ALTER TABLE {place} ADD COLUMN IF NOT EXISTS {quoted(f.name)} {sql_type(f)}"
        for f in plan.add
    ]
    fields = {f.name: f for f in known} | {f.name: f for f in plan.widen}
    for name in dict.fromkeys([*(f.name for f in plan.widen), *plan.loosen]):
        item = fields[name].with_nullable(fields[name].nullable or name in plan.loosen)
        found.append(f"ALTER TABLE {place} MODIFY COLUMN {quoted(name)} {sql_type(item)}")
    return found


def ranges(known: pa.Schema) -> dict[str, str]:
    """Return, in Spark's SQL, what values days and times may have; by a name for people."""
    low, high = LIMITS.first_day, LIMITS.last_day
    beyond = date(high.year + 1, 1, 1)
    found = {}
    for item in known:
        name = "`" + item.name.replace("`", "``") + "`"
        kind = "DATE" if pa.types.is_date(item.type) else "TIMESTAMP"
        if pa.types.is_date(item.type) or pa.types.is_timestamp(item.type):
            found[f"{item.name} is of the years {low.year} to {high.year}"] = (
                f"{name} IS NULL OR ({name} >= {kind} '{low}' AND {name} < {kind} '{beyond}')"
            )
    return found


def within(bounds: Bounds) -> str:
    """Return the WHERE clause that keeps to bounds."""
    parts = [
        f"{quoted(name)} BETWEEN {_bound(low)} AND {_bound(high)}"
        for name, (low, high) in bounds.items()
    ]
    return f" WHERE {' AND '.join(parts)}" if parts else ""


def _bound(value: Any) -> str:
    if isinstance(value, str):
        return literal(value)
    return f"toDate32('{value.isoformat()}')" if isinstance(value, date) else str(value)
