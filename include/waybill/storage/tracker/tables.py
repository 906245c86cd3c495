"""The tracker's tables.

Books         pipelines, pipeline_versions, consumers, topic_offsets, topic_stops,
              topic_generations, commit_sequences, batches, ledger, ledger_minutes,
              ledger_totals, delivered_minutes, load_positions, connector_positions,
              cursor_resets, source_runs,
              write_ahead_logs, refused_messages, staged_objects, intake_watermarks
Mappings      mapping_versions
Destinations  destination_states, loaded_tables, destination_rewinds
Parking       parked_partitions, parked_objects, segments, replays, replay_entries,
              replay_outcomes, auto_replays, campaigns, campaign_groups, pipeline_holds
Traces        trace_queries
Audit         breaches, audit_minutes, audit_rounds
Notices       notices, notice_messages, notice_digests, digested_partitions
Clusters      virtual_clusters, cluster_pins, cluster_assignments, team_loads, cluster_loads,
              applications
Capacity      capacity_nodes, task_waits, capacity_rounds, capacity_versions, capacity_acks,
              capacity_thresholds
Deployment    deployment, audit_log, audit_seals, upkeep_jobs
"""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Identity,
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


def time_column(name: str, *, now: bool = False) -> Column[object]:
    """Return a column of a time; ``now``: never null, the tracker's clock by default."""
    if now:
        return Column(
            name, DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()
        )
    return Column(name, DateTime(timezone=True))


def count_column(name: str) -> Column[int]:
    """Return a column that counts from 0."""
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


# Books

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

undeployments = Table(
    "undeployments",
    METADATA,
    Column("pipeline_id", Text, ForeignKey("pipelines.id"), primary_key=True),
    Column("asked_by", Text, nullable=False),
    Column("why", Text, nullable=False, server_default=text("''")),
    Column("drop_tables", Boolean, nullable=False),
    time_column("asked_at", now=True),
    time_column("dropping_at"),
    time_column("done_at"),
    Column("problem", Text, nullable=False, server_default=text("''")),
)
"""A pipeline that is not to be read any more; a deploy deletes the row. ``dropping_at``: its tables
may be gone; ``done_at``: nothing of it is on its way; ``problem``: why they were not dropped."""

consumers = Table(
    "consumers",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    time_column("acquired_at", now=True),
    time_column("seen_at", now=True),
    CheckConstraint("NOT starts_with(name, 'application/')", name="name"),
)
"""``application/…``: the lease of an application of releases before ``applications``."""

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

