"""A connector whose pages are a list of the test's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from waybill.ingestion.connectors import BadRow, Cursor, Opening, Page, Record

PLACE = "tests.support.told_source:ToldSource"


class ToldSource:
    """Gives ``told``; notes what it is told itself."""

    told: ClassVar[list[list[Any] | None]] = []
    """Rows of each page; None: nothing came."""
    confirmed: ClassVar[list[int]] = []
    closed: ClassVar[int] = 0

    def __init__(self, opening: Opening) -> None:
        self.opening = opening

    def read(self, cursor: Cursor | None) -> Iterator[Page | None]:
        start = dict(cursor) if cursor else None
        for number, rows in enumerate(self.told):
            if number < (start or {"page": 0})["page"]:
                continue
            if rows is None:
                yield None
                continue
            bad = [row for row in rows if isinstance(row, BadRow)]
            good = [row for row in rows if isinstance(row, dict | Record)]
            after = {"page": number + 1}
            yield Page(good, bad, after, start, place=lambda index: f"record {index}")
            start = after

    def count(self) -> int | None:
        return None

    def confirm(self, cursor: Cursor) -> None:
        self.confirmed.append(cursor["page"])

    def close(self) -> None:
        type(self).closed += 1
