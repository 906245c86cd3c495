"""Wiring: opens what a use case stands on from the settings, runs it, closes everything.

The CLI, the Airflow operators and tests call these; nothing here decides anything.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waybill.errors import InputError
from waybill.operations.registry import DeployReport, active_pipeline, active_pipelines, deploy
from waybill.settings import Settings
from waybill.storage import open_log, open_objects, open_tracker

if TYPE_CHECKING:
    from waybill.notices import SendReport, Waiting
    from waybill.operations.applications import ApplicationStatus, Kind
    from waybill.operations.auto_replay import AutoLaunch
    from waybill.operations.balancing import BalanceReport
    from waybill.operations.canary import CanaryReport
    from waybill.operations.desk import Desk
    from waybill.operations.dry_run import DryRunReport
    from waybill.operations.governor import TopicWatch
    from waybill.operations.ingest import IngestReport
    from waybill.operations.outcome import ReplayOutcome
    from waybill.operations.probing import ProbeReport
    from waybill.operations.replay import ReplayReport, ReplayRequest
    from waybill.operations.trails import Trail
    from waybill.operations.trying import DryRunRequest
    from waybill.parking import CleanUpReport, Parking, Partition, RecheckReport, RefreshReport
    from waybill.parking.auto_replays import AutoReplay
    from waybill.pipelines import Pipeline
    from waybill.storage import KafkaLog, TrackerStore
    from waybill.tracing import Recorder

_KAFKA_WAIT_S = 120.0


def current_user() -> str:
    """Return who runs this process, for the audit log."""
    return pwd.getpwuid(os.getuid()).pw_name


def migrate(settings: Settings) -> None:
    """Bring the tracker's tables to this version, and make the bucket."""
    with open_tracker(settings.tracker) as tracker:
        tracker.migrate()
    open_objects(settings.s3).ensure_bucket()


@contextmanager
def opened_parking(settings: Settings) -> Iterator[Parking]:
    """Open the parked events."""
    from waybill.parking import Parking  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        yield Parking(tracker, open_objects(settings.s3))


@contextmanager
def opened_desk(settings: Settings) -> Iterator[Desk]:
    """Open the desk where people look at parked events and decide."""
    from waybill.operations.desk import Desk  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        yield Desk(tracker, open_objects(settings.s3), settings.destinations)


def run_deploy(settings: Settings, directory: Path, *, who: str) -> DeployReport:
    """Deploy the declaration in a folder."""
    with open_tracker(settings.tracker) as tracker:
        return deploy(tracker, directory, who=who)


def deployed_pipelines(settings: Settings) -> dict[str, Pipeline]:
    """Return {pipeline id: active version}."""
    with open_tracker(settings.tracker) as tracker:
        return active_pipelines(tracker)


def run_ingest(
    settings: Settings,
    pipeline_name: str,
    *,
    on_progress: Callable[[int, int | None], None] | None = None,
) -> IngestReport:
    """Run a pipeline's connector to the end of its source.

    Raises:
        InputError: no such pipeline, or its source cannot be read as declared.
        RetryError: something it stands on is away; nothing is lost, run it again.
    """
    from waybill.connectors import open_connector  # noqa: PLC0415
    from waybill.operations.ingest import Intake, ingest  # noqa: PLC0415
    from waybill.operations.undeliverable import Undeliverable  # noqa: PLC0415
    from waybill.parking import Parking  # noqa: PLC0415
    from waybill.pipelines import topic_of  # noqa: PLC0415
    from waybill.producer import LosslessProducer  # noqa: PLC0415

    objects = open_objects(settings.s3)
    with open_tracker(settings.tracker) as tracker:
        pipeline = active_pipeline(tracker, pipeline_name)
        connector = open_connector(pipeline.source, _folder_of(settings, pipeline.name))
        log = open_log(settings.kafka)
        log.wait_until_up(limit_s=_KAFKA_WAIT_S)
        log.ensure_topic(topic_of(pipeline))
        parking, recorder = Parking(tracker, objects), _recorder(settings)
        refused = Undeliverable(
            tracker, parking, objects, pipeline_version=pipeline.version, recorder=recorder
        )
        with LosslessProducer(
            settings.wal,
            _kafka_config(settings),
            name=f"ingest-{pipeline.id}",
            on_undeliverable=refused.park,
            was_taken=refused.taken,
            marks=True,
        ) as producer:
            intake = Intake(
                pipeline=pipeline,
                connector=connector,
                producer=producer,
                tracker=tracker,
                parking=parking,
                objects=objects,
                recorder=recorder,
                undeliverable=refused,
            )
            return ingest(intake, on_progress=on_progress)


