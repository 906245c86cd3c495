"""Redshift's types, limits, errors and catalogue."""

from __future__ import annotations

from waybill.destinations.drivers import ErrorMap
from waybill.destinations.limits import ValueLimits
from waybill.destinations.transactional.dialect import (
    Dialect,
    delete_without_alias,
    merge_in_steps,
    null_safe_as_or,
    reader,
    using_as_exists,
)

_S3 = (
    "let the cluster's role (?iam_role=…) read the staging bucket (?staging=s3://…), and Waybill "
    "write and delete there"
)
_GRANT = (
    "grant the destination's user CREATE and TEMP on the database, and on the tables and schemas "
    "of the mappings USAGE, SELECT, INSERT, UPDATE, DELETE"
)
ERRORS = ErrorMap(
    retry={
        "40001": "another load changed the same table",
        "40P01": "two loads waited for each other",
        "42P01": "a table is gone; it is looked for again",
        "42703": "a column is gone; it is looked for again",
        "3F000": "a schema is gone; it is looked for again",
        "55006": "an object is in use",
        "55P03": "another load holds a lock for too long",
        "08": "the connection broke",
        "53": "the cluster lacks memory, space or connections now",
        "57": "the statement was cancelled, or the cluster restarts",
        "58": "an error inside the cluster",
    },
    advice={
        "28": "check user and password in the destination's dsn",
        "3D": "create the database, or correct the destination's dsn",
        "42501": _GRANT,
        "s3": _S3,
    },
    refused={
        "length": "destination_value_refused",
        "23502": "destination_not_null_violation",
        "22": "destination_value_refused",
        "23": "destination_check_violation",
    },
    phrases={
        "serializable isolation violation": "40001",
        "deadlock detected": "40P01",
        "s3serviceexception": "s3",
        "not authorized to assume": "s3",
        "value too long for": "length",
        "cannot insert a null value": "23502",
    },
)

REDSHIFT = Dialect(
    kind="redshift",
    title="Redshift",
    sqlglot="redshift",
    types={
        "bool": "BOOLEAN",
        "int32": "INTEGER",
        "int64": "BIGINT",
        "float64": "DOUBLE PRECISION",
        "decimal": "DECIMAL({p}, {s})",
        "string": "VARCHAR(65535)",
        "timestamp": "TIMESTAMPTZ",
        "date": "DATE",
        "bytes": "VARBYTE(1024000)",
        "json": "VARCHAR(65535)",
    },
    errors=ERRORS,
    limits=ValueLimits(text_bytes=65_535, binary_bytes=1_024_000, takes_nul=False),
    widens=lambda _old, _new: False,
    known=reader(
        {
            "boolean": "bool",
            "integer": "int32",
            "bigint": "int64",
            "double precision": "float64",
            "character varying": "string",
            "timestamp with time zone": "timestamp",
            "date": "date",
            "binary varying": "bytes",
        }
    ),
    catalogue=(
        "SELECT column_name AS name, CASE data_type WHEN 'numeric' THEN 'numeric(' || "
        "CAST(numeric_precision AS VARCHAR) || ',' || CAST(numeric_scale AS VARCHAR) || ')' "
        "ELSE data_type END AS type, is_nullable = 'NO' AS required FROM svv_columns "
        "WHERE table_schema = {schema} AND table_name = {table} ORDER BY ordinal_position"
    ),
    relaxing="",
    rewritings=(null_safe_as_or, merge_in_steps, using_as_exists, delete_without_alias),
)
