"""What users ask of an undeployment."""

from __future__ import annotations

from pydantic import Field

from waybill.request import Request


class UndeployRequest(Request):
    """A pipeline that is not to be read any more, and what becomes of its tables."""

    pipeline: str = Field(min_length=1, description="The pipeline, by name or id.")
    drop_tables: bool = Field(
        default=False, description="Drop its tables; they are kept otherwise."
    )
    keep_tables: bool = Field(
        default=False,
        description="Keep them after all, where they were to be dropped and that failed.",
    )
    confirm: str | None = Field(
        None,
        description="The pipeline's name once more, for --drop-tables; asked for, if not given.",
    )
    leave_parked: bool = Field(
        default=False, description="Also with parked events; they stay parked."
    )
    wait: float = Field(300.0, ge=0, description="Seconds to wait for what is on its way.")
    why: str = Field(description="The reason, for the audit log.")
