"""The tracker's tables of mappings, of destinations that are waited for, or were put back."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from waybill.storage.tracker.metadata import METADATA, count_column, time_column

mapping_versions = Table(
    "mapping_versions",
    METADATA,
    Column("pipeline_id", Text, nullable=False),
    Column("event_name", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("declaration", JSONB, nullable=False),
    Column("author", Text, nullable=False),
    Column("reason", Text, nullable=False, server_default=text("''")),
    Column("pipeline_version", Text, nullable=False, server_default=text("''")),
    time_column("created_at", now=True),
    PrimaryKeyConstraint("pipeline_id", "event_name", "number"),
)
"""What an event name maps to: the declaration with all that was learned from events since.

``declaration``: an ``EventDeclaration`` as JSON. ``author``: who deployed, or the task that met new
fields. The greatest number is in force; rows never change."""

destination_states = Table(
    "destination_states",
    METADATA,
    Column("destination", Text, primary_key=True),
    time_column("waiting_since"),
    time_column("tried_at"),
    count_column("attempts"),
    Column("code", Text, nullable=False, server_default=text("''")),
    Column("error", Text, nullable=False, server_default=text("''")),
    time_column("told_at"),
    Column("parked_from", BigInteger),
    time_column("park_asked_at"),
    Column("park_asked_by", Text, nullable=False, server_default=text("''")),
    Column("park_reason", Text, nullable=False, server_default=text("''")),
)
"""A destination that does not take its loads: since when its loader waits, what it said last.

``code``: the error type of what it said; ``told_at``: its owners were told. ``park_asked_at``:
somebody wants what waits parked; ``parked_from``: the first commit number that the loader parked.
There is no row of a destination that takes its loads."""

loaded_tables = Table(
    "loaded_tables",
    METADATA,
    Column("destination", Text, nullable=False),
    Column("table_schema", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("last_commit", BigInteger, nullable=False),
    PrimaryKeyConstraint("destination", "table_schema", "table_name"),
)
"""The newest commit with rows for a table, of destinations that keep books for each table."""

destination_rewinds = Table(
    "destination_rewinds",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("destination", Text, nullable=False),
    time_column("found_at", now=True),
    count_column("held"),
    count_column("taken"),
    Column("commits", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    count_column("rows"),
    count_column("done_to"),
    Column("lost", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    count_column("lost_rows"),
    time_column("reloaded_at"),
    time_column("settled_at"),
    Column("settled_by", Text, nullable=False, server_default=text("''")),
    Column("reason", Text, nullable=False, server_default=text("''")),
)
Index(
    "ix_destination_rewinds_open",
    destination_rewinds.c.destination,
    unique=True,
    postgresql_where=text("reloaded_at IS NULL"),
)
"""A destination that was put back to an older point. ``held``: the newest commit it had; ``taken``:
the newest that it took. ``commits``: spans [first, last] of those that are loaded again, up to
``done_to`` so far, until ``reloaded_at``. ``lost``: spans of those whose staged objects are not
kept any more: an alarm until ``settled_at``."""
