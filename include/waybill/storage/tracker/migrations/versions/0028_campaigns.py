"""Campaigns: requests to replay many parked groups, and the groups of each."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def text_column(name: str, default: str | None = None) -> sa.Column[object]:
    """Return a column of a text, with a default or without."""
    given = None if default is None else sa.text(default)
    return sa.Column(name, sa.Text(), server_default=given, nullable=False)


def count_column(name: str) -> sa.Column[object]:
    """Return a column that counts from 0."""
    return sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)


def json_column(name: str, default: str) -> sa.Column[object]:
    """Return a column of JSON that has a default."""
    return sa.Column(name, JSONB(), server_default=sa.text(f"'{default}'::jsonb"), nullable=False)


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "campaigns",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        text_column("run_id"),
        text_column("asked_by"),
        sa.Column("request", JSONB(), nullable=False),
        json_column("teams", "[]"),
        sa.Column("max_unfinished", sa.Integer(), nullable=False),
        text_column("state", "'running'"),
        text_column("changed_by", "''"),
        *[count_column(name) for name in ("groups", "launched", "ended", "failed")],
        json_column("left_out", "{}"),
        sa.Column(
            "asked_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        *[
            sa.Column(name, sa.DateTime(timezone=True))
            for name in ("changed_at", "looked_at", "ended_at")
        ],
        sa.CheckConstraint(
            "state IN ('running', 'paused', 'cancelled', 'done')", name=op.f("ck_campaigns_state")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_campaigns")),
        sa.UniqueConstraint("run_id", name=op.f("uq_campaigns_run_id")),
    )
    op.create_index(
        "ix_campaigns_open", "campaigns", ["id"], postgresql_where=sa.text("ended_at IS NULL")
    )
    op.create_table(
        "campaign_groups",
        *[
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("campaign_id", "partition_id")
        ],
        sa.Column("number", sa.BigInteger()),
        text_column("state"),
        text_column("outcome", "''"),
        text_column("run_id", "''"),
        *[sa.Column(name, sa.DateTime(timezone=True)) for name in ("launched_at", "ended_at")],
        sa.CheckConstraint(
            "state IN ('waiting', 'launched', 'ended', 'left_out')",
            name=op.f("ck_campaign_groups_state"),
        ),
        sa.PrimaryKeyConstraint("campaign_id", "partition_id", name=op.f("pk_campaign_groups")),
    )
    for state, column in (("waiting", "number"), ("launched", "run_id"), ("ended", "ended_at")):
        op.create_index(
            f"ix_campaign_groups_{state}",
            "campaign_groups",
            ["campaign_id", column],
            postgresql_where=sa.text(f"state = '{state}'"),
        )
