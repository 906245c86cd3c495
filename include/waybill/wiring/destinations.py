"""Destinations: how far they are, whether they can be loaded, and what waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waybill.errors import RetryError
from waybill.settings import Settings
from waybill.storage import open_tracker

if TYPE_CHECKING:
    from waybill.destinations import Finding
    from waybill.operations.loads.desk import DestinationLine
    from waybill.operations.loads.states import Waiting
    from waybill.parking import Decision


def destinations(settings: Settings) -> list[DestinationLine]:
    """Return all destinations, and how far each is."""
    from waybill.operations.loads.desk import destination_lines  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        return destination_lines(tracker, settings.destinations)


def waiting_destinations(settings: Settings) -> list[Waiting]:
    """Return the destinations that do not take their loads."""
    from waybill.operations.loads.states import all_waiting  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        return list(all_waiting(tracker).values())


def check_destination(settings: Settings, name: str, schema: str | None) -> list[Finding]:
    """Try all that loads need; without a schema, those of the pipelines that go there.

    Raises:
        InputError: no such destination is configured.
    """
    from waybill.operations.loads import desk  # noqa: PLC0415

    schemas = [schema or desk.OWN_SCHEMA]
    if schema is None and name in settings.destinations:
        try:
            with open_tracker(settings.tracker) as tracker:
                schemas = desk.schemas_of(tracker, name)
        except RetryError:
            pass  # a destination is often checked before there is a tracker
    return desk.examine(name, settings.destinations, schemas, settings.s3)


def park_destination(settings: Settings, name: str, decision: Decision) -> Waiting:
    """Order that what waits for a destination is parked, until it takes a load.

    Raises:
        InputError: no such destination, or nothing waits for it.
    """
    from waybill.operations.loads.desk import known_destination  # noqa: PLC0415
    from waybill.operations.loads.states import ask_to_park  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        known_destination(tracker, settings.destinations, name)
        return ask_to_park(tracker, name, decision)


def unpark_destination(settings: Settings, name: str, decision: Decision) -> Waiting:
    """Take that order back: what comes from then on waits.

    Raises:
        InputError: no such destination, or no such order.
    """
    from waybill.operations.loads.desk import known_destination  # noqa: PLC0415
    from waybill.operations.loads.states import take_back  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        known_destination(tracker, settings.destinations, name)
        return take_back(tracker, name, decision)
