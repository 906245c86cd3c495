"""questions about traces, and what the auditor found."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def _text(name: str, default: str | None = "") -> sa.Column[str]:
    given = None if default is None else sa.text(f"'{default}'")
    return sa.Column(name, sa.Text(), server_default=given, nullable=False)


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)


def _time(name: str, *, now: bool = False) -> sa.Column[object]:
    default = sa.text("clock_timestamp()") if now else None
    kind = sa.DateTime(timezone=True)
    return sa.Column(name, kind, server_default=default, nullable=not now)


def _json(name: str) -> sa.Column[object]:
    return sa.Column(name, JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False)


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "trace_queries",
        sa.Column("id", sa.Uuid(), nullable=False),
        _text("asked_by", None),
        _time("asked_at", now=True),
        sa.Column("question", JSONB(), nullable=False),
        _text("state", "queued"),
        _text("backend"),
        _text("runner"),
        _text("external_id"),
        sa.Column("cancel_asked", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        *map(_count, ("objects_read", "objects", "bytes_scanned")),
        *map(_time, ("started_at", "seen_at", "finished_at")),
        _text("error"),
        sa.Column("answer", JSONB()),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed', 'cancelled')",
            name=op.f("ck_trace_queries_state"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trace_queries")),
    )
    op.create_index("ix_trace_queries_asked_at", "trace_queries", ["asked_at"])
    op.create_index(
        "ix_trace_queries_waiting",
        "trace_queries",
        ["asked_at"],
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )
    op.create_table(
        "breaches",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        _text("pipeline_id", None),
        *map(_text, ("event_name", "stage")),
        sa.Column("minute", sa.Integer(), server_default=sa.text("0"), nullable=False),
        _text("kind", None),
        _count("gap"),
        _text("state", "open"),
        *map(_json, ("detail", "ids")),
        _time("first_seen_at", now=True),
        _time("last_seen_at", now=True),
        *map(_time, ("named_at", "ended_at")),
        *map(_text, ("ended_by", "reason")),
        sa.CheckConstraint(
            "state IN ('open', 'explained', 'closed')", name=op.f("ck_breaches_state")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_breaches")),
    )
    op.create_index("ix_breaches_pipeline", "breaches", ["pipeline_id", "minute"])
    op.create_index(
        "ix_breaches_one_open",
        "breaches",
        ["pipeline_id", "event_name", "stage", "minute", "kind"],
        unique=True,
        postgresql_where=sa.text("state = 'open'"),
    )
