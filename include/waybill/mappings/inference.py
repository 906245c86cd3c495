"""Which column type holds a value, and which holds many, exactly.

Integers are int64 where that holds them, else decimals. A fraction is a decimal; one of 16 digits
and more, or of more than 18 behind the point, that a double is, is float64: it was computed, not
written by people. A number that neither holds exactly is JSON, as are objects, arrays, and values
of several kinds. Text in the form of RFC 3339 with a zone is a timestamp, YYYY-MM-DD a date, all
other text is a string.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from waybill.pipelines import widened

_DIGITS = 38
"""Of a decimal, on both sides of the point."""
_LEAST_BEFORE = 19
"""Digits that an inferred decimal has before the point, so that it holds int64 as well …"""
_LEAST_BEHIND = 9
"""… and behind it, where it has any."""
_INTEGER_BEFORE = 29
"""Digits of an inferred decimal without a fraction: room for fractions that may come."""
_PROPOSED_DIGITS, _PROPOSED_BEHIND = 18, (2, 4, 6)
"""Of a proposed decimal, and behind its point: the least of these that holds what was seen."""
_ROOM_BEFORE = 3
"""Digits before the point that a proposed decimal has beside those that were seen, at least."""
_COMPUTED_DIGITS = 16
_MOST_BEHIND = 18
_EXACT_IN_DOUBLE = 2**53
_INT64 = range(-(2**63), 2**63)
_INT32 = range(-(2**31), 2**31)
_TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.(\d+))?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MICROSECONDS = 6


@dataclass(slots=True)
class _Numbers:
    """What the numbers of one field need."""

    fractions: bool = False
    before: int = 0
    behind: int = 0
    computed: bool = False
    """One of them looks like a double's own digits, or is no finite number."""
    doubles: bool = True
    """A double is each of them exactly."""
    finite: bool = True
    int64: bool = True

    def add(self, value: int | float | Decimal) -> None:
        if isinstance(value, int):
            self._add_integer(value)
            return
        self.fractions = True
        if not math.isfinite(value):
            self.finite, self.computed = False, True
            return
        exact = exact_decimal(value)
        before, behind = digits_of(exact)
        self.before, self.behind = max(self.before, before), max(self.behind, behind)
        self.int64 = False
        if isinstance(value, Decimal):
            self.doubles = self.doubles and _is_double(value)
        elif len(exact.as_tuple().digits) >= _COMPUTED_DIGITS or behind > _MOST_BEHIND:
            self.computed = True

    def _add_integer(self, value: int) -> None:
        self.before = max(self.before, _integer_digits(value))
        self.int64 = self.int64 and value in _INT64
        self.doubles = self.doubles and abs(value) <= _EXACT_IN_DOUBLE

    def type(self) -> str:
        if not self.fractions:
            return "int64" if self.int64 else self._decimal(_INTEGER_BEFORE, 0) or "json"
        if self.computed and self.doubles:
            return "float64"
        found = self._decimal(_LEAST_BEFORE, _LEAST_BEHIND) if self.finite else None
        return found or ("float64" if self.doubles else "json")

    def proposed(self) -> str:
        """Return ``type``, a decimal only as wide as what was seen, with room before the point."""
        kind = self.type()
        if not (self.fractions and kind.startswith("decimal")):
            return kind
        for behind in _PROPOSED_BEHIND:
            if self.behind <= behind and self.before + _ROOM_BEFORE <= _PROPOSED_DIGITS - behind:
                return f"decimal({_PROPOSED_DIGITS},{behind})"
        return kind

    def _decimal(self, before: int, behind: int) -> str | None:
        """Return the decimal that holds all, with room to grow where there is any."""
        behind = max(self.behind, behind) if self.before + behind <= _DIGITS else self.behind
        if self.before + behind > _DIGITS:
            behind = self.behind
        before = min(max(self.before, before), _DIGITS - behind)
        return None if before < self.before else f"decimal({before + behind},{behind})"


def exact_decimal(value: float | Decimal) -> Decimal:
    """Return a finite number as the decimal that it is written as, without zeros at its end."""
    number = value if isinstance(value, Decimal) else Decimal(repr(float(value)))
    sign, digits, exponent = number.as_tuple()
    if not number or not isinstance(exponent, int):
        return Decimal(0)
    kept = len(digits)
    while kept > 1 and digits[kept - 1] == 0:
        kept -= 1
    return Decimal((sign, digits[:kept], exponent + len(digits) - kept))


def digits_of(number: Decimal) -> tuple[int, int]:
    """Return how many digits a decimal needs before and behind its point."""
    exponent = number.as_tuple().exponent
    behind = max(0, -exponent) if isinstance(exponent, int) else 0
    return (max(0, number.adjusted() + 1) if number else 0), behind


