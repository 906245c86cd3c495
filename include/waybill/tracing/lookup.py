"""The look-up of one event's traces as SQL: written once, in Athena's dialect.

Values are parameters, always. sqlglot renders the text for each engine; which objects are read is
not left to it: DuckDB is given the objects, Athena prunes by ``dt`` and ``bucket`` through
partition projection.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Literal

from waybill.tracing.trace import TRACE_SCHEMA

_WHERE = "WHERE event_id = ? AND bucket = ?"
_SINCE = " AND dt >= ? AND at >= FROM_ISO8601_TIMESTAMP(?)"
_UNTIL = " AND dt <= ? AND at <= FROM_ISO8601_TIMESTAMP(?)"
_OBJECTS = "SELECT * FROM READ_PARQUET(?, hive_partitioning = TRUE, hive_types_autocast = FALSE)"


@cache
def lookup_sql(engine: Literal["athena", "duckdb"], *, since: bool, until: bool) -> str:
    """Return the statement; its parameters are ``lookup_values``, after the objects for DuckDB."""
    import sqlglot  # noqa: PLC0415

    columns = ", ".join(TRACE_SCHEMA.names)
    text = f"SELECT DISTINCT {columns} FROM traces {_WHERE}"  # noqa: S608 - fixed names, no values
    if since:
        text += _SINCE
    if until:
        text += _UNTIL
    statement = sqlglot.parse_one(text, read="athena")
    if engine == "duckdb":
        objects = sqlglot.parse_one(_OBJECTS, read="duckdb").find(sqlglot.exp.Table)
        statement.find(sqlglot.exp.Table).replace(objects)
    return str(statement.sql(dialect=engine, identify=True))


def lookup_values(
    event_id: str, bucket: int, since: datetime | None, until: datetime | None
) -> list[str]:
    """Return the parameters of ``lookup_sql``, all of them text."""
    values = [event_id, f"{bucket:03d}"]
    for moment in (since, until):
        if moment is not None:
            utc = moment.astimezone(UTC)
            values += [f"{utc:%Y-%m-%d}", utc.isoformat(timespec="microseconds")]
    return values
