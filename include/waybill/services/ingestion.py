"""Pipelines: those that are deployed, read from their sources.

Write-ahead logs: which there are, and ending one by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waybill.deployment import active_pipeline, active_pipelines, refuse_undeployed
from waybill.errors import InputError, NotFoundError, RetryError
from waybill.services.environment import KAFKA_WAIT_S, node_of, open_producer, open_recording
from waybill.settings import Settings
from waybill.storage import open_log, open_owned_objects, open_tracker, refuse_foreign_bucket

if TYPE_CHECKING:
    from waybill.access import Decision
    from waybill.deployment import LoadedTable
    from waybill.ingestion import IngestReport, IngestRequest, RunProgress, Turn, WaitLimit
    from waybill.ingestion.connectors import Connector, Cursor
    from waybill.ledger import CursorReset, LogLine
    from waybill.pipelines import Pipeline
    from waybill.storage import KafkaLog, TrackerStore


def deployed_pipeline(settings: Settings, name: str) -> Pipeline:
    """Return the active version of one pipeline, by name or id.

    Raises:
        InputError: nothing of that name is deployed.
    """
    with open_tracker(settings.tracker) as tracker:
        return active_pipeline(tracker, name)


def ingestible_pipeline(settings: Settings, name: str) -> Pipeline:
    """Return the active version of one pipeline, by name or id, whose source is read.

    Raises:
        InputError: nothing of that name is deployed, or it was undeployed: says when and by whom.
    """
    with open_tracker(settings.tracker) as tracker:
        pipeline = active_pipeline(tracker, name)
        refuse_undeployed(tracker, pipeline)
    return pipeline


def tables_loaded_by(settings: Settings, cluster: str) -> list[LoadedTable]:
    """Return the tables that a virtual cluster's application loads."""
    from waybill.deployment import loaded_tables

    with open_tracker(settings.tracker) as tracker:
        return loaded_tables(tracker, cluster)


def deployed_names(settings: Settings) -> list[str]:
    """Return the names of the deployed pipelines; no declaration is read."""
    from waybill.deployment import active_heads

    with open_tracker(settings.tracker) as tracker:
        return sorted(head.name for head in active_heads(tracker).values())


def deployed_pipelines(settings: Settings) -> dict[str, Pipeline]:
    """Return {pipeline id: active version}."""
    with open_tracker(settings.tracker) as tracker:
        return active_pipelines(tracker)


@dataclass(frozen=True, slots=True)
class AskedRun:
    """A run of ingestion that somebody started."""

    request: IngestRequest
    run_id: str
    """What it asks for is done once, however often this run is tried."""
    user: str
    """Who started it, as Airflow knows them."""
    drains: bool = False
    """It brings what dead runs left in the log to Kafka, and reads nothing: the only run that a
    pipeline takes which is undeployed."""


