"""JSON in and out without changing a number.

In: msgspec keeps integers of any size; a number with a fraction or an exponent is handed to
`exact_float`, which gives a double only where the double is that number (up to 15 digits it always
is), else a ``Decimal``. What msgspec refuses, the standard library's parser judges.

Out: orjson writes NaN as null and refuses decimals and integers of 2^64 and more; those are written
by hand.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import msgspec
import orjson

_ALWAYS_EXACT = 16
"""Characters, the point among them: 15 digits without an exponent are always exact in a double."""
_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NAIVE_UTC | orjson.OPT_PASSTHROUGH_DATACLASS


def exact_float(text: str) -> float | Decimal:
    """Return a JSON number as a double where that is exactly the number, else as a decimal.

    Raises:
        ValueError: an exponent beyond any number.
    """
    if len(text) <= _ALWAYS_EXACT and "e" not in text and "E" not in text:
        return float(text)
    number = float(text)
    if orjson.dumps(number) == text.encode():  # as a double's shortest text; a tenth of the rest
        return number
    try:
        exact = Decimal(text)
    except ArithmeticError as error:
        raise ValueError(f"exponent of {text[:40]!r} is beyond any number") from error
    return number if math.isfinite(number) and Decimal(repr(number)) == exact else exact


_decode = msgspec.json.Decoder(float_hook=exact_float).decode


def loads(text: bytes) -> Any:
    """Parse one JSON text exactly. Cost: about 1 µs for 400 bytes.

    Raises:
        ValueError: not JSON in UTF-8 (also NaN and Infinity, which are not JSON).
        RecursionError: nested more deeply than the interpreter goes.
    """
    try:
        return _decode(text)
    except msgspec.MsgspecError:
        return loads_exact(text)


def loads_exact(text: bytes) -> Any:
    """Parse one JSON text with integers of any size, and decimals where a double would differ."""
    return json.loads(text.decode(), parse_float=exact_float, parse_constant=_refuse_constant)


def dumps(value: Any) -> bytes:
    """Write JSON without changing a number.

    Datetimes become RFC 3339 in UTC, decimals and large integers keep every digit, lone surrogates
    are escaped as JSON allows.

    Raises:
        ValueError: NaN or Infinity, which JSON cannot say; an integer of over 4,300 digits.
        TypeError: a type with no JSON form.
        RecursionError: more than 254 levels deep.
    """
    try:
        text = orjson.dumps(value, default=_finite_fragment, option=_OPTIONS)
    except TypeError as error:
        _refuse_recursion(error)
        _refuse_not_finite(value)
        return _plain(_with_fragments(value))
    if b"null" in text:  # what NaN and Infinity of a float become
        _refuse_not_finite(value)
    return text


def dumps_read(value: Any) -> bytes:
    """Write what ``loads`` gave; as ``dumps``, without the look for NaN. Cost: half of it.

    Raises:
        RecursionError: more than 254 levels deep.
        ValueError: an integer of over 4,300 digits.
    """
    try:
        return orjson.dumps(value, default=_fragment, option=_OPTIONS)
    except TypeError as error:
        _refuse_recursion(error)
        return _plain(_with_fragments(value))


def _plain(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=_fragment, option=_OPTIONS)
    except TypeError as error:
        _refuse_recursion(error)
        raise


def _refuse_recursion(error: TypeError) -> None:
    if "Recursion limit" in str(error):
        raise RecursionError("nested more than 254 levels deep") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _refuse_not_finite(value: Any) -> None:
    if _not_finite(value):
        raise ValueError("NaN and Infinity have no form in JSON")


_FINITE = frozenset({str, int, bool, type(None)})


def _not_finite(value: Any) -> bool:
    kind = type(value)
    if kind is str or kind is int or value is None:
        return False
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(_not_finite(one) for one in value.values() if type(one) not in _FINITE)
    if isinstance(value, list | tuple):
        return any(_not_finite(one) for one in value if type(one) not in _FINITE)
    return isinstance(value, Decimal) and not value.is_finite()


def _finite_fragment(value: Any) -> Any:
    if isinstance(value, Decimal) and not value.is_finite():
        raise TypeError(f"{value} has no form in JSON")
    return _fragment(value)


def _fragment(value: Any) -> Any:
    if isinstance(value, Decimal):
        return orjson.Fragment(str(value))
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _with_fragments(value: Any) -> Any:
    """Return a value in which all that orjson cannot write is written already."""
    if type(value) is int and not -(2**63) <= value < 2**64:
        return orjson.Fragment(str(value))
    if isinstance(value, str):
        return value if _is_unicode(value) else orjson.Fragment(json.dumps(value))
    if isinstance(value, dict):
        return _object({name: _with_fragments(item) for name, item in value.items()})
    if isinstance(value, list | tuple):
        return [_with_fragments(item) for item in value]
    return value


def _object(items: dict[Any, Any]) -> Any:
    """Orjson takes fragments as values only: an object with a strange name is written by hand."""
    if not all(isinstance(name, str) for name in items) or all(map(_is_unicode, items)):
        return items
    pairs = [json.dumps(name).encode() + b":" + _plain(item) for name, item in items.items()]
    return orjson.Fragment(b"{" + b",".join(pairs) + b"}")


def _is_unicode(text: str) -> bool:
    """Tell whether a text has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
