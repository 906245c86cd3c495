"""The tracker's tables.

Books        pipelines, pipeline_versions, consumers, topic_offsets, topic_stops,
             commit_sequences, batches, ledger, ledger_minutes, ledger_totals, load_positions,
             connector_positions, intake_watermarks, write_ahead_logs, refused_messages,
             staged_objects
Parking      parked_partitions, parked_objects, segments, replays, replay_entries, replay_outcomes,
             auto_replays, pipeline_holds
Asking       trace_queries, breaches, audit_minutes, audit_rounds
Being told   notices, notice_messages, notice_digests, digested_partitions
Who did what audit_log
Who it is    deployment
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
from waybill.storage.tracker.mapping_tables import (
    destination_rewinds,
    destination_states,
    loaded_tables,
    mapping_versions,
)
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
    "deployment",
    "destination_rewinds",
    "destination_states",
    "digested_partitions",
    "intake_watermarks",
    "ledger",
    "ledger_minutes",
    "ledger_totals",
    "load_positions",
    "loaded_tables",
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
    "topic_stops",
    "trace_queries",
    "write_ahead_logs",
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
    Column("last_read", JSONB),
    time_column("known_since", now=True),
    count_column("known_since_commit"),
    count_column("trimmed_commit"),
    PrimaryKeyConstraint("cluster_id", "topic_id", "partition"),
)
"""``last_read``: what a log that was cut is known by (``waybill.ledger.LastRead``).
``known_since_commit``: commits of the destination up to this one may be of another log."""

topic_stops = Table(
    "topic_stops",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("topic", Text, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("words", Text, nullable=False),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    time_column("found_at", now=True),
    time_column("settled_at"),
    Column("settled_by", Text, nullable=False, server_default=text("''")),
    Column("settlement", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    CheckConstraint("kind IN ('cut', 'deleted', 'recreated', 'hole')", name="kind"),
)
"""A topic that processing does not read until somebody settles it. ``partition``: -1: all."""
Index(
    "uq_topic_stops_open",
    topic_stops.c.topic,
    topic_stops.c.partition,
    topic_stops.c.kind,
    unique=True,
    postgresql_where=text("settled_at IS NULL"),
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
    Column("last_taken", BigInteger),
)
"""``last_taken``: the newest commit that the destination itself took; others were parked whole, or
had no rows. Null: not known, as of releases before this column."""

connector_positions = Table(
    "connector_positions",
    METADATA,
    Column("pipeline_id", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("cursor", JSONB, nullable=False),
    Column("rows_read", BigInteger, nullable=False),
    time_column("updated_at", now=True),
    time_column("reread_asked_at"),
)

LOG_STATES = ("open", "closed", "taken_over", "ended")

write_ahead_logs = Table(
    "write_ahead_logs",
    METADATA,
    Column("wal_id", Text, primary_key=True),
    *[
        Column(name, Text, nullable=False)
        for name in ("pipeline_id", "purpose", "name", "node", "path", "topic")
    ],
    Column("rereadable", Boolean, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'open'")),
    count_column("epoch"),
    *[count_column(name) for name in ("last_version", "committed_lsn", "unsettled")],
    Column("offsets", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("counted_to", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    count_column("adoptions"),
    Column("reread", Boolean, nullable=False, server_default=text("false")),
    time_column("opened_at", now=True),
    time_column("seen_at", now=True),
    time_column("ended_at"),
    *[
        Column(name, Text, nullable=False, server_default=text("''"))
        for name in ("ended_by", "reason")
    ],
    CheckConstraint("state IN ('open', 'closed', 'taken_over', 'ended')", name="state"),
    Index("ix_write_ahead_logs_pipeline_id", "pipeline_id"),
)
Index(
    "uq_write_ahead_logs_source",
    write_ahead_logs.c.pipeline_id,
    unique=True,
    postgresql_where=text("state = 'open' AND purpose = 'ingestion' AND rereadable"),
)
"""Write-ahead logs, and by them who reads a source: see ``waybill.ledger.write_ahead_logs``."""

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
    Column("taken", Boolean, nullable=False, server_default=text("false")),
    Column("offsets", JSONB),
    Column("problem", Text, nullable=False, server_default=text("''")),
    Column("not_recovered", Text, nullable=False, server_default=text("''")),
    CheckConstraint("state IN ('staged', 'loaded', 'deleted', 'lost')", name="state"),
    Index("ix_staged_objects_commit", "destination", "commit_number"),
)
Index(
    "ix_staged_objects_lost",
    staged_objects.c.destination,
    staged_objects.c.commit_number,
    postgresql_where=text("state = 'lost'"),
)
"""``offsets``: [topic, partition, first offset, offset after the last] of its events. ``lost``:
gone or damaged when it was to be loaded, ``problem`` says how, ``not_recovered`` why it cannot be
made again; ``deleted`` once it was, under another key and commit number, or given up by name."""

deployment = Table(
    "deployment",
    METADATA,
    Column("id", Uuid(as_uuid=True), nullable=False),
    time_column("created_at", now=True),
    Column("singleton", Boolean, primary_key=True, server_default=text("true")),
    CheckConstraint("singleton", name="one_row"),
)
"""One row, made with the table and never changed: which deployment this tracker is of."""
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
