"""A write-ahead log of the collector has its own part of its pipeline's watermark."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("write_ahead_logs", sa.Column("open_from_minute", sa.Integer()))
    op.add_column(
        "write_ahead_logs",
        sa.Column("waiting", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
    )
