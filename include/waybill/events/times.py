"""Times: what the wire says as RFC 3339 text, and what users give as a window."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from waybill.errors import InputError

_FIRST_YEAR, _LAST_YEAR = 2, 9998
"""Inside these every time zone can say the time, as a SQL session's zone must."""


def instant(text: object) -> datetime | None:
    """Return a time in UTC, or None when the text is none. Without a zone it is UTC."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return moment if _FIRST_YEAR <= moment.year <= _LAST_YEAR else None


def window_edge(value: datetime | str | None, name: str) -> datetime | None:
    """Return one edge of a window in UTC; a time without a zone is UTC.

    Raises:
        InputError: it is no time; ``name`` says which edge.
    """
    if value is None:
        return None
    text = value.isoformat() if isinstance(value, datetime) else value
    moment = instant(text)
    if moment is None:
        raise InputError(
            f"{name}: {text!r} is not a time; write 2013-01-31, 2013-01-31T06:00 (UTC) or "
            "2013-01-31T06:00:00+01:00"
        )
    return moment


def window(
    since: datetime | str | None, until: datetime | str | None, *, prefix: str = ""
) -> tuple[datetime | None, datetime | None]:
    """Return the edges of a window in UTC; None: it is open there.

    Args:
        since: its beginning.
        until: its end, which is outside.
        prefix: what their names begin with in messages: "" or "parked_".

    Raises:
        InputError: an edge is no time, or the window ends before it begins and holds nothing.
    """
    begin, end = window_edge(since, f"{prefix}since"), window_edge(until, f"{prefix}until")
    if begin is not None and end is not None and begin >= end:
        raise InputError(
            f"{prefix}since: {rfc3339(begin)} is not before {prefix}until, {rfc3339(end)}: nothing "
            "is in that window"
        )
    return begin, end


def rfc3339(moment: datetime) -> str:
    """Return a time as RFC 3339 text in UTC."""
    text = moment.isoformat()
    if not text.endswith(_UTC_OFFSET):
        text = moment.astimezone(UTC).isoformat()
    return text.removesuffix(_UTC_OFFSET) + "Z"


def rfc3339_us(moment_us: int) -> str:
    """Return microseconds since 1970 as RFC 3339 text in UTC. Cost: a third of ``rfc3339``'s."""
    second, rest = divmod(moment_us, 1_000_000)
    text = _second(second)
    return f"{text}.{rest:06}Z" if rest else f"{text}Z"


@lru_cache(maxsize=16)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat().removesuffix(_UTC_OFFSET)


_UTC_OFFSET = "+00:00"
