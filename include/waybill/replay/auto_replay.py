"""Auto-replay: partitions marked for it are replayed when what made them park has changed.

A cause has changed when a new version of the pipeline is active, or when its destination answers
again after it was away. Each look reads how they stand, tells which partitions to replay (with a
canary first), and keeps for the next look what is not to be acted on. While a pipeline is held,
nothing of it is replayed and no change is used up: it is acted on after the release. Who launches
the replays calls ``launched`` afterwards: until then each look names the same replay again, with
the same salt for its run id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from waybill.access import Decision
from waybill.deployment import active_heads, read_undeployment
from waybill.destinations import open_destination
from waybill.errors import InputError, RetryError
from waybill.parking import (
    AutoReplay,
    ParkedGroup,
    Parking,
    held_pipelines,
    note_seen,
    read_marks,
    set_mark,
)
from waybill.pipelines import PipelineHead
from waybill.replay.eligibility import refuse_ingestion
from waybill.settings import DestinationSettings, S3Settings
from waybill.storage import TrackerStore

_LOG = logging.getLogger(__name__)
HEALTHY, AWAY = "healthy", "away"
Healthy = Callable[[str], bool]
"""Tells whether a destination, by name, answers."""


@dataclass(frozen=True, slots=True)
class AutoLaunch:
    """One replay to launch."""

    partition_id: int
    pipeline: str
    event_name: str
    stage: str
    error_type: str
    why: str
    """What has changed, as a sentence."""
    before: dict[str, Any]
    """How the cause stood; with ``seen`` it makes the run id, and ``launched`` takes both back."""
    seen: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the launch as JSON."""
        return asdict(self)


def mark_for_auto_replay(
    tracker: TrackerStore,
    parking: Parking,
    partition_id: int,
    decision: Decision,
    *,
    on_change: str,
    healthy: Healthy,
) -> AutoReplay:
    """Mark a partition to be replayed when its cause changes, from how it stands now.

    Raises:
        InputError: no such partition, its pipeline is not deployed, or what it holds never was an
            event.
    """
    partition = parking.partition(partition_id)
    refuse_ingestion(partition.stage, partition.error_type)
    pipeline = active_heads(tracker).get(partition.pipeline_id)
    if pipeline is None:
        raise InputError(
            f"{partition.name}: pipeline {partition.pipeline_id!r} is not deployed, so there is "
            "no new version to wait for; deploy it first"
        )
    seen = _read_cause(pipeline, _Once(healthy), {})
    return set_mark(tracker, partition_id, on_change=on_change, seen=seen, decision=decision)


def due_auto_replays(
    tracker: TrackerStore, parking: Parking, *, healthy: Healthy
) -> list[AutoLaunch]:
    """Look at all marks; return the replays to launch, and keep what else has changed.

    Cost: one read of the marks and of the holds, one partition a mark, one connection a
    destination concerned.
    """
    pipelines, asked = active_heads(tracker), _Once(healthy)
    held = held_pipelines(tracker)
    launches = []
    for mark in read_marks(tracker):
        partition = parking.partition(mark.partition_id)
        pipeline = pipelines.get(partition.pipeline_id)
        if pipeline is None:
            _LOG.warning("%s is marked, but its pipeline is not deployed", partition.name)
            continue
        if read_undeployment(tracker, pipeline.id) is not None:
            _LOG.info("%s waits: its pipeline is undeployed", partition.name)
            continue
        before = dict(mark.seen)
        seen = _read_cause(pipeline, asked, before)
        if pipeline.id in held and seen["destination"] == HEALTHY:
            _LOG.info("%s waits: its pipeline is held", partition.name)
            continue
        why = _changed(mark, seen)
        if why and partition.parked:
            launches.append(_launch(partition, why, before, seen))
        elif seen != before:
            note_seen(tracker, partition.id, before=before, seen=seen)
    return launches


def launched(
    tracker: TrackerStore,
    partition_id: int,
    *,
    before: Mapping[str, Any],
    seen: Mapping[str, Any],
    run_id: str,
) -> bool:
    """Keep that a replay was launched; False: the mark was changed or taken away meanwhile."""
    return note_seen(tracker, partition_id, before=before, seen=seen, run_id=run_id)


def answering(
    destinations: Mapping[str, DestinationSettings], s3: S3Settings | None = None
) -> Healthy:
    """Return what tells whether a configured destination answers, by asking it.

    Args:
        destinations: by name.
        s3: the object store, for those whose tables are objects there.
    """

    def healthy(name: str) -> bool:
        if name not in destinations:
            _LOG.warning("destination %r is not configured, so it counts as away", name)
            return False
        try:
            with open_destination(name, destinations[name], s3) as destination:
                destination.check()
        except (RetryError, InputError) as error:
            _LOG.info("destination %r is away: %s", name, error)
            return False
        return True

    return healthy


class _Once:
    """Asks each destination once, and remembers the answer."""

    def __init__(self, healthy: Healthy) -> None:
        self._healthy = healthy
        self._known: dict[str, bool] = {}

    def __call__(self, name: str) -> bool:
        if name not in self._known:
            self._known[name] = self._healthy(name)
        return self._known[name]


def _read_cause(
    pipeline: PipelineHead, healthy: Healthy, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Return how a pipeline's causes stand.

    While the destination is away, a new version is not seen: it is acted on afterwards.
    """
    if healthy(pipeline.destination):
        return {"version": pipeline.version, "destination": HEALTHY}
    since = before.get("away_since") or datetime.now(UTC).isoformat(timespec="seconds")
    version = before.get("version", pipeline.version)
    return {"version": version, "destination": AWAY, "away_since": since}


def _changed(mark: AutoReplay, seen: Mapping[str, Any]) -> str:
    """Return what has changed that the mark waits for; empty: nothing."""
    before = mark.seen
    if seen["destination"] == AWAY:
        return ""
    if mark.on_change in ("version", "any") and seen["version"] != before.get("version"):
        return f"version {seen['version']} of the pipeline is active"
    if mark.on_change in ("destination", "any") and before.get("destination") == AWAY:
        return f"the destination answers again; it was away since {before['away_since']}"
    return ""


def _launch(
    partition: ParkedGroup, why: str, before: dict[str, Any], seen: dict[str, Any]
) -> AutoLaunch:
    return AutoLaunch(
        partition.id,
        partition.pipeline,
        partition.event_name,
        partition.stage,
        partition.error_type,
        why,
        before,
        seen,
    )
