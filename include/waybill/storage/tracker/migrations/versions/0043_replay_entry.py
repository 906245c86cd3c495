"""Where the events of a replay enter, decided once for all of its tries."""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    # Null, as in a row that an older release writes: nothing was decided, they enter as parked.
    op.add_column("replays", sa.Column("entry", sa.Text()))
    op.create_check_constraint(
        op.f("ck_replays_entry"), "replays", "entry IN ('', 'as_parked', 'transformation')"
    )
