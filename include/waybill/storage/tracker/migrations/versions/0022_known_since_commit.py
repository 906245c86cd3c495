"""from which commit on a topic's offsets are those of the log that is there: no clock says it."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "topic_offsets",
        sa.Column("known_since_commit", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    )
