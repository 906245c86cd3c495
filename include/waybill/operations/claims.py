"""Claim checks: a payload too large for a message goes into the object store, the message names it.

The key of a replayed payload is a hash of its bytes: what was parked behind a transformation is not
what the source gave, and a run that resumes writes the same object again.
"""

from __future__ import annotations

import hashlib

from waybill.events import Event, encode, encode_data, payload_bytes, payload_key
from waybill.parking import ParkedEvent
from waybill.storage import ObjectStore

LARGEST_MESSAGE_BYTES = 1024 * 1024
"""Of a payload that still travels inside its message."""
_LAST_ATTEMPT = 2**31 - 1
_STORE_AWAY_LIMIT_S = 600.0


def check_in(objects: ObjectStore, event: Event, content: bytes, *, name: str) -> None:
    """Store a payload if it is too large to travel, and let the event name it.

    Raises:
        RetryError: the store stayed away for ten minutes.
    """
    if len(content) > LARGEST_MESSAGE_BYTES:
        event.data_ref = payload_key(event.pipeline_id, name)
        objects.put_waiting(event.data_ref, content, limit_s=_STORE_AWAY_LIMIT_S)


def next_attempt(parked: ParkedEvent) -> int:
    """Return the attempt of a parked event that goes back; the wire takes no more than 2^31-1."""
    return min(parked.attempt + 1, _LAST_ATTEMPT)


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
        check_in(objects, event, content, name=hashlib.sha256(content).hexdigest())
    return encode(event, content=content)
