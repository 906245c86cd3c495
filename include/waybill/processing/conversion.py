"""Values of a payload to an Arrow array of a column's type, exactly or not at all."""

from __future__ import annotations

import base64
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from waybill.events import dumps

_SHOWN_CHARACTERS = 80
_MOST_DIGITS = 40
"""Before or behind the point; no column holds more, and no work is done on numbers of more."""
_MOST_BITS = 4 * _MOST_DIGITS
_TOO_LARGE = ("out of bounds", "too large", "does not fit into precision", "cannot be represented")
_EXACT_IN_DOUBLE = 2**53
FIRST_US = int(datetime(1, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
LAST_US = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1_000_000 + 999_999
"""In microseconds since 1970: the first and last times that Python and the destinations have."""
_MICROSECONDS = re.compile(r"[.,][0-9]{6}0*[1-9]")

_UNSTORABLE = re.compile(r"(?<!\\)(?:\\\\)*\\u(?:0000|[dD][89a-fA-F])")
"""In JSON as ``dumps`` writes it, which escapes of all surrogates only lone ones."""


def convert(name: str, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of a type, by its name, as an array of its Arrow type.

    Raises whatever a value makes it raise; `error_code` sorts it.
    """
    converter = _CONVERTERS.get(name.partition("(")[0], _plain)
    return converter(values, kind)


def adopt(name: str, array: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return an array as a column of a type, by its name, if Arrow does that without loss.

    None: `convert` has to look at its values, and finds the words for what is wrong. Times and
    dates are within `FIRST_US` and `LAST_US`.
    """
    if name == "json" or not (array.type == kind or _casts(array.type, kind)):
        return None
    if array.type != kind:
        try:
            array = array.cast(kind)
        except pa.ArrowException:
            return None
    return None if name == "string" and _has_nul(array) else array


def _casts(one: pa.DataType, other: pa.DataType) -> bool:
    """Tell whether a safe cast of Arrow's changes no value, and raises where `convert` would."""
    if pa.types.is_int64(one):
        return bool(pa.types.is_int32(other) or pa.types.is_float64(other))
    return bool(pa.types.is_decimal128(one) and pa.types.is_decimal128(other))


def _has_nul(array: pa.Array) -> bool:
    body = array.buffers()[2]
    return body is not None and b"\0" in body.to_pybytes()


def shown(value: Any) -> str:
    """Return a value in words, cut short; it may be one that cannot be shown."""
    try:
        words = repr(value)
    except Exception as error:  # noqa: BLE001 - too deep, too long, or a user's own __repr__
        return f"(cannot be shown: {type(error).__name__})"
    return words if len(words) <= _SHOWN_CHARACTERS else words[:_SHOWN_CHARACTERS] + "…"


def error_code(kind: str, error: BaseException) -> str:
    """Return the error type of what a column of a type raised for a value."""
    words = str(error)
    if isinstance(error, UnicodeError):
        return "text_invalid"
    if kind in ("timestamp", "date") and not isinstance(error, TypeError):
        return "timestamp_invalid"
    if isinstance(error, OverflowError) or any(part in words for part in _TOO_LARGE):
        return "number_out_of_range"
    if kind.startswith("decimal") and isinstance(error, pa.ArrowException):
        return "precision_lost"
    return "type_mismatch"


def _plain(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, type=kind, from_pandas=False)


def _texts(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    array = pa.array(values, type=kind, from_pandas=False)
    if _has_nul(array):
        raise UnicodeError("NUL cannot be stored in text")
    return array


def _integers(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if not set(map(type, values)) <= {int, type(None)}:
        values = [_integer(value) for value in values]
    return pa.array(values, type=kind, from_pandas=False)


def _integer(value: Any) -> int | None:
    if value is None or type(value) is int:
        return value
    if isinstance(value, bool):
        raise TypeError("true and false are no numbers")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Decimal) and value.is_finite():
        if abs(value.adjusted()) > _MOST_DIGITS and value:
            raise OverflowError("number too large, or no integer")
        if value == value.to_integral_value():
            return int(value)
    return operator.index(value)


def _floats(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if not set(map(type, values)) <= {float, type(None)}:
        values = [_float(value) for value in values]
    return pa.array(values, type=kind, from_pandas=False)


def _float(value: Any) -> Any:
    if isinstance(value, bool):
        raise TypeError("true and false are no numbers")
    if isinstance(value, int) and abs(value) > _EXACT_IN_DOUBLE and int(float(value)) != value:
        raise OverflowError("integer too large for a double")
    if isinstance(value, Decimal):
        if math.isinf(number := float(value)):
            raise OverflowError("decimal too large for a double")
        return number
    return float(value) if isinstance(value, int) else value


def _decimals(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array([_decimal(value) for value in values], type=kind, from_pandas=False)


def _decimal(value: Any) -> Decimal | None:
    if value is None:
        return None
    number = _as_decimal(value)
    if not number.is_finite():
        raise TypeError(f"{value!r} is no decimal")
    if number and number.adjusted() > _MOST_DIGITS:
        raise OverflowError("decimal too large")
    if number and number.adjusted() < -_MOST_DIGITS:
        raise pa.ArrowInvalid("decimal with too many digits behind the point")
    return number


def _as_decimal(value: Any) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if type(value) is int:
        if value.bit_length() > _MOST_BITS:  # the time that Decimal takes grows with its square
            raise OverflowError("decimal too large")
        return Decimal(value)
    if isinstance(value, float):
        return Decimal(float.__repr__(value))
    if isinstance(value, str) and value.isascii() and "_" not in value:
        try:
            return Decimal(value)
        except ArithmeticError as error:
            raise TypeError(f"{value!r} is no decimal") from error
    raise TypeError(f"{type(value).__name__} is no decimal")


def _timestamps(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if set(map(type, values)) <= {str, type(None)}:
        try:
            moments = pa.array(values, type=pa.string()).cast(kind)
        except (pa.ArrowException, UnicodeError):
            moments = pa.array([_moment(value) for value in values], type=kind)
    else:
        moments = pa.array([_moment(value) for value in values], type=kind)
    span = pc.min_max(moments.cast(pa.int64()))
    first, last = span["min"].as_py(), span["max"].as_py()
    if first is not None and not FIRST_US <= first <= last <= LAST_US:
        raise ValueError("a time outside the years 1 to 9999 in UTC")
    return moments


def _moment(value: Any) -> datetime | None:
    if value is None:
        return None
    if isinstance(value, str):
        if _MICROSECONDS.search(value):
            raise ValueError("a time with more than microseconds")
        value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        raise TypeError(f"{type(value).__name__} is no timestamp")
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value


def _dates(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array([_day(value) for value in values], type=kind)


def _day(value: Any) -> date | None:
    if isinstance(value, str):
        return date.fromisoformat(value)
    if value is not None and (isinstance(value, datetime) or not isinstance(value, date)):
        raise TypeError(f"{type(value).__name__} is no date")
    return value


def _binary(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(
        [base64.b64decode(v, validate=True) if isinstance(v, str) else v for v in values], type=kind
    )


def _json(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    texts = [None if value is None else dumps(value).decode() for value in values]
    if any(_UNSTORABLE.search(text) for text in texts if text is not None and "\\u" in text):
        raise UnicodeError("NUL and lone surrogates cannot be stored, not even escaped")
    return pa.array(texts, type=kind)


_CONVERTERS: Mapping[str, Callable[[Sequence[Any], pa.DataType], pa.Array]] = {
    "string": _texts,
    "int32": _integers,
    "int64": _integers,
    "float64": _floats,
    "decimal": _decimals,
    "timestamp": _timestamps,
    "date": _dates,
    "bytes": _binary,
    "json": _json,
}
