"""Routes that tell where events are: questions are asked, listed, answered and cancelled.

A question tells of pipelines whose team the one who asks may see. Others' questions are nobody's:
404, but for who may see every team.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from fastapi import APIRouter, HTTPException, Path, Query, Response, status
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, field_validator, model_validator

from waybill.access import Access
from waybill.trails import (
    MOST_ID_CHARS,
    MOST_IDS,
    MOST_KEY_CHARS,
    Asked,
    Question,
    TooManyQuestionsError,
    ask_for_ids,
    ask_for_key,
)
from waybill_airflow.web import models
from waybill_airflow.web.guard import Viewer, no_pipeline, require
from waybill_airflow.web.services import trails

_Text = Annotated[str, Field(max_length=MOST_KEY_CHARS)]
router = APIRouter(prefix="/api", tags=["trails"])
_WAIT_S = 2.0
"""A question that is answered by then needs no second request."""
_NO_QUERY = models.problems(_404="There is no such question of yours.")
_REFUSED = models.problems(
    _404="There is no such pipeline.", _429="Too many questions of yours are open."
)
QueryId = Annotated[UUID, Path(description="The question's id.")]


class TrailBody(BaseModel):
    """Which events: ids, or the primary key of a pipeline."""

    model_config = ConfigDict(extra="forbid")

    ids: list[Annotated[str, Field(max_length=MOST_ID_CHARS)]] | None = Field(
        None,
        max_length=MOST_IDS,
        description="Event ids; blanks, quotes, doubles and capitals of hex digits do not matter.",
    )
    pipeline: _Text | None = Field(None, description="With `key`: its pipeline, by name or id.")
    key: list[_Text] | None = Field(
        None,
        min_length=1,
        max_length=50,
        description="A primary key: a text for each of its fields, or one that is a JSON array. "
        "4711 is tried as a number and as a text; a number may be given as one.",
    )
    event_name: _Text | None = Field(
        None, description="With `key`: only this kind of event; null: all of the pipeline's."
    )
    since: AwareDatetime | None = Field(
        None, description="Only traces from this time on: fewer objects are read."
    )
    until: AwareDatetime | None = Field(None, description="Only traces until then.")

    @field_validator("key", mode="before")
    @classmethod
    def _as_texts(cls, given: Any) -> Any:
        """Take numbers as the texts that they are in JSON."""
        if not isinstance(given, list):
            return given
        return [json.dumps(one) if isinstance(one, int | float) else one for one in given]

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        by_key = self.key is not None or self.pipeline is not None or self.event_name is not None
        if by_key == (self.ids is not None):
            raise ValueError("give `ids`, or `pipeline` and `key`")
        if by_key and (self.key is None or self.pipeline is None):
            raise ValueError("a key is asked for by `pipeline` and `key`")
        return self


class ParkedNowOut(BaseModel):
    """What became of what parked at a stop."""

    partition_id: int
    state: str = Field(
        description="parked, replaying, replayed, discarded, quarantined, deleted after a replay, "
        "deleted after a discard; copy: the event itself was parked already."
    )
    replay_id: str
    by: str = Field(description="Who discarded it.")
    why: str
    at: str | None


class StopOut(BaseModel):
    """One point that an event passed: its trace, and what the tracker knows beside it."""

    model_config = ConfigDict(extra="ignore")

    phase: str = Field(description="A stage, replay; discard: a decision, from the audit log.")
    outcome: str
    error_type: str
    at: str = Field(description="When its trace was written.")
    shown_at: str | None = Field(
        None,
        description="By when it had happened; over the stops of a copy it never runs backwards.",
    )
    late: bool = Field(
        default=False, description="The trace was written after what this stop caused."
    )
    coarse: bool = Field(
        default=False, description="`shown_at` is rounded down to a tenth of a second."
    )
    copy_number: int = Field(
        0,
        description="Which taking in of the event it belongs to: 1, 2, …; 0: there was one, or it "
        "is not known.",
    )
    copies: list[int] = Field(
        [],
        description="All copies that the trace stands for: a replay's may be of several, and is a "
        "stop of each.",
    )
    after_s: float | None = Field(description="Since the copy's stop before, as shown.")
    leg: int = Field(description="0: the first way; each replay begins another.")
    place: str = Field(description="Destination, topic/partition@offset, object.")
    host: str
    topic: str
    kafka_partition: int | None
    kafka_offset: int | None
    object_key: str
    batch: str
    commit_number: int | None
    attempt: int | None
    replay_id: str
    intake_minute: int | None
    parked: ParkedNowOut | None = None
    decision: dict[str, Any] | None = Field(None, description="Of a discard: who, and why.")
    replay: dict[str, Any] | None = Field(
        None, description="The replay's id, run_id, state and requested_by."
    )
    staged: dict[str, Any] | None = Field(
        None, description="The staged object's destination, commit_number, state and loaded_at."
    )
    batch_row: dict[str, Any] | None = Field(
        None, description="The batch's consumer, destination, commit_number and committed_at."
    )


class CopyOut(BaseModel):
    """Where one copy of an event is that was taken in more than once."""

    copy_number: int = Field(description="1 was taken in first.")
    state: str = Field(description="As of a trail.")
    said: str
    first_at: str | None
    last_at: str | None


class TrailOut(BaseModel):
    """Where an event was, step by step."""

    event_id: str
    pipeline_id: str
    pipeline: str = Field(description="Its name; empty: nobody deployed it.")
    team: str
    event_name: str
    state: str = Field(
        description="delivered, parked, replaying, discarded, quarantined, filtered, superseded, "
        "duplicate, split, in flight, unknown."
    )
    said: str = Field(description="The same in a sentence; of several copies what is true of each.")
    first_at: str | None
    last_at: str | None
    copies: list[CopyOut] = Field(
        [],
        description="Of an event that was taken in more than once where each copy is; empty where "
        "it is not known of every stop of which copy it is.",
    )
    stops: list[StopOut] = Field(description="Of several copies: those of each one together.")
    uncommitted: int = Field(description="Traces of batches that never committed, left out.")
    left_out: int = Field(description="Stops that are left out, as there are too many.")
    children: list[TrailOut] = Field(description="What a transformation made of it.")
    more: int = Field(description="Children that are left out.")


class MissingOut(BaseModel):
    """An id that was not found."""

    id: str
    nearest: list[str] = Field(description="What is known near it, in sentences.")


class KeyWayOut(BaseModel):
    """A way in which a key may stand in the traces."""

    event_name: str
    key: str
    events: int = Field(description="Events that have it; 0 in all: these were tried.")


class SearchedOut(BaseModel):
    """What was looked through."""

    backend: str
    since: str | None
    until: str | None
    hours: int
    objects: int
    spool_files: int


class AnswerOut(BaseModel):
    """What was found, and what was not."""

    trails: list[TrailOut]
    missing: list[MissingOut]
    ways: list[KeyWayOut]
    more: int = Field(description="Older events of the key that are left out.")
    searched: SearchedOut | None
    searched_said: list[str]


class KeyOut(BaseModel):
    """The key that was asked for."""

    pipeline_id: str
    values: list[str] = Field(description="Masked where it is personal and somebody else asked.")
    event_name: str | None


class QuestionOut(BaseModel):
    """What was asked."""

    ids: list[str]
    key: KeyOut | None
    since: str | None
    until: str | None


class QueryOut(BaseModel):
    """A question, and how far its answer is."""

    id: str
    asked_by: str
    asked_at: str
    question: QuestionOut
    words: str = Field(description="The question in few words.")
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    backend: str
    cancel_asked: bool
    objects_read: int
    objects: int = Field(description="To be read, as far as is known yet.")
    bytes_scanned: int
    started_at: str | None
    finished_at: str | None
    error: str
    answer: AnswerOut | None = Field(description="Null until it is done, and in lists.")

    @classmethod
    def of(cls, asked: Asked) -> Self:
        """Return a question as the API gives it."""
        return cls.model_validate({**asked.to_json(), "answer": asked.answer})


class Queries(BaseModel):
    """The newest questions, without their answers."""

    queries: list[QueryOut]


_LATER: dict[int | str, dict[str, Any]] = {
    202: {"model": QueryOut, "description": "It is not answered yet; ask for it by its id."}
}


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
    missing = no_pipeline(body.pipeline or "")
    require(access, "view", "" if found is None else found.team, missing)
    if found is None:
        raise missing
    question = ask_for_key(
        found.id,
        body.key or (),
        event_name=body.event_name,
        since=body.since,
        until=body.until,
    ).for_teams(teams)
    if trails().is_personal(question) and not access.may("personal", found.team):
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            f"the key of pipeline {found.name!r} is personal, and whether there is an event of it "
            f"is told with the permission 'personal' only: WAYBILL_ACCESS__GRANTS gives it",
        )
    return question


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
