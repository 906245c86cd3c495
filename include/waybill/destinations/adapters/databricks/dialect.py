"""Databricks's types and errors."""

from __future__ import annotations

import re

import pyarrow as pa

from waybill.destinations.drivers import ErrorMap
from waybill.destinations.per_table.shape import type_name
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
