"""A value that a person gives to begin at: which cursor it is, and what is none."""

from __future__ import annotations

import json
import os
import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import islice
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

    def opened(page_rows=1000, **options):
        given = {"file": "shop.db", "table": "t", "key": ["id"], **options}
        source = Source(connector="sql", event="e", page_rows=page_rows, options=given)
        return open_connector(source, tmp_path)

    return opened


def rows(connector, cursor):
    return [row["id"] for page in connector.read(cursor) if page for row in page.rows]


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
    with pytest.raises(InputError, match=r"declares no options\.cursor"):
        table().reread_between("3", "4", {})


def between(source, begin, end, stands):
    """The cursor that the ledger makes of a range and where the source stands."""
    asked = source.reread_between(begin, end, stands)
    return {**stands, "rereads": [*stands.get("rereads", []), asked]}


@pytest.fixture
def read_table(table):
    """A table that was read to its end, and the cursor there."""
    *_, last = table(cursor="at").read(None)
    return table, last.cursor


@pytest.mark.parametrize("page_rows", [1, 3, 100])
def test_rows_of_two_values_and_between_them_are_read_again_and_then_it_goes_on_where_it_stood(
    tmp_path, read_table, page_rows
):
    table, stood = read_table
    again = between(table(cursor="at"), "1", "3", stood)
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("INSERT INTO t VALUES (20, 9), (21, 2)")
    pages = list(table(page_rows, cursor="at").read(again))
    assert [row["id"] for page in pages for row in page.rows] == [2, 3, 4, 5, 21, 6, 7, 20]
    assert pages[-1].cursor["at"] == [["int", "9"], ["int", "20"]]
    *_, regular = table(cursor="at").read(stood)
    assert pages[-1].cursor == regular.cursor


def test_each_page_that_is_read_again_is_the_same_at_its_cursor_and_the_last_one_leaves_the_other(
    read_table,
):
    table, stood = read_table
    source = table(2, cursor="at")
    again = between(source, "1", "3", stood)
    pages = list(source.read(json.loads(json.dumps(again))))
    assert [page.start for page in pages] == [again, *(page.cursor for page in pages[:-1])]
    assert pages[-1].cursor == stood
    for page in pages:
        [first, *_] = table(2, cursor="at").read(json.loads(json.dumps(page.start)))
        assert (first.rows, first.cursor) == (page.rows, page.cursor)


def test_what_is_asked_for_while_another_range_is_read_again_comes_behind_it(read_table):
    table, stood = read_table
    source = table(1, cursor="at")
    first = next(source.read(between(source, "1", "2", stood)))
    assert rows(source, between(source, "4", "4", first.cursor)) == [3, 4, 5, 8, 9]


def test_a_range_without_a_row_moves_nothing(read_table, tmp_path):
    table, stood = read_table
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("DELETE FROM t WHERE at IN (1, 2)")
    source = table(cursor="at")
    [page] = source.read(between(source, "1", "2", stood))
    assert (page.rows, page.cursor) == ([], stood)


def test_a_range_is_read_again_amid_a_first_reading_which_goes_on(table):
    options = {"cursor": "at", "backfill": {"ranges": 3}}
    first, second, *_ = filter(None, table(2, **options).read(None))
    again = between(table(2, **options), "4", "4", second.cursor)
    found = rows(table(2, **options), again)
    assert found[:2] == [8, 9]
    missing = set(range(10)) - {row["id"] for page in (first, second) for row in page.rows}
    assert set(found[2:]) >= missing


@pytest.mark.parametrize(
    ("begin", "end", "said"),
    [
        ("3", "2", "^to: '2' is less than from, '3'"),
        ("3", "soon", "^to: expected a whole number"),
        ("soon", "3", "^from: expected a whole number"),
        ("3", "99999999999999999999", "^to: .* cannot be compared with column 'at'"),
    ],
    ids=["behind", "no-end", "no-begin", "too-great"],
)
def test_values_that_are_no_range_are_refused(read_table, begin, end, said):
    table, stood = read_table
    with pytest.raises(InputError, match=said):
        table(cursor="at").reread_between(begin, end, stood)


