"""A wrong name gets the nearest right one: the one place that looks for it."""

from __future__ import annotations

from collections.abc import Iterable

_MAX_COMPARED = 128
_MAX_SHOWN = 80
_LEAST_ALIKE = 0.6
_MOST_LISTED = 10


def shown_name(text: str) -> str:
    """Return text that is safe and short enough to print."""
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def nearest(name: object, choices: Iterable[str]) -> str | None:
    """Return the choice most like ``name``, if one is near. Cost: linear in the choices."""
    import difflib

    folded: dict[str, str] = {}
    for choice in choices:
        folded.setdefault(choice.casefold(), choice)
    text = str(name)[:_MAX_COMPARED].casefold()
    close = difflib.get_close_matches(text, folded, n=1, cutoff=_LEAST_ALIKE)
    return folded[close[0]] if close else None


def hint(name: object, choices: Iterable[str], *, ask: str = "did you mean") -> str:
    """Return "; did you mean 'x'?", or nothing."""
    choice = nearest(name, choices)
    return "" if choice is None or choice == name else f"; {ask} {shown_name(choice)!r}?"


def nearest_or_all(name: object, choices: Iterable[str], *, none: str = "") -> str:
    """Return "did you mean 'x'?", else the first ten choices; ``none`` where there is no choice."""
    known = sorted(choices)
    choice = nearest(name, known)
    if choice is not None and choice != name:
        return f"did you mean {shown_name(choice)!r}?"
    some = ", ".join(repr(shown_name(one)) for one in known[:_MOST_LISTED])
    more = f" and {len(known) - _MOST_LISTED:,} more" if len(known) > _MOST_LISTED else ""
    return f"there are: {some}{more}" if some else none
