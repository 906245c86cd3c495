"""Why the tables of a pipeline that is being undeployed could not be dropped."""

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "undeployments",
        sa.Column("problem", sa.Text(), server_default=sa.text("''"), nullable=False),
    )
