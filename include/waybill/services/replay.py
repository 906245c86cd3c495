"""Replays and dry runs of one parked partition, and what became of them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from waybill.deployment import pipeline_of, refuse_replays
from waybill.settings import Settings
from waybill.storage import open_log, open_owned_objects, open_tracker, refuse_foreign_bucket

if TYPE_CHECKING:
    from waybill.parking import ParkedGroup
    from waybill.pipelines import Pipeline
    from waybill.producer import FoundLog, LosslessProducer
    from waybill.replay import (
        Batch,
        BatchGroup,
        BatchReport,
        BatchRequest,
        CanaryReport,
        CanaryWait,
        DryRunReport,
        DryRunRequest,
        ReplayOutcome,
        ReplayParts,
        ReplayReport,
        ReplayRequest,
        ReplayRun,
        Send,
        TopicWatch,
    )
    from waybill.storage import KafkaLog, TrackerStore
from waybill.services.environment import (
    KAFKA_WAIT_S,
    node_of,
    open_producer,
    open_recording,
    opened_parking,
)

_LARGE = frozenset(("by_fingerprint", "examples", "unreadable", "good"))
"""Of the report of a dry run: a batch keeps the numbers of its groups."""
_LOOK_S = 1.0
"""Between two looks at whether a topic has a newer generation."""


def run_replay(
    settings: Settings,
    request: ReplayRequest,
    *,
    who: str,
    run_id: str,
    canary_wait: CanaryWait | None = None,
) -> ReplayReport | CanaryReport | DryRunReport:
    """Replay a parked partition, or say what a replay with the active version would do.

    ``canary_wait``: how long a canary waits for a step; ``None``: ``parking.canary_wait_s``.
    """
    from waybill.replay import ReplayRun, find_replayable

    if request.dry_run:
        return run_dry_run(settings, request.as_dry_run())
    with opened_parking(settings) as parking:
        found = find_replayable(parking, request)
    run = ReplayRun(
        found.id,
        who,
        run_id,
        request.conditions,
        request.rate_per_s,
        governed=request.governed,
        enter=request.enter,
    )
    send = partial(_replay, settings, found.pipeline_id)
    if request.canary:
        return _canary(settings, found.pipeline_id, run, send, canary_wait)
    return send(run)


def _canary(
    settings: Settings,
    pipeline_id: str,
    run: ReplayRun,
    send: Callable[[ReplayRun], ReplayReport],
    given: CanaryWait | None = None,
) -> CanaryReport:
    from waybill.parking import Parking
    from waybill.replay import (
        CanaryParts,
        CanaryWait,
        CanaryWaitError,
        ReplayWatch,
        canary,
        held_words,
    )

    wait = given or CanaryWait(settings.parking.canary_wait_s)
    ends = dict(wait.ends)
    with open_tracker(settings.tracker) as tracker:
        parking, log = Parking(tracker, open_owned_objects(settings)), open_log(settings.kafka)
        pipeline, place = pipeline_of(tracker, pipeline_id), run.partition_id

        def watch(step: str) -> ReplayOutcome:
            watched = ReplayWatch(tracker, parking, log, pipeline, place, run.run_id, step=step)
            if step in ends:
                watched.ends = ends[step]
            outcome = watched.wait(limit_s=wait.limit_s)
            ends[step] = watched.ends
            return outcome

        parts = CanaryParts(
            send=send,
            watch=watch,
            known=lambda step: parking.replay_step(place, run.run_id, step),
            parked=lambda conditions: parking.count_parked(place, conditions),
            threshold=settings.parking.canary_threshold,
            held=lambda: held_words(parking, pipeline_id),
        )
        try:
            return canary(parts, run)
        except CanaryWaitError as error:
            error.ends = ends
            raise


def _replay(settings: Settings, pipeline_id: str, run: ReplayRun) -> ReplayReport:
    from waybill.replay import replay

    name = f"replay-{run.partition_id}"
    with _opened(settings, pipeline_id, name, run.partition_id, governed=run.governed) as parts:
        return replay(parts, run)


@contextmanager
def _opened(
    settings: Settings, pipeline_id: str, name: str, partition_id: int, *, governed: bool
) -> Iterator[ReplayParts]:
    """Open the log ``name``, and what else replays of this partition, and of its like, need."""
    from waybill.ingestion import Undeliverable, registered
    from waybill.ledger import LogIdentity, register_log, writing_name
    from waybill.parking import Parking
    from waybill.pipelines import topic_of
    from waybill.replay import ReplayParts

    watch: TopicWatch | None = None
    log = open_log(settings.kafka)
    log.wait_until_up(limit_s=KAFKA_WAIT_S)
    refuse_foreign_bucket(settings)
    with open_tracker(settings.tracker) as tracker:
        pipeline, recorder = pipeline_of(tracker, pipeline_id), open_recording(settings)
        objects = open_owned_objects(settings)
        parking = Parking(tracker, objects)
        refused = Undeliverable(
            tracker,
            parking,
            objects,
            pipeline_version=pipeline.version,
            stage=parking.partition(partition_id).stage,
            recorder=recorder,
        )
        topic = writing_name(tracker, topic_of(pipeline))

        def claim(found: FoundLog) -> bool:
            nonlocal topic
            place = node_of(settings), str(found.directory.resolve()), topic_of(pipeline)
            identity = LogIdentity(found.wal_id, pipeline.id, "replay", name, *place)
            claimed = register_log(tracker, identity, empty=found.empty)
            topic = claimed or topic
            return claimed is not None

        with (
            open_producer(settings, name, refused, claim) as producer,
            registered(tracker, producer),
        ):
            refuse_replays(tracker, pipeline)  # who undeploys it sees this log now
            parts = ReplayParts(
                parking, producer, pipeline, recorder, undeliverable=refused, objects=objects
            )
            if governed:
                parts.watch = watch = _watch(settings, tracker, log, pipeline, topic)
            parts.topic = _Generation(tracker, log, producer, topic, watch)
            yield parts


def run_replay_batch(
    settings: Settings, asked: BatchRequest, *, who: str, run_id: str
) -> BatchReport:
    """Replay the parked groups of a campaign's batch, one after the other, or try them.

    Raises:
        InputError: the run is not the campaign's, or names none.
        RetryError: a server is away, or another run was faster; run again, it goes on.
        StopError: going on could lose or double events of a group; the next try takes it last.
    """
    from waybill.progress import Progress
    from waybill.replay import campaign_batches

    with open_tracker(settings.tracker) as tracker:
        batch = campaign_batches.read_batch(tracker, asked, run_id)
        open_send = partial(_batch_dry_run if batch.request.dry_run else _batch_replay, settings)
        progress = Progress(f"campaign {batch.campaign_id}", "groups", len(batch.to_do))
        opened = partial(open_send, batch, who)
        campaign_batches.replay_batch(tracker, batch, opened, progress)
        return campaign_batches.read_report(tracker, asked, run_id)


@contextmanager
def _batch_dry_run(
    settings: Settings, batch: Batch, _who: str, _first: BatchGroup
) -> Iterator[Send]:
    def send(group: BatchGroup) -> dict[str, Any]:
        report = run_dry_run(settings, batch.request_of(group).as_dry_run()).to_json()
        return {name: report[name] for name in report if name not in _LARGE}

    yield send


@contextmanager
def _batch_replay(settings: Settings, batch: Batch, who: str, first: BatchGroup) -> Iterator[Send]:
    """Open one producer for groups that can share it; its log is this run's."""
    from waybill.replay import ReplayRun, ReplayThrottle, refuse_ingestion, replay

    request = batch.request
    name = f"replay-{shared_log_of(batch.run_id, first)}"
    own = (settings, first.pipeline_id, name, first.partition_id)
    with _opened(*own, governed=request.governed) as parts:
        parts.pace = ReplayThrottle(parts.watch, request.rate_per_s)

        def send(group: BatchGroup) -> dict[str, Any]:
            refuse_ingestion(group.stage, group.error_type)
            asked = batch.request_of(group)
            run = ReplayRun(
                group.partition_id,
                who,
                batch.run_id,
                asked.conditions,
                asked.rate_per_s,
                governed=asked.governed,
                enter=asked.enter,
            )
            report = (
                _canary(settings, group.pipeline_id, run, partial(replay, parts))
                if request.canary
                else replay(parts, run)
            )
            return report.to_json() | {"problem": report.problem}

        yield send


