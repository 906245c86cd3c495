"""Databricks's statements: tables, changes of them, and the merge of a load."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import pyarrow as pa

from waybill.destinations.adapters.databricks.dialect import (
    can_widen,
    literal,
    quoted,
    sql_type,
)
from waybill.destinations.merging import DELETED_AT, KEPT_COLUMNS
from waybill.destinations.per_table.model import DELETE, OP, SOFT_DELETE, TOUCH, UPSERT, Bounds
from waybill.destinations.per_table.shape import ShapePlan
from waybill.errors import InputError

BOOKS = "waybill"
LOADS = f"{quoted(BOOKS)}.{quoted('_waybill_loads')}"
METADATA = "spark.databricks.delta.commitInfo.userMetadata"
CREATE_BOOKS = (
    f"CREATE SCHEMA IF NOT EXISTS {quoted(BOOKS)}",
    f"CREATE TABLE IF NOT EXISTS {LOADS} (place STRING NOT NULL, version BIGINT NOT NULL, "
    "stamp STRING NOT NULL, at TIMESTAMP NOT NULL) USING DELTA",
)
_SOURCE, _INTAKE = (quoted(name) for name, _ in KEPT_COLUMNS[1:3])


def creation(
    schema_name: str, name: str, schema: pa.Schema, partitions: Sequence[str]
) -> list[str]:
    """Return the statements that make a schema and a table."""
    columns = ", ".join(
        f"{quoted(f.name)} {sql_type(f.type)}{'' if f.nullable else ' NOT NULL'}" for f in schema
    )
    parted = f" PARTITIONED BY ({', '.join(quoted(p) for p in partitions)})" if partitions else ""
    return [
        f"CREATE SCHEMA IF NOT EXISTS {quoted(schema_name)}",
        f"CREATE TABLE IF NOT EXISTS {quoted(schema_name)}.{quoted(name)} ({columns}) USING DELTA"
        f"{parted} TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
        "'delta.enableTypeWidening' = 'true')",
    ]


def alterations(place: str, known: pa.Schema, plan: ShapePlan) -> list[str]:
    """Return the statements that bring a table's columns to a plan.

    Raises:
        InputError: Delta does not widen a column so; says what to run.
    """
    found = [
        f"ALTER TABLE {place} ADD COLUMN {quoted(f.name)} {sql_type(f.type)}" for f in plan.add
    ]
    if plan.widen:
        found.append(f"ALTER TABLE {place} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    for item in plan.widen:
        column, kind = quoted(item.name), sql_type(item.type)
        if not can_widen(known.field(item.name).type, item.type):
            other = quoted(f"{item.name}_new")
            update = f"UPDATE {place} SET {other} = CAST({column} AS {kind})"
            raise InputError(
                f"table {place}, column {item.name!r}: found "
                f"{sql_type(known.field(item.name).type)}, expected {kind}; Delta does not widen a "
                f"column so: stop the pipeline's loads, run ALTER TABLE {place} ADD COLUMN {other} "
                f"{kind}; {update}; "
                f"ALTER TABLE {place} DROP COLUMN {column}; "
                f"ALTER TABLE {place} RENAME COLUMN {other} TO {column}"
            )
        found.append(f"ALTER TABLE {place} ALTER COLUMN {column} TYPE {kind}")
    found += [f"ALTER TABLE {place} ALTER COLUMN {quoted(n)} DROP NOT NULL" for n in plan.loosen]
    return found


def merge(place: str, source: str, names: Sequence[str], key: Sequence[str]) -> str:
    """Return the merge of a load's rows, guarded by version.

    Args:
        place: the table, qualified.
        source: where its rows are, with ``OP``.
        names: their columns.
        key: of the table.
    """
    on = " AND ".join(f"t.{quoted(one)} = s.{quoted(one)}" for one in key)
    free = [name for name in names if name not in key]
    versions = [name for name, _ in KEPT_COLUMNS[:-1] if name in names]
    marks = [*versions, *([DELETED_AT] if DELETED_AT in names else [])]
    newer = gone = "TRUE"  # a table that only tries what can be done has no versions
    if versions:
        newer = (
            f"(t.{_SOURCE} IS NULL OR s.{_SOURCE} > t.{_SOURCE} OR "
            f"(s.{_SOURCE} = t.{_SOURCE} AND s.{_INTAKE} > t.{_INTAKE}))"
        )
        gone = f"(s.{_SOURCE} IS NULL OR {newer})"  # an item that goes has none
    op = f"s.{quoted(OP)} ="
    listed, values = (", ".join(f"{p}{quoted(n)}" for n in names) for p in ("", "s."))
    moved = (
        f"WHEN MATCHED AND {op} '{TOUCH}' AND {newer} THEN UPDATE SET {_sets(versions)} "
        f"WHEN MATCHED AND {op} '{SOFT_DELETE}' AND {newer} THEN UPDATE SET {_sets(marks)} "
    )
    return (
        f"MERGE INTO {place} AS t USING (SELECT * FROM {source}) AS s ON {on} "
        f"WHEN MATCHED AND {op} '{DELETE}' AND {gone} THEN DELETE "
        f"{moved if versions else ''}"
        f"WHEN MATCHED AND {op} '{UPSERT}' AND {newer} THEN UPDATE SET {_sets(free)} "
        f"WHEN NOT MATCHED AND {op} '{UPSERT}' THEN INSERT ({listed}) VALUES ({values})"
    )


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
    return f"DATE '{value.isoformat()}'" if isinstance(value, date) else str(value)


def _sets(names: Sequence[str]) -> str:
    return ", ".join(f"{quoted(name)} = s.{quoted(name)}" for name in names)
