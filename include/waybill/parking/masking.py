"""Personal fields of a parked event, masked: in its payload, its key and the words of its error.

The source that an event was made from is left out: it holds the same values under other names. A
masked value keeps nothing of the original but whether it is null. Messages quote values, so each
masked value is looked for in them: as text, as Python and JSON write it, without regard to case,
and cut off (``'Ann-Mar…``). What a message says in other words (a sum, a hash) is not found.
Whatever cannot be read, and so cannot be searched, is masked whole; so are the words about an event
whose payload is in the object store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from waybill.events import dumps, loads
from waybill.parking.event import ParkedEvent

MASK = "•••"
_CUT = "…"
_SHORT = 4
"""Below this many characters a value is only masked where it stands as a word of its own."""
_MOST_VALUES = 500
"""More masked values than this, and the message is masked whole."""
_SAID = ("message", "where", "errors")
_ENVELOPE = "specversion"
_DATA = ("data", "data_base64")
_REFERENCE = "dataref"


def masked_words(value: bytes, said: Any, personal: Sequence[str] | None) -> Any:  # noqa: ANN401
    """Return what is said of an event, texts however deep, without its personal values.

    Args:
        value: the event's bytes.
        said: a text, or lists and dicts of them; keys and numbers stay as they are.
        personal: as of ``masked_event``.
    """
    if personal is not None and not personal:
        return said
    try:
        document = loads(value)
        masking = _Masking(personal)
        masking.document(document)
    except (ValueError, TypeError, RecursionError):
        return _hidden_within(said)
    if _is_elsewhere(document):
        return _hidden_within(said)
    return _Words(masking.values).masked_within(said)


def masked_event(
    event: ParkedEvent, personal: Sequence[str] | None
) -> tuple[ParkedEvent, tuple[str, ...]]:
    """Return an event without the values of its personal fields, and the fields that were there.

    Args:
        event: as parked.
        personal: names in the payload, ``a.b`` for one inside another (of each item of a list);
            None: nobody knows which are personal, so all are.

    Cost: one parse and one writing of the event; nothing without fields.
    """
    if personal is not None and not personal:
        return event, ()
    try:
        document = loads(event.value)
        masking = _Masking(personal)
        value = dumps(masking.document(document))
    except (ValueError, TypeError, RecursionError):
        hidden = {name: _hidden(text) for name, text in _said(event).items()}
        return replace(event, value=dumps(MASK), source=b"", **hidden), ("*",)
    if _is_elsewhere(document):
        hidden = {name: _hidden(text) for name, text in _said(event).items()}
        return replace(event, value=value, source=b"", **hidden), ("*",)
    words = _Words(masking.values)
    said = {name: words.masked_within(text) for name, text in _said(event).items()}
    return replace(event, value=value, source=b"", **said), tuple(sorted(masking.found))


def _said(event: ParkedEvent) -> dict[str, Any]:
    """Return the fields of an event in which people are told what went wrong."""
    return {
        field.name: getattr(event, field.name) for field in fields(event) if field.name in _SAID
    }


def _hidden(value: Any) -> Any:  # noqa: ANN401 - a text, or a list of errors
    return [] if isinstance(value, list) else MASK


def _is_elsewhere(document: Any) -> bool:  # noqa: ANN401 - any JSON
    """Tell whether an event's payload is in the object store, so that nobody knows what it says."""
    return isinstance(document, dict) and _ENVELOPE in document and _REFERENCE in document


