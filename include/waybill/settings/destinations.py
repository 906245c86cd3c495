"""How to reach destinations, and how they like their loads."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from waybill.settings.secrets import require_url
from waybill.settings.section import Section

BUILT_IN_KINDS = (
    "postgres",
    "duckdb",
    "delta",
    "iceberg",
    "snowflake",
    "bigquery",
    "redshift",
    "databricks",
    "clickhouse",
)
ENTRY_POINTS = "waybill.destinations"
"""Group under which other packages bring kinds of destinations."""


def brought_kinds() -> dict[str, EntryPoint]:
    """Return the kinds that installed packages bring. Cost: a look at each installed package."""
    return {one.name: one for one in entry_points(group=ENTRY_POINTS)}


class DestinationSettings(Section):
    """How to reach one destination; pipelines name it."""

    kind: str = "postgres"
    """One of ``BUILT_IN_KINDS``, or one that an installed package brings."""
    dsn: SecretStr
    """postgres: a libpq URL; duckdb: a file; delta, iceberg: a folder or ``s3://…``; the others:
    a URL of their own form (docs/destinations.md)."""
    options: dict[str, SecretStr] = Field(default={})
    """What a kind needs beside its dsn, such as ``catalog`` for iceberg."""
    max_rows: int = Field(1_000_000, ge=1)
    """Rows that a load takes at most; a commit is never cut."""
    max_bytes: int = Field(256 * 1024**2, ge=1024)
    """Bytes of staged objects that a load takes at most; a commit is never cut."""
    min_rows: int = Field(0, ge=0)
    """A load waits for so many rows (or ``max_bytes``),"""
    max_wait_s: float = Field(0.0, ge=0)
    """but no longer than this after its first commit; the two go together, 0: it never waits."""
    park_after_s: float | None = Field(None, gt=0)
    """What waits is parked when the destination took nothing for so long; null: it waits."""
    compare_every_s: float | None = Field(60.0, ge=10)
    """While nothing is to be loaded, the destination's own books are compared so often, so that
    one which was put back to an older point is seen; null: only when it is opened, and by loads.
    One that is paid by the time it is awake may like null."""

    @field_validator("kind")
    @classmethod
    def _check_kind(cls, kind: str) -> str:
        if kind not in BUILT_IN_KINDS and kind not in brought_kinds():
            known = ", ".join((*BUILT_IN_KINDS, *sorted(brought_kinds())))
            raise ValueError(f"there is no such kind of destination; there are {known}")
        return kind

    @model_validator(mode="after")
    def _check_dsn(self) -> Self:
        if self.kind == "postgres" and "://" in self.dsn.get_secret_value():
            require_url(self.dsn)
        return self

    @model_validator(mode="after")
    def _check_waiting(self) -> Self:
        if bool(self.min_rows) != bool(self.max_wait_s):
            given, other = (
                ("min_rows", "max_wait_s") if self.min_rows else ("max_wait_s", "min_rows")
            )
            raise ValueError(f"{given} says nothing without {other}: set both, or neither")
        if self.min_rows > self.max_rows:
            raise ValueError(f"min_rows {self.min_rows} is more than max_rows {self.max_rows}")
        return self
