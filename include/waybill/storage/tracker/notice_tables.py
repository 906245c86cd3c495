"""The tracker's tables of what owners are told; see ``tables``."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    Index,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from waybill.storage.tracker.metadata import METADATA, count_column, time_column

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
