"""How a message says its schema: Confluent's frame, or a header.

| form | bytes |
|---|---|
| frame | 0, then 4 bytes of a number, before the data |
| header | 1, then 16 bytes of a UUID; the data stands alone |

The header is ``__value_schema_id`` or ``__key_schema_id``.

Of Protobuf, the id is followed by the message's place in its file: a number of indexes, and these,
as variable-length numbers; a 0 alone stands for the first message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from waybill.errors import ParkError
from waybill.ingestion.connectors.kafka_topics.messages import MALFORMED
from waybill.ingestion.connectors.kafka_topics.schema_registry import SchemaId

KEY_HEADER, VALUE_HEADER = "__key_schema_id", "__value_schema_id"
Headers = Sequence[tuple[str, bytes | None]]
_NUMBER_END, _UUID_END = 5, 17
_MOST_INDEXES = 32
_MOST_SHIFT = 63
_CONTINUED = 0x80


class Framed(NamedTuple):
    """A message's bytes, and which schema they have."""

    schema_id: SchemaId
    data: bytes
    """Of Protobuf from the indexes on."""


def with_header(data: bytes, headers: Headers | None, name: str) -> bytes:
    """Return a message's bytes behind the schema's id, wherever the message has that."""
    for key, value in headers or ():
        if key == name and value:
            return value + data
    return data


def framed(data: bytes, what: str) -> Framed:
    """Take the frame off.

    Raises:
        ParkError: there is none.
    """
    if data[:1] == b"\0" and len(data) >= _NUMBER_END:
        return Framed(int.from_bytes(data[1:_NUMBER_END]), data[_NUMBER_END:])
    if data[:1] == b"\1" and len(data) >= _UUID_END:
        return Framed(UUID(bytes=data[1:_UUID_END]), data[_UUID_END:])
    raise ParkError(
        MALFORMED,
        f"{what} has no schema id: it begins with {data[:5].hex() or 'nothing'}, not with 00 and 4"
        " bytes of an id",
    )


def message_place(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return a Protobuf message's indexes in its file, and its own bytes.

    Raises:
        ValueError: there are none.
    """
    count, position = zigzag(data, 0)
    if not 0 <= count <= _MOST_INDEXES:
        raise ValueError(f"{count} message indexes")
    indexes = []
    for _ in range(count):
        index, position = zigzag(data, position)
        indexes.append(index)
    return tuple(indexes) or (0,), data[position:]


def zigzag(data: bytes, position: int) -> tuple[int, int]:
    """Return a variable-length number with a sign, and the position behind it.

    Raises:
        ValueError: it does not end.
    """
    number = shift = 0
    while position < len(data) and shift <= _MOST_SHIFT:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < _CONTINUED:
            return (number >> 1) ^ -(number & 1), position
        shift += 7
    raise ValueError("a variable-length number does not end")
