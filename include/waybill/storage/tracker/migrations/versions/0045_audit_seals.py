"""Seals of the audit log; neither they nor its entries are changed or deleted."""

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None

# The owner of the tables can drop the triggers: that is what the seals are for.
_REFUSES = """
CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% of % is refused: entries of the audit log and their seals are never changed or '
    'deleted', TG_OP, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;
"""
_TRIGGER = """
CREATE TRIGGER refuse_audit_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change()
"""


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "audit_seals",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("after_number", sa.BigInteger(), nullable=False),
        sa.Column("first_id", sa.BigInteger(), nullable=False),
        sa.Column("last_id", sa.BigInteger(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("entries_sha256", sa.Text(), nullable=False),
        sa.Column("chain_sha256", sa.Text(), nullable=False),
        sa.Column(
            "sealed_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("signature", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit_seals")),
    )
    op.execute(_REFUSES)
    for table in ("audit_log", "audit_seals"):
        op.execute(_TRIGGER.format(table=table))
