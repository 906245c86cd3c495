"""What eager checks told before and that has not ended: findings that stand.

A breach that somebody closed by name while its cause goes on stands as well (``auditing``): it is
known, and is not told again before it was over once. Who closes a drift says that the table's rows
are right as they are: they are from the next count on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import text

from waybill.reconciliation.checks.findings import KINDS, Finding, Key
from waybill.storage import TrackerStore

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
class Told:
    """All that was told and matters still."""

    standing: Mapping[Key, Finding] = field(default_factory=dict)
    """Open, or closed by name and not over yet."""
    accepted: Mapping[Key, datetime] = field(default_factory=dict)
    """When drifts were closed by name, the last time each."""


def read_told(tracker: TrackerStore) -> Told:
    """Return what stands, and which drifts were accepted."""
    with tracker.transaction() as connection:
        rows = connection.execute(_STANDING, {"kinds": list(KINDS)})
        standing = [_finding_of(row) for row in rows]
        accepted = {
            (row.kind, row.pipeline_id, row.event_name, row.stage): row.ended_at
            for row in connection.execute(_ACCEPTED)
        }
    return Told({one.key: one for one in standing}, accepted)


def _finding_of(row: Any) -> Finding:
    detail = {name: value for name, value in row.detail.items() if name not in ("words", "stands")}
    names = {name: getattr(row, name) for name in ("event_name", "stage", "gap")}
    words = str(row.detail.get("words", ""))
    return Finding(row.kind, row.pipeline_id, words, detail=detail, **names)
