"""Pipelines that are undeployed: reading ends, what is on its way arrives, tables stay or go."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from waybill.deployment import (
    active_pipeline,
    begin_undeployment,
    note_problem,
    pipeline_of,
    read_undeployment,
    unfinished_drops,
)
from waybill.errors import InputError, RetryError, StopError
from waybill.settings import Settings
from waybill.storage import open_log, open_tracker

if TYPE_CHECKING:
    from waybill.access import Decision
    from waybill.deployment import Undeployment
    from waybill.pipelines import Pipeline
    from waybill.storage import TrackerStore
    from waybill.undeployment import OnTheWay, UndeployRequest

_LOG = logging.getLogger(__name__)
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
    reads_again: bool = False
    """Once it is deployed again, its source is read from its beginning: tables may be gone."""
    already: str = ""
    """When and by whom it was undeployed, where that was so before: nothing was done now."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Undeployable:
    """A pipeline that may be undeployed."""

    pipeline: Pipeline
    tables: tuple[str, ...]
    """Its tables by name."""
    ended: UndeployReport | None = None
    """It was undeployed just so before; nothing is to be done."""


def undeployable(settings: Settings, request: UndeployRequest) -> Undeployable:
    """Return a pipeline, unless something keeps it from being undeployed.

    Raises:
        InputError: nothing of that name is deployed, it is undeployed already with another end for
            its tables, replays are open, events are parked, or its tables cannot be dropped.
        RetryError: the tracker, or the destination whose tables are to be dropped, is away.
    """
    from waybill import undeployment

    if request.drop_tables and request.keep_tables:
        raise InputError("give --drop-tables or --keep-tables, not both")
    with open_tracker(settings.tracker) as tracker:
        pipeline = active_pipeline(tracker, request.pipeline)
        undeployment.refuse_pushed(pipeline)
        names = tuple(_table_names(tracker, pipeline))
        begun = read_undeployment(tracker, pipeline.id)
        if begun is not None and begun.done_at is not None:
            ended = _ended(tracker, pipeline, begun, request)
            if ended is None:
                became = "dropped" if begun.drop_tables else "kept"
                raise InputError(
                    f"pipeline {pipeline.name!r} {begun} already, with its tables {became}"
                )
            return Undeployable(pipeline, names, ended)
        begins = begun is None or begun.dropping_at is None
        if begins:
            with tracker.transaction() as connection:
                undeployment.refuse_hindered(
                    connection, pipeline, leave_parked=request.leave_parked
                )
        if request.drop_tables:
            undeployment.refuse_drop(
                tracker, pipeline, settings.destinations, settings.s3, looks=begins
            )
        return Undeployable(pipeline, names)


def _ended(
    tracker: TrackerStore,
    pipeline: Pipeline,
    begun: Undeployment | None,
    request: UndeployRequest,
) -> UndeployReport | None:
    """Return what came of an undeployment that has ended as it is asked for; None: it has not."""
    if begun is None or begun.done_at is None or begun.drop_tables != request.drop_tables:
        return None
    return UndeployReport(
        pipeline.name,
        pipeline.id,
        is_done=True,
        dropped=tuple(_table_names(tracker, pipeline)) if begun.drop_tables else (),
        reads_again=begun.dropping_at is not None,
        already=str(begun),
    )


@dataclass(frozen=True, slots=True)
class UndeployWatch:
    """What somebody who undeploys a pipeline is told on the way."""

    begun: Callable[[], object] = lambda: None
    """Called once its source is not read any more: it is not refused from then on."""
    waits: Callable[[str], object] = lambda _words: None
    """Gets a sentence when what is waited for changes."""


_NOBODY = UndeployWatch()


def run_undeploy(
    settings: Settings,
    request: UndeployRequest,
    decision: Decision,
    watch: UndeployWatch = _NOBODY,
) -> UndeployReport:
    """Undeploy a pipeline, or go on with it; safe to run again after any death.

    Where it ended before, or somebody else ends it meanwhile, as it is asked for, that is returned.

    Args:
        settings: all.
        request: which, and what becomes of its tables.
        decision: whose it is, and why.
        watch: what is told on the way.

    Raises:
        InputError: as of ``undeployable``; it was deployed meanwhile; or the destination refuses to
            drop its tables, which is noted.
        RetryError: Kafka, the tracker or the destination is away, or somebody else goes on with it
            at this moment; run it again.
    """
    found = undeployable(settings, request)
    if found.ended is not None:
        return found.ended
    try:
        return _undeployed(settings, request, decision, watch, found)
    except InputError:
        with open_tracker(settings.tracker) as tracker:
            begun = read_undeployment(tracker, found.pipeline.id)
            ended = _ended(tracker, found.pipeline, begun, request)
        if ended is None:
            raise
        return ended


