"""Where people look at the balance and at breaches, and close them: what pages and the API ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from sqlalchemy import Connection, text

from waybill.access import Decision
from waybill.deployment import deployed_names
from waybill.errors import NotFoundError
from waybill.ledger import LOST, read_lost_in_flight
from waybill.reconciliation import (
    Breach,
    Verdict,
    close_breach,
    count_breaches,
    read_breach,
    read_breaches,
)
from waybill.reconciliation.balance_report import read_unrecoverable
from waybill.reconciliation.minutes import (
    MOST_ROWS,
    STAGES,
    Cell,
    Grid,
    Span,
    grid,
    read_rows,
    worst,
)
from waybill.storage import TrackerStore
from waybill.storage.tracker import COUNT_COLUMNS

State = Verdict | Literal["nothing"]
BreachState = Literal["open", "explained", "closed"]
_TOTALS = text("""
SELECT pipeline_id, stage, sum(in_first)::bigint, sum(passed)::bigint, sum(out)::bigint,
  sum(filtered)::bigint, sum(superseded)::bigint, sum(duplicate)::bigint
FROM ledger_totals WHERE pipeline_id = ANY(:pipelines) AND stage = ANY(:stages) GROUP BY 1, 2
""")
_PARKED = text("""
SELECT pipeline_id, sum(parked + replaying)::bigint, sum(discarded)::bigint,
  sum(quarantined)::bigint
FROM parked_partitions WHERE pipeline_id = ANY(:pipelines) GROUP BY 1
""")
_LOST = text("""
SELECT pipeline_id, sum(in_first + in_replayed)::bigint
FROM ledger_totals WHERE pipeline_id = ANY(:pipelines) AND stage = :stage GROUP BY 1
""")
_BREACHES = text("""
SELECT pipeline_id, count(*) FROM breaches
WHERE state = 'open' AND pipeline_id = ANY(:pipelines) GROUP BY 1
""")
_AUDITED = text("SELECT max(at) FROM audit_rounds")
_OWN = text("""
WITH own AS MATERIALIZED (
  SELECT id, name, team FROM pipelines
  WHERE (CAST(:teams AS text[]) IS NULL OR team = ANY(:teams))
    AND (CAST(:pipeline AS text) IS NULL OR id = :pipeline OR name = :pipeline)
), page AS (
  SELECT * FROM own WHERE CAST(:after AS text) IS NULL OR name > :after ORDER BY name LIMIT :most
), whole AS (
  SELECT count(*) AS total,
    count(*) FILTER (WHERE CAST(:after AS text) IS NULL OR name > :after) AS still,
    (SELECT coalesce(sum(parked + replaying), 0) FROM parked_partitions
      WHERE pipeline_id IN (SELECT id FROM own)) AS parked
  FROM own
)
SELECT page.*, whole.* FROM whole LEFT JOIN page ON true ORDER BY page.name
""")
_SIX = 6


@dataclass(frozen=True, slots=True)
class Totals:
    """A pipeline's events since its first."""

    taken_in: int = 0
    made: int = 0
    """Events that transformations made beyond those they took."""
    delivered: int = 0
    filtered: int = 0
    superseded: int = 0
    duplicate: int = 0
    parked: int = 0
    """Parked now, or being replayed."""
    discarded: int = 0
    quarantined: int = 0
    """Parked in files that are damaged or gone, and may be made again."""
    unrecoverable: int = 0
    """Lost with parked or staged files, and cannot be made again."""


@dataclass(frozen=True, slots=True)
class RowOf:
    """A row of the heat map."""

    name: str
    state: State
    """The worst of its cells; breach as well while one is open."""
    cells: list[Cell]


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """A pipeline's row, with its totals."""

    id: str
    team: str
    totals: Totals
    open_breaches: int
    row: RowOf


