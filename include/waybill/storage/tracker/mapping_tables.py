"""The tracker's tables of mappings, and of destinations that are waited for; see ``tables``."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, PrimaryKeyConstraint, Table, Text, text
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
