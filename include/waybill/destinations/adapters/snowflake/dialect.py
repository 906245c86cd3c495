"""Snowflake's types, limits, errors and catalogue."""

from __future__ import annotations

from datetime import date

from waybill.destinations.drivers import ErrorMap
from waybill.destinations.limits import ValueLimits
from waybill.destinations.transactional.dialect import Dialect, digits, reader

_GRANT = (
    "grant the destination's role USAGE on the warehouse and the database, CREATE SCHEMA on the "
    "database, and on the schemas of the mappings USAGE, CREATE TABLE, and on the tables SELECT, "
    "INSERT, UPDATE, DELETE"
)
_LOGIN = "check account, user, password or key, and role in the destination's dsn"
ERRORS = ErrorMap(
    retry={
        "000625": "another load holds a lock for too long",
        "000630": "the statement took too long",
        "000604": "the statement was cancelled",
        "000603": "an error inside Snowflake",
        "000904": "a column is gone; it is looked for again",
        "deadlock": "two loads waited for each other",
        "390111": "the session ended",
        "390112": "the session ended",
        "390114": "the login ended",
    },
    advice={
        "003001": _GRANT,
        "002003": f"it does not exist, or the role may not see it: {_GRANT}",
        "002043": f"it does not exist, or the role may not see it: {_GRANT}",
        "000606": "name a warehouse in the dsn (?warehouse=…) that the role may use",
        "090073": "the warehouse cannot start: see its resource monitor",
        "000666": "the account is suspended: see its owner",
        "390100": _LOGIN,
        "390144": _LOGIN,
        "390189": _LOGIN,
        "390201": _LOGIN,
        "390422": "let the account's network policy admit this host",
    },
    refused={
        "100072": "destination_not_null_violation",
        "100078": "destination_value_refused",
        "22001": "destination_value_refused",
        "22003": "destination_value_refused",
        "22007": "destination_value_refused",
        "22018": "destination_value_refused",
    },
    phrases={"deadlock": "deadlock"},
)


def _widens(old: str, new: str) -> bool:
    """Numbers get more digits, but keep their scale."""
    before, after = _number(old), _number(new)
    return before is not None and after is not None and before[1] == after[1]


def _number(name: str) -> tuple[int, int] | None:
    return {"int32": (10, 0), "int64": (19, 0)}.get(name, digits(name))


SNOWFLAKE = Dialect(
    kind="snowflake",
    title="Snowflake",
    sqlglot="snowflake",
    types={
        "bool": "BOOLEAN",
        "int32": "NUMBER(10, 0)",
        "int64": "NUMBER(19, 0)",
        "float64": "FLOAT",
        "decimal": "NUMBER({p}, {s})",
        "string": "VARCHAR",
        "timestamp": "TIMESTAMP_TZ(6)",
        "date": "DATE",
        "bytes": "BINARY",
        "json": "VARCHAR",
    },
    errors=ERRORS,
    limits=ValueLimits(text_bytes=16 * 1024**2, binary_bytes=8 * 1024**2, first_day=date(1, 1, 1)),
    widens=_widens,
    known=reader(
        {
            "boolean": "bool",
            "float": "float64",
            "text": "string",
            "varchar": "string",
            "timestamp_tz": "timestamp",
            "date": "date",
            "binary": "bytes",
        },
        {"number(10,0)": "int32", "number(19,0)": "int64"},
    ),
    catalogue=(
        "SELECT column_name AS \"name\", CASE data_type WHEN 'NUMBER' THEN "
        "'NUMBER(' || numeric_precision || ',' || numeric_scale || ')' ELSE data_type END "
        'AS "type", is_nullable = \'NO\' AS "required" FROM information_schema.columns '
        "WHERE table_schema = {schema} AND table_name = {table} ORDER BY ordinal_position"
    ),
    adding="ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column} {type}",
)
