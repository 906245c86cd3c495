"""Pipelines that are undeployed: reading ends, what is on its way arrives, tables stay or go."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from waybill.deployment import (
    active_pipeline,
    begin_drop,
    begin_undeployment,
    read_undeployment,
)
from waybill.errors import InputError, RetryError
from waybill.settings import Settings
from waybill.storage import open_log, open_tracker

if TYPE_CHECKING:
    from waybill.access import Decision
    from waybill.pipelines import Pipeline
    from waybill.storage import TrackerStore
    from waybill.undeployment import OnTheWay, UndeployRequest

_LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class UndeployReport:
    """How far an undeployment is."""

    pipeline: str
    pipeline_id: str
    is_done: bool
    waits_for: tuple[str, ...] = ()
    """Sentences: what is on its way still."""
    dropped: tuple[str, ...] = ()
    """Tables."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def undeployable(settings: Settings, request: UndeployRequest) -> tuple[Pipeline, list[str]]:
    """Return a pipeline, and its tables by name, unless something keeps it from being undeployed.

    Raises:
        InputError: nothing of that name is deployed, replays are open, events are parked, or its
            tables cannot be dropped.
    """
    from waybill import undeployment

    with open_tracker(settings.tracker) as tracker:
        pipeline = active_pipeline(tracker, request.pipeline)
        undeployment.refuse_pushed(pipeline)
        begun = read_undeployment(tracker, pipeline.id)
        if begun is None or begun.dropping_at is None:
            with tracker.transaction() as connection:
                undeployment.refuse_hindered(
                    connection, pipeline, leave_parked=request.leave_parked
                )
        if request.drop_tables:
            undeployment.refuse_drop(tracker, pipeline, settings.destinations, settings.s3)
        return pipeline, _table_names(tracker, pipeline)


def run_undeploy(
    settings: Settings,
    request: UndeployRequest,
    decision: Decision,
    tell: Callable[[str], None] = lambda _words: None,
) -> UndeployReport:
    """Undeploy a pipeline, or go on with it; safe to run again after any death.

    Args:
        settings: all.
        request: which, and what becomes of its tables.
        decision: whose it is, and why.
        tell: gets a sentence when what is waited for changes.

    Raises:
        InputError: as of ``undeployable``; it was undeployed already, or deployed meanwhile.
        RetryError: Kafka, the tracker or the destination is away; run it again.
    """
    from waybill import undeployment

    pipeline, names = undeployable(settings, request)
    with open_tracker(settings.tracker) as tracker:
        begun = begin_undeployment(tracker, pipeline, decision, drop_tables=request.drop_tables)
        if begun.dropping_at is None:
            left = _drained(settings, tracker, pipeline, request, decision, tell)
            if left:
                said = tuple(left.lines())
                return UndeployReport(pipeline.name, pipeline.id, is_done=False, waits_for=said)
        dropped: list[str] = []
        if request.drop_tables:
            _drop(settings, tracker, pipeline, request)
            dropped = names
        undeployment.finish(tracker, pipeline, decision, dropped, leave_parked=request.leave_parked)
    return UndeployReport(pipeline.name, pipeline.id, is_done=True, dropped=tuple(dropped))


def _drop(
    settings: Settings, tracker: TrackerStore, pipeline: Pipeline, request: UndeployRequest
) -> None:
    from waybill import undeployment

    begun = read_undeployment(tracker, pipeline.id)
    if begun is not None and begun.dropping_at is None:
        with tracker.transaction() as connection:
            undeployment.refuse_hindered(connection, pipeline, leave_parked=request.leave_parked)
    tables = undeployment.tables_of(tracker, pipeline)
    begin_drop(tracker, pipeline, tables)
    undeployment.drop_tables(
        pipeline.destination,
        settings.destinations[pipeline.destination],
        settings.s3,
        tables,
    )


def _drained(
    settings: Settings,
    tracker: TrackerStore,
    pipeline: Pipeline,
    request: UndeployRequest,
    decision: Decision,
    tell: Callable[[str], None],
) -> OnTheWay:
    """Wait until nothing of a pipeline is on its way; return what is when the wait is over."""
    from waybill import undeployment

    log, deadline, told = open_log(settings.kafka), time.monotonic() + request.wait, [""]

    def say(words: str) -> None:
        if words and words != told[0]:
            told[0] = words
            tell(words)

    while True:
        left = undeployment.on_the_way(tracker, log, pipeline)
        if not left or time.monotonic() > deadline:
            return left
        say("; ".join(left.lines()))
        if read_undeployment(tracker, pipeline.id) is None:
            raise InputError(f"pipeline {pipeline.name!r} was deployed meanwhile: it goes on")
        if left.run is not None and left.run.state == "running":
            _ask_stop(tracker, pipeline, decision)
        elif left.is_left_by_dead:
            say(_emptied(settings, pipeline, decision))
        time.sleep(_LOOK_S)


def _ask_stop(tracker: TrackerStore, pipeline: Pipeline, decision: Decision) -> None:
    from waybill.ledger import ask_stop

    try:
        ask_stop(tracker, pipeline.id, decision)
    except InputError:
        return  # it ended meanwhile, or was asked before


def _emptied(settings: Settings, pipeline: Pipeline, decision: Decision) -> str:
    """Bring what dead runs left in a log to Kafka; return why that is not done, empty: it is."""
    from waybill.ingestion import IngestRequest
    from waybill.services.ingestion import AskedRun, run_ingest

    asked = AskedRun(IngestRequest(), f"undeploy-{pipeline.id}", decision.who, drains=True)
    try:
        run_ingest(settings, pipeline.name, asked=asked)
    except (InputError, RetryError) as error:
        return f"its write-ahead log is not emptied: {error}"
    return ""


def _table_names(tracker: TrackerStore, pipeline: Pipeline) -> list[str]:
    from waybill import undeployment

    specs = undeployment.tables_of(tracker, pipeline)
    return [
        f"{spec.schema_name}.{name}"
        for spec in specs
        for name in (spec.name, *(child.name for child in spec.children))
    ]
