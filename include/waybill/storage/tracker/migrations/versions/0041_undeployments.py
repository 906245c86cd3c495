"""Undeployments: pipelines that are not to be read any more."""

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "undeployments",
        sa.Column("pipeline_id", sa.Text(), nullable=False),
        sa.Column("asked_by", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("drop_tables", sa.Boolean(), nullable=False),
        sa.Column(
            "asked_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("dropping_at", sa.DateTime(timezone=True)),
        sa.Column("done_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("pipeline_id", name=op.f("pk_undeployments")),
        sa.ForeignKeyConstraint(
            ["pipeline_id"], ["pipelines.id"], name=op.f("fk_undeployments_pipeline_id")
        ),
    )
