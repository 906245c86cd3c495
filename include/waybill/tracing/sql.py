"""The traces as SQL: two tables over their objects, and the questions that are asked of them.

The tables are Athena's: one model, from which the DDL is made. Partitions are computed, never
added: ``bucket``, ``dt`` and ``hour`` stand in every key. By id the bucket is ``injected``: a
statement must name its buckets, so that none can scan them all by mistake. By time it is an integer
of a known range: every bucket of the hours asked for is read.

Questions are written once, in Athena's dialect. Values are parameters, always; only how many there
are shapes the text. sqlglot renders it for each engine. Which objects are read is not left to it:
DuckDB is given the objects, Athena prunes by ``bucket``, ``dt`` and ``hour``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from waybill.errors import InputError
from waybill.tracing.layout import (
    NEW_BUCKETS,
    PREFIX,
    Layout,
    TraceStore,
    bucket_prefix,
    place_of,
    stated_layout,
)
from waybill.tracing.trace import TRACE_SCHEMA

if TYPE_CHECKING:
    from waybill.settings import Settings

BY_ID = "traces_by_id"
BY_TIME = "traces_by_time"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_SQL_TYPES = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.timestamp("us", "UTC"): "timestamp",
}


@dataclass(frozen=True, slots=True)
class ProjectedPartition:
    """One partition column, always text, and how its values are computed."""

    name: str
    rules: tuple[tuple[str, str], ...]
    """What is said of it under ``projection.<name>.``"""


@dataclass(frozen=True, slots=True)
class Projection:
    """One table over the trace objects."""

    table: str
    location: str
    """``s3://bucket/traces/``."""
    partitions: tuple[ProjectedPartition, ...]

    @property
    def template(self) -> str:
        """Where a partition's objects lie, as Athena computes it."""
        parts = "/".join(f"{partition.name}=${{{partition.name}}}" for partition in self.partitions)
        return f"{self.location}{parts}/"

    def ddl(self, database: str) -> str:
        """Return the statement that makes the table, without a semicolon."""
        columns = ",\n".join(f"  `{field.name}` {_SQL_TYPES[field.type]}" for field in TRACE_SCHEMA)
        partitions = ", ".join(f"`{partition.name}` string" for partition in self.partitions)
        properties = ",\n".join(f"  '{key}' = '{value}'" for key, value in self.properties.items())
        return (
            f"CREATE EXTERNAL TABLE IF NOT EXISTS `{database}`.`{self.table}` (\n{columns}\n)\n"
            f"PARTITIONED BY ({partitions})\n"
            "STORED AS PARQUET\n"
            f"LOCATION '{self.location}'\n"
            f"TBLPROPERTIES (\n{properties}\n)"
        )

    def update(self, database: str) -> str:
        """Return the statement that brings a table which is there already to these partitions."""
        properties = ",\n".join(f"  '{key}' = '{value}'" for key, value in self.properties.items())
        return f"ALTER TABLE `{database}`.`{self.table}` SET TBLPROPERTIES (\n{properties}\n)"

    @property
    def properties(self) -> dict[str, str]:
        """What Athena is told to compute partitions by."""
        rules = {
            f"projection.{partition.name}.{rule}": value
            for partition in self.partitions
            for rule, value in partition.rules
        }
        return {
            "projection.enabled": "true",
            **rules,
            "storage.location.template": self.template,
        }


def projections(s3_bucket: str, *, buckets: int, since_day: str) -> tuple[Projection, Projection]:
    """Return the table by id and the table by time.

    Args:
        s3_bucket: the store's bucket.
        buckets: as the layout object states.
        since_day: first day that has traces, YYYY-MM-DD; earlier ones are not looked for.
    """
    location = f"s3://{s3_bucket}/{PREFIX}"
    days = ProjectedPartition(
        "dt", (("type", "date"), ("format", "yyyy-MM-dd"), ("range", f"{since_day},NOW+1DAYS"))
    )
    hours = ProjectedPartition("hour", (("type", "integer"), ("range", "0,23"), ("digits", "2")))
    injected = ProjectedPartition("bucket", (("type", "injected"),))
    counted = ProjectedPartition(
        "bucket", (("type", "integer"), ("range", f"0,{buckets}"), ("digits", "3"))
    )
    return (
        Projection(BY_ID, location, (injected, days, hours)),
        Projection(BY_TIME, location, (counted, days, hours)),
    )


def table_statements(
    settings: Settings, store: TraceStore, *, since_day: str | None = None
) -> list[str]:
    """Return the statements that make both tables, for the store as it is.

    Args:
        settings: the store's bucket, and Athena's database.
        store: states the number of buckets.
        since_day: first day to look for, YYYY-MM-DD; None: the first one that has traces.

    Raises:
        InputError: the bucket's or the database's name is none that can stand in a statement.
        RetryError: the store is away.

    Cost: without a day, a listing of two buckets.
    """
    tables = _tables(settings, store, since_day)
    return [table.ddl(settings.traces.athena_database) for table in tables]


def table_updates(settings: Settings, store: TraceStore) -> list[str]:
    """Return the statements that make what is missing of both tables, and bring them up to date.

    In their order; run again, or not to their end, they do no harm. A table that is there gets the
    store's buckets, and its first day; columns are not added. Raises and costs as
    ``table_statements``.
    """
    database = settings.traces.athena_database
    tables = _tables(settings, store, None)
    return [text for table in tables for text in (table.ddl(database), table.update(database))]


def _tables(
    settings: Settings, store: TraceStore, since_day: str | None
) -> tuple[Projection, Projection]:
    for name, value in (
        ("WAYBILL_TRACES__ATHENA_DATABASE", settings.traces.athena_database),
        ("WAYBILL_S3__BUCKET", settings.s3.bucket),
    ):
        if not _PLAIN_NAME.fullmatch(value):
            raise InputError(
                f"{name} is {value!r}: letters, digits, '_', '-' and '.' can stand in a statement"
            )
    layout = stated_layout(store) or Layout(settings.traces.buckets or NEW_BUCKETS)
    day = since_day or _first_day(store, layout)
    return projections(settings.s3.bucket, buckets=layout.buckets, since_day=day)


def _first_day(store: TraceStore, layout: Layout) -> str:
    """Return the first day that has traces; today when none has."""
    hours = [
        place.hour.start
        for bucket in (0, layout.fresh)
        for info in store.list(bucket_prefix(bucket))
        if (place := place_of(info.key))
    ]
    return f"{min(hours, default=datetime.now(UTC)):%Y-%m-%d}"


MINUTE_COLUMNS = (
    "event_id",
    "phase",
    "outcome",
    "batch",
    "kafka_partition",
    "kafka_offset",
    "commit_number",
    "attempt",
    "replay_id",
    "at",
)
MINUTE_SCHEMA = pa.schema([TRACE_SCHEMA.field(name) for name in MINUTE_COLUMNS])
"""What ``minute_traces`` yields."""
OBJECT_COLUMNS = (
    "object_key",
    "event_id",
    "pipeline_id",
    "event_name",
    "phase",
    "outcome",
    "error_type",
    "kafka_partition",
    "kafka_offset",
)
OBJECT_SCHEMA = pa.schema([TRACE_SCHEMA.field(name) for name in OBJECT_COLUMNS])
"""What ``object_traces`` yields."""
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
    ranges = [
        bound for event_id in event_ids for bound in (event_id, event_id + "0")
    ]  # "0" comes after "/"
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