def run_ingest(
    settings: Settings,
    pipeline_name: str,
    *,
    now_us: Callable[[], int] | None = None,
    lookup: Callable[[str], str | None] | None = None,
    asked: AskedRun | None = None,
    turn: Turn | None = None,
) -> IngestReport:
    """Run a pipeline's connector to the end of its source, or of its turn.

    Args:
        settings: all.
        pipeline_name: of a deployed pipeline.
        now_us: the clock that stamps events, in microseconds since 1970; None: the machine's.
        lookup: finds a connection's URI or JSON by its name, beside settings and environment.
        asked: where it is to begin, or that it reads nothing; None: where the last run stopped.
        turn: the run has a slot of a worker, which it may be told to give back at a page; the
            report is of all its turns. None: it has none.

    Raises:
        TurnEndedError: it gave its slot back, and is to go on later.
        InputError: no such pipeline, or its source cannot be read as declared, or from there.
        RetryError: something it stands on is away; nothing is lost, run it again.
        FencedError: another run has taken the source over, and goes on instead.
    """
    from waybill.events import wall_us
    from waybill.ingestion import (
        Intake,
        SourceClaim,
        Undeliverable,
        WaitLimit,
        ingest,
    )
    from waybill.ingestion.connectors import Connections, closing_connector, open_connector
    from waybill.parking import Parking
    from waybill.pipelines import topic_of
    from waybill.topics import open_writing_topic

    refuse_foreign_bucket(settings)
    objects = open_owned_objects(settings)
    wait = WaitLimit(turn.kafka_wait_s) if turn and turn.kafka_wait_s else None
    with open_tracker(settings.tracker) as tracker, ExitStack() as opened:
        pipeline = _readable(tracker, pipeline_name, asked)
        node = node_of(settings)
        told = opened.enter_context(_told(tracker, pipeline, node, turn))
        folder = _folder_of(settings, pipeline.name)
        connector = open_connector(
            pipeline.source,
            folder,
            settings.sources.roots_of(pipeline.team),
            events=pipeline.events,
            connections=Connections(settings.sources.connections_of(pipeline.team), lookup),
            settings=settings,
        )
        log = open_log(settings.kafka)
        _wait_for_kafka(log, wait)
        open_writing_topic(tracker, log, topic_of(pipeline))
        parking, recorder = Parking(tracker, objects), open_recording(settings)
        refused = Undeliverable(
            tracker, parking, objects, pipeline_version=pipeline.version, recorder=recorder
        )
        name = f"ingest-{pipeline.id}"
        takes_over = asked is None or not asked.drains
        claim = SourceClaim(tracker, log, pipeline, name, node, recorder)
        claim.takes_over = takes_over
        with (
            closing_connector(connector),
            claim.ending(),
            open_producer(settings, name, refused, claim, wait=wait) as producer,
            claim.stopping(producer),
        ):
            told.claimed()
            _refuse_to_read(tracker, pipeline, asked)  # who undeploys it sees this run's log now
            intake = Intake(
                pipeline=pipeline,
                connector=connector,
                producer=producer,
                tracker=tracker,
                parking=parking,
                objects=objects,
                log=log,
                lease=claim.lease,
                recorder=recorder,
                undeliverable=refused,
                reset=None if asked is None else _reset_of(tracker, connector, pipeline, asked),
                now_us=now_us or wall_us,
                told=told,
                drains=asked.user if asked is not None and asked.drains else "",
                turn=turn,
            )
            return ingest(intake)


def _readable(tracker: TrackerStore, name: str, asked: AskedRun | None) -> Pipeline:
    """Return a deployed pipeline, unless its source is not to be read.

    Raises:
        InputError: nothing of that name is deployed, or it is undeployed.
    """
    pipeline = active_pipeline(tracker, name)
    _refuse_to_read(tracker, pipeline, asked)
    return pipeline


def _refuse_to_read(tracker: TrackerStore, pipeline: Pipeline, asked: AskedRun | None) -> None:
    if asked is None or not asked.drains:
        refuse_undeployed(tracker, pipeline)


@contextmanager
def _told(
    tracker: TrackerStore, pipeline: Pipeline, node: str, turn: Turn | None
) -> Iterator[RunProgress]:
    """Tell of a run; its turn ends where Kafka is waited for in vain before the first page."""
    from waybill.ingestion import (
        IngestReport,
        KafkaWaitError,
        RunProgress,
        RunSoFar,
        Turn,
        TurnEndedError,
    )

    turn = turn or Turn()
    with RunProgress(
        tracker, pipeline.id, node, is_ended=turn.is_ended, before=turn.before
    ) as told:
        try:
            yield told
        except KafkaWaitError as error:
            nothing = IngestReport.nothing(pipeline.name)
            report = nothing if turn.before is None else turn.before.report
            so_far = RunSoFar(told.run, report, told.figures)
            raise TurnEndedError("kafka", str(error), so_far) from error


