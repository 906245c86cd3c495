"""Rows of a table as they are now, page by page, beside the log.

No snapshot of the database is held open, so a page may be read by any process at any time. What
makes it right: all rows have one version, which lies below those of all changes that the log will
bring (``TablePosition.floor``). A row that changed before it was read, or between two readings, is
corrected by the log; one that was deleted meanwhile, or moved to another key, is deleted by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import sql

from waybill.ingestion.connectors.base import Record
from waybill.ingestion.connectors.postgres_cdc.column_values import Converters
from waybill.ingestion.connectors.postgres_cdc.errors import answered
from waybill.ingestion.connectors.postgres_cdc.position import TablePosition
from waybill.ingestion.connectors.postgres_cdc.rows import (
    UNREADABLE,
    PageRows,
    row_of,
    unreadable,
)
from waybill.ingestion.connectors.postgres_cdc.source_database import SourceDatabase, SourceTable

_FETCHED = 500
"""Rows at a time: these are in memory, however long they are."""


def read_page(
    database: SourceDatabase,
    converters: Converters,
    table: SourceTable,
    position: TablePosition,
    *,
    rows: int,
    size: int,
) -> tuple[PageRows, TablePosition]:
    """Return the next rows of a table, and the position behind them.

    Args:
        database: it is in.
        converters: for its values.
        table: which.
        position: where to go on.
        rows: at most so many.
        size: end behind so many bytes.

    Raises:
        RetryError: the server does not answer.
        InputError: it refuses.

    Cost: an index scan of the page's rows; 1 µs a value.
    """
    found = PageRows()
    last = position.after
    with answered(database.connection, f"reading table {str(table.name)!r}"):
        with database.sql.transaction():
            database.sql.execute(_declared(table, position.after, rows))
            while found.size < size:
                cursor = database.sql.execute(f"FETCH {_FETCHED} FROM waybill_page".encode())
                count, key = _convert(cursor.pgresult, converters, table, position.floor, found)
                last = key or last
                if count < _FETCHED:
                    break
    done = found.size < size and len(found) < rows
    return found, position.model_copy(update={"after": last, "done": done})


def _convert(
    result: Any, converters: Converters, table: SourceTable, version: int, found: PageRows
) -> tuple[int, tuple[str, ...] | None]:
    """Add the rows of a result; returns how many it has, and the last one's key."""
    converts = converters.of(result.ftype(place) for place in range(len(table.columns)))
    columns, places = table.columns, range(len(table.columns))
    get = result.get_value
    values: list[bytes | None] = []
    for number in range(result.ntuples):
        values = [get(number, place) for place in places]
        found.size += sum(map(len, filter(None, values)))
        try:
            row = row_of(columns, converts, values)
        except UNREADABLE as error:
            found.bad.append(unreadable(str(table.name), version, columns, values, error))
        else:
            found.records.append(Record(row, table.event, version=version))
    if not values:
        return 0, None
    key = (values[columns.index(name)] for name in table.page_key)
    return result.ntuples, tuple((value or b"").decode() for value in key)


def _declared(table: SourceTable, after: Sequence[str] | None, rows: int) -> sql.Composed:
    columns = sql.SQL(", ").join(map(sql.Identifier, table.columns))
    key = sql.SQL(", ").join(map(sql.Identifier, table.page_key))
    conditions: list[sql.Composable] = []
    if after is not None:
        values = zip(after, table.page_key_types, strict=True)
        literals = sql.SQL(", ").join(as_type(text, kind) for text, kind in values)
        conditions.append(sql.SQL("ROW({}) > ROW({})").format(key, literals))
    if table.row_filter:
        conditions.append(sql.SQL("({})").format(_trusted(table.row_filter)))
    where = sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("true")
    return sql.SQL(
        "DECLARE waybill_page NO SCROLL CURSOR FOR SELECT {} FROM {} WHERE {} ORDER BY {} LIMIT {}"
    ).format(columns, sql.Identifier(*table.name), where, key, sql.Literal(rows))


def as_type(text: str, kind: str) -> sql.Composed:
    """Return a value as SQL, of a type as the server's catalogue writes it."""
    return sql.SQL("CAST({} AS {})").format(sql.Literal(text), _trusted(kind))


def _trusted(text: str) -> sql.SQL:
    """Take what the server's catalogue says of itself as SQL."""
    return sql.SQL(text)
