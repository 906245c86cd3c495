"""Pipelines: deployed, and read from their sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from waybill.errors import InputError
from waybill.operations.learning import rules_for
from waybill.operations.registry import DeployReport, active_pipeline, active_pipelines, deploy
from waybill.pipelines import load_pipeline
from waybill.settings import Settings
from waybill.storage import open_log, open_objects, open_tracker

if TYPE_CHECKING:
    from waybill.operations.ingest import IngestReport
    from waybill.pipelines import Pipeline
from waybill.wiring.opening import KAFKA_WAIT_S, kafka_config, open_recording


def run_deploy(settings: Settings, directory: Path, *, who: str) -> DeployReport:
    """Deploy the declaration in a folder."""
    with open_tracker(settings.tracker) as tracker:
        rules = rules_for(load_pipeline(directory), settings.destinations)
        return deploy(tracker, directory, who=who, rules=rules)


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
        log.wait_until_up(limit_s=KAFKA_WAIT_S)
        log.ensure_topic(topic_of(pipeline))
        parking, recorder = Parking(tracker, objects), open_recording(settings)
        refused = Undeliverable(
            tracker, parking, objects, pipeline_version=pipeline.version, recorder=recorder
        )
        with LosslessProducer(
            settings.wal,
            kafka_config(settings),
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
