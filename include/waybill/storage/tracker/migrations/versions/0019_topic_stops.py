"""topics that are not read until somebody settles them; sources to be read again."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("topic_offsets", sa.Column("last_read", JSONB()))
    op.add_column("connector_positions", sa.Column("reread_asked_at", sa.DateTime(timezone=True)))
    op.create_table(
        "topic_stops",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("detail", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column(
            "found_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("settled_at", sa.DateTime(timezone=True)),
        sa.Column("settled_by", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("settlement", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.CheckConstraint(
            "kind IN ('cut', 'deleted', 'recreated', 'hole')", name=op.f("ck_topic_stops_kind")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_topic_stops")),
    )
    op.create_index(
        "uq_topic_stops_open",
        "topic_stops",
        ["topic", "partition", "kind"],
        unique=True,
        postgresql_where=sa.text("settled_at IS NULL"),
    )
