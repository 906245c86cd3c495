"""The tracker's tables of parked events; see ``tables``."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from waybill.storage.tracker.metadata import METADATA, count_column, time_column

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

_KEPT = text("parked + replaying + quarantined > 0")

parked_partitions = Table(
    "parked_partitions",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("pipeline_id", Text, nullable=False),
    Column("event_name", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("error_type", Text, nullable=False),
    *[
        count_column(name)
        for name in ("parked", "replaying", "replayed", "discarded", "quarantined", "bytes")
    ],
    time_column("first_event_at"),
    time_column("last_event_at"),
    time_column("first_parked_at", now=True),
    time_column("last_parked_at", now=True),
    Column("last_message", Text, nullable=False, server_default=text("''")),
    *[
        count_column(name)
        for name in ("discarded_to", "marked_segments", "marked_events", "marked_bytes")
    ],
    time_column("marked_at"),
    *[count_column(name) for name in ("trimmed_replayed", "trimmed_discarded")],
    *[time_column(name) for name in ("trimmed_first_event_at", "trimmed_last_event_at")],
    UniqueConstraint("pipeline_id", "event_name", "stage", "error_type"),
    Index("ix_parked_partitions_error_type", "error_type", "pipeline_id"),
    Index("ix_parked_partitions_event_name", "event_name", "pipeline_id"),
    *[
        Index(f"ix_parked_partitions_{name}", name, "id", postgresql_where=_KEPT)
        for name in ("parked", "bytes", "last_parked_at")
    ],
    Index("ix_parked_partitions_marked", "marked_at", postgresql_where=text("discarded_to > 0")),
)
"""``discarded_to``: segments up to this id that are parked in their rows are discarded; 0: none.

``marked_...``: how much that is, and when it was said last. ``trimmed_...``: what the segments held
whose rows retention has deleted: ``replayed`` and ``discarded`` have them in."""

parked_objects = Table(
    "parked_objects",
    METADATA,
    Column("key", Text, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'live'")),
    time_column("committed_at", now=True),
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
    count_column("events"),
    count_column("sent"),
    count_column("quarantined"),
    time_column("started_at", now=True),
    time_column("finished_at"),
    CheckConstraint("state IN ('running', 'done', 'cancelled')", name="state"),
    Index("ix_replays_partition", "partition_id", "started_at"),
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
    Column("problem", Text, nullable=False, server_default=text("''")),
    time_column("parked_at", now=True),
    time_column("changed_at", now=True),
    UniqueConstraint("object_key", "position"),
    CheckConstraint(
        "state IN ('parked', 'replaying', 'replayed', 'discarded', 'quarantined', 'replaced', "
        "'deleted')",
        name="state",
    ),
    Index("ix_segments_partition_state", "partition_id", "state", "commit_number"),
)
"""``problem``: why a quarantined segment cannot be made again from Kafka."""
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
    count_column("events"),
    PrimaryKeyConstraint("replay_id", "outcome"),
)
"""What the stages and the destination said of a replay's events, added up batch by batch."""

replay_entries = Table(
    "replay_entries",
    METADATA,
    Column("replay_id", Uuid, ForeignKey("replays.id"), nullable=False),
    Column("event_name", Text, nullable=False),
    Column("stage", Text, nullable=False),
    count_column("came_in"),
    count_column("marked"),
    PrimaryKeyConstraint("replay_id", "event_name", "stage"),
)
"""How many of a replay's messages came in where, and how many its marks say were sent there."""

auto_replays = Table(
    "auto_replays",
    METADATA,
    Column("partition_id", BigInteger, ForeignKey("parked_partitions.id"), primary_key=True),
    Column("on_change", Text, nullable=False),
    Column("asked_by", Text, nullable=False),
    Column("seen", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("last_run_id", Text, nullable=False, server_default=text("''")),
    time_column("asked_at", now=True),
    time_column("tried_at"),
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
    count_column("probes"),
    Column("last_probe", JSONB),
    time_column("held_at", now=True),
    time_column("probed_at"),
    time_column("released_at"),
)
Index(
    "ix_pipeline_holds_one_active",
    pipeline_holds.c.pipeline_id,
    unique=True,
    postgresql_where=text("released_at IS NULL"),
)
