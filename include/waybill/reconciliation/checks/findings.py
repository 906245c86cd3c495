"""What an eager check finds: one thing that is out of the usual now, in words and in numbers.

What was told and has not ended stands. A breach that somebody closed by name while its cause goes
on stands as well: it is known, and is not told again before it was over once. Who closes a drift
says that the table's rows are right as they are: they are from the next count on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from sqlalchemy import text

from waybill.storage import TrackerStore

Kind = Literal["quiet", "late", "parked_jump", "drift", "stranded", "draining", "slot"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""``quiet``: a pipeline brings nothing, against its own habit. ``late``: the oldest event on its
way to a stage, or a run, is over its objective. ``parked_jump``: a larger share parks than usual.
``drift``: a table has other rows than loads put there. ``stranded``: events are in the write-ahead
log of a run that was not seen for long. ``draining``: a topic's old generation does not end.
``slot``: a source keeps more for a pipeline than it may, or has given that up."""
Key = tuple[str, str, str, str]
"""(kind, pipeline id, event name, stage): one thing is found once under it."""
_STANDING = text("""
SELECT DISTINCT ON (kind, pipeline_id, event_name, stage)
  kind, pipeline_id, event_name, stage, gap, detail FROM breaches
WHERE kind = ANY(:kinds) AND (state = 'open' OR detail ->> 'stands' = 'true')
ORDER BY kind, pipeline_id, event_name, stage, id DESC
""")
_ACCEPTED = text("""
SELECT kind, pipeline_id, event_name, stage, max(ended_at) AS ended_at FROM breaches
WHERE kind = 'drift' AND state = 'closed' GROUP BY 1, 2, 3, 4
""")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong now."""

    kind: Kind
    pipeline_id: str
    words: str
    """The reasoning in one sentence, for people."""
    event_name: str = ""
    stage: str = ""
    gap: int = 0
    """Of a drift: rows missing (positive) or too many; else 0."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind the words; what the check needs to see when it is over."""

    @property
    def key(self) -> Key:
        """Return under what it is one with later findings."""
        return (self.kind, self.pipeline_id, self.event_name, self.stage)


def clock(minute: int, now_minute: int) -> str:
    """Return a minute since the epoch as "13:42", with its date when that is not today; UTC."""
    at = datetime.utcfromtimestamp(minute * 60)  # noqa: DTZ004 - shown without a zone
    today = datetime.utcfromtimestamp(now_minute * 60).date()  # noqa: DTZ004
    return f"{at:%H:%M}" if at.date() == today else f"{at:%H:%M on %a %d %b}"


def span(seconds: float) -> str:
    """Return a length of time in its two largest units: "2 h 5 min", "3 d 4 h", "40 s"."""
    whole = max(0, round(seconds))
    for size, name, small, rest in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            part = whole % size // small
            return f"{whole // size} {name}" + (f" {part} {rest}" if part else "")
    return f"{whole // 60} min" if whole >= 60 else f"{whole} s"  # noqa: PLR2004 - a minute


def events(number: int) -> str:
    """Return "1 event", "1,200 events"."""
    return f"{number:,} event{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class OpenFindings:
    """All that was told and matters still."""

    standing: Mapping[Key, Finding] = field(default_factory=dict)
    """Open, or closed by name and not over yet."""
    accepted: Mapping[Key, datetime] = field(default_factory=dict)
    """When drifts were closed by name, the last time each."""


def read_open_findings(tracker: TrackerStore) -> OpenFindings:
    """Return what stands, and which drifts were accepted."""
    with tracker.transaction() as connection:
        rows = connection.execute(_STANDING, {"kinds": list(KINDS)})
        standing = [_finding_of(row) for row in rows]
        accepted = {
            (row.kind, row.pipeline_id, row.event_name, row.stage): row.ended_at
            for row in connection.execute(_ACCEPTED)
        }
    return OpenFindings({one.key: one for one in standing}, accepted)


def _finding_of(row: Any) -> Finding:
    detail = {name: value for name, value in row.detail.items() if name not in ("words", "stands")}
    names = {name: getattr(row, name) for name in ("event_name", "stage", "gap")}
    words = str(row.detail.get("words", ""))
    return Finding(row.kind, row.pipeline_id, words, detail=detail, **names)
