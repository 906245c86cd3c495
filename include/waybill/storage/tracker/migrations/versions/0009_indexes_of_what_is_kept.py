"""partitions are sorted among those of which something is kept; a discard need not sort them in."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    for name in ("parked", "bytes", "last_parked_at"):
        op.drop_index(f"ix_parked_partitions_{name}", "parked_partitions")
        op.create_index(
            f"ix_parked_partitions_{name}",
            "parked_partitions",
            [name, "id"],
            postgresql_where=sa.text("parked + replaying + quarantined > 0"),
        )