def _wait_for_kafka(log: KafkaLog, wait: WaitLimit | None) -> None:
    from waybill.ingestion import KafkaWaitError

    try:
        log.wait_until_up(limit_s=wait.limit_s if wait else KAFKA_WAIT_S)
    except RetryError as error:
        if wait is None:
            raise
        raise KafkaWaitError(str(error)) from error


@dataclass(frozen=True, slots=True)
class IngestProgress:
    """How far a pipeline's source is read."""

    rows: int
    """Committed since the connector began at the beginning, or was last moved."""
    unsettled: int
    """Events in its write-ahead logs whose page was not committed when that was last told."""
    is_held: bool
    """Whether what is read waits until somebody releases the pipeline."""
    failed_at: datetime | None = None
    """When a run, or a try of one, failed last; None: never, or it succeeded since."""
    error: str = ""
    """Of that failure."""


def ingest_progress(settings: Settings, pipeline: Pipeline) -> IngestProgress:
    """Return how far a deployed pipeline's source is read."""
    from waybill.ledger import SourceFilter, read_logs, read_position, read_sources
    from waybill.parking import held_pipelines

    with open_tracker(settings.tracker) as tracker:
        sources = read_sources(tracker, SourceFilter(name=pipeline.id)).sources
        failed = [one for one in sources if one.pipeline_id == pipeline.id and one.failed_since]
        logs = [log for log in read_logs(tracker) if log.pipeline_id == pipeline.id]
        return IngestProgress(
            read_position(tracker, pipeline.id).rows_read,
            sum(log.unsettled for log in logs if log.purpose == "ingestion"),
            pipeline.id in held_pipelines(tracker),
            failed[0].failed_at if failed else None,
            failed[0].error if failed else "",
        )


def _reset_of(
    tracker: TrackerStore, connector: Connector, pipeline: Pipeline, asked: AskedRun
) -> CursorReset | None:
    """Return what a request does to the cursor; None: nothing.

    A try of a run that moved it before asks the source nothing: rows of the value may be gone.

    Raises:
        InputError: the source cannot be read from there; says what can be done.
        RetryError: it did not answer.
    """
    from waybill.ingestion.connectors import HoldingConnector, reads_again
    from waybill.ledger import CursorReset, is_reset, read_position

    request, kind = asked.request, pipeline.source.connector
    if not request.moves_cursor:
        return None
    if is_reset(tracker, pipeline.id, asked.run_id):
        return CursorReset(asked.run_id, "", "")
    if not reads_again(connector):
        raise InputError(f"connector {kind!r}: what was read is gone from its source")
    if request.put_back and isinstance(connector, HoldingConnector):
        raise InputError(
            f"put_back: connector {kind!r}: its source keeps no changes that were read already;"
            " --full reads all of it anew"
        )
    stands = read_position(tracker, pipeline.id).cursor
    return CursorReset(
        asked.run_id,
        (request.who or "").strip() or asked.user,
        request.why or "",
        _cursor_of(connector, kind, request, stands),
        request.put_back,
        _reread_of(connector, kind, request, stands),
        {
            "run_id": asked.run_id,
            "user": asked.user,
            "value": request.begin,
            "last_value": request.end,
        },
    )


def check_values(pipeline: Pipeline, request: IngestRequest) -> None:
    """Refuse values to read from or to that no run of a pipeline could take; opens nothing.

    Whether a source of ``sql``, or one that a package brings, takes them only its run can tell.

    Raises:
        InputError: the form of a value is wrong, or this kind of source takes none.
    """
    from waybill.ingestion.connectors import FormCheckingConnector, connector_class
    from waybill.pipelines import PUSHED

    kind = pipeline.source.connector
    own = None if request.begin is None or kind == PUSHED else connector_class(kind)
    if request.begin is None or own is None:
        return
    if not hasattr(own, "cursor_at"):
        raise _no_values(kind)
    if isinstance(own, FormCheckingConnector):
        own.check_value("from", request.begin)
        if request.end is not None:
            own.check_value("to", request.end)


