"""Alembic's entry: runs on the connection that the tracker engine hands over."""

from alembic import context

from waybill.storage.tracker.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    transaction_per_migration=False,
)
context.run_migrations()
