"""Personal fields of a parked event, masked: in its payload, its key and the words of its error.

The source that an event was made from is left out: it holds the same values under other names. A
masked value keeps nothing of the original but whether it is null. Messages quote values, so each
masked value is looked for in them (``quoting``). What a message says in other words (a sum, a hash)
is not found.

Names are the same whatever their case and blanks (``same_name``). A path that ends before its
field, since text or a number stands where an object was declared, masks what stands there. A
personal object's own field names are values too: they are looked for in messages.

What cannot be taken apart is masked whole: bytes that are no JSON, a payload that travels as bytes,
values that no field names. So are then the words about it, and those about a payload that is in the
object store: what they quote cannot be known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from waybill.access import KEY, same_name
from waybill.events import dumps, loads
from waybill.parking.event import ParkedEvent
from waybill.parking.quoting import MASK, QuotedValues

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
    return QuotedValues(masking.values).masked_within(said)


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
        value = dumps(masking.document(loads(event.value)))
    except (ValueError, TypeError, RecursionError):
        hidden = {name: _hidden(text) for name, text in _said(event).items()}
        return replace(event, value=dumps(MASK), source=b"", **hidden), (_NAMELESS,)
    masked = tuple(sorted(masking.found))
    if masking.opaque:
        said = {name: _hidden(text) for name, text in _said(event).items()}
    else:
        words = QuotedValues(masking.values)
        said = {name: words.masked_within(text) for name, text in _said(event).items()}
    return replace(event, value=value, source=b"", **said), masked


def _said(event: ParkedEvent) -> dict[str, Any]:
    """Return the fields of an event in which people are told what went wrong."""
    return {
        field.name: getattr(event, field.name) for field in fields(event) if field.name in _SAID
    }


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
        self._fields = {field: same_name(field) for field in personal or () if field != KEY}
        self._hides_key = personal is None or KEY in personal
        self.found: set[str] = set()
        self.values: list[Any] = []
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
        words = QuotedValues(self.values)
        for name, item in beside.items():
            if name not in _WAYBILLS and isinstance(item, str):
                beside[name] = words.masked(item)
        return beside | payload

    def _beside(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """Mask around a payload: the key, and what a row has that looks like an envelope."""
        if self._everything:
            attributes = {
                name: item if name in _ATTRIBUTES else self._every(item, name)
                for name, item in attributes.items()
            }
        else:
            ours = {n: v for n, v in attributes.items() if n in _ATTRIBUTES - {*self._fields}}
            attributes = self._named({n: v for n, v in attributes.items() if n not in ours}) | ours
        if self._hides_key and _SUBJECT in attributes:
            attributes[_SUBJECT] = self._key(attributes[_SUBJECT])
        return attributes

    def _key(self, subject: Any) -> Any:
        if subject is None or subject == MASK:
            return subject
        self.found.add(KEY)
        self.values.extend(_key_values(subject))
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
            for field, path in self._fields.items():
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


__all__ = ["KEY", "MASK", "masked_event", "masked_words", "same_name"]
