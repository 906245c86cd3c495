"""virtual clusters, pins, assignments of teams by version, what the coordinator measured."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

NOW = sa.text("clock_timestamp()")


def time_column(name: str) -> sa.Column[object]:
    """Return a column of a time that is now by default."""
    return sa.Column(name, sa.DateTime(timezone=True), server_default=NOW, nullable=False)


def text_column(name: str, default: str = "''") -> sa.Column[object]:
    """Return a column of a text that has a default."""
    return sa.Column(name, sa.Text(), server_default=sa.text(default), nullable=False)


def json_column(name: str, default: str) -> sa.Column[object]:
    """Return a column of JSON that has a default."""
    return sa.Column(name, JSONB(), server_default=sa.text(f"'{default}'::jsonb"), nullable=False)


def count_column(name: str) -> sa.Column[object]:
    """Return a column that counts from 0."""
    return sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)


def number_column(name: str) -> sa.Column[object]:
    """Return a column of a number that is 0 by default."""
    return sa.Column(name, sa.Double(), server_default=sa.text("0"), nullable=False)


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "virtual_clusters",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("max_consumers", sa.Integer()),
        sa.Column("cores", sa.Integer()),
        sa.Column("memory_mb", sa.Integer()),
        sa.Column("lag_objective_s", sa.Double(), server_default=sa.text("60"), nullable=False),
        text_column("state", "'active'"),
        text_column("scheduler_pool"),
        json_column("spark_conf", "{}"),
        time_column("created_at"),
        sa.CheckConstraint(
            "state IN ('active', 'draining')", name=op.f("ck_virtual_clusters_state")
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_virtual_clusters")),
    )
    op.execute("INSERT INTO virtual_clusters (name) VALUES ('default')")
    op.create_table(
        "cluster_pins",
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        text_column("why"),
        time_column("pinned_at"),
        sa.ForeignKeyConstraint(
            ["cluster"], ["virtual_clusters.name"], name=op.f("fk_cluster_pins_cluster")
        ),
        sa.PrimaryKeyConstraint("team", name=op.f("pk_cluster_pins")),
    )
    op.create_table(
        "cluster_assignments",
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("placements", JSONB(), nullable=False),
        json_column("moves", "[]"),
        json_column("waiting", "[]"),
        json_column("problems", "[]"),
        sa.Column("made_by", sa.Text(), nullable=False),
        time_column("made_at"),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_cluster_assignments")),
    )
    op.create_table(
        "team_loads",
        sa.Column("team", sa.Text(), nullable=False),
        time_column("at"),
        sa.Column("consumers", sa.Integer(), nullable=False),
        *[count_column(name) for name in ("written", "read", "batches", "batch_events")],
        *[number_column(name) for name in ("lag_s", "core_s")],
        json_column("hot_partitions", "[]"),
        sa.PrimaryKeyConstraint("team", "at", name=op.f("pk_team_loads")),
    )
    op.create_index("ix_team_loads_at", "team_loads", ["at"])
    op.create_table(
        "cluster_loads",
        sa.Column("cluster", sa.Text(), nullable=False),
        time_column("at"),
        sa.Column("teams", sa.Integer(), nullable=False),
        sa.Column("cores", sa.Integer()),
        sa.Column("needed_cores", sa.Integer(), nullable=False),
        *[number_column(name) for name in ("demand_cores", "forecast_cores", "lag_s")],
        sa.PrimaryKeyConstraint("cluster", "at", name=op.f("pk_cluster_loads")),
    )
    op.create_index("ix_cluster_loads_at", "cluster_loads", ["at"])
    op.add_column("batches", sa.Column("tasks_ms", sa.BigInteger()))
