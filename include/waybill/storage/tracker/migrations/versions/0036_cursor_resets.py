"""A source that is read again: who asked, and the cursor that stood there before."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0036"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "cursor_resets",
        sa.Column("pipeline_id", sa.Text(), primary_key=True),
        sa.Column("request", sa.Text(), primary_key=True),
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("old_cursor", JSONB()),
        sa.Column("old_rows_read", sa.BigInteger(), nullable=False),
        sa.Column("new_cursor", JSONB()),
        sa.Column(
            "reset_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
    )
