"""Questions to the traces as SQL: written once, in Athena's dialect.

Values are parameters, always; only how many there are shapes the text. sqlglot renders it for each
engine. Which objects are read is not left to it: DuckDB is given the objects, Athena prunes by
``bucket``, ``dt`` and ``hour`` through partition projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Literal

from waybill.tracing.projection import BY_ID, BY_TIME
from waybill.tracing.query import MINUTE_COLUMNS, OBJECT_COLUMNS
from waybill.tracing.trace import TRACE_SCHEMA

Engine = Literal["athena", "duckdb"]
Value = str | int
_RANGE = "event_id >= ? AND event_id < ?"
_SINCE = " AND dt >= ? AND CONCAT(dt, '/', hour) >= ? AND at >= FROM_ISO8601_TIMESTAMP(?)"
_UNTIL = " AND dt <= ? AND CONCAT(dt, '/', hour) <= ? AND at <= FROM_ISO8601_TIMESTAMP(?)"
_NOT_OF_RUN = """ AND "$path" NOT LIKE ? ESCAPE '\\'"""
_OBJECTS = "SELECT * FROM READ_PARQUET(?, hive_partitioning = TRUE, hive_types_autocast = FALSE)"


@dataclass(frozen=True, slots=True)
class Statement:
    """A text with ``?``, and the values for them, in order."""

    sql: str
    values: tuple[Value, ...]


def trails_statement(
    engine: Engine,
    event_ids: Sequence[str],
    buckets: Sequence[int],
    since: datetime | None,
    until: datetime | None,
) -> Statement:
    """Return what finds the traces of events and their children.

    It also finds ids that go on with a sign below "/", such as ``<id>-2``: ``only_of`` sorts them
    out. (One range an id prunes row groups; a condition with more in it would not.)
    """
    sql = _trails_sql(
        engine, len(event_ids), len(buckets), since=since is not None, until=until is not None
    )
    ranges = [bound for one in event_ids for bound in (one, one + "0")]  # "0" comes after "/"
    numbers = [f"{bucket:03d}" for bucket in buckets]
    return Statement(sql, (*ranges, *numbers, *_window(since, until)))


def minute_statement(
    engine: Engine,
    names: tuple[str, str],
    intake_minute: int,
    window: tuple[datetime, datetime],
    hidden_runs: Sequence[str] = (),
) -> Statement:
    """Return what finds the traces of one intake minute.

    Args:
        engine: whose dialect.
        names: pipeline id, event name.
        intake_minute: minutes since 1970.
        window: times of the traces, both included.
        hidden_runs: only for Athena: compactions whose outputs do not count yet.
    """
    sql = _minute_sql(engine, len(hidden_runs))
    outputs = [f"%/{run}\\_%" for run in hidden_runs]
    return Statement(sql, (*names, intake_minute, *_window(*window), *outputs))


def object_statement(
    engine: Engine,
    object_keys: Sequence[str],
    window: tuple[datetime, datetime],
    hidden_runs: Sequence[str] = (),
) -> Statement:
    """Return what finds the traces that name one of some objects; see ``minute_statement``."""
    sql = _object_sql(engine, len(object_keys), len(hidden_runs))
    outputs = [f"%/{run}\\_%" for run in hidden_runs]
    return Statement(sql, (*object_keys, *_window(*window), *outputs))


@cache
def _trails_sql(engine: Engine, ids: int, buckets: int, *, since: bool, until: bool) -> str:
    columns = ", ".join(TRACE_SCHEMA.names)
    # Athena sees an hour's objects twice while it is compacted; DuckDB is given each once.
    distinct = "DISTINCT " if engine == "athena" else ""
    ranges = " OR ".join([f"({_RANGE})"] * ids)
    numbers = ", ".join("?" * buckets)
    where = f"({ranges}) AND bucket IN ({numbers})"
    where += _SINCE * since + _UNTIL * until
    return _rendered(engine, f"SELECT {distinct}{columns} FROM {BY_ID} WHERE {where}")


@cache
def _minute_sql(engine: Engine, hidden_runs: int) -> str:
    columns = ", ".join(MINUTE_COLUMNS)
    where = "pipeline_id = ? AND event_name = ? AND intake_minute = ?" + _SINCE + _UNTIL
    where += _NOT_OF_RUN * hidden_runs
    return _rendered(engine, f"SELECT {columns} FROM {BY_TIME} WHERE {where}")


@cache
def _object_sql(engine: Engine, keys: int, hidden_runs: int) -> str:
    columns = ", ".join(OBJECT_COLUMNS)
    where = f"object_key IN ({', '.join('?' * keys)})" + _SINCE + _UNTIL
    where += _NOT_OF_RUN * hidden_runs
    return _rendered(engine, f"SELECT {columns} FROM {BY_TIME} WHERE {where}")


def _rendered(engine: Engine, text: str) -> str:
    import sqlglot

    statement = sqlglot.parse_one(text, read="athena")
    if engine == "duckdb":
        objects = sqlglot.parse_one(_OBJECTS, read="duckdb").find(sqlglot.exp.Table)
        statement.find(sqlglot.exp.Table).replace(objects)
    return str(statement.sql(dialect=engine, identify=True))


def _window(since: datetime | None, until: datetime | None) -> list[Value]:
    values: list[Value] = []
    for moment in (since, until):
        if moment is not None:
            utc = moment.astimezone(UTC)
            values += [f"{utc:%Y-%m-%d}", f"{utc:%Y-%m-%d/%H}"]
            values.append(utc.isoformat(timespec="microseconds"))
    return values