def run_replay(  # noqa: PLR0913 - a partition has four names, a replay its conditions
    settings: Settings,
    *,
    pipeline: str,
    event_name: str,
    stage: str,
    error_type: str,
    since: datetime | None = None,
    until: datetime | None = None,
    parked_since: datetime | None = None,
    parked_until: datetime | None = None,
    fingerprint: str | None = None,
    max_events: int | None = None,
    rate_per_s: int | None = None,
    governed: bool = True,
    dry_run: bool = False,
    sample: int | None = None,
    canary: bool = False,
    enter: str | None = None,
    who: str,
    run_id: str,
) -> ReplayReport | CanaryReport | DryRunReport:
    """Replay a parked partition, or say what a replay with the active version would do."""
    from waybill.operations.replay import ReplayRequest  # noqa: PLC0415
    from waybill.operations.replayable import find_replayable  # noqa: PLC0415
    from waybill.parking import ReplayConditions  # noqa: PLC0415

    conditions = ReplayConditions(since, until, parked_since, parked_until, fingerprint, max_events)
    if dry_run:
        from waybill.operations.trying import DryRunRequest  # noqa: PLC0415
        from waybill.parking import EventChoice  # noqa: PLC0415

        choice = EventChoice(since, until, parked_since, parked_until, fingerprint, max_events)
        names = (pipeline, event_name, stage, error_type)
        return run_dry_run(
            settings, DryRunRequest(*names, choice=choice, sample=sample, enter=enter)
        )
    with opened_parking(settings) as parking:
        found = find_replayable(
            parking, pipeline, event_name=event_name, stage=stage, error_type=error_type
        )
    request = ReplayRequest(
        found.id, who, run_id, conditions, rate_per_s, governed=governed, enter=enter
    )
    if canary:
        return _canary(settings, found.pipeline_id, request)
    return _replay(settings, found.pipeline_id, request)


def _canary(settings: Settings, pipeline_id: str, request: ReplayRequest) -> CanaryReport:
    from waybill.operations.canary import CanaryParts, canary  # noqa: PLC0415
    from waybill.operations.outcome import ReplayWatch  # noqa: PLC0415
    from waybill.parking import Parking  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        parking, log = Parking(tracker, open_objects(settings.s3)), open_log(settings.kafka)
        pipeline, place = active_pipeline(tracker, pipeline_id), request.partition_id

        def watch(step: str) -> ReplayOutcome:
            watched = ReplayWatch(tracker, parking, log, pipeline, place, request.run_id, step=step)
            return watched.wait(limit_s=settings.parking.canary_wait_s)

        parts = CanaryParts(
            send=lambda step: _replay(settings, pipeline_id, step),
            watch=watch,
            known=lambda step: parking.replay_step(place, request.run_id, step),
            parked=lambda conditions: parking.count_parked(place, conditions),
            threshold=settings.parking.canary_threshold,
        )
        return canary(parts, request)


def _replay(settings: Settings, pipeline_id: str, request: ReplayRequest) -> ReplayReport:
    from waybill.operations.replay import ReplayParts, replay  # noqa: PLC0415
    from waybill.operations.undeliverable import Undeliverable  # noqa: PLC0415
    from waybill.parking import Parking  # noqa: PLC0415
    from waybill.producer import LosslessProducer  # noqa: PLC0415

    log = open_log(settings.kafka)
    log.wait_until_up(limit_s=_KAFKA_WAIT_S)
    with open_tracker(settings.tracker) as tracker:
        pipeline, recorder = active_pipeline(tracker, pipeline_id), _recorder(settings)
        objects = open_objects(settings.s3)
        parking = Parking(tracker, objects)
        refused = Undeliverable(
            tracker,
            parking,
            objects,
            pipeline_version=pipeline.version,
            stage=_entry(parking.partition(request.partition_id).stage, request.enter),
            recorder=recorder,
        )
        with LosslessProducer(
            settings.wal,
            _kafka_config(settings),
            name=f"replay-{request.partition_id}",
            on_undeliverable=refused.park,
            was_taken=refused.taken,
            marks=True,
        ) as producer:
            parts = ReplayParts(
                parking, producer, pipeline, recorder, undeliverable=refused, objects=objects
            )
            parts.watch = _watch(settings, tracker, log, pipeline) if request.governed else None
            return replay(parts, request)


def _entry(parked_at: str, enter: str | None) -> str:
    return enter if enter and parked_at == "mapping" else parked_at


def _watch(
    settings: Settings, tracker: TrackerStore, log: KafkaLog, pipeline: Pipeline
) -> TopicWatch | None:
    """Open what a replay is governed by; ``None``: there is no topic, so nothing is live in it."""
    from waybill.operations.governor import TopicWatch  # noqa: PLC0415
    from waybill.pipelines import topic_of  # noqa: PLC0415

    if (name := topic_of(pipeline)) not in log.topics():
        return None
    return TopicWatch(
        log,
        tracker,
        log.describe(name),
        destination=pipeline.destination,
        batch_events=settings.spark.max_events_per_batch,
    )


