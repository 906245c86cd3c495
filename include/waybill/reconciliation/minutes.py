"""How each intake minute stands: what went in, what came out, and the auditor's verdict.

The balance as a heat map: minutes put together to a grid, with counts and verdict of each cell.

A row is a pipeline or one of its event names, a column some minutes. A cell's verdict is the worst
of its minutes: a breach, else one on the way, else balanced; where nothing came in there is none.
The verdicts are the auditor's (``verdicts``): a minute it is through with is in balance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, RowMapping, text

from waybill.storage import TrackerStore
from waybill.storage.tracker import COUNT_COLUMNS

Verdict = Literal["balanced", "moving", "breach"]
STAGES = ("ingestion", "transformation", "mapping", "destination")


def numbered(number: int, noun: str) -> str:
    """Return "1 event", "2 events", "1,000 events"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


_NOT_LOOKED_AT = "the auditor has not looked at it since it changed"
_STATES = text("""
WITH open AS (SELECT * FROM audit_minutes WHERE pipeline_id = :pipeline AND minute >= :since
  AND minute < :until AND (CAST(:event AS text) IS NULL OR event_name = :event)),
reached AS (
  SELECT event_name, minute, stage, in_first + in_replayed AS came_in, out, parked
  FROM ledger_minutes WHERE pipeline_id = :pipeline AND minute >= :since AND minute < :until
    AND (CAST(:event AS text) IS NULL OR event_name = :event) AND stage = ANY(:stages)),
awaited AS (
  SELECT open.event_name, open.minute, said.key AS stage, 0 AS came_in, 0 AS out, 0 AS parked
  FROM open, jsonb_each(open.stages) AS said
  WHERE said.value ->> 'verdict' <> 'balanced' AND NOT EXISTS (SELECT FROM reached
    WHERE reached.event_name = open.event_name AND reached.minute = open.minute
      AND reached.stage = said.key))
SELECT seen.*, open.minute IS NOT NULL AS open, open.changed > open.audited AS changed,
  open.since, open.stages -> seen.stage AS said
FROM (SELECT * FROM reached UNION ALL SELECT * FROM awaited) AS seen
LEFT JOIN open USING (event_name, minute)
ORDER BY 1, 2, array_position(CAST(:stages AS text[]), seen.stage)
""")


@dataclass(frozen=True, slots=True)
class MinuteState:
    """One stage of one event name's intake minute."""

    event_name: str
    minute: int
    """Minutes since 1970, UTC."""
    stage: str
    came_in: int
    """First pass and replayed."""
    out: int
    """Passed on, with all children; at the destination: delivered."""
    parked: int
    verdict: Verdict
    gap: int
    """Events, positive: missing, negative: too many; not 0 in balance where it was explained."""
    why: str
    """Of what moves, or is a breach, or was explained; else empty."""
    since: datetime | None
    """When the auditor first saw the minute, of one that it is not through with."""


def minute_states(
    tracker: TrackerStore,
    pipeline_id: str,
    since: int,
    until: int,
    *,
    event_name: str | None = None,
) -> Iterator[MinuteState]:
    """Yield the states of a pipeline's minutes from ``since`` on, before ``until``.

    By event name, minute, and stage in the order of the way; a stage that nothing has reached is
    left out, unless it is awaited there. A minute that changed after the last round of the audit is
    ``moving``. Cost: one query over the ledger's minutes, by its primary key; about 2 µs a row.
    Counts that were not folded yet, for some seconds, are not in it.
    """
    asked = {
        "pipeline": pipeline_id,
        "since": since,
        "until": until,
        "event": event_name,
        "stages": list(STAGES),
    }
    with tracker.transaction() as connection:
        rows = connection.execute(_STATES, asked).mappings().all()
    return map(_state, rows)


def _state(row: RowMapping) -> MinuteState:
    said: dict[str, Any] = row["said"] or {}
    verdict, why = said.get("verdict", "balanced"), said.get("why", "")
    if row["open"] and (row["changed"] or not said):
        verdict, why = "moving", _NOT_LOOKED_AT
    return MinuteState(
        event_name=row["event_name"],
        minute=row["minute"],
        stage=row["stage"],
        came_in=row["came_in"],
        out=row["out"],
        parked=row["parked"],
        verdict=verdict,
        gap=said.get("gap", 0),
        why=why,
        since=row["since"],
    )


Span = Literal["1h", "6h", "24h", "7d"]
STEPS: dict[Span, tuple[int, int]] = {
    "1h": (60, 1),
    "6h": (72, 5),
    "24h": (96, 15),
    "7d": (84, 120),
}
"""Of each span: columns, and the minutes of a column."""
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
