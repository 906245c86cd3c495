"""Capacity: nodes, waits of tasks, decisions, their broadcast, thresholds."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def required(name: str, kind: sa.types.TypeEngine[Any], default: str | None = None) -> Any:
    """Return a column that is never null."""
    given = None if default is None else sa.text(default)
    return sa.Column(name, kind, server_default=given, nullable=False)


def now(name: str) -> Any:
    """Return a time that is the row's, by default."""
    return required(name, sa.DateTime(timezone=True), "clock_timestamp()")


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "capacity_nodes",
        *[required(name, sa.Text()) for name in ("name", "kind", "state")],
        required("units", sa.Integer()),
        *[
            sa.Column(name, sa.DateTime(timezone=True))
            for name in ("reported_at", "draining_at", "gone_at")
        ],
        required("report", JSONB(), "'{}'::jsonb"),
        sa.CheckConstraint("kind IN ('ingestion', 'spark')", name=op.f("ck_capacity_nodes_kind")),
        sa.CheckConstraint(
            "state IN ('active', 'draining', 'gone')", name=op.f("ck_capacity_nodes_state")
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_capacity_nodes")),
    )
    op.create_table(
        "task_waits",
        now("at"),
        required("report", JSONB()),
        sa.PrimaryKeyConstraint("at", name=op.f("pk_task_waits")),
    )
    op.create_table(
        "capacity_rounds",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        now("at"),
        *[required(name, sa.Text()) for name in ("kind", "action")],
        *[required(name, JSONB()) for name in ("observation", "decision", "state")],
        sa.PrimaryKeyConstraint("id", name=op.f("pk_capacity_rounds")),
    )
    op.create_index("ix_capacity_rounds_at", "capacity_rounds", ["at"])
    op.create_index("ix_capacity_rounds_kind_id", "capacity_rounds", ["kind", "id"])
    op.create_table(
        "capacity_versions",
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        now("at"),
        required("nodes", JSONB()),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_capacity_versions")),
    )
    op.create_table(
        "capacity_acks",
        required("application", sa.Text()),
        required("version", sa.BigInteger()),
        now("at"),
        sa.PrimaryKeyConstraint("application", name=op.f("pk_capacity_acks")),
    )
    op.create_table(
        "capacity_thresholds",
        required("kind", sa.Text()),
        required("thresholds", JSONB()),
        required("source", sa.Text()),
        now("read_at"),
        sa.PrimaryKeyConstraint("kind", name=op.f("pk_capacity_thresholds")),
    )