def _undeployed(
    settings: Settings,
    request: UndeployRequest,
    decision: Decision,
    watch: UndeployWatch,
    found: Undeployable,
) -> UndeployReport:
    """Undeploy a pipeline that may be; see ``run_undeploy``."""
    from waybill import undeployment

    pipeline = found.pipeline
    deadline = time.monotonic() + request.wait
    with open_tracker(settings.tracker) as tracker:
        begun = begin_undeployment(
            tracker,
            pipeline,
            decision,
            drop_tables=request.drop_tables,
            keep_tables=request.keep_tables,
        )
        watch.begun()
        dropped = found.tables if request.drop_tables else ()
        while True:
            left = _drained(settings, tracker, pipeline, decision, deadline, watch.waits)
            if left:
                said = tuple(left.lines())
                return UndeployReport(pipeline.name, pipeline.id, is_done=False, waits_for=said)
            drained = undeployment.Drained(pipeline, begun, left, request.leave_parked)
            if request.drop_tables:
                if not undeployment.begin_drop(tracker, drained, settings.destinations):
                    continue
                _drop(settings, tracker, pipeline, begun)
            if undeployment.finish(tracker, drained, decision, dropped):
                break
    return UndeployReport(
        pipeline.name,
        pipeline.id,
        is_done=True,
        dropped=dropped,
        reads_again=bool(dropped) or begun.dropping_at is not None,
    )


def finish_drops(settings: Settings) -> list[UndeployReport]:
    """Try again to drop the tables of pipelines where that failed, or its process died.

    Where a destination refuses once more, that is noted; where a pipeline cannot be read, it is
    logged: the others are gone on with.

    Raises:
        RetryError: the tracker is away.
    """
    with open_tracker(settings.tracker) as tracker:
        return [_dropped_now(settings, tracker, begun) for begun in unfinished_drops(tracker)]


def _dropped_now(settings: Settings, tracker: TrackerStore, begun: Undeployment) -> UndeployReport:
    from waybill import undeployment
    from waybill.access import Decision

    name, pipeline_id = begun.pipeline_id, begun.pipeline_id
    try:
        pipeline = pipeline_of(tracker, pipeline_id)
        name = pipeline.name
        names = tuple(_table_names(tracker, pipeline))
        looked = undeployment.OnTheWay(None, (), 0)
        drained = undeployment.Drained(pipeline, begun, looked, leave_parked=True)
        _drop(settings, tracker, pipeline, begun)
        undeployment.finish(tracker, drained, Decision(begun.asked_by, begun.why), names)
    except (InputError, RetryError) as error:
        _LOG.warning("the tables of %r (id %r) are not dropped: %s", name, pipeline_id, error)
        return UndeployReport(name, pipeline_id, is_done=False, waits_for=(str(error),))
    return UndeployReport(name, pipeline_id, is_done=True, dropped=names, reads_again=True)


def _drop(
    settings: Settings, tracker: TrackerStore, pipeline: Pipeline, begun: Undeployment
) -> None:
    """Drop a pipeline's tables; note it where the destination refuses.

    Raises:
        InputError: it refuses; says what to do.
        RetryError: it is away.
    """
    from waybill import undeployment

    try:
        undeployment.drop_tables(tracker, pipeline, begun, settings.destinations, settings.s3)
    except undeployment.DropRefusedError as error:
        note_problem(tracker, pipeline, begun, str(error))
        raise InputError(
            f"{error}. The tables of {pipeline.name!r} are as they were: mend that and run the "
            "same command again, which the DAG refresh_tracker does each hour, or keep them: "
            f"`waybill pipelines undeploy {pipeline.name} --keep-tables`"
        ) from error


def _drained(
    settings: Settings,
    tracker: TrackerStore,
    pipeline: Pipeline,
    decision: Decision,
    deadline: float,
    tell: Callable[[str], object],
) -> OnTheWay:
    """Wait until nothing of a pipeline is on its way; return what is when the wait is over.

    A log that lies on another machine is not waited for: only there it can be brought to Kafka.
    """
    from waybill import undeployment
    from waybill.ledger import LogElsewhereError

    log, told = open_log(settings.kafka), [""]

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
        try:
            say(_advance(settings, tracker, pipeline, decision, left))
        except LogElsewhereError:
            return left
        time.sleep(_LOOK_S)


def _advance(
    settings: Settings,
    tracker: TrackerStore,
    pipeline: Pipeline,
    decision: Decision,
    left: OnTheWay,
) -> str:
    """Stop a run that goes on, or empty a dead one's log; return why that is not done.

    Raises:
        LogElsewhereError: the log lies on another machine.
    """
    if left.run is not None and left.run.state == "running":
        _ask_stop(tracker, pipeline, decision)
    elif left.is_left_by_dead:
        return _emptied(settings, pipeline, decision)
    return ""


def _ask_stop(tracker: TrackerStore, pipeline: Pipeline, decision: Decision) -> None:
    from waybill.ledger import ask_stop

    try:
        ask_stop(tracker, pipeline.id, decision)
    except InputError:
        return  # it ended meanwhile, or was asked before


def _emptied(settings: Settings, pipeline: Pipeline, decision: Decision) -> str:
    """Bring what dead runs left in a log to Kafka; return why that is not done, empty: it is.

    Raises:
        LogElsewhereError: the log lies on another machine.
    """
    from waybill.ingestion import IngestRequest
    from waybill.ledger import LogElsewhereError
    from waybill.services.ingestion import AskedRun, run_ingest

    asked = AskedRun(IngestRequest(), f"undeploy-{pipeline.id}", decision.who, drains=True)
    try:
        run_ingest(settings, pipeline.name, asked=asked)
    except LogElsewhereError:
        raise
    except (InputError, RetryError, StopError) as error:
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
