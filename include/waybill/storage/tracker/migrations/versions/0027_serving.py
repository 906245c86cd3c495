"""What applications serve and why they ended; speed and hot spots of clusters; what is delivered."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply; no row is rewritten."""
    op.add_column(
        "applications",
        sa.Column("report", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
    )
    for name in ("arrival_per_s", "processed_per_s"):
        op.add_column("cluster_loads", sa.Column(name, sa.Double()))
    op.add_column(
        "cluster_loads",
        sa.Column("hot", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
    )
    op.create_table(
        "delivered_minutes",
        sa.Column("pipeline_id", sa.Text(), nullable=False),
        sa.Column("minute", sa.Integer(), nullable=False),
        sa.Column("delivered", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("pipeline_id", "minute", name=op.f("pk_delivered_minutes")),
    )
    op.create_index("ix_delivered_minutes_minute", "delivered_minutes", ["minute"])
