"""How far one run of ingestion is settled: what its pages move the intake watermark to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from waybill.ledger import PageMark
from waybill.producer import LosslessProducer


class Settling:
    """The watermark of one run; see ``waybill.ledger.watermarks``.

    Args:
        producer: has the events; it was opened before, and so has recovered what a dead run left.
        minute: gives the minute of now by the clock that stamps events; it never goes back.
    """

    def __init__(self, producer: LosslessProducer, minute: Callable[[], int]) -> None:
        self._producer = producer
        self._minute = minute
        self._left_by_others: int | None = None

    def begin(self, left_open: int | None) -> None:
        """Say what the opened watermark was: the least minute where a dead run had left it open."""
        self._left_by_others = left_open

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


def least_minute(counts: Iterable[tuple[str, list[list[Any]]]]) -> int | None:
    """Return the least intake minute of a page's counts; None: it has none."""
    return min((int(row[2]) for _, rows in counts for row in rows), default=None)
