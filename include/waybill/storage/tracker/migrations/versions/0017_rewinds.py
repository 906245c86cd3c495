"""what destinations took, and destinations that were put back to an older point."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)


def _time(name: str, *, now: bool = False) -> sa.Column[object]:
    default = sa.text("clock_timestamp()") if now else None
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=not now)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), server_default=sa.text("''"), nullable=False)


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "staged_objects",
        sa.Column("taken", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )
    op.add_column("load_positions", sa.Column("last_taken", sa.BigInteger()))
    op.create_table(
        "loaded_tables",
        sa.Column("destination", sa.Text(), nullable=False),
        sa.Column("table_schema", sa.Text(), nullable=False),
        sa.Column("table_name", sa.Text(), nullable=False),
        sa.Column("last_commit", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "destination", "table_schema", "table_name", name=op.f("pk_loaded_tables")
        ),
    )
    op.create_table(
        "destination_rewinds",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("destination", sa.Text(), nullable=False),
        _time("found_at", now=True),
        _number("held"),
        _number("taken"),
        sa.Column("commits", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        _number("rows"),
        _number("done_to"),
        sa.Column("lost", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        _number("lost_rows"),
        _time("reloaded_at"),
        _time("settled_at"),
        _text("settled_by"),
        _text("reason"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_destination_rewinds")),
    )
    op.create_index(
        "ix_destination_rewinds_open",
        "destination_rewinds",
        ["destination"],
        unique=True,
        postgresql_where=sa.text("reloaded_at IS NULL"),
    )
