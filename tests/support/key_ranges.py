"""Tables of keys, split into ranges and read by them, on any database."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

import sqlalchemy as sa

from waybill.ingestion.connectors.sql_ranges import Backfill, KeyedTable, KeyRange, read_ranges


def keyed(*columns: str, page_rows: int, name: str = "t") -> KeyedTable:
    """Return a table of which all columns are the key."""
    return KeyedTable(name, sa.table(name, *map(sa.column, columns)), columns, columns, page_rows)


def split(engine: sa.Engine, table: KeyedTable, ranges: int) -> tuple[KeyRange, ...]:
    with engine.connect() as session:
        planning = table.split(session, ranges)
        while True:
            try:
                assert next(planning) is None
            except StopIteration as end:
                return end.value


def through_json(left: tuple[KeyRange, ...], width: int) -> tuple[KeyRange, ...]:
    """Return ranges as the next run has them from the cursor."""
    told = json.loads(json.dumps(Backfill(1, len(left), left).to_json()))
    return Backfill.from_json(told, width).ranges


def read(
    engine: sa.Engine, table: KeyedTable, left: tuple[KeyRange, ...], connections: int, pages: int
) -> tuple[list[tuple[Any, ...]], tuple[KeyRange, ...]]:
    """Read so many pages at most; return their rows, and what is left."""
    rows: list[tuple[Any, ...]] = []
    reading = read_ranges(engine, table, left, connections)
    for page in reading:
        if page is None:
            continue
        assert len(page.rows) <= table.page_rows
        rows += map(tuple, page.rows)
        left, pages = page.left, pages - 1
        if not pages:
            break
    reading.close()
    return rows, left


def require_exact(
    engine: sa.Engine,
    table: KeyedTable,
    rows: list[tuple[Any, ...]],
    *,
    ranges: int,
    connections: tuple[int, int],
    died_after: int,
) -> None:
    """Split, read some pages, go on from the cursor: each row must be there once."""
    parts = split(engine, table, ranges)
    assert 1 <= len(parts) <= ranges
    assert parts[0].after is None
    assert parts[-1].until is None
    assert all(one.until == other.after is not None for one, other in pairwise(parts))
    parts = through_json(parts, len(table.key))
    first, left = read(engine, table, parts, connections[0], died_after)
    rest = []
    if left:
        rest, left = read(engine, table, through_json(left, len(table.key)), connections[1], -1)
    assert left == ()
    assert Counter(first + rest) == Counter(rows)
