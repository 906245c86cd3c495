"""applications of virtual clusters: epoch, heartbeat, code version, what they should do."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def text_column(name: str, default: str = "''") -> sa.Column[object]:
    """Return a column of a text that has a default."""
    return sa.Column(name, sa.Text(), server_default=sa.text(default), nullable=False)


def upgrade() -> None:
    """Apply; an application of an earlier release is fenced by it, ends, and cannot start again."""
    op.create_table(
        "applications",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        *[text_column(name) for name in ("backend", "external_id", "code_version")],
        text_column("wanted", "'running'"),
        text_column("wanted_by"),
        sa.Column(
            "wanted_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("restart_epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("at_work", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        *[
            sa.Column(name, sa.DateTime(timezone=True))
            for name in ("started_at", "heartbeat_at", "ended_at")
        ],
        sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint("kind IN ('processing', 'loading')", name=op.f("ck_applications_kind")),
        sa.CheckConstraint("wanted IN ('running', 'stopped')", name=op.f("ck_applications_wanted")),
        sa.PrimaryKeyConstraint("cluster", "kind", name=op.f("pk_applications")),
    )
    op.execute("DELETE FROM consumers WHERE starts_with(name, 'application/')")
    op.create_check_constraint(
        op.f("ck_consumers_name"), "consumers", "NOT starts_with(name, 'application/')"
    )
