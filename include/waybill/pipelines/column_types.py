"""Column types: one spelling for the declaration, the mapping and the destinations.

bool, int32, int64, float64, string, date, bytes and json are what they say; ``timestamp`` is UTC
with microseconds; ``decimal(p,s)`` has p digits, s of them behind the point (p at most 38).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

if TYPE_CHECKING:
    import pyarrow as pa

COLUMN_TYPES = (
    "bool",
    "int32",
    "int64",
    "float64",
    "decimal(p,s)",
    "string",
    "timestamp",
    "date",
    "bytes",
    "json",
)
_DECIMAL = re.compile(r"decimal\( *(\d{1,2}) *, *(\d{1,2}) *\)", re.ASCII)
MAX_DECIMAL_DIGITS = 38


def canonical_type(text: str) -> str:
    """Return a type's one spelling.

    Raises:
        ValueError: unknown type, or a decimal that no destination can hold.
    """
    match = _DECIMAL.fullmatch(text)
    if match is None:
        if text in COLUMN_TYPES and text != "decimal(p,s)":
            return text
        raise ValueError("unknown type")
    digits, behind = int(match[1]), int(match[2])
    if not 1 <= digits <= MAX_DECIMAL_DIGITS or behind > digits:
        raise ValueError(f"a decimal has 1 to {MAX_DECIMAL_DIGITS} digits, and no more behind")
    return f"decimal({digits},{behind})"


ColumnType = Annotated[str, AfterValidator(canonical_type)]


def arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type of a column type; json is text.

    Raises:
        ValueError: unknown type.
    """
    import pyarrow as pa

    match = _DECIMAL.fullmatch(name)
    if match is not None:
        return pa.decimal128(int(match[1]), int(match[2]))
    makers = {
        "bool": pa.bool_(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "string": pa.string(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "date": pa.date32(),
        "bytes": pa.binary(),
        "json": pa.string(),
    }
    if name not in makers:
        raise ValueError(f"unknown type {name!r}")
    return makers[name]


_INTEGER_DIGITS = {"int32": 10, "int64": 19}
_WIDER = {
    frozenset(("int32", "int64")): "int64",
    frozenset(("int32", "float64")): "float64",
    frozenset(("date", "timestamp")): "timestamp",
}


def widened(one: str, other: str) -> str | None:
    """Return the narrowest column type that holds all values of both exactly; None: there is none.

    Integers widen to wider ones and to decimals, int32 to float64 as well, decimals to decimals
    with more digits on either side (38 in all), dates to timestamps (midnight, UTC).
    """
    if one == other:
        return one
    if (pair := frozenset((one, other))) in _WIDER:
        return _WIDER[pair]
    digits = [_digits(one), _digits(other)]
    if None in digits:
        return None
    before = max(d[0] for d in digits if d is not None)
    behind = max(d[1] for d in digits if d is not None)
    if before + behind > MAX_DECIMAL_DIGITS:
        return None
    return f"decimal({before + behind},{behind})"


def _digits(name: str) -> tuple[int, int] | None:
    """Return the digits before and behind the point; None: it is no exact number."""
    if name in _INTEGER_DIGITS:
        return _INTEGER_DIGITS[name], 0
    match = _DECIMAL.fullmatch(name)
    return None if match is None else (int(match[1]) - int(match[2]), int(match[2]))
