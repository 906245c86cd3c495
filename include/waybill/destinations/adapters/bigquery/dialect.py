"""BigQuery's types, limits, errors and catalogue."""

from __future__ import annotations

from waybill.destinations.drivers import ErrorMap
from waybill.destinations.limits import ValueLimits
from waybill.destinations.transactional.dialect import Dialect, reader, using_as_exists

_GRANT = (
    "grant the destination's account BigQuery Job User on the project, and BigQuery Data Owner on "
    "it or (where the datasets are there already) BigQuery Data Editor on the datasets"
)
ERRORS = ErrorMap(
    retry={
        "concurrent": "another load changed the same table",
        "session": "the session ended",
        "rateLimitExceeded": "too many requests at a time",
        "quotaExceeded": "a quota is used up",
        "jobRateLimitExceeded": "too many jobs at a time",
        "backendError": "an error inside BigQuery",
        "jobBackendError": "an error inside BigQuery",
        "internalError": "an error inside BigQuery",
        "jobInternalError": "an error inside BigQuery",
        "resourceInUse": "an object is in use",
        "resourcesExceeded": "the query needs more than is free now",
        "stopped": "the job was cancelled",
        "timeout": "the job took too long",
        "notFound": "a table or a dataset is gone; it is looked for again",
    },
    advice={
        "accessDenied": _GRANT,
        "authError": "check the credentials in the destination's dsn",
        "billingNotEnabled": "enable billing for the project",
        "billingTierLimitExceeded": "raise the project's billing tier",
        "invalidUser": "check the credentials in the destination's dsn",
        "location": "name the datasets' location in the dsn (?location=EU)",
        "project": "check the project in the destination's dsn",
    },
    refused={
        "null": "destination_not_null_violation",
        "length": "destination_value_refused",
        "range": "destination_value_refused",
    },
    phrases={
        "aborted due to concurrent update": "concurrent",
        "could not serialize access": "concurrent",
        "concurrent transaction": "concurrent",
        "session has expired": "session",
        "session not found": "session",
        "was not found in location": "location",
        "project not found": "project",
        "cannot be null": "null",
        "has maximum length": "length",
        "out of range": "range",
        "invalid numeric value": "range",
    },
)
_SCALE = 9
_BEFORE = 29
"""Digits that NUMERIC holds behind and before the point; BIGNUMERIC takes the others."""


def decimal_type(total: int, behind: int) -> str:
    """Return the type of a decimal."""
    fits = behind <= _SCALE and total - behind <= _BEFORE
    return f"{'NUMERIC' if fits else 'BIGNUMERIC'}({total}, {behind})"


def _widens(old: str, new: str) -> bool:
    """Integers and decimals widen to decimals and floats; days do not become times."""
    return old != "date" and new != "timestamp"


BIGQUERY = Dialect(
    kind="bigquery",
    title="BigQuery",
    sqlglot="bigquery",
    types={
        "bool": "BOOL",
        "int32": "INT64",
        "int64": "INT64",
        "float64": "FLOAT64",
        "string": "STRING",
        "timestamp": "TIMESTAMP",
        "date": "DATE",
        "bytes": "BYTES",
        "json": "STRING",
    },
    decimal=decimal_type,
    errors=ERRORS,
    limits=ValueLimits(text_bytes=10 * 1000**2, binary_bytes=10 * 1000**2),
    widens=_widens,
    known=reader(
        {
            "bool": "bool",
            "int64": "int64",
            "float64": "float64",
            "string": "string",
            "timestamp": "timestamp",
            "date": "date",
            "bytes": "bytes",
        },
        {"numeric": "decimal(38,9)", "bignumeric": "decimal(38,9)"},
    ),
    catalogue=(
        "SELECT column_name AS name, data_type AS type, is_nullable = 'NO' AS required "
        "FROM {schema_name}.INFORMATION_SCHEMA.COLUMNS WHERE table_name = {table} "
        "ORDER BY ordinal_position"
    ),
    absent="notFound",
    adding="ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column} {type}",
    key_clause=", PRIMARY KEY ({key}) NOT ENFORCED",
    temporary=False,
    working_suffix=(
        " OPTIONS (expiration_timestamp = TIMESTAMP_ADD(CURRENT_TIMESTAMP(), INTERVAL 1 DAY))"
    ),
    rewritings=(using_as_exists,),
    forbidden={character: f"the character {character!r}" for character in '!"$()*,./;?@[\\]^`{}~'},
)
