"""Routes that decide: discard, undo, cancel. The library writes each to the audit log."""

from __future__ import annotations

import shlex
from typing import Any, Literal

from fastapi import APIRouter, HTTPException, status

from waybill.access import Decision
from waybill.errors import InputError
from waybill.parking import ParkedGroup, TooManyCutsError
from waybill_airflow.web import models
from waybill_airflow.web.guard import (
    Discarder,
    PartitionReplayer,
    PipelineReplayer,
    partition_access,
)
from waybill_airflow.web.services import parked_events

router = APIRouter(prefix="/api", tags=["deciding"])
_NO_PARTITION = models.problems(_404="There is no such partition.")
_TOO_MUCH = _NO_PARTITION | models.problems(
    _409="The window cuts through too many parked files for a request."
)
_OPTIONS = ("since", "until", "parked_since", "parked_until", "fingerprint")


@router.post("/discard", responses=_TOO_MUCH, summary="Discard parked events")
def discard(access: Discarder, body: models.DecisionBody) -> models.Discarded:
    """Mark a partition's parked events as not wanted, with the reason; undone until the clean-up.

    A window on event time is exact: what it cuts through is cut in two, up to 200 segments of
    parked files; above that the answer names the command that does it. Segments that mix causes
    are left alone when one cause is named. What is damaged, or parked meanwhile, counts as left.
    """
    return _decide(access, body, "discard")


@router.post("/undo-discard", responses=_TOO_MUCH, summary="Take a discard back")
def undo_discard(access: Discarder, body: models.DecisionBody) -> models.Discarded:
    """Park a partition's discarded events again, as far as no clean-up has claimed them."""
    return _decide(access, body, "undo_discard")


def _decide(
    access: Discarder, body: models.DecisionBody, verb: Literal["discard", "undo_discard"]
) -> models.Discarded:
    here = partition_access(access, "discard", body.partition_id)
    chosen = body.model_dump(exclude={"partition_id", "why"})
    try:
        report = parked_events().decide(
            verb, here.partition, Decision(here.who, body.why), **chosen
        )
    except TooManyCutsError as error:
        command = _command(verb, here.partition, chosen, body.why)
        words = f"{error}: too long for a request. Nothing was changed. Run `{command}`"
        raise HTTPException(status.HTTP_409_CONFLICT, words) from error
    return models.Discarded(**report.to_json())


def _command(verb: str, partition: ParkedGroup, chosen: dict[str, Any], why: str) -> str:
    """Return the command that decides the same without a limit."""
    names = {name: getattr(partition, name) for name in ("event_name", "stage", "error_type")}
    given = {name: chosen[name] for name in _OPTIONS if chosen.get(name) is not None}
    words = ["waybill", "parked", verb.replace("_", "-"), partition.pipeline_id]
    for name, value in (names | given | {"why": why}).items():
        text = value.isoformat() if hasattr(value, "isoformat") else str(value)
        words.append(f"--{name.replace('_', '-')}={text}")
    return shlex.join(words)


@router.post(
    "/partitions/{partition_id}/cancel",
    responses=_NO_PARTITION | models.problems(_409="No replay of it is running."),
    summary="Cancel the running replay",
)
def cancel(here: PartitionReplayer, _body: models.Nothing | None = None) -> models.Cancelled:
    """Stop a partition's replay; what was not sent is parked again, nothing is lost.

    `sent` is what was marked by now: it is `final` only where nothing was on its way.
    """
    try:
        return models.Cancelled.of(parked_events().cancel(here.partition, who=here.who))
    except InputError as error:
        raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error


@router.put(
    "/partitions/{partition_id}/auto-replay",
    responses=_NO_PARTITION | models.problems(_409="It cannot be replayed."),
    summary="Mark for auto-replay",
)
def mark(here: PartitionReplayer, body: models.MarkBody) -> models.Mark:
    """Mark a partition to be replayed by itself, with a canary first, once its cause changes."""
    try:
        found = parked_events().mark(here.partition, on_change=body.on_change, who=here.who)
    except InputError as error:
        raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error
    return models.Mark(**found.to_json())


@router.delete(
    "/partitions/{partition_id}/auto-replay",
    responses=_NO_PARTITION,
    summary="Take the mark away",
)
def unmark(here: PartitionReplayer) -> models.Unmarked:
    """Take a partition's mark for auto-replay away; a replay that runs goes on."""
    return models.Unmarked(removed=parked_events().unmark(here.partition, who=here.who))


@router.post(
    "/pipelines/{pipeline_id}/release",
    responses=models.problems(_404="No such pipeline is deployed.", _409="It is not held."),
    summary="Release a held pipeline",
)
def release(here: PipelineReplayer, body: models.ReleaseBody) -> models.HoldOut:
    """End a pipeline's hold; what waited is replayed by itself within a minute or so.

    If the cause is still there, the pipeline is held again.
    """
    try:
        ended = parked_events().release(here.access, here.pipeline_id, here.team, why=body.why)
    except InputError as error:
        raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error
    return models.HoldOut(**ended.to_json())
