"""Probing held pipelines: whether the cause is gone, and what is to go back then.

Each round probes what is due, releases what passed, and lists the partitions whose events wait
though nothing holds their pipeline, whoever released it. The list comes from the tracker, not from
this round's releases: killed between the two, the next round lists the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from waybill.deployment import active_version, pipeline_of
from waybill.parking import (
    Hold,
    ParkedEvent,
    ParkedGroup,
    Parking,
    begin_probe,
    end_probe,
    held_groups,
    read_holds,
    to_replay,
)
from waybill.pipelines import Pipeline
from waybill.processing import CodeRunner, DryRunner, LocalLearner, mappings_in_force, rules_for
from waybill.replay.dry_run import DryRunReport, dry_run, whole
from waybill.settings import DestinationSettings
from waybill.storage import TrackerStore

_LOG = logging.getLogger(__name__)
SAMPLE_EVENTS = 200
"""Of all that is held of one pipeline."""
_MOST_PARTITIONS = 50
"""That a sample is taken from: those with the most events."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What one probe found."""

    pipeline: str
    version: str
    events: int
    would_pass: int
    """Of the sample, those that would be filtered on purpose included."""
    would_fail: dict[str, int]
    """Stage and error type to events."""
    released: bool

    def to_json(self) -> dict[str, Any]:
        """Return the probe as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What one round did."""

    probes: list[Probe]
    held: list[str]
    """Names of the pipelines that are held after it."""
    to_replay: list[ParkedGroup]
    """Partitions whose held events are to be replayed now."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "probes": [probe.to_json() for probe in self.probes],
            "held": self.held,
            "to_replay": [partition.to_json() for partition in self.to_replay],
        }


def probe_held(
    tracker: TrackerStore,
    parking: Parking,
    *,
    pass_rate: float,
    code: CodeRunner,
    fetch: Callable[[str], bytes] | None = None,
    destinations: Mapping[str, DestinationSettings] | None = None,
) -> ProbeReport:
    """Probe the held pipelines that are due, one after the other, the longest quiet first.

    Safe to run twice at once, and to kill: a probe is counted before it begins, so that code which
    never ends is not tried again before its time, and does not keep the others from theirs.

    Args:
        tracker: the holds.
        parking: what is held.
        pass_rate: share of the sample that must pass for a release.
        code: runs user code.
        fetch: returns the payload of an event that is in the object store.
        destinations: by name, whose rules new columns are named by.

    What is damaged is left out of the samples; its replay will say so.
    """
    probes = []
    for hold in sorted(read_holds(tracker), key=lambda hold: -hold.quiet_s):
        version = active_version(tracker, hold.pipeline_id)
        if version is None or not hold.is_due(version):
            continue
        pipeline = pipeline_of(tracker, hold.pipeline_id)
        if begin_probe(tracker, hold, pipeline.version):
            runner = DryRunner(
                pipeline,
                code=code,
                fetch=fetch,
                mappings=mappings_in_force(tracker, pipeline.id),
                learner=LocalLearner(rules_for(pipeline, destinations or {})),
            )
            probes.append(_probe(tracker, parking, hold, pipeline, pass_rate, runner))
    return ProbeReport(
        probes,
        [hold.pipeline for hold in read_holds(tracker)],
        parking.partitions_of(to_replay(tracker)),
    )


def _probe(
    tracker: TrackerStore,
    parking: Parking,
    hold: Hold,
    pipeline: Pipeline,
    pass_rate: float,
    runner: DryRunner,
) -> Probe:
    found = held_groups(tracker, hold.pipeline_id)[:_MOST_PARTITIONS]
    sample = _telling(list(_sample(parking, found, seed=hold.probes)))
    report = dry_run(pipeline, runner, whole(sample))
    passed = _passed(report)
    # Nothing waits: somebody discarded it all. The next events will tell.
    passes = passed >= pass_rate * report.events
    said = {
        "version": report.version,
        "events": report.events,
        "would_pass": passed,
        "would_fail": report.would_fail,
        "outcome": "passed" if passes else "failed",
    }
    released = end_probe(tracker, hold, said, passed=passes)
    return Probe(hold.pipeline, report.version, report.events, passed, report.would_fail, released)


def _passed(report: DryRunReport) -> int:
    return report.would_pass + report.would_filter


def _sample(
    parking: Parking, found: Sequence[tuple[int, int]], *, seed: int
) -> Iterator[ParkedEvent]:
    """Yield events of all the partitions, from each as many as its share of what is held.

    Drawn at random: what goes wrong in every n-th event is as frequent in the sample. The same seed
    draws the same events, while the same wait.
    """
    total = sum(events for _, events in found)
    for partition_id, events in found:
        share = max(1, SAMPLE_EVENTS * events // total)
        sample = parking.draw(partition_id, n=share, seed=seed)
        yield from (event for _, event in sample.events)
        if sample.damage.events:
            _LOG.warning("a probe leaves out %d damaged events", sample.damage.events)


def _telling(sample: list[ParkedEvent]) -> list[ParkedEvent]:
    """Return the events that came fresh, if there are any: a storm is made of those alone."""
    return [event for event in sample if not event.attempt] or sample
