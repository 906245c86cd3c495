"""Destinations: how far they are, whether they can be loaded, and what waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from waybill.errors import RetryError
from waybill.settings import Settings
from waybill.storage import open_log, open_owned_objects, open_tracker

if TYPE_CHECKING:
    from waybill.access import Decision
    from waybill.destinations import Finding
    from waybill.loading import DestinationLine, LostObject, RecoveryReport, Rewind, Waiting
    from waybill.recovery import LostIds


def destinations(settings: Settings) -> list[DestinationLine]:
    """Return all destinations, and how far each is."""
    from waybill.loading import destination_lines

    with open_tracker(settings.tracker) as tracker:
        return destination_lines(tracker, settings.destinations)


def waiting_destinations(settings: Settings) -> list[Waiting]:
    """Return the destinations that do not take their loads."""
    from waybill.loading import all_waiting

    with open_tracker(settings.tracker) as tracker:
        return list(all_waiting(tracker).values())


def check_destination(settings: Settings, name: str, schema: str | None) -> list[Finding]:
    """Try all that loads need; without a schema, those of the pipelines that go there.

    Raises:
        InputError: no such destination is configured.
    """
    from waybill import loading

    schemas: list[str] = [schema or loading.OWN_SCHEMA]
    rewinds: list[Finding] = []
    if name in settings.destinations:
        try:
            with open_tracker(settings.tracker) as tracker:
                schemas = loading.schemas_of(tracker, name) if schema is None else schemas
                rewinds = loading.rewind_findings(tracker, name)
        except RetryError:
            pass  # a destination is often checked before there is a tracker
    return [*loading.examine(name, settings.destinations, schemas, settings.s3), *rewinds]


def settle_destination(settings: Settings, name: str, decision: Decision) -> list[Rewind]:
    """Settle the alarms of rows that a destination lost and that cannot be loaded again.

    Raises:
        InputError: no such destination, or no alarm.
    """
    from waybill.loading import known_destination, settle_rewinds

    with open_tracker(settings.tracker) as tracker:
        known_destination(tracker, settings.destinations, name)
        return settle_rewinds(tracker, name, decision)


def lost_objects(settings: Settings, name: str | None = None) -> list[LostObject]:
    """Return the staged objects that are gone or damaged; of one destination, or of all.

    Raises:
        InputError: no such destination.
    """
    from waybill import loading

    with open_tracker(settings.tracker) as tracker:
        if name is not None:
            loading.known_destination(tracker, settings.destinations, name)
        return loading.lost_objects(tracker, name)


def lost_object_ids(settings: Settings, found: Sequence[LostObject]) -> list[LostIds]:
    """Return the ids of the rows of lost staged objects from their traces, one answer for each.

    Raises:
        RetryError: the trace store is away.
    """
    from waybill.recovery import staged_ids
    from waybill.tracing import open_traces

    return staged_ids(open_traces(settings), found)


def recover_lost_objects(settings: Settings, *, again: bool = False) -> RecoveryReport:
    """Make lost staged objects again from their events in Kafka.

    Args:
        settings: where everything is.
        again: try also those that could not be made again before.

    Raises:
        RetryError: Kafka, the store or the tracker is away.
    """
    from waybill import loading
    from waybill.processing import shared_sandbox
    from waybill.recovery import stages_at

    objects = open_owned_objects(settings)
    with open_tracker(settings.tracker) as tracker:
        if not loading.lost_objects(tracker):
            return loading.RecoveryReport()
        run = stages_at(tracker, fetch=objects.get, code=shared_sandbox(settings))
        return loading.recover_lost(tracker, objects, open_log(settings.kafka), run, again=again)


def settle_lost_objects(settings: Settings, name: str, decision: Decision) -> list[LostObject]:
    """Give a destination's lost objects up.

    Raises:
        InputError: no such destination, or none is lost.
    """
    from waybill.loading import known_destination, settle_lost

    with open_tracker(settings.tracker) as tracker:
        known_destination(tracker, settings.destinations, name)
        return settle_lost(tracker, name, decision)


def rewound_destinations(settings: Settings, name: str) -> list[Rewind]:
    """Return the times that a destination was put back, which are not over."""
    from waybill.loading import open_rewinds

    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        return open_rewinds(connection).get(name, [])


def park_destination(settings: Settings, name: str, decision: Decision) -> Waiting:
    """Order that what waits for a destination is parked, until it takes a load.

    Raises:
        InputError: no such destination, or nothing waits for it.
    """
    from waybill.loading import ask_to_park, known_destination

    with open_tracker(settings.tracker) as tracker:
        known_destination(tracker, settings.destinations, name)
        return ask_to_park(tracker, name, decision)


def unpark_destination(settings: Settings, name: str, decision: Decision) -> Waiting:
    """Take that order back: what comes from then on waits.

    Raises:
        InputError: no such destination, or no such order.
    """
    from waybill.loading import known_destination, take_back

    with open_tracker(settings.tracker) as tracker:
        known_destination(tracker, settings.destinations, name)
        return take_back(tracker, name, decision)
