"""From values as text to rows: of snapshots and of changes alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from waybill.events import dumps
from waybill.ingestion.connectors.base import BadRow, Page, Record, Row
from waybill.ingestion.connectors.postgres_cdc.column_values import Convert
from waybill.ingestion.connectors.postgres_cdc.position import Position
from waybill.ingestion.connectors.postgres_cdc.replication import lsn_text

PAGE_BYTES = 16 * 1024 * 1024
"""A page ends behind so many bytes of values."""
UNREADABLE = (ValueError, RecursionError, OverflowError)
"""What a converter raises for a value that has no JSON form."""


@dataclass(slots=True)
class PageRows:
    """What is gathered for a page."""

    records: list[Record] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    size: int = 0
    """Bytes, as the server sent them."""

    def __len__(self) -> int:
        """Return how many rows there are, bad ones included."""
        return len(self.records) + len(self.bad)

    def page(self, start: dict[str, Any], position: Position) -> Page:
        """Return the page between two positions."""
        records = self.records

        def place(index: int) -> str:
            record = records[index]
            return f"{record.event}, log position {lsn_text(record.version or 0)}"

        rows: list[Row] = [*records]
        cursor = position.cursor()
        return Page(rows, self.bad, cursor=cursor, start=start, place=place, finite=True)


def row_of(
    names: Iterable[str], converts: Iterable[Convert], values: Iterable[bytes | None]
) -> dict[str, Any]:
    """Return a row.

    Raises:
        UNREADABLE: a value has no JSON form.
    """
    return {
        name: None if value is None else convert(value)
        for name, convert, value in zip(names, converts, values, strict=True)
    }


def unreadable(
    table: str, lsn: int, names: Iterable[str], values: Iterable[Any], error: Exception
) -> BadRow:
    """Return a row that cannot be read, with its values as text."""
    texts = {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else None
        for name, value in zip(names, values, strict=False)
    }
    return BadRow(
        dumps(texts),
        0,
        "source_value_invalid",
        f"a value of table {table} has no form in JSON: {error!r}"[:1000],
        where=f"{table}, log position {lsn_text(lsn)}",
    )
