"""Routes of mappings: what a pipeline's event names map to, and its versions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, HTTPException, Query, status
from pydantic import BaseModel, Field

from waybill.errors import InputError
from waybill.mapping_proposals import ShownMapping, show
from waybill.mappings import MappingVersion, history
from waybill_airflow.web.guard import PipelineViewer
from waybill_airflow.web.models import problems
from waybill_airflow.web.services import parked_events

router = APIRouter(prefix="/api", tags=["mappings"])
_NOT_THERE = problems(_404="No such pipeline is deployed, or it has no such event or version.")
EventName = Annotated[
    str | None, Query(max_length=300, pattern=r"^[^\x00]*$", description="Only this event name.")
]


class ColumnOut(BaseModel):
    """A column of a table."""

    name: str
    type: str = Field(description="int64, decimal(28,9), ...")
    nullable: bool
    source: str = Field(
        description="The payload field, or its path; empty: the item of an array itself."
    )
    origin: Literal["declared", "learned"] = Field(
        description="Whether the pipeline declares it now, or events taught it."
    )


class ChildOut(BaseModel):
    """A table of the items of an array."""

    table: str
    source: str = Field(description="The payload field with the array.")
    columns: list[ColumnOut]


class MappingOut(BaseModel):
    """What an event name maps to, or mapped to."""

    event: str
    number: int = Field(description="The version; 0: none is kept yet, it is what is declared.")
    in_force: bool
    author: str = Field(
        description="Who deployed, or the consumer whose events brought new fields."
    )
    reason: str
    at: str = Field(description="When it was made, RFC 3339; empty for number 0.")
    destination: str
    schema_name: str
    table: str
    key: list[str]
    version: str | None = Field(description="The payload field that rises with each change.")
    policy: Literal["strict", "ignore", "evolve"]
    nested: Literal["json", "flatten"]
    arrays: Literal["json", "child"]
    deletes: Literal["hard", "soft"]
    columns: list[ColumnOut]
    children: list[ChildOut]

    @classmethod
    def of(cls, one: ShownMapping) -> Self:
        """Return a mapping."""
        found: dict[str, Any] = one.to_json()
        return cls.model_validate({**found, "schema_name": found["schema"]})


class Mappings(BaseModel):
    """Mappings of a pipeline."""

    mappings: list[MappingOut]


class VersionOut(BaseModel):
    """One version of a mapping."""

    event: str
    number: int
    author: str
    reason: str
    at: str

    @classmethod
    def of(cls, one: MappingVersion) -> Self:
        """Return a version."""
        return cls(
            event=one.event_name,
            number=one.number,
            author=one.author,
            reason=one.reason,
            at=one.created_at.isoformat(),
        )


class Versions(BaseModel):
    """Versions of a pipeline's mappings."""

    versions: list[VersionOut]


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
        found = show(parked_events().tracker, here.pipeline_id, event, version)
    except InputError as error:
        raise HTTPException(status.HTTP_404_NOT_FOUND, str(error)) from error
    return Mappings(mappings=[MappingOut.of(one) for one in found])


@router.get(
    "/mappings/{pipeline_id}/versions", responses=_NOT_THERE, summary="Versions of mappings"
)
def versions(here: PipelineViewer, event: EventName = None) -> Versions:
    """Return who made which version of a pipeline's mappings, when and why; the newest first."""
    found = history(parked_events().tracker, here.pipeline_id, event)
    return Versions(versions=[VersionOut.of(one) for one in found])
