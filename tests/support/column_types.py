"""Tables of one column of some type, read in each way in which rows are ordered by it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from waybill.errors import InputError
from waybill.ingestion.connectors import Connector, Cursor

Open = Callable[..., Connector]
WAYS: Mapping[str, Mapping[str, Any]] = {
    "cursor": {"cursor": "k", "key": ["id"]},
    "key": {"key": ["k"]},
    "ranges": {"cursor": "id", "key": ["k"], "backfill": {"ranges": 3}},
}
STATEMENT = "CREATE TABLE t (id int NOT NULL, k {column} NOT NULL)"


def statements(column: str, values: list[str]) -> list[str]:
    """Return what makes the table: each value of SQL is a row, ``id`` is its place."""
    rows = [f"INSERT INTO t VALUES ({number}, {value})" for number, value in enumerate(values)]
    return [STATEMENT.format(column=column), *rows]


def read(open_: Open, cursor: Cursor | None, most: int) -> tuple[list[int], Cursor | None]:
    """Read to the end of a run, each page by a connector of its own that has the cursor alone."""
    found: list[int] = []
    while True:
        pages = open_().read(cursor)
        page = next((page for page in pages if page is not None), None)
        pages.close()
        if page is None:
            return found, cursor
        found += [row["id"] for row in page.rows]
        cursor = json.loads(json.dumps(page.cursor))
        assert len(found) <= most, "it never ends"
        if cursor.get("whole"):
            return found, cursor


def require(open_: Open, rows: int, way: str, refused: str | None) -> None:
    """Read a table in some way: each row must come once, or it must be refused in so many words.

    Args:
        open_: makes a connector with the options that it is given, of one row a page.
        rows: that the table has.
        way: of ``WAYS``.
        refused: a pattern; None: it is read.
    """

    def opened() -> Connector:
        return open_(**WAYS[way])

    if refused is not None:
        with pytest.raises(InputError, match=refused):
            read(opened, None, 3 * rows)
        return
    found, cursor = read(opened, None, 3 * rows)
    twice = {rows - 1} if way == "ranges" else set()  # those of the mark come behind the ranges
    assert Counter(found) == Counter([*range(rows), *twice])
    if way == "cursor":
        assert read(opened, cursor, 3 * rows)[0] == [], "it is sent again by each run"
