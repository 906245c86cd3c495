"""Personal fields of a parked event, masked: in its payload, its key and its error messages.

The source that an event was made from is left out: it holds the same values under other names. A
masked value keeps nothing of the original but whether it is null. Messages quote values, so each
masked value is searched for in them, and in the other fields of the payload; one that is there in
another form (a sum, a hash) is not found.

Names are the same whatever their case and blanks (``same_name``). A path that ends before its
field, since text or a number stands where an object was declared, masks what stands there. A
personal object's own field names are values too: they are looked for in messages.

What cannot be taken apart is masked whole: bytes that are not JSON, a payload sent as bytes,
values without a field name. So are the messages about it, and about a payload that is in the object
store: nobody knows what they quote; but for those in Waybill's own words (``own_words``).

How else a value may be written, and so what a message is searched for:

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

Case counts for nothing (both sides are folded). A text that is a date in one order of day
and month is taken as one in the other, too. Words for numbers, names of months in other languages,
and whatever is made of a value (a sum, a hash, its length) are not among these.

All values are looked for in one pass over the text. The spellings of the values are the patterns of
an automaton (Aho and Corasick, "Efficient string matching", 1975), over folded case. Its state
after a character is the longest beginning of a spelling that stands there, so that a value that is
cut off (``'Ann-Mar…``, or at the text's end) is found by the same pass.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote, quote_plus

from waybill.access import KEY, MASK, field_paths, same_name
from waybill.events import dumps, loads
from waybill.parking.event import ParkedEvent

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


_CUT = "…"
_SHORT = 4
"""Below this many characters a value is only masked where it stands as a word of its own."""
_MOST_CHARACTERS = 100_000
"""Of all spellings together; with more of them, texts are masked whole."""


class QuotedValues:
    """Masks values wherever a text quotes them, in any of their ``spellings``.

    Cost: what ``spellings`` takes, once; for each text 0.05 µs a spelling to see whether it can be
    there, and some 0.2 µs a character of the text and of those that can.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self._spellings: frozenset[str] = frozenset()
        self._too_many = False
        spellings: set[str] = set()
        characters = 0
        for spelling in (one for value in values for one in _searched(value)):
            if spelling not in spellings:
                spellings.add(spelling)
                characters += len(spelling)
            if characters > _MOST_CHARACTERS:
                self._too_many = True
                return
        self._spellings = frozenset(spellings)

    def masked(self, text: str) -> str:
        """Return a text without the values."""
        if text and self._too_many:
            return MASK
        folded, origins = _folded(text)
        # whole or cut off, its first four characters have to be there
        possible = [one for one in self._spellings if one[:_SHORT] in folded]
        if not possible:
            return text
        parts: list[str] = []
        done = 0
        for start, end in _joined(_Automaton(possible).spans(folded)):
            begin = origins[start]
            parts += (text[done:begin], MASK)
            done = origins[end - 1] + 1
        return "".join([*parts, text[done:]])

    def masked_within(self, value: Any) -> Any:
        """Return texts in lists and dicts without the values; keys and numbers stay."""
        if isinstance(value, str):
            return self.masked(value)
        if isinstance(value, dict):
            return {name: self.masked_within(item) for name, item in value.items()}
        return [self.masked_within(item) for item in value] if isinstance(value, list) else value

    def masked_copies(self, value: Any) -> Any:
        """Return what ``masked_within`` does, without numbers that are one of the values.

        Numbers of fewer than four characters stay: too many are the same by chance.
        """
        if isinstance(value, dict):
            return {name: self.masked_copies(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.masked_copies(item) for item in value]
        if isinstance(value, str):
            return self.masked(value)
        is_long = not isinstance(value, bool) and value is not None and len(str(value)) >= _SHORT
        return MASK if is_long and self.masked(str(value)) == MASK else value


def _searched(value: Any) -> Iterator[str]:
    yield from (one.casefold() for one in spellings(value) if one != MASK)


def _folded(text: str) -> tuple[str, Sequence[int]]:
    """Return a text in folded case, and the place in the text of each of its characters."""
    folded = text.casefold()
    if len(folded) == len(text):
        return folded, range(len(text))
    return folded, [at for at, character in enumerate(text) for _ in character.casefold()]


def _joined(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield spans in order, those that overlap as one."""
    begin = end = 0
    for start, stop in sorted(spans):
        if start >= end:
            if end:
                yield begin, end
            begin = start
        end = max(end, stop)
    if end:
        yield begin, end


class _Automaton:
    """States are numbers; 0 is the start. Memory: about 300 bytes a character of the spellings."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        """Characters from the start to a state."""
        self._whole = [0]
        """Length of the longest spelling that ends in a state, short ones left out."""
        self._short: list[tuple[int, ...]] = [()]
        """Lengths of the short ones that end there."""
        self._fail = [0]
        """The state of the longest beginning of a spelling that ends where this state ends."""
        for spelling in spellings:
            self._add(spelling)
        self._link()

    def _add(self, spelling: str) -> None:
        state = 0
        for character in spelling:
            following = self._next[state].get(character)
            if following is None:
                following = self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._whole.append(0)
                self._short.append(())
                self._fail.append(0)
            state = following
        if len(spelling) < _SHORT:
            self._short[state] = (len(spelling),)
        else:
            self._whole[state] = len(spelling)

    def _link(self) -> None:
        """Link each state with where to go on, the shortest first."""
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            back = self._fail[state]
            self._whole[state] = self._whole[state] or self._whole[back]
            self._short[state] += self._short[back]
            for character, child in self._next[state].items():
                self._fail[child] = self._step(back, character)
                waiting.append(child)

    def _step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(character, 0)

    def spans(self, folded: str) -> list[tuple[int, int]]:
        """Return where spellings stand in a text, and where it is cut off in one."""
        found: list[tuple[int, int]] = []
        state = 0
        for at, character in enumerate(folded):
            if character == _CUT:
                self._note_cut(found, state, at)
            state = self._step(state, character)
            end = at + 1
            if self._whole[state]:
                found.append((end - self._whole[state], end))
            for length in self._short[state]:
                if _stands_alone(folded, end - length, end):
                    found.append((end - length, end))
        self._note_cut(found, state, len(folded))
        return found

    def _note_cut(self, found: list[tuple[int, int]], state: int, at: int) -> None:
        if self._depth[state] >= _SHORT:
            found.append((at - self._depth[state], at))


def _stands_alone(text: str, start: int, end: int) -> bool:
    before = start > 0 and _is_of_word(text[start - 1])
    return not before and not (end < len(text) and _is_of_word(text[end]))


def _is_of_word(character: str) -> bool:
    return character.isalnum() or character == "_"


_SAID = ("message", "where", "errors")
_ENVELOPE = "specversion"
_SUBJECT = "subject"
_DATA = ("data", "data_base64")
_REFERENCE = "dataref"
_WAYBILLS = frozenset(
    "specversion source type time version intakeminute stage attempt replayid op".split()
)
"""What is around a payload and says nothing that a source chose."""
_SOURCES = frozenset(("id", "dataref", _SUBJECT))
_ATTRIBUTES = _WAYBILLS | _SOURCES
"""Masked as personal fields only where one has exactly this name."""
_NAMELESS = "*"


_KINDS = "bool|bytes|date|datetime|Decimal|dict|float|int|list|NoneType|str|time|tuple"
_own_row_message = re.compile(
    rf"expected an object of JSON in UTF-8; found (?:no JSON|{_KINDS})"
).fullmatch
_own_place = re.compile(r"(?:[^\n]{1,400}, )?(line [0-9]{1,15})").fullmatch
_own_column_message = re.compile(
    r"column '(?P<column>\w{1,128})' is [a-z][a-z0-9_(), ]{0,40}"
    rf"(?: and takes no null|; got (?:{_KINDS}) (?P<value>.*))",
    re.DOTALL,
).fullmatch


def own_words(stage: str, message: str, columns: Collection[str] = ()) -> str:
    """Return a message that is in Waybill's own words, without the value in it; else ``MASK``.

    Its words are known whole, and no user code writes messages at these stages; so nothing of an
    event is in what is left.

    Args:
        stage: that parked.
        message: as parked.
        columns: names that the pipeline declares; those that were learned of payloads are values.
    """
    if stage == "ingestion" and _own_row_message(message):
        return message
    match = _own_column_message(message) if stage == "mapping" else None
    if match is None or match["column"] not in columns:
        return MASK
    return message if match["value"] is None else f"{message[: match.start('value')]}{MASK}"


def masked_words(value: bytes, said: Any, personal: Sequence[str] | None) -> Any:
    """Return what is said of an event, texts however deep, without its personal values.

    Args:
        value: the event's bytes.
        said: a text, or lists and dicts of them; keys and numbers stay as they are.
        personal: as of ``masked_event``.
    """
    if personal is not None and not personal:
        return said
    masking = _Masking(personal)
    try:
        masking.document(loads(value))
    except (ValueError, TypeError, RecursionError):
        return _hidden_within(said)
    if masking.opaque:
        return _hidden_within(said)
    return QuotedValues(masking.quotable).masked_within(said)


def masked_event(
    event: ParkedEvent, personal: Sequence[str] | None
) -> tuple[ParkedEvent, tuple[str, ...]]:
    """Return an event without the values of its personal fields, and the fields that were there.

    Args:
        event: as parked.
        personal: names in the payload, ``a.b`` for one inside another (of each item of a list);
            ``KEY`` for the event's key; None: nobody knows which are personal, so all are.

    Returns:
        the event, and what was masked: ``*`` where that could not be told apart.

    Cost: one parse and one writing of the event; nothing without fields.
    """
    if personal is not None and not personal:
        return event, ()
    masking = _Masking(personal)
    try:
        shown = masking.document(loads(event.value))
        quoted = QuotedValues(masking.quotable)
        value = dumps(masking.without_copies(shown))
    except (ValueError, TypeError, RecursionError):
        hidden = _hidden_of(event)
        return replace(event, value=dumps(MASK), source=b"", **hidden), (_NAMELESS,)
    masked = tuple(sorted(masking.found))
    if masking.opaque:
        said = _hidden_of(event)
    else:
        said = {name: quoted.masked_within(text) for name, text in _said(event).items()}
    return replace(event, value=value, source=b"", **said), masked


def _said(event: ParkedEvent) -> dict[str, Any]:
    """Return the fields of an event in which people are told what went wrong."""
    return {
        field.name: getattr(event, field.name) for field in fields(event) if field.name in _SAID
    }


def _hidden_of(event: ParkedEvent) -> dict[str, Any]:
    """Return the same fields, hidden, but for what is in Waybill's own words, and its line."""
    hidden = {name: _hidden(text) for name, text in _said(event).items()}
    message = own_words(event.stage, event.message)
    if message == event.message and (place := _own_place(event.where)):
        hidden["where"] = place[1]
    return hidden | {"message": message}


def _hidden(value: Any) -> Any:
    return [] if isinstance(value, list) else MASK


def _hidden_within(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _hidden_within(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_hidden_within(item) for item in value]
    return value if value is None else MASK


class _Masking:
    """One document's way through: what was masked is collected."""

    def __init__(self, personal: Sequence[str] | None) -> None:
        self._everything = personal is None
        named = [field for field in personal or () if field != KEY]
        self._fields = {path: field for field in named for path in field_paths(field)}
        self._hides_key = personal is None or KEY in personal
        self.found: set[str] = set()
        self.values: list[Any] = []
        self.key_values: list[Any] = []
        """Of the event's key; not all of them need be personal."""
        self.opaque = False
        """Something was masked that could not be taken apart, or is elsewhere."""

    def document(self, value: Any) -> Any:
        if not isinstance(value, dict) or _ENVELOPE not in value:
            return self._payload(value)
        payload = {name: self._payload(value[name]) for name in _DATA if name in value}
        beside = self._beside({name: v for name, v in value.items() if name not in payload})
        if _REFERENCE in value and (self._everything or self._fields):
            self.opaque = True
            self.found.add(_NAMELESS)
        quoted = QuotedValues(self.quotable)
        for name, item in beside.items():
            if name not in _WAYBILLS and isinstance(item, str):
                beside[name] = quoted.masked(item)
        return beside | payload

    @property
    def quotable(self) -> list[Any]:
        """Values that a message may quote."""
        return self.values + self.key_values

    def without_copies(self, document: Any) -> Any:
        """Return a masked document without what personal fields hold in its other fields, too."""
        if self._everything or not self.values:
            return document
        quoted = QuotedValues(self.values)
        if not isinstance(document, dict) or _ENVELOPE not in document:
            return quoted.masked_copies(document)
        payload = {name: quoted.masked_copies(document[name]) for name in _DATA if name in document}
        return document | payload

    def _beside(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """Mask around a payload: the key, and what a row has that looks like an envelope."""
        if self._everything:
            attributes = {
                name: item if name in _ATTRIBUTES else self._every(item, name)
                for name, item in attributes.items()
            }
        else:
            unnamed = _ATTRIBUTES - {*self._fields.values()}
            ours = {n: v for n, v in attributes.items() if n in unnamed}
            attributes = self._named({n: v for n, v in attributes.items() if n not in ours}) | ours
        if self._hides_key and _SUBJECT in attributes:
            attributes[_SUBJECT] = self._key(attributes[_SUBJECT])
        return attributes

    def _key(self, subject: Any) -> Any:
        if subject is None or subject == MASK:
            return subject
        self.found.add(KEY)
        self.key_values.extend(_key_values(subject))
        return MASK

    def _payload(self, value: Any) -> Any:
        if self._everything:
            return self._every(value, _NAMELESS)
        return self._rows(value) if self._fields else value

    def _rows(self, value: Any) -> Any:
        """Mask the fields of objects, and whatever is in none."""
        if isinstance(value, list):
            return [self._rows(item) for item in value]
        return self._named(value) if isinstance(value, dict) else self._hide(value, _NAMELESS)

    def _named(self, value: Any) -> Any:
        if isinstance(value, dict | list):
            for path, field in self._fields.items():
                value = self._at(value, path, field)
        return value

    def _at(self, value: Any, path: str, field: str) -> Any:
        if isinstance(value, list):
            return [self._at(item, path, field) for item in value]
        if not isinstance(value, dict):
            return self._hide(value, field)  # it ends before its field
        return {name: self._under(name, item, path, field) for name, item in value.items()}

    def _under(self, name: str, value: Any, path: str, field: str) -> Any:
        same = same_name(name)
        if same == path:
            return self._hide(value, field)
        if path.startswith(f"{same}."):
            return self._at(value, path[len(same) + 1 :], field)
        return value

    def _every(self, value: Any, field: str) -> Any:
        if isinstance(value, dict):
            return {name: self._every(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [self._every(item, field) for item in value]
        return self._hide(value, field)

    def _hide(self, value: Any, field: str) -> Any:
        if value is None or value == MASK:
            return value
        self.opaque |= field == _NAMELESS
        self.found.add(field)
        self.values.extend(_scalars(value))
        return MASK


def _key_values(subject: Any) -> Iterator[Any]:
    """Yield the values of a key, which is a list of them written as JSON."""
    try:
        yield from _scalars(loads(subject.encode()))
    except (ValueError, TypeError, AttributeError, RecursionError):
        yield from _scalars(subject)


def _scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for item in value:
            yield from _scalars(item)
    elif value is not None and not isinstance(value, bool):
        yield value
