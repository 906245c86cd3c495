"""the ledger's minutes of a pipeline by time."""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_index("ix_ledger_minutes_time", "ledger_minutes", ["pipeline_id", "minute"])
