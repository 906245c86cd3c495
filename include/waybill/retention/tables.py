"""What each table of the tracker grows by, and who trims it; docs/operations.md shows the same."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Growth:
    """One table."""

    by: str
    """One row for each of these."""
    trimmed: str
    """When rows go, and by which setting; or why they stay."""
    lasts: bool = False
    """Rows stay for ever."""


def _lasts(by: str, why: str) -> Growth:
    return Growth(by, why, lasts=True)


_BOOKS = "`BOOKS_DAYS`"
_NAMES = "stays: its number does not grow with events"
GROWTH: dict[str, Growth] = {
    "audit_log": _lasts("decision of a person", "lasts: who did what"),
    "audit_minutes": Growth("minute of an event name in work", "the auditor, once it balances"),
    "audit_rounds": Growth("minute", "the auditor, after a day"),
    "auto_replays": _lasts("marked partition", _NAMES),
    "batches": Growth("micro-batch", f"{_BOOKS} after its commit, loaded and audited"),
    "breaches": _lasts("breach", "lasts: what did not add up, and how it ended"),
    "commit_sequences": _lasts("destination, pipeline", _NAMES),
    "connector_positions": _lasts("pipeline", _NAMES),
    "consumers": _lasts("topic, destination", _NAMES),
    "deployment": _lasts("tracker", _NAMES),
    "destination_rewinds": _lasts(
        "destination that was put back to an older point", "lasts: what was lost, who settled it"
    ),
    "destination_states": _lasts("destination that is waited for", _NAMES),
    "digested_partitions": _lasts("parked partition", _NAMES),
    "intake_watermarks": _lasts("pipeline", _NAMES),
    "ledger": Growth("pipeline in a commit", f"{_BOOKS} after its commit, folded"),
    "ledger_minutes": _lasts(
        "stage of an event name in a minute with events",
        "lasts: the books by minute, of which balance and eager checks are made; not by event",
    ),
    "ledger_totals": _lasts("stage of an event name", "lasts: the sums of all books"),
    "load_positions": _lasts("destination", _NAMES),
    "loaded_tables": _lasts("table of a destination", _NAMES),
    "mapping_versions": _lasts("change of a mapping", "lasts: what rows were mapped by, and whose"),
    "notice_digests": _lasts("pipeline", _NAMES),
    "notice_messages": Growth("owner and sink with something to tell", "once it was sent"),
    "notices": Growth("thing to tell", "`WAYBILL_NOTICES__KEEP_SENT_DAYS` after it was sent"),
    "parked_objects": Growth(
        "task that parked, in a batch", f"{_BOOKS}, once it and its segments are deleted"
    ),
    "parked_partitions": _lasts("way to fail of an event name", _NAMES),
    "pipeline_holds": Growth("hold", f"{_BOOKS} after its release"),
    "pipeline_versions": _lasts("deploy", "lasts: what was deployed, and by whom"),
    "pipelines": _lasts("pipeline", _NAMES),
    "refused_messages": Growth(
        "message that Kafka refused", f"{_BOOKS}, once the object that holds it is deleted"
    ),
    "replay_entries": Growth("replay, event name and stage", "with its replay"),
    "replay_outcomes": Growth("replay and outcome", "with its replay"),
    "replays": Growth(
        "replay", f"{_BOOKS} after it was done; one that was cancelled lasts: the books ask for it"
    ),
    "segments": Growth(
        "partition in a parked object",
        f"{_BOOKS} after its object was deleted; its numbers stay in `parked_partitions`",
    ),
    "staged_objects": Growth(
        "task that passed events on, in a batch", f"{_BOOKS} after its load, once it is deleted"
    ),
    "topic_offsets": _lasts("topic partition", _NAMES),
    "topic_stops": _lasts("topic that was stopped", "lasts: what was lost, and how it was settled"),
    "trace_queries": Growth("question", "`WAYBILL_TRACES__KEEP_QUESTIONS_DAYS`"),
    "write_ahead_logs": _lasts(
        "write-ahead log of a node", "lasts: versions go on from it, and how it ended"
    ),
}
