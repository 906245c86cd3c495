"""Values of SQL: as JSON's, as an event has them; and as a cursor keeps them, without loss."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from waybill.errors import InputError
from waybill.events import rfc3339


def json_value(value: Any) -> Any:
    """Return a column's value as JSON has it.

    Decimals are text with all their digits, times RFC 3339 in UTC (one without a zone is in UTC),
    bytes base64, JSON and arrays what they are; what JSON has no form for is the driver's text.
    """
    if value is None or type(value) in _PLAIN:
        return value
    convert = _CONVERSIONS.get(type(value))
    return str(value) if convert is None else convert(value)


def json_rows(rows: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """Return rows of ``json_value``, which looks at a column of one type as a whole.

    Cost: nothing for a value that JSON has, a quarter of ``json_value``'s for a time in UTC.
    """
    return zip(*map(_json_column, zip(*rows, strict=True)), strict=True)


def _json_column(column: tuple[Any, ...]) -> Iterable[Any]:
    kinds = set(map(type, column))
    if kinds <= _AS_THEY_ARE:
        return column
    if kinds <= _TIMES and all(one is None or one.tzinfo in _UTC for one in column):
        return orjson.loads(orjson.dumps(column, option=_AS_UTC))  # type: ignore[no-any-return]
    return map(json_value, column)


_PLAIN = frozenset({str, int, float, bool})
_AS_THEY_ARE = _PLAIN | {type(None)}
_TIMES = frozenset({datetime, type(None)})
_UTC = (None, UTC, ZoneInfo("UTC"))
"""Zones in which orjson writes a time as ``json_value`` does."""
_AS_UTC = orjson.OPT_UTC_Z | orjson.OPT_NAIVE_UTC


def _moment(value: datetime) -> str:
    return rfc3339(value.replace(tzinfo=UTC) if value.tzinfo is None else value)


def _bytes(value: bytes | bytearray | memoryview) -> str:
    return base64.b64encode(value).decode()


_CONVERSIONS: Mapping[type, Callable[[Any], Any]] = {
    datetime: _moment,
    date: date.isoformat,
    time: time.isoformat,
    Decimal: lambda value: format(value, "f"),
    bytes: _bytes,
    bytearray: _bytes,
    memoryview: _bytes,
    dict: lambda value: {name: json_value(inner) for name, inner in value.items()},
    list: lambda value: [json_value(inner) for inner in value],
    tuple: lambda value: [json_value(inner) for inner in value],
}


_COLUMN_TYPES: tuple[tuple[type[sa.types.TypeEngine[Any]], str], ...] = (
    (sa.Boolean, "bool"),
    (sa.DateTime, "timestamp"),
    (sa.Date, "date"),
    (sa.Float, "float64"),
    (sa.Integer, "int64"),
    (sa.LargeBinary, "bytes"),
    (sa.String, "string"),
)
_MOST_DIGITS = 38
"""Of a decimal column."""


def column_type(kind: sa.types.TypeEngine[Any]) -> str | None:
    """Return the column type of a declaration for a type of a database; None: it says none.

    Args:
        kind: as SQLAlchemy reflects it; SQLite keeps values of any type in a column of it.
    """
    while isinstance(kind, postgresql.DOMAIN):
        kind = kind.data_type
    for one, name in _COLUMN_TYPES:
        if isinstance(kind, one):
            return name
    if isinstance(kind, sa.Numeric) and kind.precision is not None:
        digits, behind = kind.precision, kind.scale or 0
        if 1 <= digits <= _MOST_DIGITS and 0 <= behind <= digits:
            return f"decimal({digits},{behind})"
    return None


def kept(value: Any) -> list[Any]:
    """Return a value as a cursor keeps it: JSON, with its type.

    Raises:
        InputError: no order can be kept of such values.
    """
    for name, (kind, write, _) in _KEPT.items():
        if type(value) is kind:
            return [name, write(value)]
    raise InputError(
        f"a column of type {type(value).__name__} cannot be source.options.cursor or part of the"
        " key: choose one of numbers, times, text or UUIDs"
    )


def restored(value: Any) -> Any:
    """Return what ``kept`` was given.

    Raises:
        ValueError, TypeError, KeyError: it is not of ``kept``.
    """
    name, text = value
    return _KEPT[name][2](text)


_KEPT: Mapping[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "int": (int, str, int),
    "text": (str, str, str),
    "time": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "decimal": (Decimal, str, Decimal),
    "float": (float, float.hex, float.fromhex),
    "uuid": (UUID, str, UUID),
    "bytes": (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
}


def behind(value: Any, end: Any) -> tuple[float | None, str]:
    """Return how far a cursor's value is below another one, in seconds or units; None: neither."""
    match value, end:
        case datetime(), datetime():
            zoned = [one if one.tzinfo else one.replace(tzinfo=UTC) for one in (value, end)]
            return max(0.0, (zoned[1] - zoned[0]).total_seconds()), "seconds"
        case date(), date() if type(value) is type(end):
            return max(0.0, (end - value).total_seconds()), "seconds"
        case ((int() | Decimal() | float()), (int() | Decimal() | float())):
            left = float(end) - float(value)
            return (max(0.0, left), "units") if isfinite(left) else (None, "")
    return None, ""


