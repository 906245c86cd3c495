"""The auditor: rounds, names, breaches.

The eager checks: what is out of the usual, told as breaches.

The books.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from waybill.deployment import active_pipeline
from waybill.errors import NotFoundError, RetryError, WaybillError
from waybill.settings import Settings
from waybill.storage import (
    TrackerStore,
    open_log,
    open_owned_objects,
    open_tracker,
    refuse_foreign_bucket,
)

if TYPE_CHECKING:
    from waybill.access import Decision
    from waybill.ingestion.connectors import HeldLog
    from waybill.pipelines import PipelineHead
    from waybill.reconciliation import AuditReport, BalanceReport, Breach, NamingReport
    from waybill.reconciliation.checks import WatchReport
    from waybill.tracing import CompactionReport


_LOG = logging.getLogger(__name__)


def run_audit(settings: Settings) -> dict[str, Any]:
    """Run one round of the audit and name what can be named; returns both reports as JSON.

    Raises:
        RetryError: the tracker or Kafka is away. Where only the trace store is, the round stands,
            and ``naming`` says so.
    """
    found = audit_round(settings).to_json()
    if not settings.traces.enabled:
        return {**found, "naming": None}
    try:
        return {**found, "naming": name_breaches(settings).to_json()}
    except RetryError as error:
        _LOG.warning("breaches cannot be named now: %s", error)
        return {**found, "naming": None, "naming_problem": str(error)}


def audit_round(settings: Settings) -> AuditReport:
    """Run one round of the audit."""
    from waybill.reconciliation import AuditLimits, audit

    own = settings.audit
    limits = AuditLimits(
        log_records=own.log_records,
        unloaded_batches=own.unloaded_batches,
        minutes=own.minutes,
        compare_ids=own.compare_ids and settings.traces.enabled,
    )
    with open_tracker(settings.tracker) as tracker:
        return audit(tracker, open_log(settings.kafka), limits)


def name_breaches(settings: Settings) -> NamingReport:
    """Name the events of breaches whose traces are in."""
    from waybill.reconciliation import NamingLimits, name_breaches
    from waybill.tracing import open_traces

    own = settings.audit
    limits = NamingLimits(
        patience_s=own.naming_patience_s,
        compare_within_s=own.compare_within_s,
        budget_s=own.naming_budget_s,
        ids=own.named_ids,
    )
    with open_tracker(settings.tracker) as tracker:
        return name_breaches(tracker, open_traces(settings), limits)


def breaches(
    settings: Settings,
    *,
    pipeline: str | None = None,
    states: Sequence[str] | None = ("open",),
    since: datetime | None = None,
    limit: int = 1000,
) -> list[Breach]:
    """Return breaches, the newest first; of all pipelines, or of one by name or id."""
    from waybill.reconciliation import read_breaches

    with open_tracker(settings.tracker) as tracker:
        ids = None if pipeline is None else [active_pipeline(tracker, pipeline).id]
        return read_breaches(tracker, pipeline_ids=ids, states=states, since=since, limit=limit)


def breach(settings: Settings, breach_id: int) -> Breach:
    """Return one breach.

    Raises:
        InputError: there is none of this number.
    """
    from waybill.reconciliation import read_breach

    with open_tracker(settings.tracker) as tracker:
        found = read_breach(tracker, breach_id)
    if found is None:
        raise NotFoundError(f"there is no breach {breach_id}; `waybill audit breaches` lists them")
    return found


def close_breach(settings: Settings, breach_id: int, decision: Decision) -> Breach:
    """Close a breach by name."""
    from waybill.reconciliation import close_breach as close

    with open_tracker(settings.tracker) as tracker:
        return close(tracker, breach_id, decision)


def tell_task_failed(
    settings: Settings, words: str, *, kind: str = "task", pipeline: str = ""
) -> dict[str, str]:
    """Tell that a task fails; returns {sink: problem, empty if none}.

    That of a pipeline is a notice to its owner, kept in the tracker and sent with the others: {} is
    returned. Every other, and where the tracker does not take it, is sent by each sink at once.

    Args:
        settings: all.
        words: what happened, in a sentence.
        kind: "task" or "upkeep".
        pipeline: name of the one whose task it is. Empty: it is of none, and a mail goes to the
            fallback address; so it does where the tracker is away, or nobody deployed it.
    """
    from uuid import uuid4

    from waybill.notices import Message, NamedCounts, open_sinks

    if pipeline and _is_noted(settings, pipeline, words):
        return {}
    named = (NamedCounts(kind, pipeline, datetime.now(UTC), {}),) if pipeline else ()
    message = Message(uuid4(), "", named, {kind: 1}, words=words)
    found = {}
    for sink in open_sinks(settings.notices):
        try:
            sink.send(message)
            found[sink.name] = ""
        except WaybillError as error:
            _LOG.exception("%s did not take the word that a task failed", sink.name)
            found[sink.name] = str(error)
    return found


def _is_noted(settings: Settings, pipeline: str, words: str) -> bool:
    """Write the notice of a pipeline's failed task; False: the tracker does not take it."""
    from waybill.notices import write_notice

    try:
        with open_tracker(settings.tracker) as tracker:
            pipeline_id = active_pipeline(tracker, pipeline).id
            with tracker.transaction() as connection:
                write_notice(connection, kind="task", pipeline_id=pipeline_id, message=words)
    except WaybillError as error:
        _LOG.warning("the owner of %r is not known here: %s", pipeline, error)
        return False
    return True


