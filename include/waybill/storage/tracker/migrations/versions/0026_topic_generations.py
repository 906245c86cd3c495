"""generations of topics."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0026"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "topic_generations",
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("partitions", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'writing'"), nullable=False),
        sa.Column("ends", JSONB()),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        *[
            sa.Column(name, sa.DateTime(timezone=True))
            for name in ("draining_since", "ended_at", "deleted_at")
        ],
        sa.PrimaryKeyConstraint("topic", "generation", name=op.f("pk_topic_generations")),
        sa.UniqueConstraint("name", name=op.f("uq_topic_generations_name")),
        sa.CheckConstraint(
            "state IN ('writing', 'draining', 'ended')", name=op.f("ck_topic_generations_state")
        ),
        sa.CheckConstraint(
            "(state = 'ended') = (ends IS NOT NULL)", name=op.f("ck_topic_generations_ends")
        ),
    )
    for state in ("writing", "draining"):
        op.create_index(
            f"uq_topic_generations_{state}",
            "topic_generations",
            ["topic"],
            unique=True,
            postgresql_where=sa.text(f"state = '{state}'"),
        )
