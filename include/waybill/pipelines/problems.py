"""A mistake in a declaration, and how it is worded for users."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

Path = tuple[str | int, ...]
"""The place of a value in a document: ``("events", "flight", "key", 0)``."""

_MAX_SHOWN = 80
_MAX_COMPARED = 64


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One mistake."""

    file: str
    line: int
    """1-based; 1 when the whole file is meant."""
    field: str
    """``events.flight.key``; empty when the whole file is meant."""
    message: str
    """What was expected, what was found, the nearest valid name."""

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        return f"{self.file}:{self.line}: {where}{self.message}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict."""
        return asdict(self)


def field_name(path: Path) -> str:
    """Return a path as users read it."""
    return ".".join(shown_name(str(part)) for part in path)


def shown_name(text: str) -> str:
    """Return text that is safe and short enough to print."""
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def shown(value: Any) -> str:
    """Return a value in YAML's words, shortened."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return f"a mapping of {len(value)}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return shown_name(repr(value))


def nearest(name: object, choices: Iterable[str]) -> str | None:
    """Return the choice most like ``name``, if one is near. Cost: linear in the choices."""
    folded: dict[str, str] = {}
    for choice in choices:
        folded.setdefault(choice.casefold(), choice)
    text = str(name)[:_MAX_COMPARED].casefold()
    close = difflib.get_close_matches(text, folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def hint(name: object, choices: Iterable[str], *, ask: str = "did you mean") -> str:
    """Return "; did you mean 'x'?", or nothing."""
    choice = nearest(name, choices)
    return "" if choice is None or choice == name else f"; {ask} {shown_name(choice)!r}?"
