"""From a source's row to the event that it is."""

from __future__ import annotations

import hashlib

from waybill.errors import ParkError
from waybill.events import (
    DELETE,
    UPSERT,
    Event,
    IntakeClock,
    dumps,
    encode_data,
    event_id,
    ordering_key,
    rfc3339_us,
    source_version,
)
from waybill.ingestion.connectors import Record, Row
from waybill.pipelines import EventDeclaration, Pipeline


def intake_event(pipeline: Pipeline, row: Row, clock: IntakeClock) -> tuple[Event, bytes, int]:
    """Return a row's event, its payload's bytes, and when it was taken in.

    The time is in microseconds since 1970. The clock gives a version only to what is an event.

    Raises:
        ParkError: the row has no key or no version, or no JSON form; or an event name that the
            pipeline does not declare.
    """
    if isinstance(row, Record):
        declared = declared_for(pipeline, row)
        data, version = row.data, row.version
        op: str = row.op
        if version is None:
            version = source_version(data, declared.version)
        elif not -_INT64 <= version < _INT64:
            raise ParkError("source_version_invalid", f"{version} does not fit 64 bits")
    else:
        declared, data, op = pipeline.events[pipeline.source.event], row, UPSERT
        version = source_version(row, declared.version)
    key = ordering_key(data, declared.key)
    content = encode_data(data)
    identity = event_id(
        pipeline.id,
        declared.name,
        key,
        version=version,
        content=content,
        delete=op == DELETE,
    )
    intake_version, minute, taken_us = clock.stamp()
    event = Event(  # by position: half the cost
        identity,
        pipeline.id,
        pipeline.team,
        declared.name,
        key,
        0 if version is None else version,
        intake_version,
        minute,
        rfc3339_us(taken_us),
        data,
        op=op,
    )
    return event, content, taken_us


def held_by(row: Row, place: str) -> str:
    """Return what a row that is no event is known by beside its bytes.

    Two streams may have the same row, or one may upsert what it then deletes.
    """
    return f"{row.op} of {row.event}, {place}" if isinstance(row, Record) else place


def parked_id(pipeline_id: str, name: str, place: str, raw: bytes) -> str:
    """Return what a record is known by that is no event: 32 hex digits.

    Args:
        pipeline_id: the pipeline's immutable id.
        name: the event name that it is parked under.
        place: where it stands, or what holds it; the same whenever it is read again.
        raw: its bytes.

    Source: BLAKE2b with 128 bits over an unambiguous JSON array and the bytes.
    """
    digest = hashlib.blake2b(dumps([pipeline_id, name, place]), digest_size=16)
    digest.update(raw)
    return digest.hexdigest()


def declared_for(pipeline: Pipeline, row: Row) -> EventDeclaration:
    """Return the declaration of a row's event name.

    Raises:
        ParkError: the pipeline declares no such event name.
    """
    name = row.event if isinstance(row, Record) and row.event is not None else pipeline.source.event
    found = pipeline.events.get(name)
    if found is None:
        known = ", ".join(pipeline.events)
        raise ParkError(
            "event_undeclared",
            f"the pipeline declares no event {name[:200]!r}, only {known[:500]}",
        )
    return found


_INT64 = 2**63