topic_generations = Table(
    "topic_generations",
    METADATA,
    Column("topic", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("name", Text, nullable=False, unique=True),
    Column("partitions", Integer, nullable=False, server_default=text("0")),
    Column("state", Text, nullable=False, server_default=text("'writing'")),
    Column("ends", JSONB),
    time_column("created_at", now=True),
    time_column("draining_since"),
    time_column("ended_at"),
    time_column("deleted_at"),
    count_column("last_commit"),
    PrimaryKeyConstraint("topic", "generation"),
    CheckConstraint("state IN ('writing', 'draining', 'ended')", name="state"),
    CheckConstraint("(state = 'ended') = (ends IS NOT NULL)", name="ends"),
)
"""``waybill.ledger.generations``. ``partitions``: 0: not known yet. ``ends``: {partition: offset}
where processing stood when it ended. ``last_commit``: of its destination, at that moment. No
log can be opened for one that has ended, by any release: a trigger on ``write_ahead_logs``."""
Index(
    "uq_topic_generations_writing",
    topic_generations.c.topic,
    unique=True,
    postgresql_where=text("state = 'writing'"),
)
Index(
    "uq_topic_generations_draining",
    topic_generations.c.topic,
    unique=True,
    postgresql_where=text("state = 'draining'"),
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
    Column("tasks_ms", BigInteger),
    time_column("committed_at", now=True),
    UniqueConstraint("destination", "commit_number"),
)
"""``took_ms``: from its start to its commit; ``tasks_ms``: the sum of what its tasks took, each on
a core of its own. Null: not known."""

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

delivered_minutes = Table(
    "delivered_minutes",
    METADATA,
    Column("pipeline_id", Text, nullable=False),
    Column("minute", Integer, nullable=False),
    count_column("delivered"),
    PrimaryKeyConstraint("pipeline_id", "minute"),
    Index("ix_delivered_minutes_minute", "minute"),
)
"""Events that a destination took, by the minute in which it did: folded with the ledger's rows. No
books: those are by intake minute."""

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

cursor_resets = Table(
    "cursor_resets",
    METADATA,
    Column("pipeline_id", Text, primary_key=True),
    Column("request", Text, primary_key=True),
    Column("number", BigInteger, Identity(always=True), nullable=False),
    Column("who", Text, nullable=False),
    Column("old_cursor", JSONB),
    Column("old_rows_read", BigInteger, nullable=False),
    Column("new_cursor", JSONB),
    time_column("reset_at", now=True),
)
"""``request`` makes a reset happen once: a DAG run's id. A cursor that is null: the beginning."""

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
    Column("open_from_minute", Integer),
    count_column("waiting"),
    CheckConstraint("state IN ('open', 'closed', 'taken_over', 'ended')", name="state"),
    Index("ix_write_ahead_logs_pipeline_id", "pipeline_id"),
)
Index(
    "uq_write_ahead_logs_source",
    write_ahead_logs.c.pipeline_id,
    unique=True,
    postgresql_where=text("state = 'open' AND purpose = 'ingestion' AND rereadable"),
)
"""Write-ahead logs, and by them who reads a source: see ``waybill.ledger.write_ahead_logs``.

``open_from_minute``, ``waiting``: of a log that shares a pipeline with others, its own part of the
pipeline's watermark (``waybill.ledger.collector_logs``)."""

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
    Column("row_bytes", BigInteger),
    CheckConstraint("state IN ('staged', 'loaded', 'deleted', 'lost')", name="state"),
    Index("ix_staged_objects_commit", "destination", "commit_number"),
)
Index(
    "ix_staged_objects_lost",
    staged_objects.c.destination,
    staged_objects.c.commit_number,
    postgresql_where=text("state = 'lost'"),
)
"""``bytes``: of the object, which is compressed; ``row_bytes``: of its rows in memory, null where
an older release wrote it. ``offsets``: [topic, partition, first offset, offset after the last] of
its events. ``lost``: gone or damaged when it was to be loaded, ``problem`` says how,
``not_recovered`` why it cannot be made again; ``deleted`` once it was, under another key and commit
number, or given up by name."""

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
acknowledged when it was told last. ``source``: {"counted", "ingested", "left"}:
see ``waybill.ledger.IntakeWatermark``."""

# Mappings and destinations

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

``declaration``: an ``EventDeclaration`` as JSON. ``author``: who deployed, or the consumer
whose events brought new fields. The greatest number is in force; rows never change."""

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

# Parking and replays

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
    Column("entry", Text),
    count_column("events"),
    count_column("sent"),
    count_column("quarantined"),
    time_column("started_at", now=True),
    time_column("finished_at"),
    CheckConstraint("state IN ('running', 'done', 'cancelled')", name="state"),
    CheckConstraint("entry IN ('', 'as_parked', 'transformation')", name="entry"),
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
"""``state``: ``quarantined``: its frame is damaged; ``replaced``: its events are in other segments.

``problem``: why a quarantined segment cannot be made again from Kafka."""

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

