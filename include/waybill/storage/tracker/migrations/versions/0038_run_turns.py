"""Runs of sources that wait between two turns, and runs that are asked to give their slot away."""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("source_runs", sa.Column("leave_asked_at", sa.DateTime(timezone=True)))
    waits_for = sa.Column("waits_for", sa.Text(), server_default=sa.text("''"), nullable=False)
    op.add_column("source_runs", waits_for)
    name = op.f("ck_source_runs_state")
    op.drop_constraint(name, "source_runs", type_="check")
    op.create_check_constraint(
        name, "source_runs", "state IN ('running', 'waiting', 'success', 'failed', 'stopped')"
    )
