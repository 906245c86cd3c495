"""what trimming leaves behind of segments, and how far a topic's log was trimmed."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    for name in ("trimmed_replayed", "trimmed_discarded"):
        op.add_column(
            "parked_partitions",
            sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0")),
        )
    for name in ("trimmed_first_event_at", "trimmed_last_event_at"):
        op.add_column("parked_partitions", sa.Column(name, sa.DateTime(timezone=True)))
    op.add_column(
        "topic_offsets",
        sa.Column(
            "known_since",
            sa.DateTime(timezone=True),
            nullable=False,
            server_default=sa.func.clock_timestamp(),
        ),
    )
    op.add_column(
        "topic_offsets",
        sa.Column("trimmed_commit", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    )
