"""From a destination's settings to the destination."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from waybill.errors import InputError
from waybill.settings import DestinationSettings, S3Settings

if TYPE_CHECKING:
    from waybill.destinations.model import Destination


def open_destination(
    name: str, settings: DestinationSettings, s3: S3Settings | None = None
) -> Destination:
    """Open a destination; it connects on first use.

    Args:
        name: the destination's name, as pipelines give it; commit numbers are kept under it.
        settings: how to reach it.
        s3: how to reach the object store, for kinds whose tables are objects there.

    Raises:
        InputError: the settings cannot be right, whatever the server says.
    """
    opener = _OPENERS.get(settings.kind)
    if opener is None:
        raise InputError(
            f"destination {name!r}: this release has no {settings.kind!r}; found are "
            f"{', '.join(sorted(_OPENERS))}"
        )
    return opener(name, settings, s3)


def _postgres(name: str, settings: DestinationSettings, _s3: S3Settings | None) -> Destination:
    from waybill.destinations.postgres.destination import (
        PostgresDestination,
    )

    return PostgresDestination(name, settings.dsn.get_secret_value())


def _duckdb(name: str, settings: DestinationSettings, _s3: S3Settings | None) -> Destination:
    from waybill.destinations.duckdb.destination import DuckDestination

    options = {key: value.get_secret_value() for key, value in settings.options.items()}
    return DuckDestination(name, settings.dsn.get_secret_value(), options)


def _delta(name: str, settings: DestinationSettings, s3: S3Settings | None) -> Destination:
    from waybill.destinations.lake.opening import open_delta

    return open_delta(name, settings, s3)


def _iceberg(name: str, settings: DestinationSettings, s3: S3Settings | None) -> Destination:
    from waybill.destinations.lake.opening import open_iceberg

    return open_iceberg(name, settings, s3)


def _warehouse(name: str, settings: DestinationSettings, _s3: S3Settings | None) -> Destination:
    from waybill.destinations.warehouses.opening import (
        open_warehouse,
    )

    return open_warehouse(name, settings)


_Opener = Callable[[str, DestinationSettings, S3Settings | None], "Destination"]
_OPENERS: Mapping[str, _Opener] = {
    "postgres": _postgres,
    "duckdb": _duckdb,
    "delta": _delta,
    "iceberg": _iceberg,
    **dict.fromkeys(("snowflake", "bigquery", "redshift", "databricks", "clickhouse"), _warehouse),
}
"""One a kind; each imports what it needs when it is called."""
