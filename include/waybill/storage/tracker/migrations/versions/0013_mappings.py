"""versions of mappings, and destinations that are waited for."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def _text(name: str, default: str | None = "") -> sa.Column[str]:
    given = None if default is None else sa.text(f"'{default}'")
    return sa.Column(name, sa.Text(), server_default=given, nullable=False)


def _time(name: str, *, now: bool = False) -> sa.Column[object]:
    default = sa.text("clock_timestamp()") if now else None
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=not now)


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "mapping_versions",
        _text("pipeline_id", None),
        _text("event_name", None),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("declaration", JSONB(), nullable=False),
        _text("author", None),
        _text("reason"),
        _text("pipeline_version"),
        _time("created_at", now=True),
        sa.PrimaryKeyConstraint(
            "pipeline_id", "event_name", "number", name=op.f("pk_mapping_versions")
        ),
    )
    op.create_table(
        "destination_states",
        _text("destination", None),
        _time("waiting_since"),
        _time("tried_at"),
        sa.Column("attempts", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        _text("code"),
        _text("error"),
        _time("told_at"),
        sa.Column("parked_from", sa.BigInteger()),
        _time("park_asked_at"),
        _text("park_asked_by"),
        _text("park_reason"),
        sa.PrimaryKeyConstraint("destination", name=op.f("pk_destination_states")),
    )
