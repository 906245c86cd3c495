"""The eager checks: what is out of the usual, told as breaches."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from waybill.settings import Settings
from waybill.storage import open_log, open_tracker

if TYPE_CHECKING:
    from waybill.operations.watching.checks import Watched


def watch(settings: Settings) -> Watched:
    """Look once, open a breach for what is found, end those that are over.

    Raises:
        RetryError: the tracker does not answer; what else does not is among the problems.
    """
    from waybill.ledger import fold  # noqa: PLC0415
    from waybill.operations.watching import checks as watching  # noqa: PLC0415
    from waybill.operations.watching.limits import WatchLimits  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        fold(tracker)
        parts = watching.WatchParts(
            tracker,
            open_log(settings.kafka),
            settings.destinations,
            WatchLimits.of(settings.audit),
            settings.s3,
        )
        watched = watching.watch(parts, datetime.now(UTC))
        watching.tell(tracker, watched)
    return watched
