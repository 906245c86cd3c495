"""Routes of mappings: what a pipeline's event names map to, and its versions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, status

from waybill.errors import InputError
from waybill.mapping_proposals import show
from waybill.mappings import history
from waybill_airflow.web.guard import PipelineViewer
from waybill_airflow.web.mapping_models import MappingOut, Mappings, VersionOut, Versions
from waybill_airflow.web.models import problems
from waybill_airflow.web.services import desk

router = APIRouter(prefix="/api", tags=["mappings"])
_NOT_THERE = problems(_404="No such pipeline is deployed, or it has no such event or version.")
EventName = Annotated[
    str | None, Query(max_length=300, pattern=r"^[^\x00]*$", description="Only this event name.")
]


@router.get(
    "/mappings/{pipeline_id}", responses=_NOT_THERE, summary="What events become in a destination"
)
def mappings(
    here: PipelineViewer,
    event: EventName = None,
    version: Annotated[
        int | None, Query(ge=1, lt=2**31, description="An earlier version of one event name.")
    ] = None,
) -> Mappings:
    """Return the mappings in force of a pipeline's event names, or one at an earlier version."""
    try:
        found = show(desk().tracker, here.pipeline_id, event, version)
    except InputError as error:
        raise HTTPException(status.HTTP_404_NOT_FOUND, str(error)) from error
    return Mappings(mappings=[MappingOut.of(one) for one in found])


@router.get(
    "/mappings/{pipeline_id}/versions", responses=_NOT_THERE, summary="Versions of mappings"
)
def versions(here: PipelineViewer, event: EventName = None) -> Versions:
    """Return who made which version of a pipeline's mappings, when and why; the newest first."""
    found = history(desk().tracker, here.pipeline_id, event)
    return Versions(versions=[VersionOut.of(one) for one in found])
