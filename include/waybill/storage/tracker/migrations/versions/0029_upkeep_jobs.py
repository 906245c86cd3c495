"""Jobs of upkeep: the lease of each, and how it went."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

TIMES = ("started_at", "beat_at", "ended_at", "succeeded_at", "failed_at", "paused_at")


def given(name: str, kind: sa.types.TypeEngine[Any], default: str) -> sa.Column[object]:
    """Return a column that has a default."""
    return sa.Column(name, kind, server_default=sa.text(default), nullable=False)


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "upkeep_jobs",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("token", sa.Uuid()),
        given("holder", sa.Text(), "''"),
        *[sa.Column(name, sa.DateTime(timezone=True)) for name in TIMES],
        given("failures", sa.Integer(), "0"),
        given("told", sa.Boolean(), "false"),
        given("error", sa.Text(), "''"),
        given("outcome", JSONB(), "'{}'::jsonb"),
        given("paused_by", sa.Text(), "''"),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_upkeep_jobs")),
    )
