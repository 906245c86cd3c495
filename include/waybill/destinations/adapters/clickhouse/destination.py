"""ClickHouse as a lake of tables."""

from __future__ import annotations

from dataclasses import dataclass, field

from waybill.destinations.adapters.clickhouse.session import ClickHouseSession
from waybill.destinations.adapters.clickhouse.table import ClickHouseTable
from waybill.destinations.per_table.destination import LakeDestination
from waybill.destinations.specs import with_children
from waybill.errors import WaybillError
from waybill.pipelines import TableSpec
from waybill.settings import DestinationSettings, S3Settings


@dataclass(frozen=True, slots=True)
class ClickHouseLake:
    """One server: see ``Lake``."""

    session: ClickHouseSession
    keys: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """Key columns of tables, by (database, table): what their rows are ordered by."""

    def table(self, schema_name: str, name: str) -> ClickHouseTable:
        """Return a table that may be there or not."""
        return ClickHouseTable(self.session, schema_name, name, self.keys)

    def check(self) -> None:
        """See whether it answers."""
        self.session.query("SELECT 1 AS answer")

    def close(self) -> None:
        """Let go of the connection."""
        self.session.close()


class ClickHouseDestination(LakeDestination):
    """One ClickHouse server, as ``waybill.destinations.Destination`` says.

    Experimental: its statements ran on ClickHouse's engine within a process, on no server.

    Args:
        name: commit numbers are kept under it.
        settings: dsn and options.
    """

    kind = "clickhouse"

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        self._server = ClickHouseLake(ClickHouseSession(name, settings))
        super().__init__(name, self._server, _unsorted)

    def _ensure(self, spec: TableSpec) -> None:
        for one in with_children(spec):
            self._server.keys[one.schema_name, one.name] = one.key
        super()._ensure(spec)


def _unsorted(_error: Exception) -> WaybillError | None:
    """Sort nothing: the session sorts its driver's errors itself."""
    return None


def open_clickhouse(
    name: str, settings: DestinationSettings, _s3: S3Settings | None = None
) -> ClickHouseDestination:
    """Open a warehouse; it connects on first use.

    Raises:
        InputError: the dsn is not of the kind's form.
    """
    return ClickHouseDestination(name, settings)
