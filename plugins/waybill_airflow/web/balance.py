"""Routes of the balance: how the books stand minute by minute, and what does not add up.

Who may view a team's parked events may see its balance; who may discard them may close a breach, as
both say that events need not be looked for any more.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Depends, HTTPException, Path, Query, status
from pydantic import BaseModel, ConfigDict, Field

from waybill.access import Access
from waybill.errors import InputError
from waybill.events import rfc3339
from waybill.reconciliation import (
    MOST_ROWS,
    BalanceFilter,
    BalanceService,
    Breach,
    BreachFilter,
    BreachState,
    Cell,
    EventRows,
    Grid,
    Overview,
    PipelineRow,
    RowOf,
    Span,
    Verdict,
)
from waybill.settings import Permission
from waybill_airflow.web.guard import (
    Discarder,
    PipelineViewer,
    Viewer,
    absent,
    require,
    require_anywhere,
)
from waybill_airflow.web.models import Why, problems
from waybill_airflow.web.services import parked_events

State = Verdict | Literal["nothing"]
_TEXT = r"^[^\x00]{0,300}$"
_IDS_IN_LISTS = 20
router = APIRouter(prefix="/api", tags=["balance"])
_MOST_IDS = 1000
_NO_BREACH = problems(_404="There is no such breach.")
SpanOf = Annotated[Span, Query(description="How far back; minutes are put together to fit.")]
BreachId = Annotated[int, Path(ge=1, lt=2**63, description="The breach's id, of /breaches.")]


class CellOut(BaseModel):
    """Some minutes of a row, in which something came in."""

    place: int = Field(description="Its column, from 0.")
    verdict: Verdict = Field(
        description="breach, moving (on its way, or not audited yet), balanced: of its minutes "
        "the worst."
    )
    gap: int = Field(description="Events missing or too many, over all stages; 0 but in a breach.")
    why: list[str] = Field(description="What the auditor says of it, at most three sentences.")
    stages: dict[str, list[int]] = Field(
        description="Stage to eight counts: in_first, in_replayed, passed, out, parked (ever), "
        "filtered, superseded, duplicate."
    )

    @classmethod
    def of(cls, cell: Cell) -> Self:
        """Return a cell."""
        return cls(
            place=cell.place,
            verdict=cell.verdict,
            gap=cell.gap,
            why=cell.why,
            stages=cell.stages,
        )


class RowOut(BaseModel):
    """An event name's row of the heat map."""

    event_name: str
    state: State
    cells: list[CellOut] = Field(description="By column; where nothing came in there is none.")

    @classmethod
    def of(cls, row: RowOf) -> Self:
        """Return a row."""
        return cls(event_name=row.name, state=row.state, cells=[CellOut.of(c) for c in row.cells])


class TotalsOut(BaseModel):
    """A pipeline's events since its first."""

    taken_in: int
    made: int = Field(description="By transformations, beyond the events they took.")
    delivered: int
    filtered: int
    superseded: int
    duplicate: int
    parked: int = Field(description="Parked now, or being replayed.")
    discarded: int
    quarantined: int = Field(
        description="Parked in files that are damaged or gone, and may be made again."
    )
    unrecoverable: int = Field(
        description="Lost with parked or staged files, and cannot be made again."
    )


class PipelineBalance(BaseModel):
    """A pipeline's row of the heat map, with its totals."""

    id: str
    name: str
    team: str
    state: State = Field(description="The worst of its cells; breach also while one is open.")
    open_breaches: int
    totals: TotalsOut
    cells: list[CellOut]

    @classmethod
    def of(cls, found: PipelineRow) -> Self:
        """Return a pipeline's row."""
        return cls(
            id=found.id,
            name=found.row.name,
            team=found.team,
            state=found.row.state,
            open_breaches=found.open_breaches,
            totals=TotalsOut(**asdict(found.totals)),
            cells=[CellOut.of(cell) for cell in found.row.cells],
        )


