"""staged objects that are lost, and the offsets that each was made of."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None
_STATES = "state IN ('staged', 'loaded', 'deleted', 'lost')"


def upgrade() -> None:
    """Apply."""
    op.add_column("staged_objects", sa.Column("offsets", JSONB()))
    op.add_column(
        "staged_objects",
        sa.Column("problem", sa.Text(), server_default=sa.text("''"), nullable=False),
    )
    op.drop_constraint(op.f("ck_staged_objects_state"), "staged_objects", type_="check")
    op.create_check_constraint(op.f("ck_staged_objects_state"), "staged_objects", _STATES)
    op.create_index(
        "ix_staged_objects_lost",
        "staged_objects",
        ["destination", "commit_number"],
        postgresql_where=sa.text("state = 'lost'"),
    )
