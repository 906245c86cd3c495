"""Topics whose old generation drains for long: events of the new one wait, and are not read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from waybill.ledger import TopicGeneration
from waybill.pipelines import PipelineHead, topic_of
from waybill.reconciliation.checks.findings import Finding, span
from waybill.reconciliation.checks.limits import WatchLimits


def look(
    draining: Iterable[tuple[TopicGeneration, tuple[str, ...]]],
    pipelines: Mapping[str, PipelineHead],
    limits: WatchLimits,
    now: datetime,
) -> list[Finding]:
    """Return the pipelines whose topic drains for longer than an event may wait to be processed.

    Args:
        draining: generations that drain, each with the logs that it waits for, in words.
        pipelines: by id.
        limits: the objectives.
        now: the time.
    """
    found = []
    for generation, logs in draining:
        since = (now - (generation.draining_since or now)).total_seconds()
        words = (
            f"{generation.name} drains for {span(since)}, and what is written to the next "
            f"generation is not read until it has ended; it waits for {'; '.join(logs)}. Run its "
            "pipeline or replay again, or `waybill logs settle`"
            if logs
            else f"{generation.name} drains for {span(since)}: processing is not through with it"
        )
        for one in pipelines.values():
            limit = limits.late_after("transformation", one.name, one.id)
            if topic_of(one) == generation.topic and since > limit:
                detail = {"topic": generation.name, "logs": list(logs)}
                said = f"{one.name}: {words}"
                found.append(
                    Finding("draining", one.id, said, stage="transformation", detail=detail)
                )
    return found
