"""Write-ahead logs: which there are, and ending one by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waybill.errors import InputError
from waybill.services.environment import open_recording
from waybill.settings import Settings
from waybill.storage import open_log, open_tracker

if TYPE_CHECKING:
    from waybill.access import Decision
    from waybill.ledger import LogLine


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
        raise InputError(f"{many} with {wal_id!r}; `waybill logs list --all` shows them")
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
