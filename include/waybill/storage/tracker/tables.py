"""The tracker's tables.

Books        pipelines, pipeline_versions, consumers, topic_offsets, commit_sequences, batches,
             ledger, ledger_minutes, ledger_totals, load_positions, connector_positions,
             intake_watermarks, refused_messages, staged_objects
Parking      parked_partitions, parked_objects, segments, replays, replay_entries, replay_outcomes,
             auto_replays, pipeline_holds
Asking       trace_queries, breaches, audit_minutes, audit_rounds
Being told   notices, notice_messages, notice_digests, digested_partitions
Who did what audit_log
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from waybill.storage.tracker.audit_tables import (
    audit_minutes,
    audit_rounds,
    breaches,
    intake_watermarks,
    trace_queries,
)
from waybill.storage.tracker.mapping_tables import destination_states, mapping_versions
from waybill.storage.tracker.metadata import METADATA, count_column, time_column
from waybill.storage.tracker.notice_tables import (
    digested_partitions,
    notice_digests,
    notice_messages,
    notices,
)
from waybill.storage.tracker.parking_tables import (
    SEGMENT_STATES,
    auto_replays,
    parked_objects,
    parked_partitions,
    pipeline_holds,
    replay_entries,
    replay_outcomes,
    replays,
    segments,
)

__all__ = [
    "COUNT_COLUMNS",
    "METADATA",
    "SEGMENT_STATES",
    "audit_log",
    "audit_minutes",
    "audit_rounds",
    "auto_replays",
    "batches",
    "breaches",
    "commit_sequences",
    "connector_positions",
    "consumers",
    "destination_states",
    "digested_partitions",
    "intake_watermarks",
    "ledger",
    "ledger_minutes",
    "ledger_totals",
    "load_positions",
    "mapping_versions",
    "notice_digests",
    "notice_messages",
    "notices",
    "parked_objects",
    "parked_partitions",
    "pipeline_holds",
    "pipeline_versions",
    "pipelines",
    "refused_messages",
    "replay_entries",
    "replay_outcomes",
    "replays",
    "segments",
    "staged_objects",
    "topic_offsets",
    "trace_queries",
]

COUNT_COLUMNS = (
    "in_first",
    "in_replayed",
    "passed",
    "out",
    "parked",
    "filtered",
    "superseded",
    "duplicate",
)
"""What became of events at one stage. ``passed`` counts events, ``out`` all their children."""

pipelines = Table(
    "pipelines",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("team", Text, nullable=False),
    time_column("created_at", now=True),
)

pipeline_versions = Table(
    "pipeline_versions",
    METADATA,
    Column("pipeline_id", Text, ForeignKey("pipelines.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("declaration", JSONB, nullable=False),
    Column("deployed_by", Text, nullable=False),
    time_column("deployed_at", now=True),
    PrimaryKeyConstraint("pipeline_id", "number"),
)

consumers = Table(
    "consumers",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    time_column("acquired_at", now=True),
    time_column("seen_at", now=True),
)

topic_offsets = Table(
    "topic_offsets",
    METADATA,
    Column("cluster_id", Text, nullable=False),
    Column("topic_id", Text, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("topic", Text, nullable=False),
    Column("next_offset", BigInteger, nullable=False),
    PrimaryKeyConstraint("cluster_id", "topic_id", "partition"),
)

commit_sequences = Table(
    "commit_sequences",
    METADATA,
    Column("destination", Text, primary_key=True),
    Column("last", BigInteger, nullable=False),
)

batches = Table(
    "batches",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("consumer", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("destination", Text, nullable=False),
    Column("commit_number", BigInteger, nullable=False),
    Column("offsets", JSONB, nullable=False),
    Column("took_ms", BigInteger),
    time_column("committed_at", now=True),
    UniqueConstraint("destination", "commit_number"),
)

ledger = Table(
    "ledger",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("reference", Text, nullable=False),
    Column("pipeline_id", Text, nullable=False),
    Column("counts", JSONB, nullable=False),
    Column("folded", Boolean, nullable=False, server_default=text("false")),
    time_column("committed_at", now=True),
    UniqueConstraint("reference", "pipeline_id"),
)
Index("ix_ledger_unfolded", ledger.c.id, postgresql_where=text("NOT folded"))

ledger_minutes = Table(
    "ledger_minutes",
    METADATA,
    Column("pipeline_id", Text, nullable=False),
    Column("event_name", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("minute", Integer, nullable=False),
    *[count_column(name) for name in COUNT_COLUMNS],
    PrimaryKeyConstraint("pipeline_id", "event_name", "stage", "minute"),
    Index("ix_ledger_minutes_time", "pipeline_id", "minute"),
)

ledger_totals = Table(
    "ledger_totals",
    METADATA,
    *[Column(name, Text, nullable=False) for name in ("pipeline_id", "event_name", "stage")],
    *[count_column(name) for name in COUNT_COLUMNS],
    PrimaryKeyConstraint("pipeline_id", "event_name", "stage"),
)
"""The sums of ``ledger_minutes`` over all minutes, folded with them."""

load_positions = Table(
    "load_positions",
    METADATA,
    Column("destination", Text, primary_key=True),
    Column("last_commit", BigInteger, nullable=False),
)

connector_positions = Table(
    "connector_positions",
    METADATA,
    Column("pipeline_id", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("cursor", JSONB, nullable=False),
    Column("rows_read", BigInteger, nullable=False),
    time_column("updated_at", now=True),
)

refused_messages = Table(
    "refused_messages",
    METADATA,
    Column("wal_id", Text, nullable=False),
    Column("lsn", BigInteger, nullable=False),
    Column("object_key", Text, nullable=False),
    time_column("parked_at", now=True),
    PrimaryKeyConstraint("wal_id", "lsn"),
)

staged_objects = Table(
    "staged_objects",
    METADATA,
    Column("key", Text, primary_key=True),
    Column("destination", Text, nullable=False),
    Column("commit_number", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'staged'")),
    time_column("committed_at", now=True),
    time_column("loaded_at"),
    CheckConstraint("state IN ('staged', 'loaded', 'deleted')", name="state"),
    Index("ix_staged_objects_commit", "destination", "commit_number"),
)

audit_log = Table(
    "audit_log",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    time_column("at", now=True),
    Column("who", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
)