@dataclass(frozen=True, slots=True)
class Overview:
    """The balance of some pipelines."""

    grid: Grid
    audited_at: datetime | None
    """When the auditor looked last; None: never."""
    pipelines: list[PipelineRow]
    next: str | None
    """The name to go on after; None: this was the last page."""
    more: int
    """Pipelines behind this page."""
    total: int
    """All that match,"""
    parked: int
    """and their events that are parked now, or being replayed."""


@dataclass(frozen=True, slots=True)
class BalanceFilter:
    """Which pipelines' balance."""

    teams: tuple[str, ...] | None = None
    """Only of these; None: of all."""
    pipeline: str | None = None
    """Only this one, by name or id."""


@dataclass(frozen=True, slots=True)
class BreachFilter:
    """Which breaches."""

    teams: tuple[str, ...] | None = None
    """Only of these teams' pipelines; None: of all."""
    pipeline: str | None = None
    """Only of this one, by name or id."""
    states: Sequence[BreachState] | None = None
    """Only these; None: all."""


@dataclass(frozen=True, slots=True)
class BreachPage:
    """A page of breaches, the newest first."""

    breaches: list[Breach]
    next: int | None
    """The one to go on behind; None: this was the last page."""
    total: int
    """All that match."""


@dataclass(frozen=True, slots=True)
class EventRows:
    """The balance of one pipeline's event names."""

    grid: Grid
    audited_at: datetime | None
    rows: list[RowOf]
    more: int
    """Event names that are left out, those that are in balance first."""


class BalanceService:
    """The balance of deployed pipelines, and their breaches.

    Args:
        tracker: the books.
    """

    def __init__(self, tracker: TrackerStore) -> None:
        self._tracker = tracker

    def overview(
        self,
        wanted: BalanceFilter,
        span: Span,
        *,
        limit: int = MOST_ROWS,
        after: str | None = None,
        now: datetime | None = None,
    ) -> Overview:
        """Return a page of the pipelines' balance, by name.

        Args:
            wanted: whose.
            span: how far back.
            limit: most pipelines, up to ``MOST_ROWS``.
            after: ``next`` of the page before.
            now: up to when; None: now.

        Cost: the ledger's minutes of the span, of the page's pipelines; the parked groups of all
        that match; at most 15 s.

        Raises:
            RetryError: the tracker does not answer in time.
        """
        asked = grid(span, now or datetime.now(UTC))
        most = min(limit, MOST_ROWS)
        given = {
            "teams": None if wanted.teams is None else list(wanted.teams),
            "pipeline": wanted.pipeline,
            "after": after,
            "most": most,
        }
        with self._tracker.transaction() as connection:
            owned = connection.execute(_OWN, given).all()
            whole, shown = owned[0], [row for row in owned if row.id is not None]
            ids = [row.id for row in shown]
            rows = read_rows(connection, asked, ids, by="pipeline_id")
            totals = _totals(connection, ids)
            breaches = {row[0]: row[1] for row in connection.execute(_BREACHES, {"pipelines": ids})}
            audited = connection.execute(_AUDITED).scalar()
        found = [
            PipelineRow(
                one.id,
                one.team,
                totals[one.id],
                int(breaches.get(one.id, 0)),
                _row(one.name, list(rows.get(one.id, {}).values()), breach=one.id in breaches),
            )
            for one in shown
        ]
        more = int(whole.still) - len(shown)
        return Overview(
            asked,
            audited,
            found,
            next=found[-1].row.name if more and found else None,
            more=more,
            total=int(whole.total),
            parked=int(whole.parked),
        )

    def event_names(
        self, pipeline_id: str, span: Span, *, limit: int, now: datetime | None = None
    ) -> EventRows:
        """Return the balance of a pipeline's event names: breaches first, then by name.

        Raises:
            RetryError: the tracker does not answer in time.
        """
        asked = grid(span, now or datetime.now(UTC))
        with self._tracker.transaction() as connection:
            found = read_rows(connection, asked, [pipeline_id], by="event_name")
            audited = connection.execute(_AUDITED).scalar()
        rows = [_row(name, list(cells.values()), breach=False) for name, cells in found.items()]
        rows.sort(key=lambda row: (row.state != "breach", row.name))
        return EventRows(asked, audited, rows[:limit], max(0, len(rows) - limit))

    def breaches(self, wanted: BreachFilter, *, limit: int, after: int | None = None) -> BreachPage:
        """Return a page of breaches, the newest first.

        Args:
            wanted: which.
            limit: at most so many.
            after: ``next`` of the page before.
        """
        ids: list[str] | None = None
        pipeline = wanted.pipeline
        if wanted.teams is not None or pipeline is not None:
            names = deployed_names(self._tracker, wanted.teams)
            ids = [one["id"] for one in names if pipeline in (None, one["id"], one["name"])]
            if not ids and wanted.teams is None and pipeline is not None:
                ids = [pipeline]  # of a pipeline that nobody deployed
        total = count_breaches(self._tracker, pipeline_ids=ids, states=wanted.states)
        found = read_breaches(
            self._tracker, pipeline_ids=ids, states=wanted.states, before=after, limit=limit + 1
        )
        more = len(found) > limit
        return BreachPage(found[:limit], found[limit - 1].id if more else None, total)

    def breach(self, breach_id: int) -> Breach:
        """Return one breach.

        Raises:
            InputError: there is none of this number.
        """
        found = read_breach(self._tracker, breach_id)
        if found is None:
            raise NotFoundError(f"there is no breach {breach_id}; /breaches lists those there are")
        return found

    def close(self, breach_id: int, *, who: str, why: str) -> Breach:
        """Close a breach by name; who and why are in the audit log.

        Raises:
            InputError: it is none, or ended before.
        """
        return close_breach(self._tracker, breach_id, Decision(who, why))


