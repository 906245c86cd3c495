"""The balance as a heat map: minutes put together to a grid, with counts and verdict of each cell.

A row is a pipeline or one of its event names, a column some minutes. A cell's verdict is the worst
of its minutes: a breach, else one on the way, else balanced; where nothing came in there is none.
The verdicts are the auditor's (``auditing.states``): a minute it is through with is in balance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, text

from waybill.reconciliation import Verdict
from waybill.storage.tracker import COUNT_COLUMNS

Span = Literal["1h", "6h", "24h", "7d"]
STEPS: dict[Span, tuple[int, int]] = {
    "1h": (60, 1),
    "6h": (72, 5),
    "24h": (96, 15),
    "7d": (84, 120),
}
"""Of each span: columns, and the minutes of a column."""
STAGES = ("ingestion", "transformation", "mapping", "destination")
MOST_ROWS = 500
_LONGEST = "15s"
_RANK: dict[Verdict, int] = {"balanced": 0, "moving": 1, "breach": 2}
_SUMS = ", ".join(f"sum({name})::bigint AS {name}" for name in COUNT_COLUMNS)
_COUNTS = f"""
SELECT {{row}} AS row, (minute - CAST(:since AS int)) / CAST(:step AS int) AS place, stage, {_SUMS}
FROM ledger_minutes
WHERE pipeline_id = ANY(:pipelines) AND minute >= :since AND minute < :until
  AND stage = ANY(:stages)
GROUP BY 1, 2, 3
"""
_OPEN = """
SELECT {row} AS row, (minute - CAST(:since AS int)) / CAST(:step AS int) AS place,
  changed > audited AS changed, stages
FROM audit_minutes
WHERE pipeline_id = ANY(:pipelines) AND minute >= :since AND minute < :until
"""


@dataclass(frozen=True, slots=True)
class Grid:
    """The minutes that are looked at: from ``since``, before ``until``, in columns."""

    since: int
    until: int
    step: int
    """Minutes of a column."""

    @property
    def columns(self) -> int:
        """Return how many there are."""
        return (self.until - self.since) // self.step


@dataclass(slots=True)
class Cell:
    """Some minutes of a row."""

    place: int
    """Its column, from 0."""
    verdict: Verdict = "balanced"
    gap: int = 0
    """Events missing (positive) or too many, over its stages and minutes; each as positive."""
    why: list[str] = field(default_factory=list)
    """What the auditor says, at most three sentences."""
    stages: dict[str, list[int]] = field(default_factory=dict)
    """Stage to the counts of ``COUNT_COLUMNS``."""

    def judge(self, verdict: Verdict, gap: int, why: str) -> None:
        """Take a minute's verdict in."""
        if _RANK[verdict] > _RANK[self.verdict]:
            self.verdict, self.why = verdict, []
        self.gap += abs(gap) if verdict == "breach" else 0
        if why and verdict == self.verdict and why not in self.why and len(self.why) < 3:  # noqa: PLR2004
            self.why.append(why)


Rows = dict[str, dict[int, Cell]]
"""Row to column to cell."""


def grid(span: Span, now: datetime) -> Grid:
    """Return the columns of a span up to now, on whole steps: cells stay as time goes on."""
    columns, step = STEPS[span]
    until = (int(now.timestamp() // 60) // step + 1) * step
    return Grid(until - columns * step, until, step)


def read_rows(
    connection: Connection,
    asked: Grid,
    pipeline_ids: Sequence[str],
    *,
    by: Literal["pipeline_id", "event_name"],
) -> Rows:
    """Return the cells of pipelines, or of the event names of one.

    Raises:
        RetryError: it takes longer than 15 s; a shorter span is asked faster.
    """
    given = {
        "since": asked.since,
        "until": asked.until,
        "step": asked.step,
        "pipelines": list(pipeline_ids),
        "stages": list(STAGES),
    }
    connection.execute(text(f"SET LOCAL statement_timeout = '{_LONGEST}'"))
    rows: Rows = {}
    for found in connection.execute(text(_COUNTS.format(row=by)), given).mappings():
        cell = _cell(rows, found["row"], found["place"])
        cell.stages[found["stage"]] = [found[name] for name in COUNT_COLUMNS]
    for found in connection.execute(text(_OPEN.format(row=by)), given).mappings():
        for verdict, gap, why in _said(found["stages"], changed=found["changed"]):
            _cell(rows, found["row"], found["place"]).judge(verdict, gap, why)
    return rows


def worst(cells: Iterable[Cell]) -> Verdict | Literal["nothing"]:
    """Return the worst verdict of cells; "nothing" where there are none."""
    ranked = sorted((cell.verdict for cell in cells), key=_RANK.__getitem__)
    return ranked[-1] if ranked else "nothing"


def _cell(rows: Rows, row: str, place: int) -> Cell:
    return rows.setdefault(row, {}).setdefault(place, Cell(place))


def _said(stages: dict[str, Any], *, changed: bool) -> Iterable[tuple[Verdict, int, str]]:
    """Return what the auditor says of a minute that it is not through with."""
    if changed or not stages:
        return [("moving", 0, "")]
    return [
        (said["verdict"], int(said.get("gap", 0)), f"{stage}: {why}" if why else "")
        for stage, said in stages.items()
        if "verdict" in said
        for why in [str(said.get("why", ""))]
    ]
