"""generations of topics."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_REFUSES = """
CREATE FUNCTION refuse_ended_generation() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE now_is text;
BEGIN
  SELECT state INTO now_is FROM topic_generations WHERE name = NEW.topic FOR SHARE;
  IF now_is = 'ended' THEN
    RAISE EXCEPTION 'topic % has ended, and nobody reads it any more: upgrade Waybill here', NEW.topic;
  END IF;
  RETURN NEW;
END $$
"""
_OPENED = """
CREATE TRIGGER refuse_ended_generation_{event} BEFORE {event} ON write_ahead_logs FOR EACH ROW
WHEN ({when}) EXECUTE FUNCTION refuse_ended_generation()
"""
_CHANGES = "NEW.state = 'open' AND (OLD.state <> 'open' OR OLD.topic <> NEW.topic)"


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "topic_generations",
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("partitions", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'writing'"), nullable=False),
        sa.Column("ends", JSONB()),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        *[
            sa.Column(name, sa.DateTime(timezone=True))
            for name in ("draining_since", "ended_at", "deleted_at")
        ],
        sa.Column("last_commit", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("topic", "generation", name=op.f("pk_topic_generations")),
        sa.UniqueConstraint("name", name=op.f("uq_topic_generations_name")),
        sa.CheckConstraint(
            "state IN ('writing', 'draining', 'ended')", name=op.f("ck_topic_generations_state")
        ),
        sa.CheckConstraint(
            "(state = 'ended') = (ends IS NOT NULL)", name=op.f("ck_topic_generations_ends")
        ),
    )
    for state in ("writing", "draining"):
        op.create_index(
            f"uq_topic_generations_{state}",
            "topic_generations",
            ["topic"],
            unique=True,
            postgresql_where=sa.text(f"state = '{state}'"),
        )
    # A process of an older release opens its log for the first generation, whatever became of it.
    op.execute(_REFUSES)
    op.execute(_OPENED.format(event="insert", when="NEW.state = 'open'"))
    op.execute(_OPENED.format(event="update", when=_CHANGES))
