"""why a lost staged object cannot be made again."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "staged_objects",
        sa.Column("not_recovered", sa.Text(), server_default=sa.text("''"), nullable=False),
    )