def replayable(  # noqa: PLR0913 - a partition has four names
    settings: Settings,
    *,
    pipeline: str,
    event_name: str,
    stage: str,
    error_type: str,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Partition:
    """Return the partition that a replay would send back.

    Raises:
        InputError: a name is wrong, or nothing is parked there; says which, and the nearest.
    """
    from waybill.operations.replayable import find_replayable, require_parked  # noqa: PLC0415

    with opened_parking(settings) as parking:
        found = find_replayable(
            parking, pipeline, event_name=event_name, stage=stage, error_type=error_type
        )
        require_parked(parking, found, since=since, until=until)
        return found


def replay_outcome(
    settings: Settings, partition: Partition, run_id: str, *, wait_s: float
) -> ReplayOutcome:
    """Return what became of the events that a run replayed, waiting up to ``wait_s`` for it."""
    from waybill.operations.outcome import ReplayWatch  # noqa: PLC0415
    from waybill.parking import Parking  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        parking = Parking(tracker, open_objects(settings.s3))
        pipeline = active_pipeline(tracker, partition.pipeline_id)
        log = open_log(settings.kafka)
        watch = ReplayWatch(tracker, parking, log, pipeline, partition.id, run_id)
        return watch.wait(limit_s=wait_s)


def run_dry_run(settings: Settings, request: DryRunRequest) -> DryRunReport:
    """Run parked events through the active version, or through a proposed one; write nothing."""
    from waybill.operations.trying import DryRunParts, try_out  # noqa: PLC0415

    objects, log = open_objects(settings.s3), open_log(settings.kafka)
    with open_tracker(settings.tracker) as tracker:
        parts = DryRunParts(tracker, objects, log, settings.spark.event_timeout_s)
        return try_out(parts, request)


def recheck_quarantine(
    settings: Settings, *, pipeline: str | None = None, who: str | None = None
) -> RecheckReport:
    """Park quarantined segments again whose bytes are right again: a pipeline's, or all."""
    with opened_parking(settings) as parking:
        pipeline_id = None if pipeline is None else parking.pipeline_id(pipeline)
        return parking.recheck(pipeline_id, who=who or current_user())


def parked_partitions(  # noqa: PLR0913 - filters on every dimension
    settings: Settings,
    *,
    pipeline: str | None = None,
    event_name: str | None = None,
    stage: str | None = None,
    error_type: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[Partition]:
    """Return the parked partitions that match."""
    from waybill.parking import Parking, PartitionFilter  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        pipeline_id = None if pipeline is None else active_pipeline(tracker, pipeline).id
        wanted = PartitionFilter(
            pipeline_id=pipeline_id,
            event_name=event_name,
            stage=stage,
            error_type=error_type,
            since=since,
            until=until,
        )
        return list(Parking(tracker, open_objects(settings.s3)).partitions(wanted))


def set_auto_replay(  # noqa: PLR0913 - a partition has four names
    settings: Settings,
    *,
    pipeline: str,
    event_name: str,
    stage: str,
    error_type: str,
    on_change: str | None,
    who: str,
) -> AutoReplay | None:
    """Mark a partition to replay when its cause changes; ``on_change`` None: take the mark away."""
    from waybill.operations.auto_replay import answering, mark_for_auto_replay  # noqa: PLC0415
    from waybill.parking import Parking  # noqa: PLC0415
    from waybill.parking.auto_replays import remove_mark  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        parking = Parking(tracker, open_objects(settings.s3))
        found = parking.find(pipeline, event_name=event_name, stage=stage, error_type=error_type)
        if on_change is None:
            remove_mark(tracker, found.id, who=who)
            return None
        healthy = answering(settings.destinations)
        return mark_for_auto_replay(
            tracker, parking, found.id, on_change=on_change, healthy=healthy, who=who
        )


def due_auto_replays(settings: Settings) -> list[AutoLaunch]:
    """Return the replays that changed causes call for."""
    from waybill.operations.auto_replay import answering, due_auto_replays  # noqa: PLC0415
    from waybill.parking import Parking  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        parking = Parking(tracker, open_objects(settings.s3))
        return due_auto_replays(tracker, parking, healthy=answering(settings.destinations))


def keep_auto_replays(settings: Settings, notes: Sequence[Mapping[str, Any]]) -> int:
    """Keep which replays were launched; returns how many marks were moved on."""
    from waybill.operations.auto_replay import launched  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        return sum(launched(tracker, **note) for note in notes)


def clean_up_parked_files(settings: Settings, *, grace_s: float | None = None) -> CleanUpReport:
    """Delete parked objects that are all dead past the grace; rewrite mostly dead ones."""
    own = settings.parking
    with opened_parking(settings) as parking:
        return parking.clean_up(
            grace_s=own.clean_up_grace_s if grace_s is None else grace_s,
            rewrite_below=own.rewrite_below,
            rewrite_from_bytes=own.rewrite_from_bytes,
        )


def probe_held_pipelines(settings: Settings) -> ProbeReport:
    """Probe the held pipelines that are due, release those that pass, list what is to go back."""
    from waybill.operations.probing import probe_held  # noqa: PLC0415
    from waybill.parking import Parking  # noqa: PLC0415

    objects = open_objects(settings.s3)
    with open_tracker(settings.tracker) as tracker:
        rate = settings.parking.probe_pass_rate
        return probe_held(tracker, Parking(tracker, objects), pass_rate=rate, fetch=objects.get)


def refresh_tracker(settings: Settings, *, grace_s: float | None = None) -> RefreshReport:
    """Reconcile tracker and bucket, and fold the ledger into minutes."""
    from waybill.ledger import fold  # noqa: PLC0415
    from waybill.parking import Parking  # noqa: PLC0415

    grace = settings.parking.garbage_grace_s if grace_s is None else grace_s
    with open_tracker(settings.tracker) as tracker:
        fold(tracker)
        return Parking(tracker, open_objects(settings.s3)).refresh(grace_s=grace)


def send_notices(settings: Settings) -> SendReport:
    """Tell owners what waits to be told, and write the digests that are due."""
    from waybill.notices import send_notices as send  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        return send(tracker, settings.notices)


def waiting_notices(settings: Settings) -> list[Waiting]:
    """Return what owners are still to be told, and what keeps it."""
    from waybill.notices import waiting  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        return waiting(tracker)


def send_test_notice(settings: Settings, owner: str, *, who: str) -> dict[str, str]:
    """Send an owner a test message by each sink; returns {sink: problem, empty if none}."""
    from waybill.notices import send_test  # noqa: PLC0415

    return send_test(settings.notices, owner, who=who)


def balance(
    settings: Settings, *, pipeline: str | None = None, since: datetime | None = None
) -> BalanceReport:
    """Return the books of all pipelines, or of one."""
    from waybill.operations.balancing import balance as read  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        pipeline_id = None if pipeline is None else active_pipeline(tracker, pipeline).id
        minute = None if since is None else int(since.timestamp() // 60)
        return read(tracker, open_log(settings.kafka), pipeline_id=pipeline_id, since_minute=minute)


def trail(settings: Settings, event_id: str) -> Trail:
    """Return where an event was, step by step."""
    from waybill.operations.trails import trail as read  # noqa: PLC0415
    from waybill.tracing import open_traces  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        return read(open_traces(settings), tracker, event_id)


def start_application(settings: Settings, kind: Kind, cluster: str) -> int:
    """Start a Spark application unless it runs; returns its pid."""
    from waybill.operations import applications  # noqa: PLC0415

    return applications.start(settings, kind, cluster)


def application_status(settings: Settings, kind: Kind, cluster: str) -> ApplicationStatus:
    """Tell whether a Spark application runs."""
    from waybill.operations import applications  # noqa: PLC0415

    return applications.status(settings, kind, cluster)


def application_last_words(settings: Settings, kind: Kind, cluster: str) -> str:
    """Return the end of an application's log."""
    from waybill.operations import applications  # noqa: PLC0415

    return applications.last_words(settings, kind, cluster)


def stop_application(settings: Settings, kind: Kind, cluster: str) -> bool:
    """Stop a Spark application; False when none runs."""
    from waybill.operations import applications  # noqa: PLC0415

    return applications.stop(settings, kind, cluster)


def _folder_of(settings: Settings, name: str) -> Path:
    """Return the folder that a pipeline's relative paths start from.

    Each folder is read by itself: a mistake in another pipeline's is not this one's business.
    """
    from waybill.pipelines import load_pipeline  # noqa: PLC0415

    root = settings.pipelines_dir.resolve()
    usual = root / name
    for folder in (usual, *(path for path in sorted(root.glob("*/")) if path != usual)):
        try:
            if load_pipeline(folder).name == name:
                return folder
        except InputError:
            continue
    return usual


def _kafka_config(settings: Settings) -> dict[str, Any]:
    return {"bootstrap.servers": settings.kafka.bootstrap_servers}


def _recorder(settings: Settings) -> Recorder | None:
    from waybill.tracing import open_recorder  # noqa: PLC0415

    return open_recorder(settings.traces) if settings.traces.enabled else None