def shared_log_of(run_id: str, group: BatchGroup) -> str:
    """Return what names the log of a batch's groups that share one; no two runs have the same."""
    content = f"{run_id} {group.shares}".encode()
    return hashlib.sha256(content).hexdigest()[:24]


def replayable(settings: Settings, request: ReplayRequest) -> ParkedGroup:
    """Return the partition that a replay would take.

    Raises:
        InputError: a name is wrong, or nothing is parked there; says which, and the nearest. Or the
            pipeline is held.
    """
    from waybill.replay import find_replayable, refuse_held, require_parked

    with opened_parking(settings) as parking:
        found = find_replayable(parking, request)
        require_parked(parking, found, since=request.since, until=request.until)
        refuse_held(parking, found.pipeline_id)
        return found


def replay_outcome(
    settings: Settings, partition: ParkedGroup, run_id: str, *, wait_s: float
) -> ReplayOutcome:
    """Return what became of the events that a run replayed, waiting up to ``wait_s`` for it."""
    from waybill.parking import Parking
    from waybill.replay import ReplayWatch

    with open_tracker(settings.tracker) as tracker:
        parking = Parking(tracker, open_owned_objects(settings))
        pipeline = pipeline_of(tracker, partition.pipeline_id)
        log = open_log(settings.kafka)
        watch = ReplayWatch(tracker, parking, log, pipeline, partition.id, run_id)
        return watch.wait(limit_s=wait_s)


