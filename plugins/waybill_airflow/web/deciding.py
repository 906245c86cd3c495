"""Routes that decide: discard, undo, cancel. The library writes each to the audit log."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, HTTPException, status

from waybill.errors import InputError
from waybill.parking import Replay
from waybill_airflow.web import models
from waybill_airflow.web.guard import Discarder, HoldSeat, ReplayerSeat, seat
from waybill_airflow.web.opened import desk

router = APIRouter(prefix="/api", tags=["deciding"])
_NO_PARTITION = models.problems(_404="There is no such partition.")


@router.post("/discard", responses=_NO_PARTITION, summary="Discard parked events")
def discard(access: Discarder, body: models.DecisionBody) -> models.Discarded:
    """Mark a partition's parked events as not wanted, with the reason; undone until the clean-up.

    A window on event time is exact: what it cuts through is cut in two. Segments that mix causes
    are left alone when one cause is named. What is damaged, or parked meanwhile, counts as left.
    """
    return _decide(access, body, "discard")


@router.post("/undo-discard", responses=_NO_PARTITION, summary="Take a discard back")
def undo_discard(access: Discarder, body: models.DecisionBody) -> models.Discarded:
    """Park a partition's discarded events again, as far as no clean-up has claimed them."""
    return _decide(access, body, "undo_discard")


def _decide(
    access: Discarder, body: models.DecisionBody, verb: Literal["discard", "undo_discard"]
) -> models.Discarded:
    here = seat(access, "discard", body.partition_id)
    chosen = body.model_dump(exclude={"partition_id", "why"})
    report = desk().decide(verb, here.partition, who=here.who, why=body.why, **chosen)
    return models.Discarded(**report.to_json())


@router.post(
    "/partitions/{partition_id}/cancel",
    responses=_NO_PARTITION | models.problems(_409="No replay of it is running."),
    summary="Cancel the running replay",
)
def cancel(here: ReplayerSeat, _body: models.Nothing | None = None) -> Replay:
    """Stop a partition's replay; what was not sent is parked again, nothing is lost."""
    try:
        return desk().cancel(here.partition, who=here.who)
    except InputError as error:
        raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error


@router.put(
    "/partitions/{partition_id}/auto-replay",
    responses=_NO_PARTITION | models.problems(_409="It cannot be replayed."),
    summary="Mark for auto-replay",
)
def mark(here: ReplayerSeat, body: models.MarkBody) -> models.Mark:
    """Mark a partition to be replayed by itself, with a canary first, once its cause changes."""
    try:
        found = desk().mark(here.partition, on_change=body.on_change, who=here.who)
    except InputError as error:
        raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error
    return models.Mark(**found.to_json())


@router.delete(
    "/partitions/{partition_id}/auto-replay",
    responses=_NO_PARTITION,
    summary="Take the mark away",
)
def unmark(here: ReplayerSeat) -> models.Unmarked:
    """Take a partition's mark for auto-replay away; a replay that runs goes on."""
    return models.Unmarked(removed=desk().unmark(here.partition, who=here.who))


@router.post(
    "/pipelines/{pipeline_id}/release",
    responses=models.problems(_404="No such pipeline is deployed.", _409="It is not held."),
    summary="Release a held pipeline",
)
def release(here: HoldSeat, body: models.ReleaseBody) -> models.HoldOut:
    """End a pipeline's hold; what waited is replayed by itself within a minute or so.

    If the cause is still there, the pipeline is held again.
    """
    try:
        ended = desk().release(here.access, here.pipeline_id, here.team, why=body.why)
    except InputError as error:
        raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error
    return models.HoldOut(**ended.to_json())
