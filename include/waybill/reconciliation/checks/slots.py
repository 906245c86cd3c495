"""What a source keeps for a pipeline that does not read on: its disk may fill."""

from __future__ import annotations

from waybill.ingestion.connectors import HeldLog
from waybill.pipelines import PipelineHead
from waybill.reconciliation.checks.findings import Finding

KINDS = frozenset({"postgres_cdc"})
"""Connectors whose sources keep what was not read."""


def look(pipeline: PipelineHead, held: HeldLog | None) -> list[Finding]:
    """Return what is wrong with what a source keeps: it is over its limit, or lost.

    Args:
        pipeline: whose source it is.
        held: as the source says; None: it keeps nothing for the pipeline.
    """
    if held is None or not (held.lost or held.held_bytes > held.limit_bytes):
        return []
    what_to_do = (
        "the next run fails: read the source again (`waybill pipelines reread`)"
        if held.lost
        else "run the pipeline, or find out why its runs do not get on; the source's disk fills"
    )
    detail = {"held_bytes": held.held_bytes, "limit_bytes": held.limit_bytes, "lost": held.lost}
    words = f"{pipeline.name}: {held.words}; {what_to_do}"
    return [Finding("slot", pipeline.id, words, stage="ingestion", detail=detail)]
