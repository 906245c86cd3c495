"""What the rows of a staged object take in memory."""

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    # Null, as in a row that an older release writes: it is estimated by the object's size.
    op.add_column("staged_objects", sa.Column("row_bytes", sa.BigInteger()))
