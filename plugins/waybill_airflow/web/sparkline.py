"""Sparklines: events by minute as a small drawing, made here and shown by the pages as it is.

Only numbers and words of this module become part of it: no name that a user gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from xml.sax.saxutils import escape, quoteattr

from waybill.events import rfc3339

_HIGH = 100.0
_ROOM = 1.12
"""Above the highest number."""


def sparkline(since: datetime, came_in: Sequence[int], delivered: Sequence[int]) -> str:
    """Return an SVG element with both as lines, and with what it shows in words.

    Args:
        since: where the first minute begins.
        came_in: events that came in, by minute; at least one.
        delivered: events that a destination took, by minute; as many.
    """
    most = max(1, *came_in, *delivered) * _ROOM
    words = escape(spark_words(since, came_in, delivered))
    line = _points(came_in, most)
    area = f"M0 {_HIGH:g}L{line[1:]}L{len(came_in) - 1} {_HIGH:g}Z"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="spark-line" role="img" '
        f'viewBox="0 0 {max(1, len(came_in) - 1)} {_HIGH:g}" preserveAspectRatio="none" '
        f"aria-label={quoteattr(words)}><title>{words}</title>"
        f'<path class="area lag" d="{area}"/><path class="line lag" d="{line}"/>'
        f'<path class="line busy" d="{_points(delivered, most)}"/></svg>'
    )


def spark_words(since: datetime, came_in: Sequence[int], delivered: Sequence[int]) -> str:
    """Return what a sparkline shows, for who does not see it."""
    total = sum(came_in)
    begin = rfc3339(since)[11:16]
    if not total and not sum(delivered):
        return f"Nothing came in or was delivered in {len(came_in)} minutes from {begin} UTC"
    return (
        f"{total:,} {'event' if total == 1 else 'events'} taken in within {len(came_in)} minutes "
        f"from {begin} UTC, at most {max(came_in):,} in one; {sum(delivered):,} delivered"
    )


def _points(numbers: Sequence[int], most: float) -> str:
    """Return the path of a line: a point a minute, from the left."""
    heights = (_HIGH - _HIGH * number / most for number in numbers)
    return "M" + "L".join(f"{place} {height:.1f}" for place, height in enumerate(heights))


__all__ = ["spark_words", "sparkline"]
