"""Orders of ``tests.support.orders`` as they are parked, without a stream that parks them."""

from __future__ import annotations

from waybill.events import Event, encode
from waybill.parking import Packer, ParkedEvent, Parking, new_key
from waybill.settings import Settings
from waybill.storage import open_objects, open_tracker


def order(number: int, team: str, note: str = "") -> Event:
    """Return an order without amount; its pipeline is that of ``tests.support.orders``."""
    return Event(
        id=f"{number:032x}",
        pipeline_id="test-orders",
        team=team,
        name="order",
        key=f"[{number}]",
        source_version=0,
        intake_version=number + 1,
        intake_minute=29_000_000,
        time="2026-11-21T00:00:00Z",
        data={"number": number, "amount": None, "note": note},
    )


def parked(event: Event, stage: str = "transformation", code: str = "null_value") -> ParkedEvent:
    """Return an order as it is parked."""
    return ParkedEvent(
        pipeline_id="test-orders",
        event_name="order",
        stage=stage,
        error_type=code,
        message="no amount",
        where="",
        stack_hash="",
        pipeline_version="1",
        event_at="2026-11-21T00:00:00Z",
        parked_at="2026-11-21T00:00:01Z",
        topic="t",
        kafka_partition=0,
        kafka_offset=event.intake_version,
        attempt=event.attempt,
        value=encode(event),
    )


def park(settings: Settings, packer: Packer) -> None:
    """Park what was packed, as the first commit of the warehouse does."""
    key, packed, objects = new_key(), packer.finish(), open_objects(settings.s3)
    objects.put(key, packed.body)
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        Parking(tracker, objects).record(
            connection,
            key=key,
            size=len(packed.body),
            segments=packed.segments,
            scope="warehouse",
            commit_number=1,
        )
