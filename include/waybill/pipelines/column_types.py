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
    import pyarrow as pa  # noqa: PLC0415 - declarations are read where Arrow is not needed

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
