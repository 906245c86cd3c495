"""the id of the deployment, by which it knows its bucket."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "deployment",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.CheckConstraint("singleton", name=op.f("ck_deployment_one_row")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("pk_deployment")),
    )
    op.execute("INSERT INTO deployment (id) VALUES (gen_random_uuid())")