def watch(settings: Settings, *, lookup: Callable[[str], str | None] | None = None) -> WatchReport:
    """Look once, open a breach for what is found, end those that are over.

    Args:
        settings: all.
        lookup: finds a connection's URI or JSON by its name, beside settings and environment.

    Raises:
        RetryError: the tracker does not answer; what else does not is among the problems.
    """
    from waybill.ledger import fold
    from waybill.reconciliation import checks

    with open_tracker(settings.tracker) as tracker:
        fold(tracker)
        parts = checks.WatchParts(
            tracker,
            open_log(settings.kafka),
            settings.destinations,
            checks.WatchLimits.of(settings.audit),
            settings.s3,
            _held(settings, lookup),
        )
        now = datetime.now(UTC)
        watched = checks.watch(parts, now)
        checks.tell(tracker, watched)
        for check in (
            _missing_objects(settings, tracker, now),
            _recovery(settings),
            _parked_recovery(settings),
        ):
            try:
                check()
            except WaybillError as error:
                watched.problems.append(str(error))
    return watched


def _held(
    settings: Settings, lookup: Callable[[str], str | None] | None
) -> Callable[[PipelineHead], HeldLog | None]:
    """Return what asks a pipeline's source how much it keeps for it."""
    from waybill.ingestion.connectors import (
        Connections,
        HoldingConnector,
        closing_connector,
        open_connector,
    )

    def held(pipeline: PipelineHead) -> HeldLog | None:
        connections = Connections(settings.sources.connections_of(pipeline.team), lookup)
        folder = settings.pipelines_dir / pipeline.name
        opened = open_connector(pipeline.source, folder, connections=connections)
        with closing_connector(opened) as connector:
            return connector.held() if isinstance(connector, HoldingConnector) else None

    return held


def _missing_objects(
    settings: Settings, tracker: TrackerStore, now: datetime
) -> Callable[[], object]:
    from waybill.parking import Parking, quarantine_missing
    from waybill.recovery import WHO

    def check() -> None:
        parking = Parking(tracker, open_owned_objects(settings))
        found = parking.check_objects(now)
        quarantine_missing(tracker, found.missing, who=WHO)
        parking.quarantine_damaged(found.suspect, who=WHO)

    return check


def _recovery(settings: Settings) -> Callable[[], object]:
    from waybill.services.loading import recover_lost_objects

    return lambda: recover_lost_objects(settings)


def _parked_recovery(settings: Settings) -> Callable[[], object]:
    from waybill.services.parked_events import recover_lost_parked

    return lambda: recover_lost_parked(settings)


def balance(
    settings: Settings, *, pipeline: str | None = None, since: datetime | None = None
) -> BalanceReport:
    """Return the books of all pipelines, or of one."""
    from waybill.reconciliation import balance as read

    with open_tracker(settings.tracker) as tracker:
        pipeline_id = None if pipeline is None else active_pipeline(tracker, pipeline).id
        minute = None if since is None else int(since.timestamp() // 60)
        return read(tracker, open_log(settings.kafka), pipeline_id=pipeline_id, since_minute=minute)


def compact_traces(settings: Settings, *, hour: datetime | None = None) -> CompactionReport:
    """Compact the traces of every hour that has fresh ones, or of the hour that holds a moment."""
    from waybill.tracing import Compactor, Hour

    traces = settings.traces
    refuse_foreign_bucket(settings)
    compactor = Compactor(
        open_owned_objects(settings), after_s=traces.compact_after_s, kept_s=traces.compacted_kept_s
    )
    return compactor.run(None if hour is None else Hour.of(hour))


def trace_tables(settings: Settings, *, since_day: str | None = None) -> list[str]:
    """Return the statements that make the tables over the traces in Athena."""
    from waybill.tracing import table_statements

    return table_statements(settings, open_owned_objects(settings), since_day=since_day)


def trace_table_updates(settings: Settings) -> list[str]:
    """Return the statements that make those tables, or bring them up to date; in their order.

    Raises:
        InputError: the bucket's or the database's name is none that can stand in a statement.
        RetryError: the store is away.
    """
    from waybill.tracing import table_updates

    return table_updates(settings, open_owned_objects(settings))
