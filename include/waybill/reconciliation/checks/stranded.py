"""Events in the write-ahead logs of runs that are gone: on a node, or a disk, that may be lost."""

from __future__ import annotations

from collections.abc import Sequence

from waybill.ledger import LogLine
from waybill.reconciliation.checks.findings import Finding, events, span

_MOST_NAMED = 3


def look(logs: Sequence[LogLine], unseen_s: float) -> list[Finding]:
    """Return the pipelines with events in a log that was not seen for ``unseen_s``.

    Args:
        logs: those that are open. Replays are left out: what they hold is parked still.
        unseen_s: a run that goes on tells the tracker every few seconds.
    """
    held: dict[str, list[LogLine]] = {}
    for one in logs:
        gone = one.state == "open" and one.unsettled and one.unseen_s >= unseen_s
        if gone and one.purpose == "ingestion":
            held.setdefault(one.pipeline_id, []).append(one)
    return [_finding(pipeline_id, found) for pipeline_id, found in sorted(held.items())]


def _finding(pipeline_id: str, logs: Sequence[LogLine]) -> Finding:
    named = "; ".join(_words(one) for one in logs[:_MOST_NAMED])
    more = f"; and {len(logs) - _MOST_NAMED} more" if len(logs) > _MOST_NAMED else ""
    detail = {"logs": [one.wal_id for one in logs], "unsettled": sum(one.unsettled for one in logs)}
    words = f"{logs[0].pipeline}: {named}{more}"
    return Finding("stranded", pipeline_id, words, stage="ingestion", detail=detail)


def _words(one: LogLine) -> str:
    fate = (
        "the next run, on any node, reads them again"
        if one.rereadable
        else "they cannot be had again: bring the node back, or `waybill logs settle` it"
    )
    if one.reason:
        return f"{events(one.unsettled)} wait: {one.reason}"
    return (
        f"{events(one.unsettled)} wait in write-ahead log {one.wal_id[:8]} on {one.node}, which "
        f"was not seen for {span(one.unseen_s)}; {fate}"
    )