def _no_values(kind: str) -> InputError:
    return InputError(
        f"from: the cursor of connector {kind!r} is its source's own, and no value of it can be"
        " given; --full reads the source from its beginning"
    )


def _cursor_of(
    connector: Connector, kind: str, request: IngestRequest, stands: Cursor | None
) -> dict[str, Any] | None:
    """Return the cursor from which all is read again; None: no value of it is named."""
    from waybill.ingestion.connectors import SeekingConnector

    if request.begin is None or request.end is not None:
        return None
    if isinstance(connector, SeekingConnector):
        return connector.cursor_at(request.begin, stands)
    raise _no_values(kind)


def _reread_of(
    connector: Connector, kind: str, request: IngestRequest, stands: Cursor | None
) -> dict[str, Any] | None:
    """Return the range that is read again, apart from where the source stands; None: none is."""
    from waybill.ingestion.connectors import BoundedConnector

    if request.begin is None or request.end is None:
        return None
    if isinstance(connector, BoundedConnector):
        return connector.reread_between(request.begin, request.end, stands)
    raise InputError(
        f"to: connector {kind!r} cannot end at a value; without it, a source that takes from is"
        " read again to its end"
    )


def _folder_of(settings: Settings, name: str) -> Path:
    """Return the folder that a pipeline's relative paths start from, and its source lies in.

    Each folder is read by itself: a mistake in another pipeline's is not this one's business.

    Raises:
        InputError: it is a link that leads out of the folder of pipelines and of the roots.
    """
    from waybill.pipelines import load_pipeline

    roots = [place.resolve() for place in (settings.pipelines_dir, *settings.more_pipelines_dirs)]
    usual = [root / name for root in roots]
    others = (path for root in roots for path in sorted(root.glob("*/")) if path not in usual)
    for folder in (*usual, *others):
        try:
            declared = load_pipeline(folder).name
        except InputError:
            continue
        if declared == name:
            return _inside(settings, folder)
    return _inside(settings, usual[0])


def _inside(settings: Settings, folder: Path) -> Path:
    places = (settings.pipelines_dir, *settings.more_pipelines_dirs, *settings.sources.roots)
    allowed = [place.resolve() for place in places]
    if any(folder.resolve().is_relative_to(place) for place in allowed):
        return folder
    raise InputError(
        f"the pipeline's folder {folder} is a link that leads to {folder.resolve()}; copy the"
        " folder, or list a folder above its target in WAYBILL_SOURCES__ROOTS"
    )


def write_ahead_logs(
    settings: Settings, *, wal_id: str | None = None, every: bool = False
) -> list[LogLine]:
    """Return the write-ahead logs that the tracker knows, the last seen first.

    Args:
        settings: all.
        wal_id: only those whose id begins so.
        every: those that are closed or ended as well.
    """
    from waybill.ledger import read_logs

    with open_tracker(settings.tracker) as tracker:
        return read_logs(tracker, wal_id=wal_id, every=every)


def write_ahead_log(settings: Settings, wal_id: str) -> LogLine:
    """Return one log by the beginning of its id.

    Raises:
        InputError: none begins so, or several do.
    """
    found = write_ahead_logs(settings, wal_id=wal_id, every=True) if wal_id else []
    if len(found) != 1:
        many = "several logs have ids that begin" if found else "no log has an id that begins"
        error = InputError if found else NotFoundError
        raise error(f"{many} with {wal_id!r}; `waybill logs list --all` shows them")
    return found[0]


def settle_log(settings: Settings, wal_id: str, decision: Decision) -> int:
    """End a log by name; return how many events it had sent that were not counted yet.

    Raises:
        InputError: it is closed or ended, or the decision says not why.
        RetryError: Kafka or the tracker is away; call again.
    """
    from waybill.ingestion import settle

    with open_tracker(settings.tracker) as tracker:
        log, recorder = open_log(settings.kafka), open_recording(settings)
        return settle(
            tracker,
            log,
            wal_id,
            who=decision.who,
            reason=decision.require_why(),
            recorder=recorder,
        )
