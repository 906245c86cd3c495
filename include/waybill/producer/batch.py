"""The messages of a batch, checked before the first of them is appended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from waybill.errors import InputError
from waybill.producer.callbacks import OnDelivery
from waybill.producer.wal.record import HeadersIn, encode_headers

Message: TypeAlias = Mapping[str, Any]
"""value, key, headers, on_delivery (or callback), partition, timestamp: each optional."""
Row: TypeAlias = tuple[
    bytes | None, bytes | None, HeadersIn, OnDelivery | None, int, int
]  # as ``produce`` takes them behind the topic

_NAMES = frozenset(("value", "key", "headers", "on_delivery", "callback", "partition", "timestamp"))


def checked_batch(
    messages: Iterable[Message], on_delivery: OnDelivery | None, partition: int
) -> list[Row]:
    """Return the arguments of ``produce`` for each message.

    Raises:
        InputError, TypeError: one is not a message; says which and why.
    """
    return [
        _checked(number, message, on_delivery, partition) for number, message in enumerate(messages)
    ]


def _checked(number: int, message: Message, on_delivery: OnDelivery | None, partition: int) -> Row:
    if not isinstance(message, Mapping):
        raise TypeError(f"message {number} of the batch is a {type(message).__name__}, no mapping")
    unknown = sorted(map(str, message.keys() - _NAMES))
    if unknown:
        raise InputError(
            f"message {number} of the batch has {unknown[0]!r}; it may have {sorted(_NAMES)}"
        )
    for name in ("value", "key"):
        if not isinstance(message.get(name), (bytes, bytearray, str, type(None))):
            raise TypeError(f"message {number} of the batch: {name} is bytes, text or None")
    try:
        encode_headers(message.get("headers"))
    except InputError as error:
        raise InputError(f"message {number} of the batch: {error}") from error
    told = message.get("on_delivery") or message.get("callback") or on_delivery
    return (
        message.get("value"),
        message.get("key"),
        message.get("headers"),
        told,
        int(message.get("partition", partition)),
        int(message.get("timestamp") or 0),
    )
