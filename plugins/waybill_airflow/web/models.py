"""What the API takes and gives, as OpenAPI describes it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from waybill.events import window
from waybill.inspection import ReplayStanding, Standing
from waybill.parking import MOST_EVENTS, OnChange, ParkedGroup, Replay
from waybill.settings import Permission


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str = Field(description="What is wrong, where, and what to do.")


def problems(**words: str) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI's description of refusals: ``problems(_404="There is none.")``."""
    return {
        int(code.removeprefix("_")): {"model": Problem, "description": said}
        for code, said in words.items()
    }


class Me(BaseModel):
    """The signed-in user, and what they may do."""

    user: str
    teams: list[str] | Literal["all"] = Field(description="Teams whose events the user may see.")
    permissions: list[Permission] = Field(description="What the user may do for at least one team.")
    everywhere: list[Permission] = Field(description="What the user may do for every team.")
    by_team: dict[str, list[Permission]] = Field(description="What else for one team.")


class ErrorTypeOut(BaseModel):
    """An error type of the catalogue."""

    code: str
    stage: str
    title: str
    advice: str
    transient: bool


class Catalogue(BaseModel):
    """Every stage and every error type."""

    stages: list[str]
    error_types: list[ErrorTypeOut]


class PipelineName(BaseModel):
    """A deployed pipeline."""

    id: str
    name: str
    team: str


class Names(BaseModel):
    """The pipelines that the user may see."""

    pipelines: list[PipelineName]


class Total(BaseModel):
    """The sum over all partitions that match, beyond this page too."""

    partitions: int
    parked: int
    bytes: int


class Partitions(BaseModel):
    """A page of partitions."""

    partitions: list[ParkedGroup]
    next: str | None = Field(description="Cursor of the next page; null: this was the last.")
    total: Total


class Mark(BaseModel):
    """A mark: the partition is replayed by itself when its cause changes."""

    partition_id: int
    on_change: str
    asked_by: str
    asked_at: str
    last_run_id: str = Field(description="Of the replay that it launched last; empty: none yet.")
    tried_at: str | None


class HoldOut(BaseModel):
    """A hold: a pipeline's events wait as they came, because nearly all of them would park."""

    id: int
    pipeline_id: str
    pipeline: str
    cause: dict[str, Any] = Field(
        description='`kind` "storm", with stage, error_type, message and more; or "by hand", `why`.'
    )
    held_by: str
    held_at: str
    probes: int = Field(description="Probes begun; none for a hold by hand.")
    last_probe: dict[str, Any] | None = Field(description="What was probed, and what came of it.")
    released_by: str | None
    released_at: str | None
    wait_s: float | None = Field(description="Between probes, in seconds; null: by hand.")


class Unmarked(BaseModel):
    """What taking a mark away did."""

    removed: bool = Field(description="False: there was no mark.")


