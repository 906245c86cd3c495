"""What users ask of parked events: which groups, and which events of one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field, model_validator

from waybill.events import CATALOGUE, STAGES, window
from waybill.parking.model import ParkedGroupFilter, ReplayConditions
from waybill.request import Request

MOST_EVENTS = 10**15
"""That anybody may ask for: what the tracker, Airflow and JSON can all hold."""
_TIME = {"format": "date-time", "pattern": r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d"}
_PARTITION = {"section": "Partition"}


class WindowRequest(Request):
    """Two windows and a cause; what is not given takes all.

    Windows go from their first edge to before their second; a time without a zone is UTC.
    """

    since: datetime | None = Field(
        None, title="From", description="Event time, at or after.", json_schema_extra={**_TIME}
    )
    until: datetime | None = Field(
        None, title="Until", description="Event time, before.", json_schema_extra={**_TIME}
    )
    parked_since: datetime | None = Field(
        None,
        title="Parked from",
        description="Time of parking, at or after.",
        json_schema_extra={**_TIME},
    )
    parked_until: datetime | None = Field(
        None,
        title="Parked until",
        description="Time of parking, before.",
        json_schema_extra={**_TIME},
    )
    fingerprint: str | None = Field(
        None,
        title="Fingerprint",
        description="Only events of this cause.",
        json_schema_extra={"pattern": "^[0-9a-f]{16}$"},
    )

    @model_validator(mode="before")
    @classmethod
    def _check_windows(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Raise ``InputError`` where an edge is no time or a window holds nothing."""
        for prefix in ("", "parked_"):
            since, until = f"{prefix}since", f"{prefix}until"
            edges = window(values.get(since), values.get(until), prefix=prefix)
            values = values | dict(zip((since, until), edges, strict=True))
        return values


class _OptionalNames(Request):
    pipeline: str | None = Field(
        None, title="Pipeline", description="Only this pipeline, by name or id."
    )
    event_name: str | None = Field(
        None, title="Event name", description="Only this event name, exactly."
    )
    stage: str | None = Field(
        None,
        title="Stage",
        description="Only what this stage parked.",
        json_schema_extra={"enum": [None, *STAGES]},
    )
    error_type: str | None = Field(
        None,
        title="Error type",
        description="Only this error type, a code of the catalogue.",
        json_schema_extra={"examples": list(CATALOGUE)},
    )


class ParkedFilter(WindowRequest, _OptionalNames):
    """Which parked groups; what is not given matches all.

    With a window or a fingerprint a group matches when one segment of it does.
    """

    def partitions(self, pipeline_id: str | None, **more: Any) -> ParkedGroupFilter:
        """Return what the tracker is asked; ``more``: other fields of a ``ParkedGroupFilter``."""
        own = {name: getattr(self, name) for name in ParkedFilter.model_fields}
        del own["pipeline"]
        return ParkedGroupFilter(pipeline_id=pipeline_id, **own, **more)


class ParkedGroupRequest(Request):
    """A parked group, by its four names."""

    pipeline: str = Field(
        min_length=1,
        title="Pipeline",
        description="Pipeline, by name or id.",
        json_schema_extra={**_PARTITION},
    )
    event_name: str = Field(
        title="Event name", description="The event name.", json_schema_extra={**_PARTITION}
    )
    stage: str = Field(
        title="Stage",
        description="The stage that parked them. Of events parked at ingestion, only those that "
        "Kafka refused can be replayed.",
        json_schema_extra={**_PARTITION, "enum": list(STAGES)},
    )
    error_type: str = Field(
        min_length=1,
        title="Error type",
        description="Code of the error catalogue.",
        json_schema_extra={**_PARTITION, "examples": list(CATALOGUE)},
    )

    @property
    def names(self) -> dict[str, str]:
        """Return the four names."""
        return {name: getattr(self, name) for name in ParkedGroupRequest.model_fields}


class EntryRequest(Request):
    """The stage at which events come in again."""

    enter: str | None = Field(
        None,
        title="Enter at",
        description="`transformation`: send what the events parked at mapping were made "
        "from, where the pipeline keeps sources; `mapping`: send them as they parked, without "
        "that. Empty: `transformation` where all of them carry it, else the stage that parked.",
        json_schema_extra={"enum": [None, "transformation", "mapping"]},
    )


class ParkedEventsRequest(EntryRequest, WindowRequest, ParkedGroupRequest):
    """Some parked events of one group."""

    max_events: int | None = Field(
        None,
        ge=1,
        le=MOST_EVENTS,
        title="Most events",
        description="At most this many events: the first ones in the order of replay.",
    )

    @property
    def conditions(self) -> ReplayConditions:
        """Return what of the partition a replay, or a dry run, takes."""
        windows = {name: getattr(self, name) for name in WindowRequest.model_fields}
        return ReplayConditions(**windows, max_events=self.max_events)
