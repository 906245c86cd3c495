"""intake watermarks, what the auditor has still to look at, and the ledger's totals."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_COUNTS = (
    "in_first",
    "in_replayed",
    "passed",
    "out",
    "parked",
    "filtered",
    "superseded",
    "duplicate",
)
_TOTALS = f"""
INSERT INTO ledger_totals (pipeline_id, event_name, stage, {", ".join(_COUNTS)})
SELECT pipeline_id, event_name, stage, {", ".join(f"sum({name})::bigint" for name in _COUNTS)}
FROM ledger_minutes GROUP BY 1, 2, 3
"""  # noqa: S608 - fixed names only


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
        "intake_watermarks",
        _text("pipeline_id", None),
        _count("version"),
        sa.Column("open", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("open_from_minute", sa.Integer(), nullable=False),
        *map(_count, ("pages", "waiting")),
        _json("source"),
        _time("began_at", now=True),
        _time("told_at", now=True),
        sa.PrimaryKeyConstraint("pipeline_id", name=op.f("pk_intake_watermarks")),
    )
    op.create_table(
        "audit_minutes",
        *[_text(name, None) for name in ("pipeline_id", "event_name")],
        sa.Column("minute", sa.Integer(), nullable=False),
        *map(_count, ("changed", "audited")),
        sa.Column("fence", sa.BigInteger()),
        _text("state", "new"),
        _text("ids", ""),
        _json("stages"),
        _time("since", now=True),
        _time("balanced_at"),
        sa.PrimaryKeyConstraint(
            "pipeline_id", "event_name", "minute", name=op.f("pk_audit_minutes")
        ),
    )
    op.create_table(
        "audit_rounds",
        sa.Column("number", sa.BigInteger(), autoincrement=True, nullable=False),
        _time("at", now=True),
        _json("ends"),
        _json("report"),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit_rounds")),
    )
    op.create_table(
        "ledger_totals",
        *[_text(name, None) for name in ("pipeline_id", "event_name", "stage")],
        *map(_count, _COUNTS),
        sa.PrimaryKeyConstraint(
            "pipeline_id", "event_name", "stage", name=op.f("pk_ledger_totals")
        ),
    )
    op.execute(sa.text(_TOTALS))