campaigns = Table(
    "campaigns",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("run_id", Text, nullable=False, unique=True),
    Column("asked_by", Text, nullable=False),
    Column("request", JSONB, nullable=False),
    Column("teams", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("max_unfinished", Integer, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'running'")),
    Column("changed_by", Text, nullable=False, server_default=text("''")),
    *[count_column(name) for name in ("groups", "launched", "ended", "failed")],
    Column("left_out", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    time_column("asked_at", now=True),
    *[time_column(name) for name in ("changed_at", "looked_at", "ended_at")],
    CheckConstraint("state IN ('running', 'paused', 'cancelled', 'done')", name="state"),
)
"""A request to replay many parked groups: ``waybill.replay.Campaign``. ``run_id``: of the DAG run
that asked. ``groups``: those to launch; ``launched``, ``ended``, ``failed``: of them, so far;
``left_out``: {reason: groups}. ``looked_at``: when its task was at work last."""
Index("ix_campaigns_open", campaigns.c.id, postgresql_where=text("ended_at IS NULL"))

campaign_groups = Table(
    "campaign_groups",
    METADATA,
    Column("campaign_id", BigInteger, nullable=False),
    Column("partition_id", BigInteger, nullable=False),
    Column("number", BigInteger),
    Column("state", Text, nullable=False),
    Column("outcome", Text, nullable=False, server_default=text("''")),
    Column("run_id", Text, nullable=False, server_default=text("''")),
    *[time_column(name) for name in ("launched_at", "ended_at")],
    Column("report", JSONB),
    PrimaryKeyConstraint("campaign_id", "partition_id"),
    CheckConstraint("state IN ('waiting', 'launched', 'ended', 'left_out')", name="state"),
)
"""A parked group of a campaign. ``number``: its place in the order of launches, from 1; null where
it is left out. ``outcome``: why it is left out, or how its run ended. ``report``: of a group that
shares its run; without an outcome: why it ended a try. No foreign keys: they would be half of the
time that it takes to freeze 500,000."""
_group = campaign_groups.c
for _name, _columns, _where in (
    ("waiting", (_group.campaign_id, _group.number), text("state = 'waiting'")),
    ("launched", (_group.campaign_id, _group.run_id), text("state = 'launched'")),
    ("ended", (_group.campaign_id, _group.ended_at), text("state = 'ended'")),
):
    Index(f"ix_campaign_groups_{_name}", *_columns, postgresql_where=_where)

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

# Traces and the auditor

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
``fence``: the round in which all its first-pass events were in the log. ``stages``: {stage:
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

# Notices

notices = Table(
    "notices",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("kind", Text, nullable=False),
    Column("pipeline_id", Text, nullable=False),
    Column("partition_id", BigInteger),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    time_column("made_at", now=True),
    time_column("sent_at"),
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
    count_column("attempts"),
    Column("problem", Text, nullable=False, server_default=text("''")),
    time_column("made_at", now=True),
    time_column("next_try_at", now=True),
    PrimaryKeyConstraint("owner", "sink"),
)
"""The one message on its way to an owner by a sink: what it tells and its id stay until it came."""

notice_digests = Table(
    "notice_digests",
    METADATA,
    Column("pipeline_id", Text, primary_key=True),
    time_column("digested_at", now=True),
)

digested_partitions = Table(
    "digested_partitions",
    METADATA,
    Column("partition_id", BigInteger, primary_key=True, autoincrement=False),
    Column("ever", BigInteger, nullable=False),
    Column("held", BigInteger, nullable=False),
)
"""A partition's events, ever parked and held then, as the last digest told them."""

# Virtual clusters


def _number_column(name: str) -> Column[float]:
    """Return a column of a number that is 0 by default."""
    return Column(name, Double, nullable=False, server_default=text("0"))


virtual_clusters = Table(
    "virtual_clusters",
    METADATA,
    Column("name", Text, primary_key=True),
    *[Column(name, Integer) for name in ("max_consumers", "cores", "memory_mb")],
    Column("lag_objective_s", Double, nullable=False, server_default=text("60")),
    Column("state", Text, nullable=False, server_default=text("'active'")),
    Column("scheduler_pool", Text, nullable=False, server_default=text("''")),
    Column("spark_conf", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    time_column("created_at", now=True),
    CheckConstraint("state IN ('active', 'draining')", name="state"),
)
"""A virtual cluster and its settings; ``default`` is made with the table. Null: no limit, or as the
settings say."""

cluster_pins = Table(
    "cluster_pins",
    METADATA,
    Column("team", Text, primary_key=True),
    Column("cluster", Text, ForeignKey("virtual_clusters.name"), nullable=False),
    Column("who", Text, nullable=False),
    Column("why", Text, nullable=False, server_default=text("''")),
    time_column("pinned_at", now=True),
)

cluster_assignments = Table(
    "cluster_assignments",
    METADATA,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("placements", JSONB, nullable=False),
    Column("moves", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("waiting", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("problems", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("made_by", Text, nullable=False),
    time_column("made_at", now=True),
)
"""Which cluster serves which team; the greatest version is in force, rows never change.

``placements``: team to its cluster, since when and why. ``moves``: what is other than before.
``waiting``: teams that no cluster has room for.
``made_by``: ``coordinator``, or who decided."""

applications = Table(
    "applications",
    METADATA,
    Column("cluster", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False, server_default=text("0")),
    *[
        Column(name, Text, nullable=False, server_default=text("''"))
        for name in ("backend", "external_id", "code_version")
    ],
    Column("wanted", Text, nullable=False, server_default=text("'running'")),
    Column("wanted_by", Text, nullable=False, server_default=text("''")),
    time_column("wanted_at", now=True),
    Column("restart_epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("at_work", Boolean, nullable=False, server_default=text("false")),
    *[time_column(name) for name in ("started_at", "heartbeat_at", "ended_at")],
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("report", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    PrimaryKeyConstraint("cluster", "kind"),
    CheckConstraint("kind IN ('processing', 'loading')", name="kind"),
    CheckConstraint("wanted IN ('running', 'stopped')", name="wanted"),
)
"""A Spark application of a virtual cluster: ``waybill.clusters.Application``. ``report``: what it
serves, and why it ended: ``waybill.clusters.serving``."""

team_loads = Table(
    "team_loads",
    METADATA,
    Column("team", Text, nullable=False),
    time_column("at", now=True),
    Column("consumers", Integer, nullable=False),
    *[count_column(name) for name in ("written", "read", "batches", "batch_events")],
    *[_number_column(name) for name in ("lag_s", "core_s")],
    Column("hot_partitions", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("unseen", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    PrimaryKeyConstraint("team", "at"),
    Index("ix_team_loads_at", "at"),
)
"""One look of the coordinator at a team: ``waybill.clusters.LoadSample``."""

topic_looks = Table(
    "topic_looks",
    METADATA,
    Column("topic", Text, primary_key=True),
    time_column("at", now=True),
    *[count_column(name) for name in ("written", "read")],
    _number_column("lag_s"),
)
"""What the coordinator knows of a topic, since when: for the time in which it does not answer."""

cluster_loads = Table(
    "cluster_loads",
    METADATA,
    Column("cluster", Text, nullable=False),
    time_column("at", now=True),
    Column("teams", Integer, nullable=False),
    Column("cores", Integer),
    Column("needed_cores", Integer, nullable=False),
    *[_number_column(name) for name in ("demand_cores", "forecast_cores", "lag_s")],
    *[Column(name, Double) for name in ("arrival_per_s", "processed_per_s")],
    Column("hot", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    PrimaryKeyConstraint("cluster", "at"),
    Index("ix_cluster_loads_at", "at"),
)
"""What a cluster needed in a minute: ``waybill.clusters.ClusterCapacity``. Null: not measured.
``hot``: teams and partitions, ``waybill.clusters.loads.HotSpot``."""

# Capacity

capacity_nodes = Table(
    "capacity_nodes",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("units", Integer, nullable=False),
    *[time_column(name) for name in ("reported_at", "draining_at", "gone_at")],
    Column("report", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    CheckConstraint("kind IN ('ingestion', 'spark')", name="kind"),
    CheckConstraint("state IN ('active', 'draining', 'gone')", name="state"),
)
"""A node that declared its capacity. ``units``: workers or cores, as configured. ``report``: what
its enhancer saw last, ``waybill.capacity.NodeReport``."""

task_waits = Table(
    "task_waits",
    METADATA,
    time_column("at", now=True),
    Column("report", JSONB, nullable=False),
    PrimaryKeyConstraint("at"),
)
"""What the delay monitor saw: ``waybill.capacity.DelayReport``."""

capacity_rounds = Table(
    "capacity_rounds",
    METADATA,
    Column("id", BigInteger, primary_key=True),
    time_column("at", now=True),
    Column("kind", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("observation", JSONB, nullable=False),
    Column("decision", JSONB, nullable=False),
    Column("state", JSONB, nullable=False),
    Index("ix_capacity_rounds_at", "at"),
    Index("ix_capacity_rounds_kind_id", "kind", "id"),
)
"""A decision about nodes of a kind, also to leave them as they are; ``state``: what the policy
remembers."""

capacity_versions = Table(
    "capacity_versions",
    METADATA,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    time_column("at", now=True),
    Column("nodes", JSONB, nullable=False),
)
"""Which nodes there are, as announced: {name: {kind, state, units}}."""

capacity_acks = Table(
    "capacity_acks",
    METADATA,
    Column("application", Text, primary_key=True),
    Column("version", BigInteger, nullable=False),
    time_column("at", now=True),
    Column("epoch", BigInteger, nullable=False, server_default=text("0")),
)
"""The announced version that somebody acknowledged last: an enhancer, or an application under its
epoch."""

capacity_thresholds = Table(
    "capacity_thresholds",
    METADATA,
    Column("kind", Text, primary_key=True),
    Column("thresholds", JSONB, nullable=False),
    Column("source", Text, nullable=False),
    time_column("read_at", now=True),
)
"""The last thresholds that were read and hold: in force also while their store is away."""

# The deployment

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

audit_seals = Table(
    "audit_seals",
    METADATA,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    *[
        Column(name, BigInteger, nullable=False)
        for name in ("after_number", "first_id", "last_id", "entries")
    ],
    Column("entries_sha256", Text, nullable=False),
    Column("chain_sha256", Text, nullable=False),
    time_column("sealed_at", now=True),
    Column("signature", Text, nullable=False, server_default=text("''")),
)
"""What the audit log was: ``waybill.access.audit_seals``. Rows of both are never changed or
deleted; a trigger refuses that."""

upkeep_jobs = Table(
    "upkeep_jobs",
    METADATA,
    Column("job", Text, primary_key=True),
    Column("token", Uuid(as_uuid=True)),
    Column("holder", Text, nullable=False, server_default=text("''")),
    *[
        time_column(name)
        for name in ("started_at", "beat_at", "ended_at", "succeeded_at", "failed_at", "paused_at")
    ],
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("told", Boolean, nullable=False, server_default=text("false")),
    Column("error", Text, nullable=False, server_default=text("''")),
    Column("outcome", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("paused_by", Text, nullable=False, server_default=text("''")),
)
"""A job of upkeep, its lease and how it went: ``waybill.upkeep``. ``token``: of the run that has
the lease; null: it does not run."""

source_runs = Table(
    "source_runs",
    METADATA,
    Column("pipeline_id", Text, primary_key=True),
    Column("run", Uuid(as_uuid=True), nullable=False),
    Column("node", Text, nullable=False, server_default=text("''")),
    Column("state", Text, nullable=False, server_default=text("'running'")),
    *[time_column(name, now=True) for name in ("started_at", "told_at")],
    *[time_column(name) for name in ("ended_at", "succeeded_at", "failed_at", "stop_asked_at")],
    Column("stop_asked_by", Text, nullable=False, server_default=text("''")),
    Column("error", Text, nullable=False, server_default=text("''")),
    Column("figures", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    time_column("leave_asked_at"),
    Column("waits_for", Text, nullable=False, server_default=text("''")),
    CheckConstraint(
        "state IN ('running', 'waiting', 'success', 'failed', 'stopped')", name="state"
    ),
)
"""The last run of a pipeline's source: ``waybill.ledger.source_runs``. ``run``: whose the row is;
``figures``: ``RunFigures``; ``leave_asked_at``: since when it is to give its slot to another team.
"""
