"""What can be replayed, and what cannot: asked before a run is made."""

from __future__ import annotations

from datetime import datetime

from waybill.errors import InputError
from waybill.events import DELIVERY_ERRORS
from waybill.parking import ParkedGroup, ParkedGroupFilter, ParkedGroupRequest, Parking


def find_replayable(parking: Parking, request: ParkedGroupRequest) -> ParkedGroup:
    """Return the partition that is asked for.

    Raises:
        InputError: there is none, with the nearest right name; or what it holds never was an
            event.
    """
    refuse_ingestion(request.stage, request.error_type)
    parking.pipeline_id(request.pipeline)
    return parking.find(**request.names)


def are_events(stage: str, error_type: str) -> bool:
    """Tell whether what is parked there can be sent: whole events, not rows that became none."""
    return stage != "ingestion" or error_type in DELIVERY_ERRORS


def refuse_ingestion(stage: str, error_type: str) -> None:
    """Refuse what never was an event.

    Raises:
        InputError: it was parked at ingestion, and not because Kafka refused it.
    """
    if not are_events(stage, error_type):
        raise InputError(
            "what was parked at ingestion never were events: correct the source and let the "
            "connector read it again, then discard what is parked. Only events that Kafka refused "
            f"can be replayed: {', '.join(sorted(DELIVERY_ERRORS))}"
        )


def held_words(parking: Parking, pipeline_id: str) -> str:
    """Return the message that a pipeline is held, since when and what to do; empty: it is not."""
    hold = next((one for one in parking.holds() if one.pipeline_id == pipeline_id), None)
    if hold is None:
        return ""
    return (
        f"pipeline {hold.pipeline!r} is held since {hold.held_at:%Y-%m-%d %H:%M:%S} (UTC) by "
        f"{hold.held_by}: events sent back now would only wait; release it "
        "(`waybill pipelines release`), or wait for its release"
    )


def refuse_held(parking: Parking, pipeline_id: str) -> None:
    """Refuse to send events back into a pipeline that is held.

    Raises:
        InputError: it is.
    """
    if words := held_words(parking, pipeline_id):
        raise InputError(words)


def require_parked(
    parking: Parking,
    partition: ParkedGroup,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
) -> None:
    """Refuse a partition where nothing waits to be replayed.

    Raises:
        InputError: all of it was dealt with, or nothing that is parked lies in the window.
    """
    if not partition.parked:
        apart = partition.quarantined
        ways = (
            f", {apart:,} quarantined, as their files are damaged or gone: `waybill parked lost` "
            "lists the files and why; restore them, then run `waybill parked recheck`"
            if apart
            else ""
        )
        raise InputError(
            f"nothing of {partition.name} is parked now: {partition.replaying:,} events replaying, "
            f"{partition.replayed:,} replayed, {partition.discarded:,} discarded{ways}"
        )
    wanted = ParkedGroupFilter(
        pipeline_id=partition.pipeline_id,
        event_name=partition.event_name,
        stage=partition.stage,
        error_type=partition.error_type,
        since=since,
        until=until,
        held=True,
    )
    if not parking.partitions(wanted):
        raise InputError(
            f"nothing of {partition.name} is parked in this window; its {partition.parked:,} "
            f"parked events are from times between {partition.first_event_at:%Y-%m-%d %H:%M} and "
            f"{partition.last_event_at:%Y-%m-%d %H:%M} (UTC)"
        )
