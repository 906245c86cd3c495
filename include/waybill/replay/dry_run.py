"""Dry run: the active or a proposed pipeline over parked events; nothing is written.

Where a sample is tried, the rate of all is the rates of its strata, weighted by their sizes. Its
interval is put together from Wilson's of each stratum (Newcombe 2001; Zou and Donner 2008: the
method of variance estimates recovery), each narrowed by the share of the stratum that was looked
at: a stratum looked at whole adds nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import sqrt
from pathlib import Path
from typing import Any

from waybill.access import personal_of, proposed_by
from waybill.deployment import pipeline_of
from waybill.errors import InputError, ParkError
from waybill.events import decode
from waybill.ledger import live_names
from waybill.parking import (
    Drawn,
    EventSample,
    ParkedEvent,
    ParkedEventsRequest,
    ParkedGroup,
    Parking,
    Stratum,
    fingerprint_of,
    masked_words,
)
from waybill.pipelines import Pipeline, load_pipeline, topic_of
from waybill.processing import (
    CodeRunner,
    DryRunner,
    Fate,
    LocalLearner,
    mappings_once_deployed,
    rules_for,
)
from waybill.replay.eligibility import find_replayable
from waybill.replay.messages import (
    MAPPING,
    TRANSFORMATION,
    choose_entry,
    encode_again,
    next_attempt,
    parent_of,
)
from waybill.replay.recent_events import GoodReport, ReadableLog, compare, recent_events
from waybill.replay.remedies import Remedy, read_remedies
from waybill.replay.request import DryRunRequest
from waybill.settings import DestinationSettings
from waybill.storage import ObjectStore, TrackerStore, payloads_at_once


@dataclass(frozen=True, slots=True)
class DryRunReport:
    """What would become of parked events.

    ``would_…`` counts those tried; ``pass_rate`` and ``expected_…`` say what that means for all.
    """

    pipeline: str
    version: str
    events: int
    """The population: events of the choice. An estimate where a sample met segments that the choice
    cuts through."""
    tried: int
    would_pass: int
    would_filter: int
    would_fail: dict[str, int]
    """Stage and error type ("mapping/not_null_violation") to events. An event whose children fail
    in several ways is under each."""
    pass_rate: float
    """Share of the population that would pass, from 0 to 1: each fingerprint weighs what it has."""
    low: float
    """The true rate lies from here …"""
    high: float
    """… to here in 95 of 100 samples; all three are the same where all events were tried."""
    expected_filter: int
    expected_fail: dict[str, int]
    """As ``would_fail``, of the population."""
    by_fingerprint: dict[str, dict[str, Any]]
    """Fingerprint to ``message`` (of one event, masked), ``events``, ``tried``, ``would_pass``; the
    largest first."""
    examples: dict[str, str]
    """One message for each way to fail, personal values masked."""
    damaged: int = 0
    """Events that could not be read; they are not tried."""
    unreadable: list[dict[str, Any]] = field(default_factory=list)
    """The same by object: ``object_key``, ``events``, ``reason``."""
    quarantined: int = 0
    """Events of the partition that were set apart before, as their objects are damaged or gone."""
    good: GoodReport = field(default_factory=GoodReport)
    """Nothing is tried unless another version than the active one is proposed."""

    remedies: tuple[Remedy, ...] = ()
    """What delivers events that would park at mapping again; the mildest first."""

    @property
    def misses(self) -> bool:
        """Whether it says less than was asked: some events, or all there are, cannot be read."""
        return bool(self.damaged or (self.quarantined and not self.events))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)


def dry_run(
    pipeline: Pipeline,
    runner: DryRunner,
    sample: EventSample,
    good: GoodReport | None = None,
    *,
    personal: Sequence[str] = (),
    earlier: bool = False,
) -> DryRunReport:
    """Run parked events through a pipeline's stages as a replay would.

    Args:
        pipeline: the version to try.
        runner: runs it.
        sample: as ``Parking.draw`` gives it: all of a partition, or a sample.
        good: what the version does to good events, where that was asked.
        personal: fields whose values are masked in messages.
        earlier: enter at the transformation, with what the events were made from; an event passes
            when all that its parent becomes does.

    The destination is not asked: what it would refuse counts as passing.

    Memory: what the runner and the sample hold, and a few numbers a fingerprint.
    """
    seen = _Seen(personal)
    for (stratum, parked), fate in _with_fates(runner, sample.events, earlier=earlier):
        seen.add(stratum, parked, fate)
    return _report(pipeline, seen, sample, good or GoodReport())


def whole(events: Iterable[ParkedEvent]) -> EventSample:
    """Return events that are all there is, as a sample: each stands for itself."""
    sample = EventSample(iter(()))

    def counted() -> Iterator[tuple[Stratum, ParkedEvent]]:
        for event in events:
            stratum = Stratum(fingerprint_of(event), whole=True)
            numbers = sample.strata.setdefault(stratum, Drawn(0))
            numbers.population += 1
            numbers.drawn += 1
            yield stratum, event

    sample.events = counted()
    return sample


def _with_fates(
    runner: DryRunner, events: Iterable[tuple[Stratum, ParkedEvent]], *, earlier: bool
) -> Iterator[tuple[tuple[Stratum, ParkedEvent], Fate]]:
    """Pair events with their fates; the runner reads a chunk ahead."""
    ahead: list[tuple[Stratum, ParkedEvent]] = []

    def values() -> Iterator[bytes]:
        for item in events:
            ahead.append(item)
            parked = item[1]
            yield _parent(parked) if earlier else entering(parked)

    done = 0
    for fate in runner.fates(values()):
        yield ahead[done], fate
        done += 1
        if done == len(ahead):
            ahead.clear()
            done = 0


def _parent(parked: ParkedEvent) -> bytes:
    return encode_again(parent_of(parked, replay_id=None), parked.source)


def entering(parked: ParkedEvent) -> bytes:
    """Return the bytes a replay would send: the event, entering at the stage that parked it."""
    try:
        event = decode(parked.value)
        event.stage = event.stage if parked.stage == "ingestion" else parked.stage
        event.attempt = next_attempt(parked)
        return encode_again(event, parked.value)
    except ParkError:
        return parked.value


@dataclass(slots=True)
class _Group:
    """Events of one fingerprint, or of one stratum, that were tried."""

    message: str = ""
    tried: int = 0
    passed: int = 0
    filtered: int = 0
    ways: Counter[str] = field(default_factory=Counter)
    strata: Counter[Stratum] = field(default_factory=Counter)


class _Seen:
    def __init__(self, personal: Sequence[str]) -> None:
        self._personal = personal
        self.strata: dict[Stratum, _Group] = {}
        self.fingerprints: dict[str, _Group] = {}
        self.examples: dict[str, str] = {}

    def add(self, stratum: Stratum, parked: ParkedEvent, fate: Fate) -> None:
        cause = fingerprint_of(parked)
        if cause not in self.fingerprints:
            self.fingerprints[cause] = _Group(self._shown(parked, parked.message))
        group = self.fingerprints[cause]
        group.strata[stratum] += 1
        for one in (group, self.strata.setdefault(stratum, _Group())):
            one.tried += 1
            one.passed += fate.passes
            one.filtered += fate.filtered and not fate.faults
            one.ways.update(fate.faults.keys())
        for way, fault in fate.faults.items():
            if way not in self.examples:
                self.examples[way] = self._shown(parked, fault.message)

    def _shown(self, parked: ParkedEvent, message: str) -> str:
        return str(masked_words(parked.value, message, self._personal))


def _report(pipeline: Pipeline, seen: _Seen, sample: EventSample, good: GoodReport) -> DryRunReport:
    weights = {stratum: _weight(drawn) for stratum, drawn in sample.strata.items()}
    whole = _Group()
    expected: dict[str, float] = {}
    filtered = events = 0.0
    for stratum, group in seen.strata.items():
        weight = weights[stratum]
        whole.tried += group.tried
        whole.passed += group.passed
        whole.filtered += group.filtered
        whole.ways.update(group.ways)
        events += weight * group.tried
        filtered += weight * group.filtered
        for way, number in group.ways.items():
            expected[way] = expected.get(way, 0.0) + weight * number
    found = rate(
        EstimateTally(weights[stratum] * group.tried, group.tried, group.passed)
        for stratum, group in seen.strata.items()
    )
    return DryRunReport(
        pipeline=pipeline.name,
        version=pipeline.version,
        events=round(events),
        tried=whole.tried,
        would_pass=whole.passed,
        would_filter=whole.filtered,
        would_fail=dict(whole.ways),
        pass_rate=found.value,
        low=found.low,
        high=found.high,
        expected_filter=round(filtered),
        expected_fail={way: round(number) for way, number in expected.items()},
        by_fingerprint=_by_fingerprint(seen, weights),
        examples=seen.examples,
        damaged=sample.damage.events,
        unreadable=[one.to_json() for one in sample.damage.listed],
        good=good,
    )


def _weight(drawn: Drawn) -> float:
    """Return how many events of its stratum each one stands for."""
    return drawn.population / drawn.drawn if drawn.drawn else 0.0


def _by_fingerprint(seen: _Seen, weights: dict[Stratum, float]) -> dict[str, dict[str, Any]]:
    rows: list[tuple[str, dict[str, Any]]] = []
    for name, group in seen.fingerprints.items():
        events = sum(weights[stratum] * number for stratum, number in group.strata.items())
        row = {
            "message": group.message,
            "events": round(events),
            "tried": group.tried,
            "would_pass": group.passed,
        }
        rows.append((name, row))
    return dict(sorted(rows, key=lambda item: (-item[1]["events"], item[0])))


@dataclass(frozen=True, slots=True)
class DryRunParts:
    """What a dry run needs, opened."""

    tracker: TrackerStore
    objects: ObjectStore
    log: ReadableLog
    """Asked only for good events."""
    code: CodeRunner
    """Runs user code."""
    destinations: Mapping[str, DestinationSettings] = field(default_factory=dict)
    """Their rules name new columns."""


def try_out(parts: DryRunParts, request: DryRunRequest) -> DryRunReport:
    """Run parked events through the active version, or through the proposed one.

    The report goes where many look (a task's result, a log): values of fields that any version of
    the pipeline has declared as personal, or the proposed one does, are masked in it, whoever asks.

    Raises:
        InputError: a name, a time or a number is wrong, or the folder declares another pipeline.
        RetryError: something it stands on is away.
    """
    parking = Parking(parts.tracker, parts.objects)
    found = find_replayable(parking, request)
    active = pipeline_of(parts.tracker, found.pipeline_id)
    version = active if request.proposed is None else _proposed(request.proposed, active)
    runners = _DryRunners(parts, active)
    mappings = mappings_once_deployed(parts.tracker, active, version).values()
    proposed = proposed_by(version, [one.declaration for one in mappings])
    personal = personal_of(parts.tracker, [active.id], proposed).of(found) or ()
    good = None
    if request.proposed is not None and request.good:
        good = _good(runners, request, version, found.event_name, personal)
    earlier = entry(parking, found, request, active)
    sample = parking.draw(found.id, request.conditions, n=request.sample, seed=request.seed)
    runner = runners.of(version)
    report = dry_run(version, runner, sample, good, personal=personal, earlier=earlier)
    again = any(way.startswith(f"{MAPPING}/") for way in report.would_fail)
    remedies: tuple[Remedy, ...] = ()
    if again and found.stage == MAPPING and not earlier:
        read = read_remedies(
            parts.tracker,
            parking,
            [found],
            carry_sources=active.keep_source and request.enter == MAPPING,
            tried=True,
            proposed=request.proposed is not None,
        )
        remedies = read.get(found.id, ())
    return replace(report, quarantined=found.quarantined, remedies=remedies)


def entry(
    parking: Parking, group: ParkedGroup, request: ParkedEventsRequest, active: Pipeline
) -> bool:
    """Tell whether a replay of these events enters at the transformation.

    Raises:
        InputError: it cannot enter where it says; or some events carry a source, and it says not
            where they enter.

    Cost: where the pipeline keeps sources, a read of the events that parked at mapping.
    """
    events = (event for _, event in parking.draw(group.id, request.conditions).events)
    return choose_entry(request.enter, group.stage, active, events) == TRANSFORMATION


def _proposed(folder: Path, active: Pipeline) -> Pipeline:
    version = load_pipeline(folder)
    if version.id != active.id:
        raise InputError(
            f"{folder} declares {version.name!r} (id {version.id!r}), not {active.name!r} "
            f"(id {active.id!r}) whose events these are"
        )
    return version


def _good(
    runners: _DryRunners,
    request: DryRunRequest,
    version: Pipeline,
    name: str,
    personal: tuple[str, ...],
) -> GoodReport:
    active = runners.active
    recent = recent_events(
        runners.parts.log,
        _read_name(runners.parts.tracker, active),
        pipeline_id=active.id,
        event_name=name,
        n=request.good,
        seed=request.seed,
    )
    now, then = (runners.of(one, rows=True) for one in (active, version))
    return compare(now, then, recent, personal=personal)


def _read_name(tracker: TrackerStore, pipeline: Pipeline) -> str:
    """Return the generation of a pipeline's topic that is read now: recent events are in it."""
    topic = topic_of(pipeline)
    with tracker.transaction() as connection:
        return live_names(connection, [topic])[topic][0]


@dataclass(frozen=True, slots=True)
class _DryRunners:
    """Makes runners of a pipeline's versions, each with the mappings that it has or would have."""

    parts: DryRunParts
    active: Pipeline

    def of(self, version: Pipeline, *, rows: bool = False) -> DryRunner:
        parts = self.parts
        return DryRunner(
            version,
            code=parts.code,
            fetch=payloads_at_once(parts.objects),
            rows=rows,
            mappings=mappings_once_deployed(parts.tracker, self.active, version),
            learner=LocalLearner(rules_for(version, parts.destinations)),
        )


_Z = 1.96
"""Of a 95 % interval."""


@dataclass(frozen=True, slots=True)
class EstimateTally:
    """What was seen of one stratum."""

    events: float
    """It stands for so many."""
    tried: int
    passed: int


@dataclass(frozen=True, slots=True)
class Rate:
    """A share from 0 to 1, and the interval that holds the true one in 95 of 100 samples."""

    value: float
    low: float
    high: float


def rate(tallies: Iterable[EstimateTally]) -> Rate:
    """Return the weighted rate; nothing tried says nothing: 0, somewhere from 0 to 1."""
    seen = [tally for tally in tallies if tally.tried]
    whole = sum(tally.events for tally in seen)
    if not whole:
        return Rate(0.0, 0.0, 1.0)
    value = below = above = 0.0
    for tally in seen:
        weight = tally.events / whole
        share = tally.passed / tally.tried
        low, high = _wilson(share, tally)
        value += weight * share
        below += (weight * (share - low)) ** 2
        above += (weight * (high - share)) ** 2
    value = min(1.0, value)
    return Rate(value, max(0.0, value - sqrt(below)), min(1.0, value + sqrt(above)))


def _wilson(share: float, tally: EstimateTally) -> tuple[float, float]:
    n = tally.tried
    if tally.events <= n:
        return share, share
    z2 = _Z**2 * (tally.events - n) / (tally.events - 1)
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    reach = sqrt(z2 * share * (1 - share) / n + z2**2 / (4 * n**2)) / (1 + z2 / n)
    return min(share, middle - reach), max(share, middle + reach)
