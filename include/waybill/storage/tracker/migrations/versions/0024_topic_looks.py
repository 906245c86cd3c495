"""what is known of each topic, and which topics a look at a team did not see."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "team_loads",
        sa.Column("unseen", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
    )
    op.create_table(
        "topic_looks",
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        *[
            sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)
            for name in ("written", "read")
        ],
        sa.Column("lag_s", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("topic", name=op.f("pk_topic_looks")),
    )
