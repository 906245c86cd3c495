"""From a destination's settings to the destination."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waybill.settings import DestinationSettings

if TYPE_CHECKING:
    from waybill.destinations.model import Destination


def open_destination(name: str, settings: DestinationSettings) -> Destination:
    """Open a destination; it connects on first use.

    Args:
        name: the destination's name, as pipelines give it; commit numbers are kept under it.
        settings: how to reach it.

    Raises:
        InputError: the settings cannot be right, whatever the server says.
    """
    from waybill.destinations.postgres.destination import (  # noqa: PLC0415 - drivers are heavy
        PostgresDestination,
    )

    return PostgresDestination(name, settings.dsn.get_secret_value())