def test_a_range_of_what_was_never_read_is_refused(table):
    with pytest.raises(InputError, match="^to: nothing of table 't' was read yet"):
        table(cursor="at").reread_between("1", "3", None)
    with pytest.raises(InputError, match="^to: nothing of table 't' was read yet"):
        table(cursor="at").reread_between("1", "3", {"by": ["id"], "at": [], "whole": True})


FORMS = {
    "declared-timestamp": ("TIMESTAMP", "{} {}"),
    "text": ("text", "{} {}"),
    "iso": ("text", "{}T{}"),
    "utc": ("text", "{}T{}Z"),
    "milliseconds-utc": ("text", "{}T{}.000Z"),
    "microseconds": ("DATETIME", "{} {}.000000"),
    "zero-offset": ("text", "{}T{}+00:00"),
    "offset": ("text", "{} {}+02:00"),
}


def opened_times(tmp_path, column, values):
    with sqlite3.connect(tmp_path / "times.db") as database:
        database.execute(f"CREATE TABLE t (id integer, at {column} NOT NULL)")
        database.executemany("INSERT INTO t VALUES (?, ?)", enumerate(values))
    options = {"file": "times.db", "table": "t", "key": ["id"], "cursor": "at"}
    return open_connector(Source(connector="sql", event="e", options=options), tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_a_time_is_found_among_texts_whatever_their_form_and_its_own_is(tmp_path, form):
    column, template = FORMS[form]
    hours = "02:00:00" if form == "offset" else "00:00:00"
    times = [template.format(f"2026-01-0{day}", hours) for day in (1, 2, 2, 3)]
    source = opened_times(tmp_path, column, times)
    *_, last = source.read(None)
    for asked in ("2026-01-02", "2026-01-02 00:00:00", "2026-01-02T00:00:00Z",
                  "2026-01-02T01:00:00+01:00", "2026-01-01T23:59:59.5Z"):  # fmt: skip
        assert rows(source, source.cursor_at(asked, last.cursor)) == [1, 2, 3], asked
        assert rows(source, source.cursor_at(asked, None)) == [1, 2, 3], asked
    for asked in ("2026-01-02", "2026-01-02T00:00:00Z", "2026-01-02T12:00:00"):
        again = between(source, "2026-01-02T00:00:00Z", asked, last.cursor)
        assert rows(source, again) == [1, 2], asked
    with pytest.raises(InputError, match="is ahead of where the last run stopped"):
        source.cursor_at("2026-01-03T00:00:01Z", last.cursor)
    with pytest.raises(InputError, match="^from: expected a time such as .* 'soon'") as refused:
        source.cursor_at("soon", last.cursor)
    assert repr(times[-1]) in str(refused.value)


def test_days_and_minutes_as_texts_are_found_by_days_and_times(tmp_path):
    days = opened_times(tmp_path, "DATE", ["2026-01-01", "2026-01-02", "2026-01-03"])
    assert rows(days, days.cursor_at("2026-01-02", None)) == [1, 2]
    with pytest.raises(InputError, match="^from: expected a day such as 2024-01-31"):
        days.cursor_at("2026-01-02T00:00:00Z", None)
    (tmp_path / "times.db").unlink()
    minutes = opened_times(tmp_path, "text", ["2026-01-01 10:00", "2026-01-01 10:01"])
    assert rows(minutes, minutes.cursor_at("2026-01-01T10:01:00Z", None)) == [1]


def test_fractions_of_several_lengths_are_no_several_moments(tmp_path):
    texts = ["2026-01-01 00:00:00.5", "2026-01-02 00:00:00", "2026-01-02 00:00:00.000000"]
    source = opened_times(tmp_path, "text", texts)
    *_, last = source.read(None)
    again = between(source, "2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z", last.cursor)
    assert rows(source, again) == [1, 2]


def test_texts_of_several_forms_have_no_order_of_times_and_this_is_said(tmp_path):
    source = opened_times(tmp_path, "text", ["2026-01-01 00:00:00", "2026-01-02T00:00:00Z"])
    with pytest.raises(InputError, match="^from: .* several forms .*'2026-01-02T00:00:00Z'"):
        source.cursor_at("2026-01-02", None)


def test_a_word_is_a_value_of_a_column_of_words_of_which_one_is_a_day(tmp_path):
    source = opened_times(tmp_path, "text", ["2026-01-01", "b", "c"])
    assert rows(source, source.cursor_at("b", None)) == [1, 2]


def test_a_column_of_numbers_and_texts_is_refused_before_later_numbers_are_left_out(tmp_path):
    source = opened_times(tmp_path, "integer", [1, "soon"])
    with pytest.raises(InputError, match=r"several types: int and str\. "):
        list(source.read(None))


@pytest.mark.parametrize(("before", "now"), [(5, "2026-01-05"), ("2026-01-05", 5)])
def test_a_column_whose_type_was_changed_is_not_compared_with_where_the_last_run_stopped(
    tmp_path, before, now
):
    source = opened_times(tmp_path, "text" if isinstance(before, str) else "integer", [before])
    *_, last = source.read(None)
    again = between(source, str(before), str(before), last.cursor)
    (tmp_path / "times.db").unlink()
    source = opened_times(tmp_path, "text" if isinstance(now, str) else "integer", [now] * 2)
    for ask in (
        lambda: source.cursor_at(str(now), last.cursor),
        lambda: list(source.read(last.cursor)),
        lambda: list(source.read(again)),
    ):
        with pytest.raises(InputError, match="'at' are not of one type.*ingest … --full") as said:
            ask()
        assert "2026" not in str(said.value), "a value may be personal, and of any length"
    assert rows(source, None) == [0, 1]


@pytest.fixture
def names(tmp_path):
    """Text that the database orders otherwise than Python does."""
    with sqlite3.connect(tmp_path / "names.db") as database:
        database.execute("CREATE TABLE t (id integer, name text COLLATE NOCASE)")
        found = ["b", "A", "c", "B2"]
        database.executemany("INSERT INTO t VALUES (?, ?)", enumerate(found))
    options = {"file": "names.db", "table": "t", "key": ["id"], "cursor": "name"}
    return open_connector(Source(connector="sql", event="e", options=options), tmp_path)


def test_values_of_text_are_compared_by_the_database(names):
    *_, last = names.read(None)
    assert [row["name"] for row in last.rows] == ["A", "b", "B2", "c"]
    assert rows(names, between(names, "a", "B", last.cursor)) == [1, 0]
    assert rows(names, names.cursor_at("B", last.cursor)) == [0, 3, 2]
    with pytest.raises(InputError, match="^to: table 't' has no row from 'B' to 'a'"):
        names.reread_between("B", "a", last.cursor)
    stood = {"by": ["name", "id"], "from": ["text", "B"]}
    with pytest.raises(InputError, match="'c' is ahead of where the last run stopped, B"):
        names.cursor_at("c", stood)
    assert names.cursor_at("a", stood)["from"] == ["text", "a"]


def test_a_range_that_is_read_again_is_shown_with_its_end(read_table):
    table, stood = read_table
    source = table(1, cursor="at")
    again = between(source, "1", "3", stood)
    begun, further = source.standing(again), source.standing(next(source.read(again)).cursor)
    assert (begun.position, begun.behind) == ("at 1, read again up to 3", 2)
    assert (further.position, further.behind) == ("at 1, read again up to 3", 2)


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


@pytest.fixture
def files(tmp_path):
    """Files of three rows, each changed at the second that its name says, and a connector."""

    def put(*seconds):
        for second in seconds:
            file = tmp_path / f"{second}.jsonl"
            file.write_text("".join(f'{{"id": {second + n}}}\n' for n in range(3)))
            os.utime(file, (second, second))

    def opened(page_rows=2):
        options = {"path": "*.jsonl", "settle_s": 0}
        source = Source(connector="files", event="e", page_rows=page_rows, options=options)
        return open_connector(source, tmp_path)

    opened.put = put
    return opened


def ids_of(*seconds):
    return [second + n for second in seconds for n in range(3)]


def test_files_of_two_times_and_between_them_are_read_again_and_the_cursor_stays(files):
    files.put(100, 200, 300, 400)
    *_, last = files().read(None)
    files.put(250, 500)
    source, stood = files(), last.cursor
    asked = source.reread_between("1970-01-01T00:03:20Z", "1970-01-01T00:05:00Z", stood)
    again = {**stood, "rereads": [asked]}
    pages = list(source.read(again))
    found = [row["id"] for page in pages for row in page.rows]
    assert found == ids_of(200, 300, 250, 500), "what was not read comes once, behind them"
    behind = next(page.cursor for page in pages if "rereads" not in page.cursor)
    assert behind == stood
    assert [page.start for page in pages] == [again, *(page.cursor for page in pages[:-1])]
    for page in pages:
        [first, *_] = files().read(json.loads(json.dumps(page.start)))
        assert (first.rows, first.cursor) == (page.rows, page.cursor)


def test_a_file_that_was_begun_is_read_again_whole_and_then_to_its_end(files):
    files.put(100, 200)
    _, _, begun = islice(files().read(None), 3)
    assert begun.cursor["file"]
    asked = files().reread_between("1970-01-01", "2001-01-01", begun.cursor)
    found = rows(files(), {**begun.cursor, "rereads": [asked]})
    assert found == [*ids_of(100, 200), 202]


def test_a_time_of_no_file_reads_none_again(files):
    files.put(100)
    *_, last = files().read(None)
    asked = files().reread_between("1970-01-01T00:03:20Z", "2001-01-01", last.cursor)
    [page] = files().read({**last.cursor, "rereads": [asked]})
    assert (page.rows, page.cursor) == ([], last.cursor)


def test_files_that_were_never_read_or_no_times_are_no_range(files):
    files.put(100)
    with pytest.raises(InputError, match="^to: no file was read yet"):
        files().reread_between("1970-01-01", "2001-01-01", None)
    with pytest.raises(InputError, match="^to: .* is before from"):
        files().reread_between("2001-01-01", "1970-01-01", {})
    with pytest.raises(InputError, match="^to: expected when a file was changed"):
        files().reread_between("2001-01-01", "200", {})
    with pytest.raises(InputError, match="is not one of this connector"):
        list(files().read({"done": {}, "before": -1, "rereads": [{"from": 1}]}))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"full": True}, "why: a reason must be given"),
        ({"full": True, "why": "  "}, "why: a reason must be given"),
        ({"from": "1", "to": "2"}, "why: a reason must be given"),
        ({"to": "2", "why": "x"}, "to: expected from beside it"),
        ({"full": True, "to": "2", "why": "x"}, "to: expected from beside it"),
        ({"from": "1", "to": " ", "why": "x"}, "to: it is empty"),
        ({"full": True, "from": "1", "why": "x"}, "a run has one beginning"),
        ({"from": " ", "why": "x"}, "from: it is empty"),
        ({"from": "1" * 201, "why": "x"}, "from: "),
        ({"ful": True}, "ful: "),
        ({"full": "perhaps", "why": "x"}, "full: "),
    ],
    ids=[
        "no-why",
        "blank-why",
        "no-why-of-range",
        "no-from",
        "full-to",
        "empty-to",
        "two",
        "empty",
        "long",
        "unknown",
        "no-bool",
    ],
)
def test_a_request_that_says_no_one_thing_is_refused(asked, said):
    with pytest.raises(InputError, match=said):
        IngestRequest.of(asked)
