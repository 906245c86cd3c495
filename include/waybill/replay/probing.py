"""Probing held pipelines: whether the cause is gone, and what is to go back then.

Each round probes what is due, releases what passed, and lists the partitions whose events wait
though nothing holds their pipeline, whoever released it. The list comes from the tracker, not from
this round's releases: killed between the two, the next round lists the same.

User code may take any time: a probe has a limit, and so has a round. Who is held with code that
hangs keeps nobody else from a release for long.
"""

from __future__ import annotations

import logging
import time
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
PROBE_S = 60.0
"""For the events of one probe together; those that are not done by then count as failed."""
ROUND_S = 120.0
"""After so long a round begins no further probe, which the next one does; one always begins."""


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
    not_done: int = 0
    """Of the sample, those that there was no time for: they count as failed."""

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
    """Probe the held pipelines that are due, one after the other, for two minutes or so.

    First come versions that were not tried yet, then who waits for longest beside its own wait:
    what fails again and again is asked less often, and does not keep a new hold from its turn.

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
    probes: list[Probe] = []
    began = time.monotonic()
    for hold in _due_holds(tracker):
        if probes and time.monotonic() - began > ROUND_S:
            _LOG.warning("a round took over %g s: the probes that are left are the next's", ROUND_S)
            break
        pipeline = pipeline_of(tracker, hold.pipeline_id)
        if begin_probe(tracker, hold, pipeline.version):
            runner = DryRunner(
                pipeline,
                code=code,
                fetch=fetch,
                mappings=mappings_in_force(tracker, pipeline.id),
                learner=LocalLearner(rules_for(pipeline, destinations or {})),
            )
            runner.limit_s = PROBE_S
            probes.append(_probe(tracker, parking, hold, pipeline, pass_rate, runner))
    return ProbeReport(
        probes,
        [hold.pipeline for hold in read_holds(tracker)],
        parking.partitions_of(to_replay(tracker)),
    )


def _due_holds(tracker: TrackerStore) -> list[Hold]:
    """Return the holds that are to be probed now, in the order of their turns."""
    turns = []
    for hold in read_holds(tracker):
        version = active_version(tracker, hold.pipeline_id)
        if version is not None and hold.is_due(version):
            turns.append((not hold.is_untried(version), -hold.quiet_s / hold.wait_s, hold.id, hold))
    return [hold for *_, hold in sorted(turns, key=lambda turn: turn[:3])]


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
    if runner.not_done:
        said["why"] = (
            f"it took too long: {runner.not_done:,} events were not done within "
            f"{runner.limit_s:g} s, and count as failed"
        )
    released = end_probe(tracker, hold, said, passed=passes)
    return Probe(
        hold.pipeline,
        report.version,
        report.events,
        passed,
        report.would_fail,
        released,
        runner.not_done,
    )


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
