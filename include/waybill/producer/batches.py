"""What ``produce_batch`` and ``produce_values`` are given, checked before the first is appended.

A run is a column of values and one of keys, with all else alike: its records are appended without
a call for each. Messages that differ in more are rows: ``produce`` is called with each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from waybill.errors import InputError
from waybill.producer.delivery import OnDelivery
from waybill.producer.wal import HeaderList, HeadersIn, encode_headers

Message: TypeAlias = Mapping[str, Any]
"""value, key, headers, on_delivery (or callback), partition, timestamp: each optional."""
Row: TypeAlias = tuple[
    bytes | None, bytes | None, HeadersIn, OnDelivery | None, int, int
]  # as ``produce`` takes them behind the topic
Column: TypeAlias = Sequence[bytes | None]
_MESSAGE_FIELDS = frozenset(
    ("value", "key", "headers", "on_delivery", "callback", "partition", "timestamp")
)
_UNIFORM_FIELDS = frozenset(("value", "key"))
_EXACT = frozenset((bytes, type(None)))


@dataclass(frozen=True, slots=True)
class Run:
    """Messages of one topic that differ in value and key alone, as ``produce`` takes them.

    Raises:
        InputError: there are more or fewer keys than values.
    """

    topic: str
    values: Column
    keys: Column
    headers: tuple[HeaderList, bytes] = ([], b"")
    """As ``encode_headers`` returns them."""
    on_delivery: OnDelivery | None = None
    partition: int = -1
    timestamp: int = 0

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.values):
            raise InputError(f"{len(self.values)} values have {len(self.keys)} keys")

    def __len__(self) -> int:
        return len(self.values)

    def pairs(self, begin: int, count: int) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Return at most ``count`` values, each with its key, from the ``begin``-th on."""
        end = begin + count
        return zip(self.values[begin:end], self.keys[begin:end], strict=True)

    def row(self, number: int) -> Row:
        """Return one message."""
        return (
            self.values[number],
            self.keys[number],
            self.headers[0] or None,
            self.on_delivery,
            self.partition,
            self.timestamp,
        )


def uniform_run(
    topic: str, messages: list[Message], on_delivery: OnDelivery | None, partition: int
) -> Run | None:
    """Return a batch as a run; None where it is none, or where a message has to be checked.

    Cost: 0.1 µs a message.
    """
    if set(map(type, messages)) - {dict}:
        return None
    fields: set[Any] = set().union(*messages)
    if fields - _UNIFORM_FIELDS:
        return None
    keys = [message.get("key") for message in messages] if "key" in fields else ()
    try:
        return Run(
            topic,
            as_column("value", [message.get("value") for message in messages]),
            as_column("key", keys) if keys else [None] * len(messages),
            on_delivery=checked_callable(on_delivery),
            partition=integer("partition", partition, 31),
        )
    except (InputError, TypeError):
        return None  # ``checked_batch`` says which message it is


def as_column(what: str, given: Sequence[bytes | str | None]) -> Column:
    """Return values or keys as bytes; text as UTF-8.

    Raises:
        InputError: text that has no UTF-8 form; says which.
        TypeError: neither bytes nor text nor None; says which. Or text in place of a column.
    """
    if isinstance(given, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"a {what} each is expected, not one {type(given).__name__}")
    column = list(given)
    if set(map(type, column)) <= _EXACT:
        return cast("Column", column)
    return [_cell(what, number, cell) for number, cell in enumerate(column)]


def _cell(what: str, number: int, given: object) -> bytes | None:
    try:
        return None if given is None else as_bytes(what, given)
    except (InputError, TypeError) as error:
        raise type(error)(f"{what} {number}: {error}") from error


def checked_callable(on_delivery: object) -> OnDelivery | None:
    """Return it.

    Raises:
        TypeError: it is neither callable nor None.
    """
    if on_delivery is None or callable(on_delivery):
        return on_delivery
    raise TypeError(f"on_delivery is a callable, not {type(on_delivery).__name__}")


def checked_batch(
    messages: Iterable[Message], on_delivery: OnDelivery | None, partition: int
) -> list[Row]:
    """Return the arguments of ``produce`` for each message.

    Raises:
        InputError, TypeError: one is not a message; says which and why.
    """
    return [
        _checked_message(number, message, on_delivery, partition)
        for number, message in enumerate(messages)
    ]


def _checked_message(
    number: int, message: Message, on_delivery: OnDelivery | None, partition: int
) -> Row:
    if not isinstance(message, Mapping):
        raise TypeError(f"message {number} of the batch is a {type(message).__name__}, no mapping")
    unknown = sorted(map(str, message.keys() - _MESSAGE_FIELDS))
    if unknown:
        known = sorted(_MESSAGE_FIELDS)
        raise InputError(f"message {number} of the batch has {unknown[0]!r}; it may have {known}")
    try:
        return _arguments(message, on_delivery, partition)
    except (InputError, TypeError) as error:
        raise type(error)(f"message {number} of the batch: {error}") from error


def _arguments(message: Message, on_delivery: OnDelivery | None, partition: int) -> Row:
    callback = message.get("on_delivery") or message.get("callback") or on_delivery
    value, key, headers = (message.get(name) for name in ("value", "key", "headers"))
    return (
        None if value is None else as_bytes("value", value),
        None if key is None else as_bytes("key", key),
        encode_headers(headers)[0] or None,
        checked_callable(callback),
        integer("partition", message.get("partition", partition), 31),
        integer("timestamp", message.get("timestamp") or 0, 63),
    )


def integer(what: str, given: object, bits: int) -> int:
    """Return an integer that fits a field of so many bits and a sign.

    Raises:
        InputError: it does not fit.
        TypeError: it is none.
    """
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
