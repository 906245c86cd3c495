"""What a dry run is asked, and what it stands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from waybill.access import personal_of, proposed_by
from waybill.deployment import active_pipeline
from waybill.errors import InputError
from waybill.parking import EventChoice, Parking
from waybill.pipelines import Pipeline, load_pipeline, topic_of
from waybill.processing import Trial, TrialLearner, mappings_once_deployed, rules_for
from waybill.replay.dry_run import DryRunReport, dry_run
from waybill.replay.eligibility import find_replayable
from waybill.replay.entry import enters_earlier, refuse_without_source
from waybill.replay.recent_events import GoodReport, ReadableLog, compare, recent_events
from waybill.settings import DestinationSettings
from waybill.storage import ObjectStore, TrackerStore, payloads_at_once

GOOD_EVENTS = 500


@dataclass(frozen=True, slots=True)
class DryRunRequest:
    """A parked partition, which of its events, and which version to try."""

    pipeline: str
    """Name or id."""
    event_name: str
    stage: str
    error_type: str
    proposed: Path | None = None
    """Folder of a declaration; none: the active version."""
    choice: EventChoice = field(default_factory=EventChoice)
    sample: int | None = None
    """Events to try, stratified by fingerprint; none: every one."""
    good: int = GOOD_EVENTS
    """Most recent good events that a proposed version is tried on; 0: none."""
    seed: int | None = None
    """Makes both samples repeatable."""
    enter: str | None = None
    """``transformation``: as of a ``ReplayRequest``."""


@dataclass(frozen=True, slots=True)
class DryRunParts:
    """What a dry run stands on, opened."""

    tracker: TrackerStore
    objects: ObjectStore
    log: ReadableLog
    """Asked only for good events."""
    event_timeout_s: float
    destinations: Mapping[str, DestinationSettings] = field(default_factory=dict)
    """Whose rules new columns are named by."""


def try_out(parts: DryRunParts, request: DryRunRequest) -> DryRunReport:
    """Run parked events through the active version, or through the proposed one.

    The report goes where many look (a task's result, a log): values of fields that any version of
    the pipeline has declared as personal, or the proposed one does, are masked in it, whoever asks.

    Raises:
        InputError: a name, a time or a number is wrong, or the folder declares another pipeline.
        RetryError: something it stands on is away.
    """
    _refuse_numbers(request)
    parking = Parking(parts.tracker, parts.objects)
    found = find_replayable(
        parking,
        request.pipeline,
        event_name=request.event_name,
        stage=request.stage,
        error_type=request.error_type,
    )
    active = active_pipeline(parts.tracker, found.pipeline_id)
    version = active if request.proposed is None else _proposed(request.proposed, active)
    trials = _Trials(parts, active)
    mappings = mappings_once_deployed(parts.tracker, active, version).values()
    proposed = proposed_by(version, [one.declaration for one in mappings])
    personal = personal_of(parts.tracker, [active.id], proposed).of(found) or ()
    good = None
    if request.proposed is not None and request.good:
        good = _good(trials, request, version, found.event_name, personal)
    earlier = enters_earlier(request.enter, found.stage, active)
    if earlier:
        everything = parking.draw(found.id, request.choice)
        refuse_without_source(event for _, event in everything.events)
    sample = parking.draw(found.id, request.choice, n=request.sample, seed=request.seed)
    trial = trials.of(version)
    report = dry_run(version, trial, sample, good, personal=personal, earlier=earlier)
    return replace(report, quarantined=found.quarantined)


def _refuse_numbers(request: DryRunRequest) -> None:
    numbers = {"sample": request.sample, "limit": request.choice.limit}
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise InputError(f"{name}: {number} is too small; leave it out to try every event")
    if request.good < 0:
        raise InputError(f"good: {request.good} is too small; 0 tries no good events")


def _proposed(folder: Path, active: Pipeline) -> Pipeline:
    version = load_pipeline(folder)
    if version.id != active.id:
        raise InputError(
            f"{folder} declares {version.name!r} (id {version.id!r}), not {active.name!r} "
            f"(id {active.id!r}) whose events these are"
        )
    return version


def _good(
    trials: _Trials,
    request: DryRunRequest,
    version: Pipeline,
    name: str,
    personal: tuple[str, ...],
) -> GoodReport:
    active = trials.active
    recent = recent_events(
        trials.parts.log,
        topic_of(active),
        pipeline_id=active.id,
        event_name=name,
        n=request.good,
        seed=request.seed,
    )
    now, then = (trials.of(one, rows=True) for one in (active, version))
    return compare(now, then, recent, personal=personal)


@dataclass(frozen=True, slots=True)
class _Trials:
    """Makes trials of a pipeline's versions, each with the mappings that it has or would have."""

    parts: DryRunParts
    active: Pipeline

    def of(self, version: Pipeline, *, rows: bool = False) -> Trial:
        parts = self.parts
        return Trial(
            version,
            timeout_s=parts.event_timeout_s,
            fetch=payloads_at_once(parts.objects),
            rows=rows,
            mappings=mappings_once_deployed(parts.tracker, self.active, version),
            learner=TrialLearner(rules_for(version, parts.destinations)),
        )