def _hidden_within(value: Any) -> Any:  # noqa: ANN401 - texts, however deep
    if isinstance(value, dict):
        return {name: _hidden_within(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_hidden_within(item) for item in value]
    return value if value is None else MASK


class _Masking:
    """One document's way through: what was masked is collected."""

    def __init__(self, fields: Sequence[str] | None) -> None:
        self._fields = fields
        self.found: set[str] = set()
        self.values: list[Any] = []

    def document(self, value: Any) -> Any:  # noqa: ANN401 - any JSON
        if not isinstance(value, dict) or _ENVELOPE not in value:
            return self._payload(value)
        payload = {name: self._payload(value[name]) for name in _DATA if name in value}
        beside = {name: item for name, item in value.items() if name not in payload}
        if self._fields is not None:  # a source's row may have a column named as the envelope's
            beside = self._payload(beside)
        words = _Words(self.values)
        return {
            n: words.masked(v) if isinstance(v, str) else v for n, v in beside.items()
        } | payload

    def _payload(self, value: Any) -> Any:  # noqa: ANN401
        if self._fields is None:
            return self._every(value, "*")
        if not isinstance(value, dict | list):
            return self._hide(value, "*")
        for field in self._fields:
            value = self._at(value, field, field)
        return value

    def _at(self, value: Any, path: str, field: str) -> Any:  # noqa: ANN401
        if isinstance(value, list):
            return [self._at(item, path, field) for item in value]
        if not isinstance(value, dict):
            return value
        return {name: self._under(name, item, path, field) for name, item in value.items()}

    def _under(self, name: str, value: Any, path: str, field: str) -> Any:  # noqa: ANN401
        if name == path:
            return self._hide(value, field)
        if path.startswith(f"{name}."):
            return self._at(value, path[len(name) + 1 :], field)
        return value

    def _every(self, value: Any, field: str) -> Any:  # noqa: ANN401
        if isinstance(value, dict):
            return {name: self._every(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [self._every(item, field) for item in value]
        return self._hide(value, field)

    def _hide(self, value: Any, field: str) -> Any:  # noqa: ANN401
        if value is None or value == MASK:
            return value
        self.found.add(field)
        self.values.extend(_scalars(value))
        return MASK


def _scalars(value: Any) -> Iterator[Any]:  # noqa: ANN401
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list):
        for item in value:
            yield from _scalars(item)
    elif value is not None and not isinstance(value, bool):
        yield value


class _Words:
    """Masks values wherever a text quotes them."""

    def __init__(self, values: Iterable[Any]) -> None:
        forms = {form for value in values for form in _forms(value)}
        self._forms = sorted(forms, key=len, reverse=True)

    def masked(self, text: str) -> str:
        if not text or not self._forms:
            return text
        if len(self._forms) > _MOST_VALUES:
            return MASK
        whole = [_pattern(form) for form in self._forms if len(form) <= len(text)]
        if whole:
            text = re.sub("|".join(whole), MASK, text, flags=re.IGNORECASE)
        for form in self._forms:
            text = _without_beginning(text, form)
        return text

    def masked_within(self, value: Any) -> Any:  # noqa: ANN401 - texts, however deep
        if isinstance(value, str):
            return self.masked(value)
        if isinstance(value, dict):
            return {name: self.masked_within(item) for name, item in value.items()}
        return [self.masked_within(item) for item in value] if isinstance(value, list) else value


def _forms(value: Any) -> Iterator[str]:  # noqa: ANN401
    text = value if isinstance(value, str) else str(value)
    written = (
        text,
        text.strip(),
        text.replace("'", "\\'"),
        repr(value).strip("'\""),
        json.dumps(text)[1:-1],
    )
    yield from (form for form in written if form and form != MASK)


def _pattern(form: str) -> str:
    escaped = re.escape(form)
    return escaped if len(form) >= _SHORT else rf"(?<!\w){escaped}(?!\w)"


def _without_beginning(text: str, form: str) -> str:
    """Mask the beginning of a value where the text, or what it quotes, is cut off."""
    if len(form) < _SHORT:
        return text
    parts = text.split(_CUT)
    return _CUT.join(_without_end(part, form) for part in parts)


def _without_end(part: str, form: str) -> str:
    for length in range(min(len(part), len(form)), _SHORT - 1, -1):
        if part[-length:].casefold() == form[:length].casefold():
            return part[:-length] + MASK
    return part
