"""Databricks's types, errors and statements."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from waybill.destinations.drivers import ErrorMap
from waybill.destinations.merging import DELETED_AT, KEPT_COLUMNS
from waybill.destinations.per_table.sql_table import LakeSql
from waybill.destinations.per_table.table import (
    DELETE,
    OP,
    SOFT_DELETE,
    TOUCH,
    UPSERT,
    ShapePlan,
    type_name,
)
from waybill.errors import InputError
from waybill.pipelines import arrow_type

_GRANT = (
    "grant the destination's principal USE CATALOG and CREATE SCHEMA on the catalog, and on the "
    "schemas of the mappings USE SCHEMA, CREATE TABLE, SELECT, MODIFY, and READ VOLUME and WRITE "
    "VOLUME on the staging volume"
)
_CONFLICT = "another load changed the same table"
ERRORS = ErrorMap(
    retry={
        "DELTA_CONCURRENT_APPEND": _CONFLICT,
        "DELTA_CONCURRENT_DELETE_DELETE": _CONFLICT,
        "DELTA_CONCURRENT_DELETE_READ": _CONFLICT,
        "DELTA_CONCURRENT_TRANSACTION": _CONFLICT,
        "DELTA_CONCURRENT_WRITE": _CONFLICT,
        "DELTA_METADATA_CHANGED": _CONFLICT,
        "DELTA_PROTOCOL_CHANGED": _CONFLICT,
        "TABLE_OR_VIEW_NOT_FOUND": "a table is gone; it is looked for again",
        "SCHEMA_NOT_FOUND": "a schema is gone; it is looked for again",
        "DELTA_TABLE_NOT_FOUND": "a table is gone; it is looked for again",
        "PATH_NOT_FOUND": "a staged file is gone; it is staged again",
        "unavailable": "the warehouse starts, or is busy",
        "session": "the session ended",
        "57": "the statement was cancelled",
    },
    advice={
        "INSUFFICIENT_PERMISSIONS": _GRANT,
        "PERMISSION_DENIED": _GRANT,
        "42501": _GRANT,
        "login": "check the token in the destination's dsn",
        "CONFIG_NOT_AVAILABLE": "this compute does not let a session set the metadata of its "
        "commits (spark.databricks.delta.commitInfo.userMetadata), which hold Waybill's books; "
        "name a cluster's http path in the dsn",
        "CANNOT_MODIFY_CONFIG": "name a cluster's http path in the dsn: this compute does not let "
        "a session set the metadata of its commits",
        "CATALOG_NOT_FOUND": "correct the catalog in the destination's dsn",
        "NO_SUCH_CATALOG_EXCEPTION": "correct the catalog in the destination's dsn",
        "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES": "write the table's constraint in plainer SQL: "
        "evaluated here it allows the rows",
        "DELTA_UNSUPPORTED_ALTER_TABLE_CHANGE_COL_OP": "change the column's type there by hand",
    },
    refused={},
    phrases={
        "temporarily_unavailable": "unavailable",
        "too many requests": "unavailable",
        "invalid access token": "login",
        "invalid sessionhandle": "session",
    },
)
_TYPES = {
    "bool": "BOOLEAN",
    "int32": "INT",
    "int64": "BIGINT",
    "float64": "DOUBLE",
    "string": "STRING",
    "timestamp": "TIMESTAMP",
    "date": "DATE",
    "bytes": "BINARY",
}
_FOUND = {text.lower(): name for name, text in _TYPES.items()}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def sql_type(kind: pa.DataType) -> str:
    """Return the type of a column."""
    name = None if pa.types.is_decimal(kind) else type_name(kind)
    return f"DECIMAL({kind.precision}, {kind.scale})" if name is None else _TYPES[name]


def field_of(name: str, text: str, *, nullable: bool) -> pa.Field:
    """Return a column as the catalogue spells it; one of a type that is not Waybill's is null's."""
    plain = text.lower().replace(" ", "")
    decimal = _DECIMAL.fullmatch(plain)
    kind = pa.null()
    if decimal is not None:
        kind = pa.decimal128(int(decimal[1]), int(decimal[2]))
    elif plain in _FOUND:
        kind = arrow_type(_FOUND[plain])
    return pa.field(name, kind, nullable=nullable or pa.types.is_null(kind))


def can_widen(old: pa.DataType, new: pa.DataType) -> bool:
    """Say whether Delta's type widening has this: days do not become times, integers need room."""
    if pa.types.is_date(old):
        return False
    if pa.types.is_integer(old) and pa.types.is_decimal(new):
        need = 10 if old == pa.int32() else 20
        return bool(new.precision - new.scale >= need)
    return True


def quoted(name: str) -> str:
    """Return an identifier as Databricks quotes it."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Return a text as Databricks quotes it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


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
    statements = [
        f"ALTER TABLE {place} ADD COLUMN {quoted(f.name)} {sql_type(f.type)}" for f in plan.add
    ]
    if plan.widen:
        statements.append(
            f"ALTER TABLE {place} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
        )
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
        statements.append(f"ALTER TABLE {place} ALTER COLUMN {column} TYPE {kind}")
    statements += [
        f"ALTER TABLE {place} ALTER COLUMN {quoted(n)} DROP NOT NULL" for n in plan.loosen
    ]
    return statements


def merge(place: str, source: str, names: Sequence[str], key: Sequence[str]) -> str:
    """Return the merge of a load's rows, guarded by version.

    Args:
        place: the table, qualified.
        source: where its rows are, with ``OP``.
        names: their columns.
        key: of the table.
    """
    on = " AND ".join(f"t.{quoted(column)} = s.{quoted(column)}" for column in key)
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


def _sets(names: Sequence[str]) -> str:
    return ", ".join(f"{quoted(name)} = s.{quoted(name)}" for name in names)


SQL = LakeSql(
    quoted,
    literal,
    day="DATE '{}'",
    count="COUNT(*)",
    create_books=CREATE_BOOKS,
    loads=LOADS,
)
