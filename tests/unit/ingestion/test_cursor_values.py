"""A value that a person gives to begin at: which cursor it is, and what is none."""

from __future__ import annotations

import os
import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from waybill.errors import InputError
from waybill.ingestion import IngestRequest
from waybill.ingestion.connectors import open_connector
from waybill.ingestion.connectors.sql_values import read_as
from waybill.pipelines import Source

AWARE, NAIVE = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1)


@pytest.mark.parametrize(
    ("like", "text", "value"),
    [
        (1, " 42 ", 42),
        (1.5, "2", 2.0),
        (Decimal(1), "1234567890123456789.10", Decimal("1234567890123456789.10")),
        (AWARE, "2024-03-01T02:00:00+02:00", datetime(2024, 3, 1, tzinfo=UTC)),
        (AWARE, "2024-03-01", datetime(2024, 3, 1, tzinfo=UTC)),
        (NAIVE, "2024-03-01T02:00:00+02:00", datetime(2024, 3, 1)),
        (date(2024, 1, 1), "2024-03-01", date(2024, 3, 1)),
        (UUID(int=0), str(UUID(int=7)), UUID(int=7)),
        ("a", "b'; --", "b'; --"),
    ],
    ids=["int", "float", "decimal", "aware", "day-of-time", "naive", "day", "uuid", "text"],
)
def test_a_value_is_read_as_the_column_has_it(like, text, value):
    found = read_as(type(like), text, like=like)
    assert (found, type(found)) == (value, type(like))
    if isinstance(value, datetime):
        assert found.tzinfo == value.tzinfo


@pytest.mark.parametrize(
    ("like", "text"),
    [(1, "1.5"), (1, ""), (1.5, "nan"), (Decimal(1), "Infinity"), (AWARE, "soon"),
     (AWARE, "99999-01-01"), (date(2024, 1, 1), "2024-02-30"), (UUID(int=0), "7"), (b"", "x")],
    ids=["int", "empty", "nan", "infinity", "word", "year", "day", "uuid", "bytes"],
)  # fmt: skip
def test_what_is_no_such_value_is_refused(like, text):
    with pytest.raises(InputError, match="^from: "):
        read_as(type(like), text, like=like)


@pytest.fixture
def table(tmp_path):
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE t (id integer, at integer NOT NULL)")
        database.executemany("INSERT INTO t VALUES (?, ?)", [(n, n // 2) for n in range(10)])

    def opened(**options):
        given = {"file": "shop.db", "table": "t", "key": ["id"], **options}
        return open_connector(Source(connector="sql", event="e", options=given), tmp_path)

    return opened


def rows(connector, cursor):
    return [row["id"] for page in connector.read(cursor) for row in page.rows]


def test_a_table_is_read_from_a_value_on_with_all_rows_that_have_it(table):
    source = table(cursor="at")
    *_, last = source.read(None)
    assert rows(source, source.cursor_at("3", last.cursor)) == [6, 7, 8, 9]
    assert rows(source, source.cursor_at("4", None)) == [8, 9]
    assert rows(table(cursor="at", overlap=2), source.cursor_at("4", None)) == [8, 9]


def test_a_value_ahead_of_where_the_last_run_stopped_is_refused_since_rows_would_be_left_out(table):
    source = table(cursor="at")
    stands = source.cursor_at("2", None)
    with pytest.raises(InputError, match="'3' is ahead of where the last run stopped, 2"):
        source.cursor_at("3", stands)
    assert source.cursor_at("2", stands) == stands


def test_a_value_that_the_database_cannot_be_asked_for_is_refused_before_each_run_fails_of_it(
    table,
):
    with pytest.raises(InputError, match="from: .* cannot be compared with column 'at'"):
        table(cursor="at").cursor_at("-99999999999999999999", None)


def test_a_table_without_a_cursor_has_no_value_to_begin_at(table):
    with pytest.raises(InputError, match=r"declares no options\.cursor"):
        table().cursor_at("3", None)


def test_files_that_were_changed_then_or_later_are_read_again_and_none_that_was_not_read_is_left_out(
    tmp_path,
):
    def put(name, second):
        file = tmp_path / name
        file.write_text(f'{{"id": {second}}}\n')
        os.utime(file, (second, second))

    source = open_connector(
        Source(connector="files", event="e", options={"path": "*.jsonl", "settle_s": 0}), tmp_path
    )
    for second in (100, 200, 300):
        put(f"{second}.jsonl", second)
    *_, last = source.read(None)
    put("150.jsonl", 150)  # not read yet
    put("400.jsonl", 400)
    again = source.cursor_at("1970-01-01T00:03:20Z", last.cursor)
    assert rows(source, again) == [150, 200, 300, 400]
    assert rows(source, source.cursor_at("1970-01-01T00:05:00Z", None)) == [300, 400]
    later = source.cursor_at("2030-01-01", last.cursor)
    assert rows(source, later) == [150, 400], "what was not read is not passed over"
    with pytest.raises(InputError, match="from: expected when a file was changed"):
        source.cursor_at("200", None)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"full": True}, "why: it must be given"),
        ({"full": True, "why": "  "}, "why: it must be given"),
        ({"full": True, "from": "1", "why": "x"}, "a run has one beginning"),
        ({"from": " ", "why": "x"}, "from: it is empty"),
        ({"from": "1" * 201, "why": "x"}, "from: "),
        ({"ful": True}, "ful: "),
        ({"full": "perhaps", "why": "x"}, "full: "),
    ],
    ids=["no-why", "blank-why", "two", "empty", "long", "unknown", "no-bool"],
)
def test_a_request_that_says_no_one_thing_is_refused(asked, said):
    with pytest.raises(InputError, match=said):
        IngestRequest.of(asked)
