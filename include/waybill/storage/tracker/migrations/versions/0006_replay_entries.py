"""what came in of each replay, and what its marks say was sent."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# What was marked before: it came in uncounted, so that nothing of it counts as sent unmarked.
_MARKED = """
INSERT INTO replay_entries (replay_id, event_name, stage, marked)
SELECT r.id, p.event_name, p.stage, r.sent
FROM replays r JOIN parked_partitions p ON p.id = r.partition_id
WHERE r.state <> 'done' AND r.sent > 0
"""


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "replay_entries",
        sa.Column("replay_id", sa.Uuid(), nullable=False),
        sa.Column("event_name", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("came_in", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("marked", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.ForeignKeyConstraint(["replay_id"], ["replays.id"]),
        sa.PrimaryKeyConstraint("replay_id", "event_name", "stage"),
    )
    op.execute(_MARKED)
