"""why a quarantined segment cannot be made again."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "segments", sa.Column("problem", sa.Text(), server_default=sa.text("''"), nullable=False)
    )