def run_dry_run(settings: Settings, request: DryRunRequest) -> DryRunReport:
    """Run parked events through the active version, or through a proposed one; write nothing."""
    from waybill.processing import shared_sandbox
    from waybill.replay import DryRunParts, try_out

    objects, log = open_owned_objects(settings), open_log(settings.kafka)
    with open_tracker(settings.tracker) as tracker:
        parts = DryRunParts(tracker, objects, log, shared_sandbox(settings), settings.destinations)
        return try_out(parts, request)


class _Generation:
    """The generation of a topic that a replay is sent to, and that its throttle watches."""

    def __init__(
        self,
        tracker: TrackerStore,
        log: KafkaLog,
        producer: LosslessProducer,
        name: str,
        watch: TopicWatch | None,
    ) -> None:
        self._tracker, self._log, self._producer, self._watch = tracker, log, producer, watch
        self._name = name
        self._due = 0.0
        self._left = False

    @property
    def name(self) -> str:
        return self._name

    def is_left(self) -> bool:
        from waybill.ledger import is_left, tell_log

        now = time.monotonic()
        if now >= self._due:
            self._due = now + _LOOK_S
            tell_log(self._tracker, self._producer.wal_id, unsettled=len(self._producer))
            self._left = is_left(self._tracker, self._name)
        return self._left

    def follow(self) -> None:
        from waybill.ledger import follow_generation

        self._name = follow_generation(self._tracker, self._producer.wal_id, self._name, {})
        self._left = False
        if self._watch is not None:
            self._watch.follow(self._log.describe(self._name))


def _watch(
    settings: Settings, tracker: TrackerStore, log: KafkaLog, pipeline: Pipeline, name: str
) -> TopicWatch | None:
    """Open what a replay is governed by; ``None``: there is no topic, so nothing is live in it."""
    from waybill.replay import TopicWatch

    if name not in log.topics():
        return None
    return TopicWatch(
        log,
        tracker,
        log.describe(name),
        destination=pipeline.destination,
        batch_events=settings.spark.max_events_per_batch,
    )
