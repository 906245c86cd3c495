"""Routes of the balance: how the books stand minute by minute, and what does not add up.

Who may view a team's parked events may see its balance; who may discard them may close a breach, as
both say that events need not be looked for any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Path, Query, status

from waybill.access import Access
from waybill.errors import InputError
from waybill.reconciliation import MOST_ROWS, BalanceService, Breach, BreachState, Span
from waybill.settings import Permission
from waybill_airflow.web import balance_models as models
from waybill_airflow.web.guard import Discarder, PipelineViewer, Viewer, require
from waybill_airflow.web.models import problems
from waybill_airflow.web.services import desk

router = APIRouter(prefix="/api", tags=["balance"])
_MOST_IDS = 1000
_NO_BREACH = problems(_404="There is no such breach.")
SpanOf = Annotated[Span, Query(description="How far back; minutes are put together to fit.")]
BreachId = Annotated[int, Path(ge=1, lt=2**63, description="The breach's id, of /breaches.")]


@dataclass(frozen=True, slots=True)
class BreachSeat:
    """Somebody before a breach with which they may do what the route does."""

    access: Access
    breach: Breach


def _balance_desk() -> BalanceService:
    return BalanceService(desk().tracker)


Balances = Annotated[BalanceService, Depends(_balance_desk)]


def _seat(
    access: Access, permission: Permission, balances: BalanceService, breach_id: int
) -> BreachSeat:
    try:
        breach = balances.breach(breach_id)
    except InputError as error:
        raise HTTPException(status.HTTP_404_NOT_FOUND, str(error)) from error
    require(access, permission, desk().team(breach.key.pipeline_id) or "")
    return BreachSeat(access, breach)


@router.get("/balance", summary="The balance of pipelines")
def balance(access: Viewer, balances: Balances, span: SpanOf = "6h") -> models.Balance:
    """Return for each of the user's pipelines its totals, and its minutes as a heat map."""
    return models.Balance.of(balances.overview(access.teams("view"), span))


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
) -> models.Minutes:
    """Return a pipeline's minutes as a heat map, a row for each event name."""
    return models.Minutes.of(balances.event_names(here.pipeline_id, span, limit=limit))


@router.get("/breaches", summary="Breaches")
def breaches(
    access: Viewer,
    balances: Balances,
    pipeline: Annotated[
        str | None, Query(max_length=300, description="The pipeline's name or id.")
    ] = None,
    state: Annotated[
        BreachState | None, Query(description="explained: ended by itself; closed: by name.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500, description="Most breaches.")] = 50,
) -> models.Breaches:
    """Return the breaches of the user's pipelines, the newest first."""
    states = None if state is None else [state]
    found = balances.breaches(access.teams("view"), pipeline=pipeline, states=states, limit=limit)
    return models.Breaches(breaches=[models.BreachOut.of(one) for one in found])


@router.get("/breaches/{breach_id}", responses=_NO_BREACH, summary="One breach")
def breach(access: Viewer, balances: Balances, breach_id: BreachId) -> models.BreachOut:
    """Return a breach with up to 1,000 ids of its events."""
    here = _seat(access, "view", balances, breach_id)
    return models.BreachOut.of(here.breach, most_ids=_MOST_IDS)


@router.post(
    "/breaches/{breach_id}/close",
    responses=_NO_BREACH | problems(_409="It ended before."),
    summary="Close a breach",
)
def close(
    access: Discarder, balances: Balances, breach_id: BreachId, body: models.CloseBody
) -> models.BreachOut:
    """Close a breach by name, with the reason; the same one does not open again, another does.

    Who closes a `drift` says that the table's rows are right as they are.
    """
    here = _seat(access, "discard", balances, breach_id)
    try:
        ended = balances.close(here.breach.id, who=access.user, why=body.why)
    except InputError as error:
        code = status.HTTP_409_CONFLICT
        raise HTTPException(code, str(error)) from error
    return models.BreachOut.of(ended, most_ids=_MOST_IDS)
