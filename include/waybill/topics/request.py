"""What users ask of a topic: to grow it, or to settle what stopped it."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from waybill.errors import InputError
from waybill.request import Request

MOST_PARTITIONS = 10_000


class GrowRequest(Request):
    """How many partitions a topic is to have."""

    topic: str = Field(description="The topic: events.<team>.<destination>.")
    partitions: int = Field(
        ge=1, le=MOST_PARTITIONS, description="Partitions of the next generation."
    )


class SettleRequest(Request):
    """Which of a topic's stops are settled, and how."""

    topic: str = Field(description="The topic: events.<team>.<destination>.")
    partition: int | None = Field(None, description="Only this partition.")
    at: int | None = Field(
        None,
        ge=0,
        description="Offset where it is read on, instead of the one proposed; needs --partition.",
    )
    reread: bool = Field(default=False, description="Read the sources of its pipelines again too.")

    @model_validator(mode="after")
    def _check_at(self) -> Self:
        """Raise ``InputError`` where an offset is given for no partition."""
        if self.at is not None and self.partition is None:
            raise InputError("--at says where one partition is read on: name it with --partition")
        return self
