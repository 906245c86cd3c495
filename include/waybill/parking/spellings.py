"""How else a value may be written: what a message is searched for.

=============================  ===================================================================
text                           as it is, without blanks around it or in it, or with single ones; its
                               Unicode composed and decomposed, without what is not shown; as
                               Python's (also in ASCII, and of its bytes), JSON's, HTML's and a
                               URL's writing has it
text with five digits or more  its digits alone, where it is made of digits and ``+ - . / ( )``
numbers, also in text          digits grouped by ``, . ' _``, a blank or not at all; a point or a
                               comma before the fraction, with one or two digits filled up by
                               zeros; with an exponent; whole ones with four digits or more in
                               base 16
dates, also in text            year, month, day in either order, between ``- / .``, with and without
                               zeros, with two digits of the year, with English names of months; as
                               Python writes one; days, seconds, ms and µs since 1970
times of day                   beside their date's spellings: ``h:m:s``, ``h:m``, there and in UTC
numbers that may be times      from 2001 to 2100, in seconds, ms or µs since 1970: as such a date
=============================  ===================================================================

Case counts for nothing (``quoting`` folds both sides). A text that is a date in one order of day
and month is taken as one in the other, too. Words for numbers, names of months in other languages,
and whatever is made of a value (a sum, a hash, its length) are not among these.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote, quote_plus

_NUMBER = re.compile(r"[+-]?\d{1,30}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,2})?")
_GROUPED = re.compile(
    r"([+-]?\d{1,3})([,.' _\u00a0\u202f])(\d{3}(?:\2\d{3}){0,9})(?:(?!\2)[.,](\d{1,30}))?"
)
_COMMA = re.compile(r"[+-]?\d{1,30},\d{1,30}")
_DAY_PARTS = re.compile(r"(\d{1,4})([-/.])(\d{1,2})\2(\d{1,4})")
_DIALED = re.compile(r"[\d+\-./() ]+")
_FEWEST_DIGITS = 5
_FEWEST_HEX_DIGITS = 4
_SEPARATORS = (",", ".", " ", "'", "_", "\u00a0", "\u202f")
_MONTHS = (
    "January February March April May June July August September October November December".split()
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_S, _LAST_S = 978_307_200, 4_102_444_800
"""2001 and 2100: numbers between are taken for moments."""
_SECOND = timedelta(seconds=1)
_YEAR_DIGITS = 4


def spellings(value: Any) -> set[str]:
    """Return the ways in which a message may write a value, the value's own among them.

    Cost: some µs; 20 to 150 µs of a number or a date.
    """
    text = value if isinstance(value, str) else str(value)
    found = {*_of_text(text), repr(value).strip("'\"")}
    numbers = _numbers(text)
    for number in numbers:
        found.update(_of_number(number))
    for day in _days(text):
        found.update(_of_day(day))
    moments = [one for number in numbers for one in _moments_of(number)]
    for moment in moments or _moments_in(text):
        found.update(_of_moment(moment))
    return {one for one in found if one}


def _of_text(text: str) -> Iterator[str]:
    yield text
    yield text.strip()
    yield "".join(text.split())
    yield text.replace("'", "\\'")
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    with suppress(UnicodeEncodeError):
        yield quote(text, safe="")
        yield quote_plus(text)
    yield " ".join(text.split())
    yield html.escape(text)
    yield html.escape(text, quote=False)
    if not text.isascii():
        yield from (unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD"))
        yield "".join(one for one in text if unicodedata.category(one) != "Cf")
        yield ascii(text)[1:-1]
        yield repr(text.encode("utf-8", "surrogatepass"))[2:-1]
        yield text.encode("ascii", "xmlcharrefreplace").decode()
    digits = "".join(filter(str.isdigit, text))
    if len(digits) >= _FEWEST_DIGITS and _DIALED.fullmatch(text):
        yield digits


def _numbers(text: str) -> set[Decimal]:
    """Return the numbers that a text may be: what groups digits and what ends them is not known."""
    text = text.strip()
    found: set[Decimal] = set()
    if _NUMBER.fullmatch(text):
        found.add(Decimal(text))
    if _COMMA.fullmatch(text):
        found.add(Decimal(text.replace(",", ".")))
    if grouped := _GROUPED.fullmatch(text):
        whole = grouped[1] + grouped[3].replace(grouped[2], "")
        found.add(Decimal(f"{whole}.{grouped[4] or 0}"))
    return found


def _of_number(number: Decimal) -> Iterator[str]:
    exact = format(abs(number), "f")
    whole, _, fraction = exact.partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    fractions = {fraction, *(fraction.ljust(places, "0") for places in (1, 2))}
    for separator in ("", *_SEPARATORS) if len(whole) > len("999") else ("",):
        grouped = format(int(whole), ",").replace(",", separator) if separator else whole
        for rest in fractions:
            points = [point for point in ".," if point != separator] if rest else [""]
            yield from (f"{grouped}{point}{rest}" for point in points)
    yield from (f"{abs(float(number)):e}", repr(abs(float(number))))
    if not fraction and len(f"{int(whole):x}") >= _FEWEST_HEX_DIGITS:
        yield f"{int(whole):x}"
    digits, power = (whole + fraction).strip("0") or "0", abs(number).adjusted()
    mantissa = digits[0] + (f".{digits[1:]}" if digits[1:] else "")
    yield from (f"{mantissa}e{form}" for form in (power, f"{power:+}", f"{power:+03}"))


def _days(text: str) -> set[date]:
    """Return the days that a text may mean: the order of day and month is not known."""
    text = text.strip()
    found: set[date] = set()
    with suppress(ValueError):
        found.add(date.fromisoformat(text))
    if parts := _DAY_PARTS.fullmatch(text):
        first, middle, last = parts[1], parts[3], parts[4]
        orders = [(first, middle, last)] if len(first) == _YEAR_DIGITS else []
        if len(last) == _YEAR_DIGITS:
            orders = [(last, middle, first), (last, first, middle)]
        for year, month, day in orders:
            with suppress(ValueError):
                found.add(date(int(year), int(month), int(day)))
    return found


def _of_day(day: date) -> Iterator[str]:
    year, month, number = f"{day.year:04}", f"{day.month:02}", f"{day.day:02}"
    name = _MONTHS[day.month - 1]
    for y in (year, year[2:]):
        for m, d in ((month, number), (str(day.month), str(day.day))):
            orders: Iterable[tuple[str, ...]] = ((d, m, y), (m, d, y))
            if len(y) == _YEAR_DIGITS:
                orders = (*orders, (y, m, d))
            for order in orders:
                yield from (between.join(order) for between in "-/.")
    for month_name in (name, name[:3]):
        for d in (number, str(day.day)):
            yield from (f"{d} {month_name} {year}", f"{d}-{month_name}-{year}")
            yield from (f"{month_name} {d}, {year}", f"{month_name} {d} {year}")
    yield f"{year}{month}{number}"
    yield f"datetime.date({day.year}, {day.month}, {day.day})"
    yield f"({day.year}, {day.month}, {day.day}"
    since = day - _EPOCH.date()
    yield str(since.days)
    yield from _since(since)


def _since(since: timedelta) -> Iterator[str]:
    """Yield seconds, ms and µs since 1970."""
    micros = since // timedelta(microseconds=1)
    yield from (str(micros // 10**6), str(micros // 10**3), str(micros))
    if micros % 10**6:
        yield from (str(micros / 10**6), f"{micros / 10**6:.3f}", f"{micros / 10**6:.6f}")
    else:
        yield f"{micros // 10**6}.0"


def _moments_in(text: str) -> list[datetime]:
    text = text.strip()
    with suppress(ValueError):
        if len(text) > len("2026-01-02"):
            return [datetime.fromisoformat(text)]
    return []


def _moments_of(number: Decimal) -> list[datetime]:
    for unit in (10**6, 10**3, 1):
        if _FIRST_S * unit <= number <= _LAST_S * unit:
            return [_EPOCH + timedelta(microseconds=int(number * (10**6 // unit)))]
    return []


def _of_moment(moment: datetime) -> Iterator[str]:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    for one in {moment.replace(tzinfo=None), aware.astimezone(UTC).replace(tzinfo=None)}:
        yield from _of_day(one.date())
        yield from (f"{one:%H:%M:%S.%f}", f"{one:%H:%M:%S}", f"{one:%H:%M}", f"{one:%H%M%S}")
        yield f"{one:%H:%M:%S.%f}"[:-3]
        parts = [one.year, one.month, one.day, one.hour, one.minute, one.second, one.microsecond]
        while len(parts) > len("ymdhm") and not parts[-1]:
            parts.pop()
        yield f"datetime.datetime({', '.join(map(str, parts))}"
    yield from _since(aware - _EPOCH)
