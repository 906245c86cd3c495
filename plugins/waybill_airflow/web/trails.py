"""Routes that tell where events are: questions are asked, listed, answered and cancelled.

A question tells of pipelines whose team the one who asks may see. Others' questions are nobody's:
404, but for who may see every team.
"""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, HTTPException, Path, Query, Response, status

from waybill.access import Access
from waybill.trails import Asked, Question, TooManyQuestionsError, ask_for_ids, ask_for_key
from waybill_airflow.web import models
from waybill_airflow.web.guard import Viewer, require
from waybill_airflow.web.services import trails
from waybill_airflow.web.trail_models import Queries, QueryOut, TrailBody

router = APIRouter(prefix="/api", tags=["trails"])

_WAIT_S = 2.0
"""A question that is answered by then needs no second request."""
_NO_QUERY = models.problems(_404="There is no such question of yours.")
_LATER: dict[int | str, dict[str, Any]] = {
    202: {"model": QueryOut, "description": "It is not answered yet; ask for it by its id."}
}
_REFUSED = models.problems(
    _404="There is no such pipeline.", _429="Too many questions of yours are open."
)
QueryId = Annotated[UUID, Path(description="The question's id.")]


@router.post("/trails", responses={**_LATER, **_REFUSED}, summary="Where are these events?")
def ask(access: Viewer, body: TrailBody, response: Response) -> QueryOut:
    """Ask for events by their ids, or by a primary key of a pipeline.

    Answers within two seconds if it can; else 202 with the id of the question, whose answer comes.
    Each question is written to the audit log.
    """
    question = _question(access, body)
    try:
        asked = trails().ask(question, who=access.user, limit_s=_WAIT_S)
    except TooManyQuestionsError as error:
        raise HTTPException(status.HTTP_429_TOO_MANY_REQUESTS, str(error)) from error
    if not asked.ended:
        response.status_code = status.HTTP_202_ACCEPTED
    return _told(access, asked)


def _question(access: Access, body: TrailBody) -> Question:
    teams = access.teams("view")
    if body.ids is not None:
        question = ask_for_ids(body.ids, since=body.since, until=body.until)
        return question.for_teams(teams)
    found = trails().pipeline(body.pipeline or "")
    require(access, "view", "" if found is None else found.team)
    if found is None:
        raise HTTPException(
            status.HTTP_404_NOT_FOUND,
            f"there is no pipeline {(body.pipeline or '')[:80]!r}; /names gives those there are",
        )
    return ask_for_key(
        found.id,
        body.key or (),
        event_name=body.event_name,
        since=body.since,
        until=body.until,
    ).for_teams(teams)


@router.get("/trails", summary="Past questions")
def newest(
    access: Viewer,
    limit: Annotated[int, Query(ge=1, le=200, description="Most of them.")] = 30,
) -> Queries:
    """Return the newest questions without answers: one's own; to who may see all, everybody's."""
    own = None if access.teams("view") is None else access.user
    found = trails().newest(asked_by=own, limit=limit)
    return Queries(queries=[_told(access, asked) for asked in found])


@router.get("/trails/{query_id}", responses=_NO_QUERY, summary="A question and its answer")
def read(access: Viewer, query_id: QueryId) -> QueryOut:
    """Return a question: how far it is, and its answer once there is one."""
    return _told(access, _own(access, query_id))


@router.post("/trails/{query_id}/cancel", responses=_NO_QUERY, summary="Cancel a question")
def cancel(access: Viewer, query_id: QueryId, _body: models.Nothing | None = None) -> QueryOut:
    """Stop looking; one that has ended stays as it is."""
    asked = _own(access, query_id)
    cancelled = trails().cancel(asked.id, who=access.user)
    return _told(access, asked if cancelled is None else cancelled)


def _own(access: Access, query_id: UUID) -> Asked:
    asked = trails().read(query_id)
    if asked is None or not (asked.asked_by == access.user or access.teams("view") is None):
        raise HTTPException(
            status.HTTP_404_NOT_FOUND,
            f"there is no question {query_id} of yours; it may be removed by now",
        )
    return asked


def _told(access: Access, asked: Asked) -> QueryOut:
    own = asked.asked_by == access.user
    personal = own or "personal" in access.everywhere
    return QueryOut.of(trails().told(asked, access.teams("view"), personal=personal))
