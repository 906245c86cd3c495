"""From a source's row to the event that it is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from waybill.events import (
    Event,
    IntakeClock,
    encode_data,
    event_id,
    ordering_key,
    rfc3339,
    source_version,
)
from waybill.pipelines import Pipeline


def intake_event(
    pipeline: Pipeline, row: dict[str, Any], clock: IntakeClock
) -> tuple[Event, bytes, int]:
    """Return a row's event, its payload's bytes, and when it was taken in.

    The time is in microseconds since 1970. The clock gives a version only to what is an event.

    Raises:
        ParkError: the row has no key or no version, or no JSON form.
    """
    declared = pipeline.events[pipeline.source.event]
    key = ordering_key(row, declared.key)
    version = source_version(row, declared.version)
    content = encode_data(row)
    identity = event_id(pipeline.id, declared.name, key, version=version, content=content)
    intake_version, minute, taken_us = clock.stamp()
    event = Event(
        id=identity,
        pipeline_id=pipeline.id,
        team=pipeline.team,
        name=declared.name,
        key=key,
        source_version=0 if version is None else version,
        intake_version=intake_version,
        intake_minute=minute,
        time=rfc3339(datetime.fromtimestamp(taken_us / 1_000_000, UTC)),
        data=row,
    )
    return event, content, taken_us
