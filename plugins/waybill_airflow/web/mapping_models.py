"""What the routes of mappings give, as OpenAPI describes it."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from waybill.mapping_proposals import ShownMapping
from waybill.mappings import MappingVersion


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
    author: str = Field(description="Who deployed, or the task that met new fields.")
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
