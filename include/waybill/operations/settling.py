"""How far one run of ingestion is settled: what its pages move the intake watermark to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from waybill.ledger.watermarks import PageMark, close_watermark, open_watermark, tell_waiting
from waybill.producer import LosslessProducer
from waybill.storage import TrackerStore


class Settling:
    """The watermark of one run; see ``waybill.ledger.watermarks``.

    Args:
        tracker: the books.
        producer: has the events; it was opened before, and so has recovered what a dead run left.
        pipeline_id: whose events.
        minute: gives the minute of now by the clock that stamps events; it never goes back.
    """

    def __init__(
        self,
        tracker: TrackerStore,
        producer: LosslessProducer,
        pipeline_id: str,
        minute: Callable[[], int],
    ) -> None:
        self._tracker = tracker
        self._producer = producer
        self._pipeline_id = pipeline_id
        self._minute = minute
        self._left_by_others: int | None = None

    def begin(self) -> None:
        """Open the watermark; called before the run makes its first event."""
        found, was_open = open_watermark(self._tracker, self._pipeline_id, minute=self._minute())
        self._left_by_others = found if was_open else None

    def recovered(self, counts: Iterable[tuple[str, list[list[Any]]]]) -> PageMark:
        """Return where the commit of a dead run's page moves the watermark: it stays below it."""
        minutes = [least_minute(counts), self._left_by_others, self._minute()]
        least = min(minute for minute in minutes if minute is not None)
        self._left_by_others = least
        return PageMark(least, len(self._producer))

    def page(self, uncounted: Iterable[int | None]) -> PageMark:
        """Return where the commit of a page moves the watermark; Kafka has all up to its mark.

        The run's first page has counted what a dead run left uncounted, so that nothing is left of
        that run.

        Args:
            uncounted: the least minutes of the pages behind it that are not committed yet.
        """
        self._left_by_others = None
        minutes = [minute for minute in uncounted if minute is not None]
        return PageMark(min(minutes, default=self._minute()), len(self._producer))

    def end(self, *, left: int | None) -> None:
        """Close the watermark; all is acknowledged. ``left``: records that were not read."""
        close_watermark(self._tracker, self._pipeline_id, minute=self._minute(), left=left)

    def tell_waiting(self, waiting: int) -> None:
        """Leave it open, and say how many events are not acknowledged."""
        tell_waiting(self._tracker, self._pipeline_id, waiting)


def least_minute(counts: Iterable[tuple[str, list[list[Any]]]]) -> int | None:
    """Return the least intake minute of a page's counts; None: it has none."""
    return min((int(row[2]) for _, rows in counts for row in rows), default=None)