class _Grid(BaseModel):
    since: str = Field(description="Where the first column begins.")
    until: str = Field(description="Where the last column ends; it may be in the future.")
    step_s: int = Field(description="Length of a column.")
    columns: int
    audited_at: str | None = Field(description="When the auditor looked last; null: never.")


def _grid(grid: Grid, audited_at: datetime | None) -> dict[str, Any]:
    return {
        "since": _time(grid.since),
        "until": _time(grid.until),
        "step_s": grid.step * 60,
        "columns": grid.columns,
        "audited_at": None if audited_at is None else rfc3339(audited_at),
    }


def _time(minute: int) -> str:
    return rfc3339(datetime.fromtimestamp(minute * 60, UTC))


class Balance(_Grid):
    """A page of the balance of the user's pipelines, by name."""

    pipelines: list[PipelineBalance]
    next: str | None = Field(description="`after` of the next page; null: this was the last.")
    more: int = Field(description="Pipelines behind this page.")
    total: int = Field(description="All that match,")
    parked: int = Field(description="and their events that are parked now, or being replayed.")

    @classmethod
    def of(cls, found: Overview) -> Self:
        """Return an overview."""
        rows = [PipelineBalance.of(one) for one in found.pipelines]
        return cls(
            pipelines=rows,
            next=found.next,
            more=found.more,
            total=found.total,
            parked=found.parked,
            **_grid(found.grid, found.audited_at),
        )


class Minutes(_Grid):
    """The balance of a pipeline's event names."""

    rows: list[RowOut] = Field(description="Those with a breach first, then by name.")
    more: int = Field(description="Event names that are left out.")

    @classmethod
    def of(cls, found: EventRows) -> Self:
        """Return a pipeline's rows."""
        rows = [RowOut.of(one) for one in found.rows]
        return cls(rows=rows, more=found.more, **_grid(found.grid, found.audited_at))


class BreachOut(BaseModel):
    """A breach: something of which the auditor says that it is not as it must be."""

    id: int
    pipeline: str
    pipeline_id: str
    team: str = Field(description="Of the pipeline; empty: nobody deployed it.")
    event_name: str = Field(description="Empty: of no one event name.")
    stage: str
    minute: int = Field(description="Intake minute, since 1970; 0: of no one minute.")
    kind: str = Field(
        description="of the ledger: on_the_way, in_stage, ids, parked, replays, offsets, "
        "source_count; of the eager checks: quiet, late, parked_jump, drift, "
        "stranded, draining, slot."
    )
    gap: int = Field(description="Events missing; negative: too many.")
    state: Literal["open", "explained", "closed"]
    words: str
    detail: dict[str, Any]
    missing: list[str] = Field(description="Event ids; in lists the first 20.")
    missing_events: int
    doubled: list[str] = Field(description="Event ids; in lists the first 20.")
    doubled_events: int
    first_seen_at: str
    last_seen_at: str
    named_at: str | None = Field(description="When its events were named; null: not yet.")
    ended_at: str | None
    ended_by: str
    reason: str

    @classmethod
    def of(cls, breach: Breach, *, most_ids: int = _IDS_IN_LISTS) -> Self:
        """Return a breach with so many of its events' ids."""
        said = breach.to_json()
        ids = {name: said.pop(name) for name in ("missing", "doubled")}
        first = {name: found[:most_ids] for name, found in ids.items()}
        counts = {f"{name}_events": len(found) for name, found in ids.items()}
        return cls(team=breach.team, **said, **first, **counts)


class Breaches(BaseModel):
    """A page of breaches, the newest first."""

    breaches: list[BreachOut]
    next: int | None = Field(description="`after` of the next page; null: this was the last.")
    total: int = Field(description="All that match.")


class CloseBody(BaseModel):
    """Why a breach is none any more."""

    model_config = ConfigDict(extra="forbid")

    why: Why


