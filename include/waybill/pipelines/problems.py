"""A mistake in a declaration, and how it is worded for users."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from waybill.nearest_name import shown_name

Path = tuple[str | int, ...]
"""The place of a value in a document: ``("events", "flight", "key", 0)``."""


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
