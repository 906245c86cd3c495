"""Times: what the wire says as RFC 3339 text, and what users give as a window."""

from __future__ import annotations

from datetime import UTC, datetime

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
            f"{name}: {text!r} is no time; write 2013-01-31, 2013-01-31T06:00 (UTC) or "
            "2013-01-31T06:00:00+01:00"
        )
    return moment


def check_window(
    since: datetime | None, until: datetime | None, begin: str, end: str
) -> tuple[datetime | None, datetime | None]:
    """Return a window as it is, once it does not end before it begins.

    Raises:
        InputError: it does; ``begin`` and ``end`` name its edges.
    """
    if since is not None and until is not None and since > until:
        raise InputError(f"{begin}: {rfc3339(since)} is after {end}, {rfc3339(until)}")
    return since, until


def rfc3339(moment: datetime) -> str:
    """Return a time as RFC 3339 text in UTC."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
