"""A source that sends its events by itself, over HTTP: what its declaration says of that.

    source:
      connector: http
      event: order                          # of records that name none
      options:
        auth: github                        # bearer, github, stripe or standard
        secret: env:GITHUB_WEBHOOK_SECRET   # or connection:<name>: the password of
                                            # AIRFLOW_CONN_<NAME>
        event_name: header:X-GitHub-Event   # or path, or field:<name>
        event_id: header:X-GitHub-Delivery  # or field:<name>
        id_field: delivery                  # the payload gets the event id under this name
        tolerance_s: 300                    # how far a signature's time may be off
        events_per_s: 500                   # more get 429; 0: no limit
        ack: wal                            # kafka: answered once Kafka has it

``waybill collector`` takes them in; there is nothing for a run of ingestion to read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from waybill.errors import InputError
from waybill.ingestion.connectors.base import Cursor, Page
from waybill.ingestion.connectors.opening import Opening
from waybill.pipelines import Source

AuthScheme = Literal["bearer", "github", "stripe", "standard"]
_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|connection:[A-Za-z0-9_.-]+")
_HEADER = re.compile(r"header:[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_FIELD = re.compile(r"field:.{1,200}", re.DOTALL)
_OWN_PREFIXES = ("WAYBILL_", "AIRFLOW__")
_EVENT_NAMES = {"github": "header:x-github-event", "stripe": "field:type"}
_EVENT_IDS = {
    "github": "header:x-github-delivery",
    "stripe": "field:id",
    "standard": "header:webhook-id",
}
_MOST_EVENTS_PER_S = 10_000_000


def _reference(text: str) -> str:
    if not _REFERENCE.fullmatch(text):
        raise ValueError("it must be env:<variable> or connection:<name>, never a secret itself")
    if text.removeprefix("env:").upper().startswith(_OWN_PREFIXES):
        raise ValueError("variables of Waybill and Airflow themselves are no secrets of a source")
    return text


def _place(text: str) -> str:
    if text.startswith("header:") and _HEADER.fullmatch(text):
        return text.lower()
    if _FIELD.fullmatch(text):
        return text
    raise ValueError("it must be header:<name> or field:<name>")


def _name_place(text: str) -> str:
    return text if text == "path" else _place(text)


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    auth: AuthScheme
    secret: Annotated[str, AfterValidator(_reference)]
    event_name: Annotated[str, AfterValidator(_name_place)] | None = None
    event_id: Annotated[str, AfterValidator(_place)] | None = None
    id_field: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    tolerance_s: int = Field(300, ge=1, le=86_400)
    events_per_s: int | None = Field(None, ge=0, le=_MOST_EVENTS_PER_S)
    ack: Literal["wal", "kafka"] = "wal"


class HttpSource(BaseModel):
    """What a declaration says of a source that sends over HTTP."""

    model_config = ConfigDict(frozen=True)

    event: str
    """Event name of records that name none."""
    auth: AuthScheme
    secret: str
    """Where the secret is: ``env:<variable>`` or ``connection:<name>``."""
    event_name: str = ""
    """Where a record's event name is: ``path``, ``header:<name>`` (small letters) or
    ``field:<name>``; "": nowhere, each is ``event``."""
    event_id: str = ""
    """The same for its id; "": it is derived, as that of a row is."""
    id_field: str = ""
    """The field of the payload that gets the event id, where it has none; "": none does."""
    tolerance_s: int = 300
    events_per_s: int | None = None
    """None: as the settings say."""
    ack: Literal["wal", "kafka"] = "wal"

    @classmethod
    def of(cls, source: Source) -> Self:
        """Return what a source of connector ``http`` says.

        Raises:
            InputError: options that are unknown, missing or wrong; says which.
        """
        try:
            options = _Options.model_validate(source.options)
        except ValidationError as error:
            raise InputError("; ".join(_said(error))) from error
        given = options.model_dump(exclude_none=True)
        defaults = {
            "event_name": _EVENT_NAMES.get(options.auth, ""),
            "event_id": _EVENT_IDS.get(options.auth, ""),
        }
        return cls(event=source.event, **(defaults | given))


def _said(error: ValidationError) -> Iterator[str]:
    for detail in error.errors(include_url=False, include_input=False):
        name = ".".join(map(str, detail["loc"]))
        yield f"source.options.{name}: {detail['msg'].removeprefix('Value error, ')}"


class PushedSource:
    """Takes what its source sends to the HTTP collector; has nothing to be read."""

    def __init__(self, opening: Opening) -> None:
        opening.refuse("connection")
        HttpSource.of(opening.source)

    def read(self, cursor: Cursor | None) -> Iterator[Page]:
        """Refuse: no run can fetch what is sent."""
        del cursor
        raise InputError(
            "the events of this pipeline are sent to `waybill collector`; there is nothing to fetch"
        )

    def count(self) -> int | None:
        """Return None: nobody knows what will be sent."""
        return None
