"""What the API's questions about events take and give, as OpenAPI describes it."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, field_validator, model_validator

from waybill.trails import MOST_ID_CHARS, MOST_IDS, MOST_KEY_CHARS, Asked

_Text = Annotated[str, Field(max_length=MOST_KEY_CHARS)]


class TrailBody(BaseModel):
    """Which events: ids, or the primary key of a pipeline."""

    model_config = ConfigDict(extra="forbid")

    ids: list[Annotated[str, Field(max_length=MOST_ID_CHARS)]] | None = Field(
        None,
        max_length=MOST_IDS,
        description="Event ids; blanks, quotes, doubles and capitals of hex digits do not matter.",
    )
    pipeline: _Text | None = Field(None, description="With `key`: its pipeline, by name or id.")
    key: list[_Text] | None = Field(
        None,
        min_length=1,
        max_length=50,
        description="A primary key: a text for each of its fields, or one that is a JSON array. "
        "4711 is tried as a number and as a text; a number may be given as one.",
    )
    event_name: _Text | None = Field(
        None, description="With `key`: only this kind of event; null: all of the pipeline's."
    )
    since: AwareDatetime | None = Field(
        None, description="Only traces from this time on: fewer objects are read."
    )
    until: AwareDatetime | None = Field(None, description="Only traces until then.")

    @field_validator("key", mode="before")
    @classmethod
    def _as_texts(cls, given: Any) -> Any:
        """Take numbers as the texts that they are in JSON."""
        if not isinstance(given, list):
            return given
        return [json.dumps(one) if isinstance(one, int | float) else one for one in given]

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        by_key = self.key is not None or self.pipeline is not None or self.event_name is not None
        if by_key == (self.ids is not None):
            raise ValueError("give `ids`, or `pipeline` and `key`")
        if by_key and (self.key is None or self.pipeline is None):
            raise ValueError("a key is asked for by `pipeline` and `key`")
        return self


class ParkedNowOut(BaseModel):
    """What became of what parked at a stop."""

    partition_id: int
    state: str = Field(
        description="parked, replaying, replayed, discarded, quarantined, deleted after a replay, "
        "deleted after a discard; copy: the event itself was parked already."
    )
    replay_id: str
    by: str = Field(description="Who discarded it.")
    why: str
    at: str | None


class StopOut(BaseModel):
    """One point that an event passed: its trace, and what the tracker knows beside it."""

    model_config = ConfigDict(extra="ignore")

    phase: str
    outcome: str
    error_type: str
    at: str
    after_s: float | None = Field(description="Since the stop before.")
    leg: int = Field(description="0: the first way; each replay begins another.")
    place: str = Field(description="Destination, topic/partition@offset, object.")
    host: str
    topic: str
    kafka_partition: int | None
    kafka_offset: int | None
    object_key: str
    batch: str
    commit_number: int | None
    attempt: int | None
    replay_id: str
    intake_minute: int | None
    parked: ParkedNowOut | None = None
    replay: dict[str, Any] | None = Field(
        None, description="The replay's id, run_id, state and requested_by."
    )
    staged: dict[str, Any] | None = Field(
        None, description="The staged object's destination, commit_number, state and loaded_at."
    )
    batch_row: dict[str, Any] | None = Field(
        None, description="The batch's consumer, destination, commit_number and committed_at."
    )


class TrailOut(BaseModel):
    """Where an event was, step by step."""

    event_id: str
    pipeline_id: str
    pipeline: str = Field(description="Its name; empty: nobody deployed it.")
    team: str
    event_name: str
    state: str = Field(
        description="delivered, parked, replaying, discarded, quarantined, filtered, superseded, "
        "duplicate, split, in flight, unknown."
    )
    said: str = Field(description="The same in a sentence.")
    first_at: str | None
    last_at: str | None
    stops: list[StopOut]
    uncommitted: int = Field(description="Traces of batches that never committed, left out.")
    left_out: int = Field(description="Stops that are left out, as there are too many.")
    children: list[TrailOut] = Field(description="What a transformation made of it.")
    more: int = Field(description="Children that are left out.")


class MissingOut(BaseModel):
    """An id that was not found."""

    id: str
    nearest: list[str] = Field(description="What is known near it, in sentences.")


class KeyWayOut(BaseModel):
    """A way in which a key may stand in the traces."""

    event_name: str
    key: str
    events: int = Field(description="Events that have it; 0 in all: these were tried.")


class SearchedOut(BaseModel):
    """What was looked through."""

    backend: str
    since: str | None
    until: str | None
    hours: int
    objects: int
    spool_files: int


class AnswerOut(BaseModel):
    """What was found, and what was not."""

    trails: list[TrailOut]
    missing: list[MissingOut]
    ways: list[KeyWayOut]
    more: int = Field(description="Older events of the key that are left out.")
    searched: SearchedOut | None
    searched_said: list[str]


class KeyOut(BaseModel):
    """The key that was asked for."""

    pipeline_id: str
    values: list[str] = Field(description="Masked where it is personal and somebody else asked.")
    event_name: str | None


class QuestionOut(BaseModel):
    """What was asked."""

    ids: list[str]
    key: KeyOut | None
    since: str | None
    until: str | None


class QueryOut(BaseModel):
    """A question, and how far its answer is."""

    id: str
    asked_by: str
    asked_at: str
    question: QuestionOut
    words: str = Field(description="The question in few words.")
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    backend: str
    cancel_asked: bool
    objects_read: int
    objects: int = Field(description="To be read, as far as is known yet.")
    bytes_scanned: int
    started_at: str | None
    finished_at: str | None
    error: str
    answer: AnswerOut | None = Field(description="Null until it is done, and in lists.")

    @classmethod
    def of(cls, asked: Asked) -> Self:
        """Return a question as the API gives it."""
        return cls.model_validate({**asked.to_json(), "answer": asked.answer})


class Queries(BaseModel):
    """The newest questions, without their answers."""

    queries: list[QueryOut]
