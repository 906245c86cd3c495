"""PostgreSQL as a destination."""

from __future__ import annotations

from waybill.destinations.postgres.engine import PostgresEngine
from waybill.destinations.sql.destination import SqlDestination


class PostgresDestination(SqlDestination):
    """One PostgreSQL database, as ``waybill.destinations.Destination`` says.

    Args:
        name: commit numbers are kept under it.
        dsn: libpq URL or key=value text.

    Raises:
        InputError: the dsn cannot be read.
    """

    def __init__(self, name: str, dsn: str) -> None:
        super().__init__(name, PostgresEngine(name, dsn))
