"""Failures of a chain as the events that are parked of them."""

from __future__ import annotations

from waybill.parking import Identity, ParkedEvent, identify
from waybill.processing import Failure, Fault


def parked_event(failure: Failure, topic: str, at: str) -> ParkedEvent:
    """Return a failure as what is parked of it; ``at`` is when, RFC 3339."""
    fault = failure.fault
    return ParkedEvent(
        pipeline_id=failure.pipeline_id,
        event_name=failure.event_name,
        stage=failure.stage,
        error_type=fault.code,
        message=fault.message,
        where=fault.where,
        stack_hash=fault.stack_hash,
        pipeline_version=failure.pipeline_version,
        event_at=failure.event_at,
        parked_at=at,
        topic=topic,
        kafka_partition=failure.partition,
        kafka_offset=failure.offset,
        attempt=failure.attempt,
        value=failure.value,
        errors=_errors(fault),
        source=failure.source,
    )


def identity_of(failure: Failure) -> Identity | None:
    """Return by what copies of a parked event are found; None: it has no id."""
    return identify(
        failure.event_id,
        source_version=failure.source_version,
        intake_version=failure.intake_version,
        minute=failure.intake_minute,
        replay_id=failure.replay_id,
    )


def _errors(fault: Fault) -> list[dict[str, str]]:
    """Return all errors of an event; none where there is only the first."""
    if not fault.others:
        return []
    return [
        {"error_type": one.code, "message": one.message, "where": one.where}
        for one in (fault, *fault.others)
    ]
