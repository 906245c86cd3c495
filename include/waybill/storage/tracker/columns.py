"""Values in a form that ``text`` and ``jsonb`` columns take, whatever they hold."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

_MOST_BITS = 4096
"""Of an integer; Python does not write those of more than 4,300 digits."""


def text_value(text: str, *, longest: int | None = None) -> str:
    """Return a text that SQL takes: NUL and lone surrogates escaped, cut to ``longest``."""
    cut = text if longest is None or len(text) <= longest else text[: longest - 1] + "…"
    return cut.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\0")


def json_value(value: object, *, deepest: int, longest: int | None = None) -> Any:
    """Return a value that ``jsonb`` takes; no value makes this fail.

    Args:
        value: dicts, lists, numbers, texts; anything else becomes text.
        deepest: levels; what lies below is ``…``.
        longest: characters of a text, of names as well; None: all.
    """
    if deepest < 0:
        return "…"
    below = partial(json_value, deepest=deepest - 1, longest=longest)
    if isinstance(value, dict):
        items = ((_said(name), below(item)) for name, item in value.items())
        return {text_value(name, longest=longest): item for name, item in items}
    if isinstance(value, list | tuple | set | frozenset):
        return [below(item) for item in value]
    if value is None or isinstance(value, bool) or _is_plain_number(value):
        return value
    return text_value(_said(value), longest=longest)


def _is_plain_number(value: object) -> bool:
    if isinstance(value, int):
        return value.bit_length() <= _MOST_BITS
    return isinstance(value, float) and math.isfinite(value)


def _said(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - a number too long, or a class's own words
        return f"({type(value).__name__}, which cannot be written: {type(error).__name__})"
