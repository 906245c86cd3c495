"""What users ask about events by primary key, or within a time."""

from __future__ import annotations

from pydantic import Field

from waybill.request import Request


class TrailRequest(Request):
    """A primary key, and a time; both may be left out where events are asked for by id."""

    pipeline: str | None = Field(None, description="With --key: the pipeline, by name or id.")
    key: list[str] | None = Field(
        None,
        description="The primary key; once for each of its fields, or as a JSON array.",
    )
    event_name: str | None = Field(
        None, description="With --key: only this kind of event; else all there are."
    )
    since: str | None = Field(None, description="Only traces from this time on (UTC): reads less.")
    until: str | None = Field(None, description="Only traces until then.")
