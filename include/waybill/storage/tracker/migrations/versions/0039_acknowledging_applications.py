"""Applications acknowledge the announced nodes, under their epoch."""

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    epoch = sa.Column("epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
    op.add_column("capacity_acks", epoch)
