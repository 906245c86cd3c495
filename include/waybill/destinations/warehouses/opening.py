"""From the settings of a warehouse to the destination."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from waybill.destinations.model import Destination
from waybill.destinations.warehouses.bigquery.session import BigQuerySession
from waybill.destinations.warehouses.clickhouse.destination import ClickHouseDestination
from waybill.destinations.warehouses.databricks.destination import DatabricksDestination
from waybill.destinations.warehouses.destination import WarehouseDestination
from waybill.destinations.warehouses.redshift.session import RedshiftSession
from waybill.destinations.warehouses.session import Session
from waybill.destinations.warehouses.snowflake.session import SnowflakeSession
from waybill.settings import DestinationSettings

_SESSIONS: Mapping[str, Callable[[str, DestinationSettings], Session]] = {
    "snowflake": SnowflakeSession,
    "bigquery": BigQuerySession,
    "redshift": RedshiftSession,
}


def open_warehouse(name: str, settings: DestinationSettings) -> Destination:
    """Open a warehouse; it connects on first use.

    Raises:
        InputError: the dsn is not of the kind's form.
    """
    if settings.kind == "databricks":
        return DatabricksDestination(name, settings)
    if settings.kind == "clickhouse":
        return ClickHouseDestination(name, settings)
    return WarehouseDestination(name, _SESSIONS[settings.kind](name, settings))