def _integer_digits(value: int) -> int:
    """Return a number's digits; of very large ones, about so many."""
    bits = value.bit_length()
    return len(str(abs(value))) if bits <= 4 * _DIGITS else bits // 3


def _is_double(value: Decimal) -> bool:
    number = float(value)
    return math.isfinite(number) and Decimal(repr(number)) == value


def type_of(value: Any) -> str | None:
    """Return the column type that holds a value; None: null, or nothing that a column holds."""
    return type_of_all((value,))


def type_of_all(values: Iterable[Any]) -> str | None:
    """Return the column type that holds all of these; None: none of them is more than null.

    Cost: 1 to 8 µs a value.
    """
    return _type_of_all(values, proposed=False)


def proposed_type(values: Iterable[Any]) -> str | None:
    """Return ``type_of_all`` for a person to look at: fractions are decimals of what was seen."""
    return _type_of_all(values, proposed=True)


def _type_of_all(values: Iterable[Any], *, proposed: bool) -> str | None:
    kinds: set[str] = set()
    numbers = _Numbers()
    for value in values:
        kind = _kind(value)
        if kind == "number":
            numbers.add(value)
        if kind:
            kinds.add(kind)
    if kinds == {"number"}:
        return numbers.proposed() if proposed else numbers.type()
    if len(kinds) > 1:
        return _mixed(kinds)
    return kinds.pop() if kinds else None


@dataclass(frozen=True, slots=True)
class MixedValues:
    """Values of one field that are of several kinds."""

    counts: dict[str, int]
    """Kind to values, the most first: number, text, time, boolean, object, bytes."""
    majority: str
    """The type proposed for those of the first kind."""
    others: tuple[Any, ...]
    """The values of the other kinds."""


_KINDS = {"string": "text", "date": "time", "timestamp": "time", "bool": "boolean"}
_KINDS |= {"json": "object", "number": "number", "bytes": "bytes"}


def mixed_values(values: Iterable[Any]) -> MixedValues | None:
    """Return what values of several kinds are; None: they are of one kind, or null."""
    by_kind: dict[str, list[Any]] = {}
    for value in values:
        if kind := _KINDS.get(_kind(value)):
            by_kind.setdefault(kind, []).append(value)
    ordered = sorted(by_kind, key=lambda kind: -len(by_kind[kind]))
    others = tuple(value for kind in ordered[1:] for value in by_kind[kind])
    if not others:
        return None
    majority = proposed_type(by_kind[ordered[0]]) or "json"
    return MixedValues({kind: len(by_kind[kind]) for kind in ordered}, majority, others)


def _mixed(kinds: set[str]) -> str:
    if kinds == {"date", "timestamp"}:
        return "timestamp"
    return "string" if kinds <= {"date", "timestamp", "string"} else "json"


def _kind(value: Any) -> str:
    """Return a type's name, "number", or "" for what has no column."""
    if isinstance(value, str):
        return text_type(value)
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float | Decimal):
        return "number"
    if isinstance(value, dict | list | tuple):
        return "json"
    if isinstance(value, date):
        return "timestamp" if isinstance(value, datetime) else "date"
    return "bytes" if isinstance(value, bytes | bytearray | memoryview) else ""


def text_type(text: str) -> str:
    """Return timestamp, date or string."""
    try:
        if _DATE.fullmatch(text):
            date.fromisoformat(text)
            return "date"
        match = _TIMESTAMP.fullmatch(text)
        if match is not None and len((match[1] or "").rstrip("0")) <= _MICROSECONDS:
            datetime.fromisoformat(text.upper()).astimezone(UTC)
            return "timestamp"
    except (ValueError, OverflowError):  # the 30th of February: text like any other
        return "string"
    return "string"


def type_needed(column_type: str, value: Any) -> str | None:
    """Return a type that a value needs and a column lacks; None: it fits, or no type would help.

    What helps is `widened` of both, if there is that.
    """
    kind = _kind(value)
    if kind == "number" and (column_type.startswith(("int", "decimal"))):
        return _number_needed(column_type, value)
    if column_type == "date" and kind == "timestamp":
        return "timestamp"
    return None


def _number_needed(column_type: str, value: int | float | Decimal) -> str | None:
    if isinstance(value, int):
        before, behind = _integer_digits(value), 0
    elif not math.isfinite(value):
        return None
    else:
        before, behind = digits_of(exact_decimal(value))
    if column_type.startswith("int") and not behind and before <= _LEAST_BEFORE:
        if int(value) in _INT64:
            return None if column_type == "int64" or int(value) in _INT32 else "int64"
    digits = max(before + behind, 1)
    needed = f"decimal({digits},{behind})" if digits <= _DIGITS else column_type
    return None if widened(column_type, needed) == column_type else needed
