"""Reports of parked groups that share a run of their campaign."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("campaign_groups", sa.Column("report", JSONB()))