def read_as(kind: type, text: str, *, like: Any, name: str = "from") -> Any:
    """Return a value of a cursor's column that a person gave as text.

    Args:
        kind: of the column's values, as the driver gives them.
        text: a number; a time or day as ISO 8601, in UTC without a zone; or plain text.
        like: one of them: a time without a zone makes this one without, too.
        name: of what was given, for errors.

    Raises:
        InputError: it is no such value.
    """
    read = _READ.get(kind)
    if read is None:
        raise InputError(f"{name}: a cursor of type {kind.__name__} cannot be given as text")
    try:
        value = read[1](text.strip())
        if isinstance(value, datetime) and like.tzinfo is None:
            return value.astimezone(UTC).replace(tzinfo=None)
        if not isinstance(value, float | Decimal) or isfinite(value):
            return value
    except (ValueError, ArithmeticError):
        pass
    raise InputError(f"{name}: expected {read[0]}, as the cursor's column has; found {text!r}")


def _time(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


_READ: Mapping[type, tuple[str, Callable[[str], Any]]] = {
    int: ("a whole number", int),
    float: ("a number", float),
    Decimal: ("a number", Decimal),
    datetime: ("a time such as 2024-01-31T12:00:00Z", _time),
    date: ("a day such as 2024-01-31", date.fromisoformat),
    UUID: ("a UUID", UUID),
    str: ("text", str),
}


_ZERO_DATE = re.compile(r"\d{4}-(?:00-\d\d|\d\d-00)(?: [\d:.]+)?\Z", re.ASCII)
_TEXT_TIME = re.compile(
    r"\d{4}-\d\d-\d\d"
    r"(?:([T ])\d\d:\d\d(:\d\d(?:\.\d{1,9})?)?( ?(?:Z|[+-]\d\d(?::?\d\d)?))?)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class TextTimes:
    """The form in which a column of text has times, or days; SQLite has no other."""

    separator: str
    """Between day and time; empty: the texts are days."""
    seconds: bool
    zone: str
    """What each text ends with: nothing, ``Z``, or an offset."""

    @classmethod
    def of(cls, text: str) -> TextTimes | None:
        """Return the form of one text; None: it is no time."""
        match = _TEXT_TIME.fullmatch(text)
        if match is None:
            return None
        separator, seconds, zone = match.groups(default="")
        return cls(separator, bool(seconds), zone)

    def bounds(self, text: str) -> tuple[str, str]:
        """Return what the column's texts of a moment lie between, as texts compare.

        Texts of one moment may have fractions of different lengths; some that lie less than a
        second (without seconds: a minute) from it may be between the two as well.

        Args:
            text: a time or day as ISO 8601, in UTC without a zone.

        Raises:
            ValueError: it is none.
        """
        if not self.separator:
            day = date.fromisoformat(text).isoformat()
            return day, day
        moment = _time(text)
        if self.zone:
            example = datetime.fromisoformat(f"2000-01-01T00:00{self.zone.strip()}")
            moment = moment.astimezone(example.tzinfo)
        whole = moment.replace(tzinfo=None, microsecond=0)
        if not self.seconds:
            begin = whole.isoformat(self.separator, "minutes")
            return begin, begin + self.zone
        begin = whole.isoformat(self.separator)
        fraction = f".{moment.microsecond:06}"
        least = begin + fraction.rstrip("0").rstrip(".")
        return least, max(least + self.zone, f"{begin}{fraction}000{self.zone}")


def read_text(text: str, ends: Sequence[Any], *, name: str) -> str:
    """Return a value of a cursor's column of text: of times, in the form that the column has.

    Args:
        text: what a person gave.
        ends: the column's least value and its greatest.
        name: of what was given: ``to`` makes it the greatest text of its moment, else the least.

    Raises:
        InputError: the column has times, and it is none, or they have several forms.
    """
    forms = {form: end for end in ends if (form := TextTimes.of(end)) is not None}
    if not forms:
        return text
    if len(forms) > 1:
        raise InputError(
            f"{name}: the cursor's column has times as texts of several forms"
            f" ({', '.join(map(repr, forms.values()))}), whose order is not that of the times;"
            " --full reads all rows; a view can give the times one form"
        )
    [(form, example)] = forms.items()
    try:
        return form.bounds(text)[name == "to"]
    except (ValueError, OverflowError) as error:
        if not all(map(TextTimes.of, ends)):
            return text
        kind = (
            "a time such as 2024-01-31T12:00:00Z" if form.separator else "a day such as 2024-01-31"
        )
        raise InputError(
            f"{name}: expected {kind}: the cursor's column has texts such as {example!r}; found"
            f" {text!r}"
        ) from error


def same_kind(before: Any, now: Any) -> bool:
    """Tell whether values that a column had before are compared with those that it has now.

    Numbers are, times with and without a zone, a day with later times, and MySQL's dates without a
    month or day, which its driver gives as text, with other dates.
    """
    numbers = int | float | Decimal
    if isinstance(before, str) != isinstance(now, str):
        return all(isinstance(one, date) or _is_zero_date(one) for one in (before, now))
    if isinstance(now, datetime):
        return isinstance(before, date)
    return type(before) is type(now) or (isinstance(before, numbers) and isinstance(now, numbers))


def is_behind(before: Any, now: Any) -> bool:
    """Tell whether a number, time, day or UUID is less than another one of ``same_kind``."""
    if isinstance(before, str):
        return before < str(now)
    if isinstance(now, datetime):
        return _moment_of(before) < _moment_of(now)
    return bool(before < now)


def _is_zero_date(value: Any) -> bool:
    return isinstance(value, str) and _ZERO_DATE.match(value) is not None


def _moment_of(value: date) -> datetime:
    if not isinstance(value, datetime):
        value = datetime.combine(value, time.min)
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def stepped_back(value: Any, by: float) -> Any:
    """Return a cursor's value from so many seconds (of times) or units (of numbers) before.

    Raises:
        InputError: it is neither a time nor a number.
    """
    match value:
        case datetime():
            return value - timedelta(seconds=by)
        case date():
            return value - timedelta(days=-(-by // 86_400))
        case int():
            return value - int(by)
        case Decimal():
            return value - Decimal(str(by))
        case float():
            return value - by
    raise InputError(
        "source.options.overlap: the cursor's column must be one of times or numbers; found"
        f" {type(value).__name__}"
    )