@dataclass(frozen=True, slots=True)
class BreachAccess:
    """A user, and a breach with which they may do what the route does."""

    access: Access
    breach: Breach


def _balances() -> BalanceService:
    return BalanceService(parked_events().tracker)


Balances = Annotated[BalanceService, Depends(_balances)]


def _breach_access(
    access: Access, permission: Permission, balances: BalanceService, breach_id: int
) -> BreachAccess:
    require_anywhere(access, permission)
    missing = absent(f"breach {breach_id}")
    try:
        breach = balances.breach(breach_id)
    except InputError as error:
        raise missing from error
    require(access, permission, parked_events().team(breach.key.pipeline_id) or "", missing)
    return BreachAccess(access, breach)


@router.get("/balance", summary="The balance of pipelines")
def balance(
    access: Viewer,
    balances: Balances,
    span: SpanOf = "6h",
    pipeline: Annotated[
        str | None, Query(pattern=_TEXT, description="Only this one, by name or id.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_ROWS, description="Most pipelines.")] = MOST_ROWS,
    after: Annotated[
        str | None, Query(pattern=_TEXT, description="`next` of the page before.")
    ] = None,
) -> Balance:
    """Return for each of the user's pipelines its totals, and its minutes as a heat map."""
    wanted = BalanceFilter(access.teams("view"), pipeline or None)
    return Balance.of(balances.overview(wanted, span, limit=limit, after=after))


@router.get(
    "/balance/{pipeline_id}/minutes",
    responses=problems(_404="No such pipeline is deployed."),
    summary="The balance of a pipeline's event names",
)
def minutes(
    here: PipelineViewer,
    balances: Balances,
    span: SpanOf = "6h",
    limit: Annotated[int, Query(ge=1, le=MOST_ROWS, description="Most event names.")] = 100,
) -> Minutes:
    """Return a pipeline's minutes as a heat map, a row for each event name."""
    return Minutes.of(balances.event_names(here.pipeline_id, span, limit=limit))


@router.get("/breaches", summary="Breaches")
def breaches(
    access: Viewer,
    balances: Balances,
    pipeline: Annotated[
        str | None, Query(pattern=_TEXT, description="The pipeline's name or id.")
    ] = None,
    state: Annotated[
        BreachState | None, Query(description="explained: ended by itself; closed: by name.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500, description="Most breaches.")] = 50,
    after: Annotated[
        int | None, Query(ge=1, lt=2**63, description="`next` of the page before.")
    ] = None,
) -> Breaches:
    """Return a page of the breaches of the user's pipelines, the newest first."""
    states = None if state is None else [state]
    wanted = BreachFilter(access.teams("view"), pipeline, states)
    found = balances.breaches(wanted, limit=limit, after=after)
    return Breaches(
        breaches=[BreachOut.of(one) for one in found.breaches], next=found.next, total=found.total
    )


@router.get("/breaches/{breach_id}", responses=_NO_BREACH, summary="One breach")
def breach(access: Viewer, balances: Balances, breach_id: BreachId) -> BreachOut:
    """Return a breach with up to 1,000 ids of its events."""
    here = _breach_access(access, "view", balances, breach_id)
    return BreachOut.of(here.breach, most_ids=_MOST_IDS)


@router.post(
    "/breaches/{breach_id}/close",
    responses=_NO_BREACH | problems(_409="It ended before."),
    summary="Close a breach",
)
def close(access: Discarder, balances: Balances, breach_id: BreachId, body: CloseBody) -> BreachOut:
    """Close a breach by name, with the reason; the same one does not open again, another does.

    Who closes a `drift` says that the table's rows are right as they are.
    """
    here = _breach_access(access, "discard", balances, breach_id)
    try:
        ended = balances.close(here.breach.id, who=access.user, why=body.why)
    except InputError as error:
        code = status.HTTP_409_CONFLICT
        raise HTTPException(code, str(error)) from error
    return BreachOut.of(ended, most_ids=_MOST_IDS)
