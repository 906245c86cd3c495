"""What goes between a process and its process of user code: length-prefixed MessagePack.

Never pickle: what comes back is somebody else's, and building it must run nothing. All that JSON
knows travels as it is; so do bytes, NaN, and the types that a mapping knows beside: whole numbers
of any size, ``Decimal``, dates and times, texts with lone surrogates. What nothing can write is the
event's fault; so is a set, whose order is another in each process.

Reading costs time and memory in proportion to the bytes, whatever these say: nothing is hashed of
which many can be made that share a hash.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
import ormsgpack

from waybill.events import CATALOGUE, HELD_ERROR, Event
from waybill.processing.failures import Fault, TooLargeError, cut, words_of
from waybill.processing.payload_columns import PayloadColumns
from waybill.processing.sandbox import reply_memory
from waybill.processing.transformation import Outcome, check_child

LENGTH = struct.Struct("<Q")
LARGEST_RESULT_BYTES = 64 * 1024**2
"""Of one event, all its children together."""
LARGEST_REPLY_BYTES = 512 * 1024**2
_MOST_CHILDREN = 500_000
"""Of the events of one reply, together: each is some 500 bytes beside its payload."""
_DEEPEST_PAIRS = 8
"""Of objects with strange names, one within the other: each copies what is in it."""
_WRITING = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_SERIALIZE_NUMPY
)
_SAME, _FILTERED, _FAULT, _SELF, _CHILDREN = b"sfxnc"


def pack_outcomes(events: Sequence[Event], outcomes: Sequence[Outcome]) -> tuple[bytes, list[Any]]:
    """Return one letter an event, and what belongs to it.

    ``s``: the event with this payload; ``n``: and with this name and op; ``c``: children, as
    (name, op, payload); ``f``: filtered; ``x``: a fault.
    """
    kinds, bodies = bytearray(), list[Any]()
    for event, outcome in zip(events, outcomes, strict=True):
        kind, body = _body(event, outcome)
        kinds.append(kind)
        bodies.append(body)
    return bytes(kinds), bodies


def _body(event: Event, outcome: Outcome) -> tuple[int, Any]:
    if isinstance(outcome, Event):  # as it came, or as it came once more
        return _SAME, outcome.data
    if outcome is None:
        return _FILTERED, None
    if isinstance(outcome, Fault):
        return _FAULT, fault_body(outcome)
    if isinstance(outcome, list):
        children = [(child.name, child.op, child.data) for child in outcome]
        if len(children) == 1 and outcome[0].id == event.id:
            return _SELF, children[0]
        return _CHILDREN, children
    raise TypeError(type(outcome))


def fault_body(fault: Fault) -> list[Any]:
    """Return a fault as it is written."""
    texts = (fault.code, fault.message, fault.where, fault.stack_hash)
    plain = [text.encode("utf-8", "backslashreplace").decode() for text in texts]
    return [*plain, [fault_body(other) for other in fault.others]]


def unpack_outcomes(events: Sequence[Event], kinds: bytes, bodies: Sequence[Any]) -> list[Outcome]:
    """Return the outcomes; of what an event is, only payload, name and op are taken.

    Raises:
        TooLargeError: they have more children than a worker holds.
        Exception: it is not what ``pack_outcomes`` gave.
    """
    children = sum(len(body) for kind, body in zip(kinds, bodies, strict=True) if kind == _CHILDREN)
    if children > _MOST_CHILDREN:
        raise TooLargeError(f"the result has {children:,} events; {_MOST_CHILDREN:,} may pass")
    return [
        _outcome(event, kind, body) for event, kind, body in zip(events, kinds, bodies, strict=True)
    ]


def _outcome(event: Event, kind: int, body: Any) -> Outcome:
    if kind == _SAME:
        event.data = body
        return event
    if kind == _FILTERED:
        return None
    if kind == _FAULT:
        return read_fault(body)
    if kind == _SELF:
        return [_renamed(event, body)]
    if kind == _CHILDREN and body:
        return [_renamed(event.child(index, None), child) for index, child in enumerate(body)]
    raise ValueError(f"no outcome: {kind!r}")


def _renamed(event: Event, body: Any) -> Event:
    name, op, data = body
    changed = msgspec.structs.replace(event, name=name, op=op, data=data)
    check_child(changed)
    return changed


def read_fault(body: Any) -> Fault:
    """Return what ``fault_body`` gave.

    Raises:
        Exception: it is not that.
    """
    code, message, where, stack_hash, others = body
    if not all(type(text) is str for text in (message, where, stack_hash)):
        raise TypeError("a fault is made of texts")
    if code not in CATALOGUE or code == HELD_ERROR:
        raise ValueError(f"no error type of user code: {code!r}")
    known = tuple(map(read_fault, others))
    return Fault(code, cut(message), cut(where), cut(stack_hash), known)


def pack(values: Any) -> bytes:
    """Write values; what ``unpack`` gives is equal.

    Raises:
        Exception: something cannot be written.
    """
    return ormsgpack.packb(values, default=_extension, option=_WRITING)


def unpack(content: bytes | bytearray | memoryview) -> Any:
    """Read what ``pack`` gave.

    Raises:
        ValueError: it is not that.
    """
    return ormsgpack.unpackb(content, ext_hook=_read)


def is_too_large(content: bytearray) -> bool:
    """Tell whether what ``unpack`` makes of a reply is more than a worker holds."""
    return reply_memory.is_too_large(content, within=_PAIRS)


def pack_payloads(payloads: PayloadColumns, printed: str) -> bytes | None:
    """Write the payloads of events that all go on as themselves; None: `pack_reply` has to.

    Cost: 0.1 µs an event of seven fields.
    """
    columns = [payloads.column(name) for name in payloads.names]
    try:
        content = pack([payloads.names, columns, printed])
    except Exception:  # noqa: BLE001 - user data may refuse in any way
        return None
    return content if len(content) <= LARGEST_RESULT_BYTES else None


def unpack_payloads(names: Any, columns: Any, count: int) -> PayloadColumns:
    """Return what ``pack_payloads`` gave.

    Raises:
        Exception: it is not that.
    """
    if set(map(type, names)) != {str} or len(set(names)) != len(names):
        raise TypeError("names of fields are texts, each once")
    if any(type(column) is not list or len(column) != count for column in columns):
        raise ValueError("a field has as many values as there are events")
    return PayloadColumns(names, columns, count)


def pack_reply(kinds: bytes, bodies: list[Any], printed: str) -> bytes:
    """Write a reply; a result that cannot be written, or is too large, becomes its event's fault.

    Cost: 0.3 µs an event of seven fields; where one cannot be written as it is, each is tried.
    """
    try:
        content = pack([kinds, bodies, printed])
    except Exception:  # noqa: BLE001 - user data may refuse in any way
        content = b""
    if content and len(content) <= LARGEST_RESULT_BYTES:
        return content
    checked = bytearray(kinds)
    for index, body in enumerate(bodies):
        bodies[index], fault = written(body)
        if fault is not None:
            checked[index], bodies[index] = _FAULT, fault_body(fault)
    return pack([bytes(checked), bodies, printed])


def written(body: Any) -> tuple[Any, Fault | None]:
    """Return a body that can be written, or why there is none."""
    try:
        try:
            content = pack(body)
        except Exception:  # noqa: BLE001 - user data may refuse in any way
            body = _strange(body, _DEEPEST_PAIRS)
            content = pack(body)
    except Exception as error:  # noqa: BLE001 - user data may refuse in any way
        return None, Fault(
            "result_invalid", f"the result cannot leave its process: {words_of(error)}"
        )
    if len(content) > LARGEST_RESULT_BYTES:
        words = f"the result has {len(content):,} bytes; at most {LARGEST_RESULT_BYTES:,} may pass"
        return None, Fault("result_invalid", words)
    return body, None


_DECIMAL, _INTEGER, _DATETIME, _DATE, _TIME, _DURATION, _TEXT, _PAIRS = range(1, 9)
_FEW_SHARE_A_HASH = frozenset({str, int, float, bool, type(None)})
"""Types of names in objects; of the others, whole numbers of any size among them, any number do."""


def _extension(value: Any) -> Any:
    """Return the form of what MessagePack does not know."""
    for kind, number, write in _TYPES:
        if isinstance(value, kind):
            return ormsgpack.Ext(number, write(value))
    if isinstance(value, set | frozenset):
        raise TypeError("a set has no order: write sorted(…)")
    raise TypeError(f"{type(value).__name__} is no type of JSON, nor one that a mapping knows")


def _read(number: int, content: bytes, depth: int = 0) -> Any:
    if number != _PAIRS:
        return _READERS[number](bytes(content))
    if depth == _DEEPEST_PAIRS:
        raise ValueError("objects with strange names are nested too deeply")
    pairs = ormsgpack.unpackb(bytes(content), ext_hook=partial(_read, depth=depth + 1))
    if not all(map(_is_name, [name for name, _ in pairs])):
        raise ValueError("names in objects are texts or numbers")
    return dict(pairs)


def _is_name(name: Any) -> bool:
    return type(name) in _FEW_SHARE_A_HASH and (type(name) is not int or -(2**63) <= name < 2**64)


def _integer(value: int) -> bytes:
    return int(value).to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _duration(value: timedelta) -> bytes:
    return struct.pack("<iii", value.days, value.seconds, value.microseconds)


_TYPES: tuple[tuple[type | tuple[type, ...], int, Callable[[Any], bytes]], ...] = (
    (Decimal, _DECIMAL, lambda value: str(value).encode()),
    (int, _INTEGER, _integer),
    (datetime, _DATETIME, lambda value: value.isoformat().encode()),
    (date, _DATE, lambda value: value.isoformat().encode()),
    (time, _TIME, lambda value: value.isoformat().encode()),
    (timedelta, _DURATION, _duration),
)
_READERS: dict[int, Callable[[bytes], Any]] = {
    _DECIMAL: lambda content: Decimal(content.decode()),
    _INTEGER: lambda content: int.from_bytes(content, "big", signed=True),
    _DATETIME: lambda content: datetime.fromisoformat(content.decode()),
    _DATE: lambda content: date.fromisoformat(content.decode()),
    _TIME: lambda content: time.fromisoformat(content.decode()),
    _DURATION: lambda content: timedelta(*struct.unpack("<iii", content)),
    _TEXT: lambda content: content.decode("utf-8", "surrogatepass"),
}


def _strange(value: Any, depth: int) -> Any:
    """Return a value in a form that can be written also where texts have lone surrogates.

    And where names in objects are no texts.

    Args:
        value: any.
        depth: how many objects with strange names may be one within the other.

    Raises:
        ValueError: they are more, or a name is neither a text nor a number.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return ormsgpack.Ext(_TEXT, value.encode("utf-8", "surrogatepass"))
        return value
    if isinstance(value, dict):
        plain = all(type(name) is str and name.isprintable() for name in value)
        if plain:  # no lone surrogate is printable
            return {name: _strange(item, depth) for name, item in value.items()}
        names = [str(name) if isinstance(name, str) else name for name in value]
        if depth == 0 or not all(map(_is_name, names)):
            raise ValueError("names in objects are texts or numbers, and nested 8 deep if strange")
        items = zip(names, value.values(), strict=True)
        pairs = [[_strange(name, depth), _strange(item, depth - 1)] for name, item in items]
        return ormsgpack.Ext(_PAIRS, pack(pairs))
    if isinstance(value, list | tuple):
        return [_strange(item, depth) for item in value]
    return value
