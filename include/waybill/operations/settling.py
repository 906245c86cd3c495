"""How far one run of ingestion is settled: what its pages move the intake watermark to."""

from __future__ import annotations

from collections import deque
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
        self._pages: deque[tuple[int, int]] = deque()
        self._left_by_others: int | None = None

    def begin(self) -> None:
        """Open the watermark; called before the run makes its first event."""
        found, was_open = open_watermark(self._tracker, self._pipeline_id, minute=self._minute())
        self._left_by_others = found if was_open else None

    def recovered(self, counts: Iterable[tuple[str, list[list[Any]]]]) -> PageMark:
        """Return where the commit of a dead run's page moves the watermark: it stays below it."""
        minutes = [_least(counts), self._left_by_others, self._minute()]
        least = min(minute for minute in minutes if minute is not None)
        self._left_by_others = least
        return PageMark(least, len(self._producer))

    def page(self, lsn: int, counts: Iterable[tuple[str, list[list[Any]]]]) -> PageMark:
        """Return where the commit of a page moves the watermark.

        The run's first page has counted what a dead run left uncounted: once Kafka has all up to
        its mark, nothing is left of that run.

        Args:
            lsn: of the page's mark.
            counts: of the page, as the ledger keeps them.
        """
        minutes = [
            minute for minute in (_least(counts), self._left_by_others) if minute is not None
        ]
        self._left_by_others = None
        if minutes:
            self._pages.append((lsn, min(minutes)))
        while self._pages and self._producer.settled(self._pages[0][0]):
            self._pages.popleft()
        open_from = min((minute for _, minute in self._pages), default=self._minute())
        return PageMark(open_from, len(self._producer) if self._pages else 0)

    def end(self, *, left: int | None) -> None:
        """Close the watermark; all is acknowledged. ``left``: records that were not read."""
        close_watermark(self._tracker, self._pipeline_id, minute=self._minute(), left=left)

    def broken_off(self, waiting: int) -> None:
        """Leave it open, and say how many events are not acknowledged."""
        tell_waiting(self._tracker, self._pipeline_id, waiting)


def _least(counts: Iterable[tuple[str, list[list[Any]]]]) -> int | None:
    return min((int(row[2]) for _, rows in counts for row in rows), default=None)
