"""From types as catalogues spell them to the column types that they hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_DECIMAL = re.compile(r"(?:decimal|numeric|number|bignumeric)\((\d+), ?(\d+)\)", re.ASCII)
_LENGTH = re.compile(r"\(\d+\)$", re.ASCII)


def reader(
    names: Mapping[str, str], decimals: Mapping[str, str] | None = None
) -> Callable[[str], str | None]:
    """Return a function from a catalogue's type to the column type, None when there is none.

    Args:
        names: types in small letters, without a length, to column types.
        decimals: decimals that are something else here, to column types.
    """

    def known(text: str) -> str | None:
        plain = text.lower().strip()
        if decimals is not None and plain in decimals:
            return decimals[plain]
        match = _DECIMAL.fullmatch(plain)
        if match is not None:
            return f"decimal({match[1]},{match[2]})"
        return names.get(plain) or names.get(_LENGTH.sub("", plain))

    return known


def digits(name: str) -> tuple[int, int] | None:
    """Return a decimal column type's digits before and behind the point."""
    match = _DECIMAL.fullmatch(name)
    return None if match is None else (int(match[1]) - int(match[2]), int(match[2]))
