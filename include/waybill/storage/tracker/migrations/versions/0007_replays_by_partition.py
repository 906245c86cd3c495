"""replays by partition."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A partition's replays are looked up by each look at a run; replays are kept for ever."""
    op.create_index("ix_replays_partition", "replays", ["partition_id", "started_at"])
