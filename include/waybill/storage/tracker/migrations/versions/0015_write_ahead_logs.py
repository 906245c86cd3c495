"""write-ahead logs, and by them the lease of a source."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def _text(name: str, default: str | None = "") -> sa.Column[str]:
    given = None if default is None else sa.text(f"'{default}'")
    return sa.Column(name, sa.Text(), server_default=given, nullable=False)


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)


def _time(name: str, *, now: bool = False) -> sa.Column[object]:
    default = sa.text("clock_timestamp()") if now else None
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=not now)


def _json(name: str) -> sa.Column[object]:
    return sa.Column(name, JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False)


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "write_ahead_logs",
        _text("wal_id", None),
        *[
            _text(name, None)
            for name in ("pipeline_id", "purpose", "name", "node", "path", "topic")
        ],
        sa.Column("rereadable", sa.Boolean(), nullable=False),
        _text("state", "open"),
        *map(_count, ("epoch", "last_version", "committed_lsn", "unsettled")),
        *map(_json, ("offsets", "counted_to")),
        _count("adoptions"),
        sa.Column("reread", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        _time("opened_at", now=True),
        _time("seen_at", now=True),
        _time("ended_at"),
        *map(_text, ("ended_by", "reason")),
        sa.CheckConstraint(
            "state IN ('open', 'closed', 'taken_over', 'ended')",
            name=op.f("ck_write_ahead_logs_state"),
        ),
        sa.PrimaryKeyConstraint("wal_id", name=op.f("pk_write_ahead_logs")),
    )
    op.create_index(op.f("ix_write_ahead_logs_pipeline_id"), "write_ahead_logs", ["pipeline_id"])
    op.create_index(
        "uq_write_ahead_logs_source",
        "write_ahead_logs",
        ["pipeline_id"],
        unique=True,
        postgresql_where=sa.text("state = 'open' AND purpose = 'ingestion' AND rereadable"),
    )