class Group(BaseModel):
    """The events of a partition that share a cause."""

    fingerprint: str = Field(description="Empty: several causes, or parked before there were any.")
    message: str
    events: int
    segments: int
    first_parked_at: str
    last_parked_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOut(Replay):
    """A replay, and what became of its events so far."""

    standing: Standing
    """running, cancelled; then no next step (of a canary), moving, parked again, sent, done."""
    became: dict[str, int]
    """delivered, superseded, duplicate, parked, held; moving: not processed yet; passed_on: not
    loaded yet, or filtered."""

    @classmethod
    def of(cls, found: ReplayStanding) -> Self:
        """Return how a replay stands."""
        own = {field.name: getattr(found.replay, field.name) for field in fields(found.replay)}
        return cls(**own, standing=found.standing, became=found.became)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled(Replay):
    """A replay that was cancelled, with how much of it was sent as far as that is known."""

    final: bool
    """False: ``sent`` is what was marked by now, and grows by what was on its way."""
    said: str
    """The same in a sentence."""

    @classmethod
    def of(cls, found: Replay) -> Self:
        """Return what a cancel did."""
        own = {field.name: getattr(found, field.name) for field in fields(found)}
        whole = found.events - found.quarantined
        final = found.sent >= whole
        if final:
            said = f"all {whole:,} events that could be read had been sent, so nothing was stopped"
        else:
            said = (
                f"{found.sent:,} of {found.events:,} events were marked as sent by now, the others "
                "are parked again; those that were on their way in this moment are added to the "
                "number once it is known that they arrived: see the partition's replays"
            )
        return cls(**own, final=final, said=f"the replay is cancelled: {said}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDetail(ParkedGroup):
    """A partition with what its error means and its newest replays."""

    title: str
    advice: str
    transient: bool
    enters_earlier: bool
    """Its events can enter at the transformation: they parked at mapping, with their sources."""
    replays: list[ReplayOut]
    auto_replay: Mark | None
    hold: HoldOut | None
    fingerprints: list[Group]


class TimelineOut(BaseModel):
    """Events parked in equal steps of time."""

    since: str
    until: str
    step_s: float
    parked: list[int]


class ErrorOut(BaseModel):
    """One of several errors of an event."""

    error_type: str
    message: str
    where: str


class EventOut(BaseModel):
    """One parked event next to its error."""

    error_type: str
    message: str
    where: str
    fingerprint: str = Field(description="Of the cause; events of one cause share it.")
    errors: list[ErrorOut] = Field(description="All errors; empty: the first is the only one.")
    event_id: str | None
    event_at: str
    parked_at: str
    pipeline_version: str
    attempt: int = Field(
        description="Replays that had sent it before; 0: it parked the first time."
    )
    topic: str
    kafka_partition: int = Field(description="-1: it did not come from Kafka.")
    kafka_offset: int = Field(description="-1: it did not come from Kafka.")
    bytes: int = Field(description="Of the event as parked.")
    envelope: dict[str, Any] | None = Field(description="What is around the payload on the wire.")
    payload: Any = Field(description="The payload as JSON; null when it is none, see `text`.")
    text: str | None = Field(description="The bytes as text, when they are not JSON or too many.")
    cut: bool = Field(description="`text` is only the beginning.")
    masked: list[str] = Field(description="Personal fields that were masked; `*`: everything.")


class UnreadableOut(BaseModel):
    """Events of one parked object that could not be read."""

    object_key: str = Field(description="The object's key in the object store.")
    events: int = Field(description="At most so many of those asked for.")
    reason: str


class Events(BaseModel):
    """A page of a partition's events, in the order in which a replay sends them."""

    events: list[EventOut]
    next: str | None = Field(description="Cursor of the next page; null: this was the last.")
    damaged: list[UnreadableOut] = Field(
        description="What lay on this page and could not be read: damaged, or gone from the store."
    )


Fingerprint = Annotated[
    str | None, Field(pattern="^[0-9a-f]{16}$", description="Only events of this cause; null: all.")
]
Limit = Annotated[
    int | None,
    Field(ge=1, le=MOST_EVENTS, description="The first so many, in the order parked; null: all."),
]


Enter = Annotated[
    Literal["transformation", "mapping"] | None,
    Field(
        description="Enter earlier than where it parked, with what the events were made from; only "
        "of mapping, and where the pipeline keeps sources. Null: so where all events carry that, "
        "else where they parked; `mapping`: where they parked, without it."
    ),
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Choice(_Body):
    """Which of a partition's events; what is null leaves out none."""

    since: AwareDatetime | None = Field(None, description="Events at or after; null: all.")
    until: AwareDatetime | None = Field(None, description="Events before; null: all.")
    parked_since: AwareDatetime | None = Field(None, description="Parked at or after; null: all.")
    parked_until: AwareDatetime | None = Field(None, description="Parked before; null: all.")
    fingerprint: Fingerprint = None

    @model_validator(mode="after")
    def _windows_are_no_wrong_way_round(self) -> Self:
        window(self.since, self.until)
        window(self.parked_since, self.parked_until, prefix="parked_")
        return self


class DryRunBody(Choice):
    """Which events to try."""

    limit: Limit = None
    enter: Enter = None
    sample: int | None = Field(
        None,
        ge=1,
        le=MOST_EVENTS,
        description="Try so many of them, some of each cause; null: every one.",
    )


class ReplayBody(Choice):
    """Which events to send back, and how."""

    limit: Limit = None
    enter: Enter = None
    rate_per_s: int | None = Field(
        None, ge=1, le=MOST_EVENTS, description="Most events a second; null: no limit."
    )
    canary: bool = Field(
        default=False, description="Send 1 %, then 10 %, then all; stop when too much parks again."
    )
    governed: bool = Field(
        default=True, description="Hold the rate so that live traffic hardly waits longer."
    )


Why = Annotated[
    str, Field(min_length=1, max_length=2000, description="The reason, for the audit log.")
]


class DecisionBody(Choice):
    """Which events to discard, or to park again."""

    partition_id: Annotated[int, Field(ge=1, lt=2**63)]
    why: Why


class ReleaseBody(_Body):
    """Why a pipeline is held no more."""

    why: Why


class CampaignBody(_Body):
    """Why a campaign is paused, resumed or cancelled."""

    why: str = Field("", max_length=2000, description="The reason, for the audit log.")


class ClusterBody(_Body):
    """Why a cluster's applications are stopped, started or replaced."""

    why: str = Field("", max_length=2000, description="The reason, for the audit log.")


class MarkBody(_Body):
    """What to wait for."""

    on_change: OnChange = Field(
        "any", description="A new version of the pipeline, its destination back again, or either."
    )


class Nothing(_Body):
    """An empty body."""


class Started(BaseModel):
    """A DAG run that was started."""

    dag_id: str
    run_id: str
    already: bool = Field(description="True: the same was asked before, and this is its run.")


class Discarded(BaseModel):
    """What a discard, or its undoing, changed."""

    partitions: int
    segments: int
    events: int
    bytes: int
    left_segments: int = Field(description="Damaged, parked meanwhile, or taken by a clean-up.")
    left_events: int


class Progress(BaseModel):
    """How far a replay is."""

    events: int
    sent: int


class LastRun(BaseModel):
    """Where a pipeline's source was read last."""

    dag_id: str
    run_id: str | None = Field(
        description="Of Airflow; null: there was no run, or Airflow has it no more."
    )


class Run(BaseModel):
    """A DAG run of a replay or dry run."""

    state: str
    started_at: str | None
    finished_at: str | None
    report: dict[str, Any] | None = Field(description="The task's report once there is one.")
    reason: str | None = Field(description="Of a run that failed: why, in a sentence.")
    became: dict[str, int] = Field(
        description="What became of its events so far: delivered, superseded, duplicate, parked, "
        "held."
    )
    progress: Progress | None = Field(description="Null for a dry run, or before it has begun.")


class AuditEntry(BaseModel):
    """Who did what."""

    at: str
    who: str
    action: str
    target: str
    detail: dict[str, Any]


class Audit(BaseModel):
    """The newest entries of the audit log about the user's teams."""

    entries: list[AuditEntry]
