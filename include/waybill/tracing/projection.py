"""The two tables over the trace objects, for Athena: one model, from which the DDL is made.

Partitions are computed, never added: ``bucket``, ``dt`` and ``hour`` stand in every key. By id the
bucket is ``injected``: a statement must name its buckets, so that none can scan them all by
mistake. By time it is an integer of a known range: every bucket of the hours asked for is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from waybill.tracing.layout import NEW_BUCKETS, PREFIX, Layout, bucket_prefix, place_of
from waybill.tracing.store import TraceStore, stated_layout
from waybill.tracing.trace import TRACE_SCHEMA

if TYPE_CHECKING:
    from waybill.settings import Settings

BY_ID = "traces_by_id"
BY_TIME = "traces_by_time"
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
        parts = "/".join(f"{one.name}=${{{one.name}}}" for one in self.partitions)
        return f"{self.location}{parts}/"

    def ddl(self, database: str) -> str:
        """Return the statement that makes the table, without a semicolon."""
        columns = ",\n".join(f"  `{field.name}` {_SQL_TYPES[field.type]}" for field in TRACE_SCHEMA)
        partitions = ", ".join(f"`{one.name}` string" for one in self.partitions)
        properties = ",\n".join(f"  '{key}' = '{value}'" for key, value in self.properties.items())
        return (
            f"CREATE EXTERNAL TABLE IF NOT EXISTS `{database}`.`{self.table}` (\n{columns}\n)\n"
            f"PARTITIONED BY ({partitions})\n"
            "STORED AS PARQUET\n"
            f"LOCATION '{self.location}'\n"
            f"TBLPROPERTIES (\n{properties}\n)"
        )

    @property
    def properties(self) -> dict[str, str]:
        """What Athena is told to compute partitions by."""
        rules = {
            f"projection.{one.name}.{rule}": value
            for one in self.partitions
            for rule, value in one.rules
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
        RetryError: the store is away.

    Cost: without a day, a listing of two buckets.
    """
    layout = stated_layout(store) or Layout(settings.traces.buckets or NEW_BUCKETS)
    day = since_day or _first_day(store, layout)
    tables = projections(settings.s3.bucket, buckets=layout.buckets, since_day=day)
    return [table.ddl(settings.traces.athena_database) for table in tables]


def _first_day(store: TraceStore, layout: Layout) -> str:
    """Return the first day that has traces; today when none has."""
    hours = [
        place.hour.start
        for bucket in (0, layout.fresh)
        for info in store.list(bucket_prefix(bucket))
        if (place := place_of(info.key))
    ]
    return f"{min(hours, default=datetime.now(UTC)):%Y-%m-%d}"
