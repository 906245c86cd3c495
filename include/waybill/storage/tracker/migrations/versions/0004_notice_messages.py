"""messages to owners, and what they were told last."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def _time(name: str) -> sa.Column[object]:
    default = sa.text("clock_timestamp()")
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=False)


def upgrade() -> None:
    """Apply."""
    op.drop_column("notices", "attempts")
    op.drop_column("notices", "problem")
    op.add_column(
        "notices",
        sa.Column("reached", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
    )
    op.create_index(
        "ix_notices_sent", "notices", ["sent_at"], postgresql_where=sa.text("sent_at IS NOT NULL")
    )
    op.create_table(
        "notice_messages",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("sink", sa.Text(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("notice_ids", sa.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("attempts", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("problem", sa.Text(), server_default=sa.text("''"), nullable=False),
        _time("made_at"),
        _time("next_try_at"),
        sa.PrimaryKeyConstraint("owner", "sink"),
    )
    op.create_table(
        "notice_digests",
        sa.Column("pipeline_id", sa.Text(), nullable=False),
        _time("digested_at"),
        sa.PrimaryKeyConstraint("pipeline_id"),
    )
    op.create_table(
        "digested_partitions",
        sa.Column("partition_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("ever", sa.BigInteger(), nullable=False),
        sa.Column("held", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("partition_id"),
    )
