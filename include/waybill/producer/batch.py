"""The messages of a batch, checked before the first of them is appended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from waybill.errors import InputError
from waybill.producer.callbacks import OnDelivery
from waybill.producer.wal import HeadersIn, encode_headers

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
    try:
        return _row(message, on_delivery, partition)
    except (InputError, TypeError) as error:
        raise type(error)(f"message {number} of the batch: {error}") from error


def _row(message: Message, on_delivery: OnDelivery | None, partition: int) -> Row:
    told = message.get("on_delivery") or message.get("callback") or on_delivery
    if told is not None and not callable(told):
        raise TypeError(f"on_delivery is a callable, not {type(told).__name__}")
    value, key, headers = (message.get(name) for name in ("value", "key", "headers"))
    return (
        None if value is None else as_bytes("value", value),
        None if key is None else as_bytes("key", key),
        encode_headers(headers)[0] or None,
        told,
        _integer("partition", message.get("partition", partition), 31),
        _integer("timestamp", message.get("timestamp") or 0, 63),
    )


def _integer(what: str, given: object, bits: int) -> int:
    if not isinstance(given, int):
        raise TypeError(f"a {what} is an integer, not {type(given).__name__}")
    if not -(2**bits) <= given < 2**bits:
        raise InputError(f"{given} is no {what}")
    return given


def as_bytes(what: str, given: object) -> bytes:
    """Return a value or key as bytes; text as UTF-8.

    Raises:
        InputError: text that has no UTF-8 form.
        TypeError: neither bytes nor text.
    """
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the {what} has no UTF-8 form: {error}") from error
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)
    raise TypeError(f"{what} is bytes, text or None, not {type(given).__name__}")
