"""The tracker's tables of questions about traces, and of what the auditor found; see ``tables``."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from waybill.storage.tracker.metadata import METADATA, count_column, time_column

QUERY_STATES = ("queued", "running", "done", "failed", "cancelled")
BREACH_STATES = ("open", "explained", "closed")

trace_queries = Table(
    "trace_queries",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("asked_by", Text, nullable=False),
    time_column("asked_at", now=True),
    Column("question", JSONB, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'queued'")),
    Column("backend", Text, nullable=False, server_default=text("''")),
    Column("runner", Text, nullable=False, server_default=text("''")),
    Column("external_id", Text, nullable=False, server_default=text("''")),
    Column("cancel_asked", Boolean, nullable=False, server_default=text("false")),
    count_column("objects_read"),
    count_column("objects"),
    count_column("bytes_scanned"),
    time_column("started_at"),
    time_column("seen_at"),
    time_column("finished_at"),
    Column("error", Text, nullable=False, server_default=text("''")),
    Column("answer", JSONB),
    CheckConstraint("state IN ('queued', 'running', 'done', 'failed', 'cancelled')", name="state"),
    Index("ix_trace_queries_asked_at", "asked_at"),
)
"""``runner``: the process that works on it; it says so anew in ``seen_at``.

``external_id``: the query service's own id (Athena's execution id), by which it is cancelled."""
Index(
    "ix_trace_queries_waiting",
    trace_queries.c.asked_at,
    postgresql_where=text("state IN ('queued', 'running')"),
)

breaches = Table(
    "breaches",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("pipeline_id", Text, nullable=False),
    Column("event_name", Text, nullable=False, server_default=text("''")),
    Column("stage", Text, nullable=False, server_default=text("''")),
    Column("minute", Integer, nullable=False, server_default=text("0")),
    Column("kind", Text, nullable=False),
    count_column("gap"),
    Column("state", Text, nullable=False, server_default=text("'open'")),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("ids", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    time_column("first_seen_at", now=True),
    time_column("last_seen_at", now=True),
    time_column("named_at"),
    time_column("ended_at"),
    Column("ended_by", Text, nullable=False, server_default=text("''")),
    Column("reason", Text, nullable=False, server_default=text("''")),
    CheckConstraint("state IN ('open', 'explained', 'closed')", name="state"),
    Index("ix_breaches_pipeline", "pipeline_id", "minute"),
)
"""``minute``: intake minute, 0: of no one minute. ``gap``: positive: missing, negative: too many.

``ids``: {"missing": [event ids], "doubled": [event ids]}, once the minute's traces are in."""
Index(
    "ix_breaches_one_open",
    *[breaches.c[name] for name in ("pipeline_id", "event_name", "stage", "minute", "kind")],
    unique=True,
    postgresql_where=text("state = 'open'"),
)
