"""What the routes of the balance take and give, as OpenAPI describes it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from waybill.events import rfc3339
from waybill.reconciliation import (
    Breach,
    Cell,
    EventRows,
    Grid,
    Overview,
    PipelineRow,
    RowOf,
    Verdict,
)
from waybill_airflow.web.models import Why

State = Verdict | Literal["nothing"]
_MOST_IDS = 20


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
        description="Stage to eight counts: in_first, in_replayed, passed, out, parked, filtered, "
        "superseded, duplicate."
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
    """The balance of the user's pipelines."""

    pipelines: list[PipelineBalance]
    more: int = Field(description="Pipelines that are left out: only 500 are shown.")

    @classmethod
    def of(cls, found: Overview) -> Self:
        """Return an overview."""
        rows = [PipelineBalance.of(one) for one in found.pipelines]
        return cls(pipelines=rows, more=found.more, **_grid(found.grid, found.audited_at))


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
    event_name: str = Field(description="Empty: of no one event name.")
    stage: str
    minute: int = Field(description="Intake minute, since 1970; 0: of no one minute.")
    kind: str = Field(
        description="of the ledger: on_the_way, in_stage, ids, parked, replays, offsets, "
        "source_count; of the eager checks: quiet, late, parked_jump, drift, "
        "stranded."
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
    def of(cls, breach: Breach, *, most_ids: int = _MOST_IDS) -> Self:
        """Return a breach with so many of its events' ids."""
        said = breach.to_json()
        ids = {name: said.pop(name) for name in ("missing", "doubled")}
        first = {name: found[:most_ids] for name, found in ids.items()}
        counts = {f"{name}_events": len(found) for name, found in ids.items()}
        return cls(**said, **first, **counts)


class Breaches(BaseModel):
    """Breaches, the newest first."""

    breaches: list[BreachOut]


class CloseBody(BaseModel):
    """Why a breach is none any more."""

    model_config = ConfigDict(extra="forbid")

    why: Why
