"""Source runs: how far each source's run is, and how the last one ended."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def required(name: str, kind: sa.types.TypeEngine[Any], default: str | None = None) -> Any:
    """Return a column that is never null."""
    given = None if default is None else sa.text(default)
    return sa.Column(name, kind, server_default=given, nullable=False)


def upgrade() -> None:
    """Apply."""
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "source_runs",
        required("pipeline_id", sa.Text()),
        required("run", sa.Uuid()),
        required("node", sa.Text(), "''"),
        required("state", sa.Text(), "'running'"),
        *[required(name, moment, "clock_timestamp()") for name in ("started_at", "told_at")],
        *[
            sa.Column(name, moment)
            for name in ("ended_at", "succeeded_at", "failed_at", "stop_asked_at")
        ],
        required("stop_asked_by", sa.Text(), "''"),
        required("error", sa.Text(), "''"),
        required("figures", JSONB(), "'{}'::jsonb"),
        sa.CheckConstraint(
            "state IN ('running', 'success', 'failed', 'stopped')",
            name=op.f("ck_source_runs_state"),
        ),
        sa.PrimaryKeyConstraint("pipeline_id", name=op.f("pk_source_runs")),
    )
