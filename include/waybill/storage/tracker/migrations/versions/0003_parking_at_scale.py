"""parking at scale."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_STATES = "'parked', 'replaying', 'replayed', 'discarded', 'quarantined', 'replaced', 'deleted'"


_HELD = "state IN ('parked', 'replaying')"
_PARTITION_INDEXES = {
    "error_type": ["error_type", "pipeline_id"],
    "event_name": ["event_name", "pipeline_id"],
    "parked": ["parked", "id"],
    "bytes": ["bytes", "id"],
    "last_parked_at": ["last_parked_at", "id"],
}
_SEGMENT_INDEXES = (
    ("replay", ["replay_id", "commit_number"], "replay_id IS NOT NULL"),
    ("source", ["source_id"], "source_id IS NOT NULL"),
    ("dead", ["object_key"], "state IN ('replayed', 'discarded', 'replaced')"),
    ("fingerprint", ["fingerprint", "partition_id"], _HELD),
    ("event_at", ["last_event_at", "first_event_at", "partition_id"], _HELD),
    ("parked_at", ["parked_at", "partition_id"], _HELD),
    ("partition_event_at", ["partition_id", "last_event_at", "first_event_at"], _HELD),
    ("partition_parked_at", ["partition_id", "parked_at"], _HELD),
    (
        "long",
        ["last_event_at", "first_event_at", "partition_id"],
        f"{_HELD} AND last_event_at - first_event_at > interval '1 hour'",
    ),
)


def _time(name: str, *, now: bool = False) -> sa.Column[object]:
    if now:
        default = sa.text("clock_timestamp()")
        return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=False)
    return sa.Column(name, sa.DateTime(timezone=True))


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), server_default=sa.text("''"), nullable=False)


def _json(name: str) -> sa.Column[object]:
    default = sa.text("'{}'::jsonb")
    return sa.Column(name, postgresql.JSONB(), server_default=default, nullable=False)


def upgrade() -> None:
    """Apply."""
    op.add_column("parked_partitions", _count("quarantined"))
    op.add_column("replays", sa.Column("fingerprint", sa.Text()))
    op.add_column("replays", sa.Column("max_events", sa.BigInteger()))
    op.add_column("replays", _text("step"))
    op.add_column("replays", _count("quarantined"))
    op.add_column("segments", _text("fingerprint"))
    op.add_column("segments", _text("last_message"))
    op.add_column("segments", sa.Column("ids", sa.LargeBinary()))
    op.add_column("segments", sa.Column("copies", sa.ARRAY(sa.Integer())))
    op.add_column("segments", sa.Column("source_id", sa.BigInteger()))
    op.drop_constraint("ck_segments_state", "segments")
    op.create_check_constraint("state", "segments", f"state IN ({_STATES})")
    op.create_table(
        "replay_outcomes",
        sa.Column("replay_id", sa.Uuid(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        _count("events"),
        sa.ForeignKeyConstraint(["replay_id"], ["replays.id"]),
        sa.PrimaryKeyConstraint("replay_id", "outcome"),
    )
    op.create_table(
        "auto_replays",
        sa.Column("partition_id", sa.BigInteger(), nullable=False),
        sa.Column("on_change", sa.Text(), nullable=False),
        sa.Column("asked_by", sa.Text(), nullable=False),
        _json("seen"),
        _text("last_run_id"),
        _time("asked_at", now=True),
        _time("tried_at"),
        sa.CheckConstraint("on_change IN ('version', 'destination', 'any')", name="on_change"),
        sa.ForeignKeyConstraint(["partition_id"], ["parked_partitions.id"]),
        sa.PrimaryKeyConstraint("partition_id"),
    )
    op.create_table(
        "pipeline_holds",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("pipeline_id", sa.Text(), nullable=False),
        sa.Column("cause", postgresql.JSONB(), nullable=False),
        sa.Column("held_by", sa.Text(), nullable=False),
        sa.Column("released_by", sa.Text()),
        _count("probes"),
        sa.Column("last_probe", postgresql.JSONB()),
        _time("held_at", now=True),
        _time("probed_at"),
        _time("released_at"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "ix_pipeline_holds_one_active",
        "pipeline_holds",
        ["pipeline_id"],
        unique=True,
        postgresql_where=sa.text("released_at IS NULL"),
    )
    op.create_table(
        "notices",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("pipeline_id", sa.Text(), nullable=False),
        sa.Column("partition_id", sa.BigInteger()),
        _json("detail"),
        _time("made_at", now=True),
        _time("sent_at"),
        _count("attempts"),
        _text("problem"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "ix_notices_unsent", "notices", ["id"], postgresql_where=sa.text("sent_at IS NULL")
    )
    op.create_index(
        "ix_notices_one_missing",
        "notices",
        [sa.text("(detail ->> 'object_key')"), "pipeline_id"],
        unique=True,
        postgresql_where=sa.text("kind = 'missing'"),
    )
    _create_indexes()


def _create_indexes() -> None:
    """Of lists and windows over many partitions, of clean-up and of replays."""
    for name, columns in _PARTITION_INDEXES.items():
        op.create_index(f"ix_parked_partitions_{name}", "parked_partitions", columns)
    op.create_index(
        "ix_parked_objects_deleting",
        "parked_objects",
        ["key"],
        postgresql_where=sa.text("state = 'deleting'"),
    )
    op.drop_index("ix_segments_replay", "segments")
    for name, columns, where in _SEGMENT_INDEXES:
        op.create_index(f"ix_segments_{name}", "segments", columns, postgresql_where=sa.text(where))
