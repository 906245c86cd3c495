"""discards of whole partitions by a mark."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    for name in ("discarded_to", "marked_segments", "marked_events", "marked_bytes"):
        op.add_column(
            "parked_partitions",
            sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        )
    op.add_column("parked_partitions", sa.Column("marked_at", sa.DateTime(timezone=True)))
    op.create_index(
        "ix_parked_partitions_marked",
        "parked_partitions",
        ["marked_at"],
        postgresql_where=sa.text("discarded_to > 0"),
    )
