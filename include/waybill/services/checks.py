"""The eager checks: what is out of the usual, told as breaches."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from waybill.errors import WaybillError
from waybill.settings import Settings
from waybill.storage import TrackerStore, open_log, open_owned_objects, open_tracker

if TYPE_CHECKING:
    from waybill.reconciliation.checks import Watched


def watch(settings: Settings) -> Watched:
    """Look once, open a breach for what is found, end those that are over.

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
