"""The auditor: rounds, names, breaches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from waybill.deployment import active_pipeline
from waybill.errors import InputError, RetryError, WaybillError
from waybill.settings import Settings
from waybill.storage import open_log, open_tracker

if TYPE_CHECKING:
    from waybill.access import Decision
    from waybill.reconciliation import AuditReport, Breach, NamingReport

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
    from waybill.reconciliation import read_breaches

    with open_tracker(settings.tracker) as tracker:
        found = read_breaches(tracker, breach_id=breach_id)
    if not found:
        raise InputError(f"there is no breach {breach_id}; `waybill audit breaches` lists them")
    return found[0]


def close_breach(settings: Settings, breach_id: int, decision: Decision) -> Breach:
    """Close a breach by name."""
    from waybill.reconciliation import close_breach as close

    with open_tracker(settings.tracker) as tracker:
        return close(tracker, breach_id, decision)


def tell_audit_failed(settings: Settings, words: str) -> dict[str, str]:
    """Say by each configured sink that the audit fails; returns {sink: problem, empty if none}.

    It needs no tracker, which may be what is away; the mail goes to the fallback address.
    """
    from uuid import uuid4

    from waybill.notices import Message, open_sinks

    message = Message(uuid4(), "", (), {"breach": 1}, words=words)
    found = {}
    for sink in open_sinks(settings.notices):
        try:
            sink.send(message)
            found[sink.name] = ""
        except WaybillError as error:
            _LOG.exception("%s did not take the word that the audit fails", sink.name)
            found[sink.name] = str(error)
    return found
