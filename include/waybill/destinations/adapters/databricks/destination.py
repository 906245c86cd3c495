"""Databricks as a lake of tables."""

from __future__ import annotations

from dataclasses import dataclass

from waybill.destinations.adapters.databricks.session import DatabricksSession
from waybill.destinations.adapters.databricks.table import DatabricksTable
from waybill.destinations.per_table.destination import LakeDestination
from waybill.errors import WaybillError
from waybill.settings import DestinationSettings, S3Settings


@dataclass(frozen=True, slots=True)
class DatabricksLake:
    """One catalog: see ``Lake``."""

    session: DatabricksSession

    def table(self, schema_name: str, name: str) -> DatabricksTable:
        """Return a table that may be there or not."""
        return DatabricksTable(self.session, schema_name, name)

    def check(self) -> None:
        """See whether it answers."""
        self.session.query("SELECT 1 AS answer")

    def close(self) -> None:
        """Let go of the connection."""
        self.session.close()


class DatabricksDestination(LakeDestination):
    """One catalog of Databricks, as ``waybill.destinations.Destination`` says.

    Experimental: the statements and the order of calls are tested, no server was.

    Args:
        name: commit numbers are kept under it.
        settings: dsn and options.
    """

    kind = "databricks"

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        super().__init__(name, DatabricksLake(DatabricksSession(name, settings)), _unsorted)


def _unsorted(_error: Exception) -> WaybillError | None:
    """Sort nothing: the session sorts its driver's errors itself."""
    return None


def open_databricks(
    name: str, settings: DestinationSettings, _s3: S3Settings | None = None
) -> DatabricksDestination:
    """Open a warehouse; it connects on first use.

    Raises:
        InputError: the dsn is not of the kind's form.
    """
    return DatabricksDestination(name, settings)
