"""The tracker's tables.

Books        pipelines, pipeline_versions, consumers, topic_offsets, commit_sequences, batches,
             ledger, ledger_minutes, load_positions, connector_positions, refused_messages,
             staged_objects
Parking      parked_partitions, parked_objects, segments, replays, replay_outcomes, auto_replays,
             pipeline_holds
Being told   notices, notice_messages, notice_digests, digested_partitions
Who did what audit_log
"""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

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

SEGMENT_STATES = (
    "parked",
    "replaying",
    "replayed",
    "discarded",
    "quarantined",
    "replaced",
    "deleted",
)
"""``quarantined``: its frame is damaged. ``replaced``: its events are in other segments now."""


def _time(name: str, *, now: bool = False) -> Column[object]:
    if now:
        return Column(
            name, DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()
        )
    return Column(name, DateTime(timezone=True))


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


pipelines = Table(
    "pipelines",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("team", Text, nullable=False),
    _time("created_at", now=True),
)

pipeline_versions = Table(
    "pipeline_versions",
    METADATA,
    Column("pipeline_id", Text, ForeignKey("pipelines.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("declaration", JSONB, nullable=False),
    Column("deployed_by", Text, nullable=False),
    _time("deployed_at", now=True),
    PrimaryKeyConstraint("pipeline_id", "number"),
)

consumers = Table(
    "consumers",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    _time("acquired_at", now=True),
    _time("seen_at", now=True),
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
    _time("committed_at", now=True),
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
    _time("committed_at", now=True),
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
    *[_count(name) for name in COUNT_COLUMNS],
    PrimaryKeyConstraint("pipeline_id", "event_name", "stage", "minute"),
)

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
    _time("updated_at", now=True),
)

refused_messages = Table(
    "refused_messages",
    METADATA,
    Column("wal_id", Text, nullable=False),
    Column("lsn", BigInteger, nullable=False),
    Column("object_key", Text, nullable=False),
    _time("parked_at", now=True),
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
    _time("committed_at", now=True),
    _time("loaded_at"),
    CheckConstraint("state IN ('staged', 'loaded', 'deleted')", name="state"),
    Index("ix_staged_objects_commit", "destination", "commit_number"),
)

parked_partitions = Table(
    "parked_partitions",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("pipeline_id", Text, nullable=False),
    Column("event_name", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("error_type", Text, nullable=False),
    *[
        _count(name)
        for name in ("parked", "replaying", "replayed", "discarded", "quarantined", "bytes")
    ],
    _time("first_event_at"),
    _time("last_event_at"),
    _time("first_parked_at", now=True),
    _time("last_parked_at", now=True),
    Column("last_message", Text, nullable=False, server_default=text("''")),
    UniqueConstraint("pipeline_id", "event_name", "stage", "error_type"),
    Index("ix_parked_partitions_error_type", "error_type", "pipeline_id"),
    Index("ix_parked_partitions_event_name", "event_name", "pipeline_id"),
    Index("ix_parked_partitions_parked", "parked", "id"),
    Index("ix_parked_partitions_bytes", "bytes", "id"),
    Index("ix_parked_partitions_last_parked_at", "last_parked_at", "id"),
)

parked_objects = Table(
    "parked_objects",
    METADATA,
    Column("key", Text, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'live'")),
    _time("committed_at", now=True),
    CheckConstraint("state IN ('live', 'deleting', 'deleted')", name="state"),
)
Index(
    "ix_parked_objects_deleting",
    parked_objects.c.key,
    postgresql_where=text("state = 'deleting'"),
)

replays = Table(
    "replays",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("partition_id", BigInteger, ForeignKey("parked_partitions.id"), nullable=False),
    Column("state", Text, nullable=False),
    Column("requested_by", Text, nullable=False),
    Column("run_id", Text, nullable=False, server_default=text("''")),
    Column("since", DateTime(timezone=True)),
    Column("until", DateTime(timezone=True)),
    Column("rate_per_s", Integer),
    Column("fingerprint", Text),
    Column("max_events", BigInteger),
    Column("step", Text, nullable=False, server_default=text("''")),
    _count("events"),
    _count("sent"),
    _count("quarantined"),
    _time("started_at", now=True),
    _time("finished_at"),
    CheckConstraint("state IN ('running', 'done', 'cancelled')", name="state"),
)
Index(
    "ix_replays_one_running",
    replays.c.partition_id,
    unique=True,
    postgresql_where=text("state = 'running'"),
)

segments = Table(
    "segments",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("partition_id", BigInteger, ForeignKey("parked_partitions.id"), nullable=False),
    Column("object_key", Text, ForeignKey("parked_objects.key"), nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("length", BigInteger, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("first_event_at", DateTime(timezone=True), nullable=False),
    Column("last_event_at", DateTime(timezone=True), nullable=False),
    Column("state", Text, nullable=False, server_default=text("'parked'")),
    Column("scope", Text, nullable=False),
    Column("commit_number", BigInteger, nullable=False),
    Column("kafka_partition", Integer, nullable=False),
    Column("first_offset", BigInteger, nullable=False),
    Column("replay_id", Uuid, ForeignKey("replays.id")),
    Column("fingerprint", Text, nullable=False, server_default=text("''")),
    Column("last_message", Text, nullable=False, server_default=text("''")),
    Column("ids", LargeBinary),
    Column("copies", ARRAY(Integer)),
    Column("source_id", BigInteger),
    _time("parked_at", now=True),
    _time("changed_at", now=True),
    UniqueConstraint("object_key", "position"),
    CheckConstraint(
        "state IN ('parked', 'replaying', 'replayed', 'discarded', 'quarantined', 'replaced', "
        "'deleted')",
        name="state",
    ),
    Index("ix_segments_partition_state", "partition_id", "state", "commit_number"),
)
_HELD = text("state IN ('parked', 'replaying')")
_column = segments.c
for _name, _columns, _where in (
    ("replay", (_column.replay_id, _column.commit_number), text("replay_id IS NOT NULL")),
    ("source", (_column.source_id,), text("source_id IS NOT NULL")),
    ("dead", (_column.object_key,), text("state IN ('replayed', 'discarded', 'replaced')")),
    ("fingerprint", (_column.fingerprint, _column.partition_id), _HELD),
    ("event_at", (_column.last_event_at, _column.first_event_at, _column.partition_id), _HELD),
    ("parked_at", (_column.parked_at, _column.partition_id), _HELD),
    (
        "partition_event_at",
        (_column.partition_id, _column.last_event_at, _column.first_event_at),
        _HELD,
    ),
    ("partition_parked_at", (_column.partition_id, _column.parked_at), _HELD),
    (
        "long",
        (_column.last_event_at, _column.first_event_at, _column.partition_id),
        text(f"{_HELD} AND last_event_at - first_event_at > interval '1 hour'"),
    ),
):
    Index(f"ix_segments_{_name}", *_columns, postgresql_where=_where)
"""Partial: what is discarded or replayed leaves the indexes of what is held."""

replay_outcomes = Table(
    "replay_outcomes",
    METADATA,
    Column("replay_id", Uuid, ForeignKey("replays.id"), nullable=False),
    Column("outcome", Text, nullable=False),
    _count("events"),
    PrimaryKeyConstraint("replay_id", "outcome"),
)
"""What the stages and the destination said of a replay's events, added up batch by batch."""

auto_replays = Table(
    "auto_replays",
    METADATA,
    Column("partition_id", BigInteger, ForeignKey("parked_partitions.id"), primary_key=True),
    Column("on_change", Text, nullable=False),
    Column("asked_by", Text, nullable=False),
    Column("seen", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("last_run_id", Text, nullable=False, server_default=text("''")),
    _time("asked_at", now=True),
    _time("tried_at"),
    CheckConstraint("on_change IN ('version', 'destination', 'any')", name="on_change"),
)
"""Partitions to replay when their cause changes; ``seen``: how the cause stood when last looked."""

pipeline_holds = Table(
    "pipeline_holds",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("pipeline_id", Text, nullable=False),
    Column("cause", JSONB, nullable=False),
    Column("held_by", Text, nullable=False),
    Column("released_by", Text),
    _count("probes"),
    Column("last_probe", JSONB),
    _time("held_at", now=True),
    _time("probed_at"),
    _time("released_at"),
)
Index(
    "ix_pipeline_holds_one_active",
    pipeline_holds.c.pipeline_id,
    unique=True,
    postgresql_where=text("released_at IS NULL"),
)

notices = Table(
    "notices",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("kind", Text, nullable=False),
    Column("pipeline_id", Text, nullable=False),
    Column("partition_id", BigInteger),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    _time("made_at", now=True),
    _time("sent_at"),
    Column("reached", ARRAY(Text), nullable=False, server_default=text("'{}'")),
)
"""What owners are still to be told: written with what it tells of, sent later, at least once.

``reached``: the sinks that took it; ``sent_at`` is set once all have.
"""
Index("ix_notices_unsent", notices.c.id, postgresql_where=text("sent_at IS NULL"))
Index("ix_notices_sent", notices.c.sent_at, postgresql_where=text("sent_at IS NOT NULL"))
Index(
    "ix_notices_one_missing",
    text("(detail ->> 'object_key')"),
    notices.c.pipeline_id,
    unique=True,
    postgresql_where=text("kind = 'missing'"),
)

notice_messages = Table(
    "notice_messages",
    METADATA,
    Column("owner", Text, nullable=False),
    Column("sink", Text, nullable=False),
    Column("id", Uuid, nullable=False),
    Column("notice_ids", ARRAY(BigInteger), nullable=False),
    _count("attempts"),
    Column("problem", Text, nullable=False, server_default=text("''")),
    _time("made_at", now=True),
    _time("next_try_at", now=True),
    PrimaryKeyConstraint("owner", "sink"),
)
"""The one message on its way to an owner by a sink: what it tells and its id stay until it came."""

notice_digests = Table(
    "notice_digests",
    METADATA,
    Column("pipeline_id", Text, primary_key=True),
    _time("digested_at", now=True),
)

digested_partitions = Table(
    "digested_partitions",
    METADATA,
    Column("partition_id", BigInteger, primary_key=True, autoincrement=False),
    Column("ever", BigInteger, nullable=False),
    Column("held", BigInteger, nullable=False),
)
"""A partition's events, ever parked and held then, as the last digest told them."""

audit_log = Table(
    "audit_log",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    _time("at", now=True),
    Column("who", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
)
