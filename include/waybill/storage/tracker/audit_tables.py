"""The tracker's tables of questions about traces, and of the auditor; see ``tables``."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    PrimaryKeyConstraint,
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
    Column("tries", Integer, nullable=False, server_default=text("0")),
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

``external_id``: the query service's own id (Athena's execution id), by which it is cancelled.

``tries``: runners that took it up."""
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

intake_watermarks = Table(
    "intake_watermarks",
    METADATA,
    Column("pipeline_id", Text, primary_key=True),
    count_column("version"),
    Column("open", Boolean, nullable=False, server_default=text("false")),
    Column("open_from_minute", Integer, nullable=False),
    *[count_column(name) for name in ("pages", "waiting")],
    Column("source", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    time_column("began_at", now=True),
    time_column("told_at", now=True),
)
"""How far a pipeline's ingestion is settled: see ``waybill.ledger.watermarks``.

``version``: goes up with each change. ``waiting``: events of counted pages that Kafka had not
acknowledged when it was told last. ``source``: {"rows", "read", "at"}: what the source counted."""

audit_minutes = Table(
    "audit_minutes",
    METADATA,
    Column("pipeline_id", Text, nullable=False),
    Column("event_name", Text, nullable=False),
    Column("minute", Integer, nullable=False),
    *[count_column(name) for name in ("changed", "audited")],
    Column("fence", BigInteger),
    Column("state", Text, nullable=False, server_default=text("'new'")),
    Column("ids", Text, nullable=False, server_default=text("''")),
    Column("stages", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    time_column("since", now=True),
    time_column("balanced_at"),
    PrimaryKeyConstraint("pipeline_id", "event_name", "minute"),
)
"""Intake minutes that the auditor is not through with; one that is not here is in balance.

``changed``: goes up with each fold into the minute; ``audited``: what it was when last looked at.
``fence``: the round in which all its first-pass events were in the log. ``processing``: {stage:
{"verdict", "gap", "why"}}."""

audit_rounds = Table(
    "audit_rounds",
    METADATA,
    Column("number", BigInteger, primary_key=True, autoincrement=True),
    time_column("at", now=True),
    Column("ends", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("report", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
)
"""``ends``: {topic: {"id": topic id, "ends": [[partition, offset after the last], ...]}}."""
