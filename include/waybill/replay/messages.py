"""The message of a parked event that goes back, with its payload's bytes as they came."""

from __future__ import annotations

import hashlib

import msgspec

from waybill.errors import InputError, ParkError
from waybill.events import (
    Event,
    GoingBack,
    decode,
    encode,
    encode_data,
    going_back,
    payload_bytes,
)
from waybill.parking import ParkedEvent
from waybill.storage import LARGEST_MESSAGE_BYTES, ObjectStore, check_in

_LAST_ATTEMPT = 2**31 - 1


def next_attempt(parked: ParkedEvent) -> int:
    """Return the attempt of a parked event that goes back; the wire takes no more than 2^31-1."""
    return min(parked.attempt + 1, _LAST_ATTEMPT)


def message_again(
    parked: ParkedEvent, *, replay_id: str, objects: ObjectStore | None = None
) -> GoingBack:
    """Return a parked event as it goes back: id, ordering key, message, intake minute.

    Cost: 3 µs for 400 bytes.

    Raises:
        InputError: see ``events.reentry``.
        ParkError: see ``encode_again``.
    """
    value = parked.value
    if len(value) <= LARGEST_MESSAGE_BYTES:
        found = going_back(
            value, attempt=next_attempt(parked), replay_id=replay_id, stage=entry_stage(parked)
        )
        if found is not None:
            return found
    event = returning(parked, replay_id=replay_id)
    message = encode_again(event, value, objects=objects)
    return event.id, event.key.encode(), message, event.intake_minute


def entry_stage(parked: ParkedEvent) -> str | None:
    """Return where a parked event enters; None: where its own message says.

    One that Kafka refused when it was taken in enters where it would have entered then.
    """
    return None if parked.stage == "ingestion" else parked.stage


def returning(parked: ParkedEvent, *, replay_id: str) -> Event:
    """Return a parked event as it goes back: same id and versions, entering where it failed.

    Raises:
        InputError: its bytes are no event, so there is no stage that could take them.
    """
    try:
        event = decode(parked.value)
    except ParkError as error:
        raise InputError(
            f"parked bytes are not a Waybill event ({error.message}); mend the producer that wrote "
            "them and discard these"
        ) from error
    stage = entry_stage(parked) or event.stage
    return msgspec.structs.replace(
        event, stage=stage, attempt=next_attempt(parked), replay_id=replay_id
    )


def encode_again(event: Event, came: bytes, *, objects: ObjectStore | None = None) -> bytes:
    """Return the message of a parked event that goes back, with its payload's bytes as they came.

    One that came as a claim check may have been parked with its payload, which no log takes whole.

    Args:
        event: as it goes back.
        came: its message as it was parked.
        objects: where large payloads go; None: they stay in the message.

    Raises:
        ParkError: a payload with lone surrogates is nested too deeply to be written anew.
    """
    if event.data_ref is not None or isinstance(event.data, bytes):
        return encode(event)
    content = payload_bytes(came)
    if content is None:
        content = encode_data(event.data)
    if objects is not None:
        name = f"{event.replay_id}-{hashlib.sha256(content).hexdigest()}"
        check_in(objects, event, content, name=name)
    return encode(event, content=content)