def _row(name: str, cells: list[Cell], *, breach: bool) -> RowOf:
    return RowOf(name, "breach" if breach else worst(cells), sorted(cells, key=lambda c: c.place))


def _totals(connection: Connection, ids: Sequence[str]) -> dict[str, Totals]:
    given = {"pipelines": list(ids), "stages": list(STAGES)}
    by_stage: dict[tuple[str, str], Sequence[int]] = {
        (row[0], row[1]): row[2:] for row in connection.execute(_TOTALS, given)
    }
    parked = {row[0]: row[1:] for row in connection.execute(_PARKED, given)}
    lost, staged = Counter[str](), Counter[str]()
    for (pipeline_id, *_), number in read_unrecoverable(connection, ids).items():
        lost[pipeline_id] += number
    for row in connection.execute(_LOST, {"pipelines": list(ids), "stage": LOST}):
        staged[row[0]] += int(row[1])
    for found in read_lost_in_flight(connection):
        staged[found["pipeline_id"]] -= found["in_first"] + found["in_replayed"]
    return {
        one: _total(one, by_stage, parked.get(one, (0, 0, 0)), lost[one], max(0, staged[one]))
        for one in ids
    }


def _total(
    pipeline_id: str,
    by_stage: dict[tuple[str, str], Sequence[int]],
    parked: Sequence[int],
    lost_parked: int,
    lost_staged: int,
) -> Totals:
    nothing = (0,) * _SIX
    stages = [by_stage.get((pipeline_id, stage), nothing) for stage in STAGES]
    ingestion, transformation, _, destination = stages
    return Totals(
        taken_in=ingestion[0],
        made=transformation[2] - transformation[1],
        delivered=destination[1],
        filtered=transformation[3],
        superseded=destination[4],
        duplicate=sum(stage[5] for stage in stages),
        parked=int(parked[0] or 0),
        discarded=int(parked[1] or 0),
        quarantined=int(parked[2] or 0) - lost_parked,
        unrecoverable=lost_parked + lost_staged,
    )


__all__ = [
    "COUNT_COLUMNS",
    "BalanceFilter",
    "BalanceService",
    "BreachFilter",
    "BreachPage",
    "EventRows",
    "Overview",
    "PipelineRow",
    "RowOf",
]
