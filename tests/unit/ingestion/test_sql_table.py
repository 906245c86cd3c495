"""Tables: where a run begins and ends, what is refused, and what becomes of values."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import pairwise
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from waybill.errors import InputError, RetryError
from waybill.ingestion.connectors import open_connector, sql_ties
from waybill.ingestion.connectors.sql_values import (
    behind,
    json_rows,
    json_value,
    kept,
    restored,
    stepped_back,
)
from waybill.pipelines import Source


@pytest.fixture
def database(tmp_path):
    opened = sqlite3.connect(tmp_path / "shop.db")
    opened.execute("CREATE TABLE t (id integer, at integer, v text)")
    yield opened
    opened.close()


@pytest.fixture
def connector(tmp_path):
    def make(page_rows=1000, **options):
        given = {"file": "shop.db", "table": "t", "key": ["id"], "cursor": "at", **options}
        given = {name: value for name, value in given.items() if value is not None}
        source = Source(connector="sql", event="e", page_rows=page_rows, options=given)
        return open_connector(source, tmp_path)

    return make


def fill(database, *rows):
    database.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    database.commit()


def read(connector, cursor=None):
    pages = list(connector.read(cursor))
    return [row["id"] for page in pages for row in page.rows], pages[-1].cursor if pages else cursor


def test_an_overlap_meets_rows_that_were_committed_late_and_the_ones_around_them(
    database, connector
):
    fill(database, (1, 100, "a"), (2, 110, "b"))
    _, cursor = read(connector(overlap=9))
    _, without = read(connector())
    fill(database, (3, 105, "late"), (4, 120, "new"))
    assert read(connector(overlap=9), cursor)[0] == [3, 2, 4]
    assert read(connector(), without)[0] == [4], "without one, what is late is never read"


def test_rows_of_the_last_cursor_value_are_read_once_whatever_their_key(database, connector):
    fill(database, (5, 100, "a"), (7, 110, "b"), (8, 110, "c"))
    found, cursor = read(connector())
    assert found == [5, 7, 8]
    assert read(connector(), cursor) == ([], cursor)
    fill(database, (6, 110, "later, lower key"), (9, 110, "later, higher key"))
    found, cursor = read(connector(page_rows=1), cursor)
    assert found == [6, 9]
    assert read(connector(), cursor)[0] == []


def test_a_row_that_changes_within_its_cursor_value_is_read_again(database, connector):
    fill(database, (1, 110, "a"), (2, 110, "b"))
    _, cursor = read(connector())
    database.execute("UPDATE t SET v = 'changed' WHERE id = 1")
    database.commit()
    found, cursor = read(connector(), cursor)
    assert found == [1]
    assert read(connector(), cursor)[0] == []


@pytest.mark.parametrize("page_rows", [1, 7, 1000])
def test_of_very_many_rows_of_one_value_only_the_number_is_known(
    database, connector, monkeypatch, page_rows
):
    monkeypatch.setattr(sql_ties, "MOST_KNOWN", 20)
    fill(database, (1, 5, "x"), *((n, 9, "x") for n in range(100, 150)))
    _, cursor = read(connector(page_rows=page_rows))
    assert cursor["sent"] is None
    assert read(connector(page_rows=page_rows), cursor)[0] == []
    fill(database, (7, 9, "later"))
    found, cursor = read(connector(page_rows=page_rows), cursor)
    assert found == [7, *range(100, 150)], "all of them, to be known by id and version"
    assert read(connector(page_rows=page_rows), cursor)[0] == []
    fill(database, (2, 10, "new"))
    assert read(connector(page_rows=page_rows), cursor)[0] == [2]


@pytest.mark.parametrize("most", [0, 3, 1000])
def test_each_page_of_ties_can_be_read_again_at_its_cursor(database, connector, monkeypatch, most):
    monkeypatch.setattr(sql_ties, "MOST_KNOWN", most)
    fill(database, *((n, n // 9, "x") for n in range(40)))
    pages = list(connector(page_rows=4).read(None))
    for before, page in pairwise(pages):
        again = next(connector(page_rows=4).read(json.loads(json.dumps(before.cursor))))
        assert (again.rows, again.cursor, again.start) == (page.rows, page.cursor, page.start)


def test_late_rows_are_met_by_a_run_that_first_ends_a_dead_one(database, connector):
    """The dead one had read past 3 of 9; meanwhile rows came at 8 and 9, and behind."""
    fill(database, *((n, n, "x") for n in range(10)))
    first = next(connector(page_rows=4, overlap=2).read(None))
    fill(database, (-1, 8, "late"), (-2, 9, "late"), (20, 10, "new"))
    found, _ = read(connector(page_rows=100, overlap=2), first.cursor)
    assert found == [4, 5, 6, 7, -1, 8, -2, 9, 7, -1, 8, -2, 9, 20]
    first = next(connector(page_rows=11).read(None))
    assert first.cursor["until"] == ["int", "10"]
    fill(database, (-3, 8, "late, and there is no overlap"), (21, 11, "new"))
    assert read(connector(), first.cursor)[0] == [9, 20, 21]


def test_a_value_without_a_form_in_json_is_known_as_well(database, connector):
    database.execute("INSERT INTO t VALUES (1, 5, 9e999)")
    database.commit()
    found, cursor = read(connector())
    assert found == [1]
    assert read(connector(), cursor)[0] == []


def test_a_cursor_of_an_older_release_loses_nothing(database, connector):
    fill(database, (1, 1, "a"), (2, 2, "b"), (3, 2, "c"))
    place = {"by": ["at", "id"], "at": [["int", "2"], ["int", "3"]]}
    assert read(connector(), {**place, "whole": True})[0] == [2, 3]
    fill(database, (4, 3, "d"))
    assert read(connector(), {**place, "whole": False})[0] == [4]


def test_a_run_that_died_goes_on_where_it_was_and_steps_back_from_where_one_ended(
    database, connector
):
    fill(database, *((n, n, "x") for n in range(10)))
    pages = list(connector(page_rows=4, overlap=3).read(None))
    assert [page.cursor["whole"] for page in pages] == [False, False, True]
    found = read(connector(page_rows=4, overlap=3), pages[0].cursor)[0]
    assert found == [4, 5, 6, 7, 8, 9, 6, 7, 8, 9]
    assert read(connector(page_rows=4, overlap=3), pages[2].cursor)[0] == [6, 7, 8, 9]


def test_rows_that_vanish_before_a_run_goes_on_end_it(database, connector):
    fill(database, *((n, n, "x") for n in range(10)))
    first = next(connector(page_rows=4).read(None))
    database.execute("DELETE FROM t WHERE at > 3")
    database.commit()
    found, cursor = read(connector(page_rows=4), first.cursor)
    assert found == []
    assert cursor["whole"]


def test_without_a_cursor_each_run_reads_the_whole_table(database, connector):
    fill(database, (2, None, "b"), (1, None, "a"))
    found, cursor = read(connector(cursor=None))
    assert found == [1, 2]
    assert read(connector(cursor=None), cursor)[0] == [1, 2]


def test_another_order_is_another_position(database, connector):
    fill(database, (1, 1, "a"), (2, 2, "b"))
    _, cursor = read(connector())
    assert read(connector(cursor="id", key=["v"]), cursor)[0] == [1, 2]


def test_ties_of_the_cursor_are_read_each_once_wherever_a_page_ends(database, connector):
    fill(database, *((n, 5, "x") for n in range(9)))
    for page_rows in (1, 2, 4, 8):
        assert read(connector(page_rows=page_rows))[0] == list(range(9))


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ([(1, None, "a")], {}, "has rows in which id or at is null"),
        ([(None, 1, "a")], {}, "has rows in which id or at is null"),
        ([(1, 1, "a"), (1, 1, "b")], {"page_rows": 1}, "several rows of one at, id"),
        ([(1, 1, "a")], {"cursor": "v", "overlap": 3}, "one of times or numbers; found str"),
        ([(1, 1, "a")], {"cursor": "att"}, "no column 'att'; it has id, at, v; did you mean 'at'"),
        ([(1, 1, "a")], {"columns": ["id"]}, "source.options.columns has no column 'at'"),
        ([(1, 1, "a")], {"table": "T2"}, "no table or view 'T2'"),
        ([(1, 1, "a")], {"file": "y.db"}, "there is no file"),
        ([(1, 1, "a")], {"key": None}, "table 't' has no primary key: expected the columns"),
    ],
)
def test_what_could_lose_rows_is_refused(database, connector, rows, options, said):
    fill(database, *rows)
    page_rows = options.get("page_rows", 1000)
    given = {name: value for name, value in options.items() if name != "page_rows"}
    with pytest.raises(InputError, match=said):
        next(connector(page_rows, **given).read(None))


@pytest.mark.parametrize(
    "cursor",
    [
        {"by": ["at", "id"]},
        {"by": ["at", "id"], "at": [1], "whole": 1},
        {"by": ["at", "id"], "at": [["int", "1"], ["int", "1"]], "whole": True, "sent": 7},
    ],
)
def test_a_cursor_of_something_else_is_refused(database, connector, cursor):
    fill(database, (1, 1, "a"))
    with pytest.raises(InputError, match="reset it"):
        next(connector().read(cursor))


def test_names_are_names_whatever_they_hold(tmp_path):
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute(
            'CREATE TABLE "t""; DROP TABLE u; --" ("i d" integer NOT NULL, "%s" integer)'
        )
        database.execute('INSERT INTO "t""; DROP TABLE u; --" VALUES (1, 2)')
    options = {"file": "shop.db", "table": 't"; DROP TABLE u; --', "key": ["i d"]}
    source = Source(connector="sql", event="e", options=options)
    [page] = open_connector(source, tmp_path).read(None)
    assert page.rows == [{"i d": 1, "%s": 2}]


def test_a_database_is_not_written_to_and_a_broken_one_is_told(tmp_path, connector):
    (tmp_path / "shop.db").write_bytes(b"no database" * 100)
    with pytest.raises((InputError, RetryError), match="source table 't': file is not a database"):
        next(connector().read(None))


MOMENT = datetime(2024, 1, 2, 3, 4, 5, 678, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Decimal("12345678901234567890.1200"), "12345678901234567890.1200"),
        (Decimal("1E+3"), "1000"),
        (MOMENT, "2024-01-02T01:04:05.000678Z"),
        (datetime(2024, 1, 2), "2024-01-02T00:00:00Z"),
        (date(2024, 1, 2), "2024-01-02"),
        (b"\x00\xff", "AP8="),
        (memoryview(b"\x00\xff"), "AP8="),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ({"a": [Decimal("1.10"), None, True]}, {"a": ["1.10", None, True]}),
        (2**70, 2**70),
    ],
)
def test_values_are_as_json_has_them(value, expected):
    assert json_value(value) == expected


@pytest.mark.parametrize(
    "value",
    [7, 2**70, "é", MOMENT, datetime(2024, 1, 2, tzinfo=UTC), datetime(2024, 1, 2, 3, 4, 5, 6),
     date(2024, 1, 2), Decimal("1.20"), 0.1, UUID(int=5), b"\xff"],
)  # fmt: skip
def test_a_position_keeps_a_value_and_its_type(value):
    again = restored(kept(value))
    assert (again, type(again)) == (value, type(value))


def test_rows_have_the_values_that_each_has_alone():
    rows = [
        (1, "a", None, Decimal("1.50"), datetime(2026, 3, 1, tzinfo=UTC)),
        (2.5, None, None, 7, None),
        (True, b"\x00", None, "7", date(2026, 3, 2)),
    ]
    assert list(json_rows(rows)) == [tuple(map(json_value, row)) for row in rows]
    assert list(json_rows([])) == []


@pytest.mark.parametrize(
    "zone",
    [None, UTC, ZoneInfo("UTC"), ZoneInfo("Asia/Kathmandu"), timezone(timedelta(seconds=-5_025))],
    ids=["none", "utc", "UTC", "Kathmandu", "odd"],
)
def test_a_column_of_times_has_the_text_that_each_time_has_alone(zone):
    times = [
        datetime(2026, 3, 1, 12, 30, 5, micros, zone) for micros in (0, 1, 1_000, 500_000, 999_999)
    ]
    times += [datetime(2, 1, 1, tzinfo=zone), datetime(987, 6, 5, tzinfo=zone)]
    times += [datetime(9998, 12, 31, 23, 59, 59, 999_999, zone), datetime(1969, 1, 1, tzinfo=zone)]
    for column in (times, [None, *times], [*times, datetime(2026, 3, 1, tzinfo=UTC)]):
        expected = [(json_value(value),) for value in column]
        assert list(json_rows([(value,) for value in column])) == expected


def test_a_step_back_is_of_seconds_or_units():
    assert stepped_back(datetime(2024, 1, 2), 60) == datetime(2024, 1, 1, 23, 59)
    assert stepped_back(date(2024, 1, 2), 60) == date(2024, 1, 1)
    assert stepped_back(Decimal("10.5"), 2) == Decimal("8.5")


def test_a_file_outside_of_where_sources_may_lie_is_refused_when_it_is_declared(connector):
    with pytest.raises(InputError, match="outside of them"):
        connector(file="../x.db")


@pytest.mark.parametrize("poison", ["9e999"])
def test_a_cursor_behind_which_nothing_comes_is_refused_before_the_first_row(
    database, connector, poison
):
    fill(database, (1, 100, "a"))
    database.execute(f"INSERT INTO t VALUES (2, {poison}, 'b')")
    database.commit()
    with pytest.raises(InputError, match="a row with inf in 'at': nothing comes behind it"):
        next(connector().read(None))


@pytest.mark.parametrize(
    ("value", "end", "expected"),
    [
        (
            datetime(2026, 1, 1, tzinfo=UTC),
            datetime(2026, 1, 1, 0, 2, tzinfo=UTC),
            (120, "seconds"),
        ),
        (datetime(2026, 1, 1), datetime(2026, 1, 1, 0, 2, tzinfo=UTC), (120, "seconds")),
        (date(2026, 1, 1), date(2026, 1, 2), (86_400, "seconds")),
        (5, Decimal("7.5"), (2.5, "units")),
        (9, 7, (0, "units")),
        (1.5, float("inf"), (None, "")),
        (datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 2), (None, "")),
        ("a", "b", (None, "")),
        (None, 7, (None, "")),
        (7, None, (None, "")),
    ],
    ids=[
        "times",
        "a zone is missing",
        "dates",
        "numbers",
        "rows are gone",
        "infinite",
        "mixed",
        "text",
        "unread",
        "empty",
    ],
)
def test_a_cursor_is_so_far_behind_the_greatest_in_seconds_or_units(value, end, expected):
    assert behind(value, end) == expected


def test_a_position_in_another_table_or_file_is_refused(tmp_path, database, connector):
    fill(database, *((n, n, "") for n in range(9)))
    _, cursor = read(connector())
    database.execute("CREATE TABLE other AS SELECT * FROM t")
    database.commit()
    (tmp_path / "copy.db").write_bytes((tmp_path / "shop.db").read_bytes())
    for other in ({"table": "other"}, {"file": "copy.db"}):
        with pytest.raises(InputError, match=r"--full.*--from") as refused:
            read(connector(**other), cursor)
        assert all(value in str(refused.value) for value in ("'t'", *map(repr, other.values())))
        with pytest.raises(InputError, match="--full"):
            connector(**other).reread_between("1", "2", cursor)
        by_hand = connector(**other).cursor_at("7", cursor)
        assert read(connector(**other), by_hand)[0] == [7, 8]
    assert read(connector(file="./shop.db"), cursor)[0] == [], "the same file"


def test_a_half_read_table_is_not_gone_on_with_in_another_one(database, connector):
    fill(database, *((n, n, "") for n in range(100)))
    database.execute("CREATE TABLE other AS SELECT * FROM t")
    database.commit()
    ranges = {"page_rows": 10, "backfill": {"ranges": 4}}
    reading = connector(**ranges).read(None)
    page = next(page for page in reading if page is not None)
    reading.close()
    assert "backfill" in page.cursor
    with pytest.raises(InputError, match="table 'other'"):
        read(connector(table="other", **ranges), page.cursor)


def test_a_cursor_of_a_release_without_the_tables_name_goes_on(database, connector):
    fill(database, (1, 1, ""), (2, 2, ""))
    _, cursor = read(connector())
    fill(database, (3, 3, ""))
    found, after = read(connector(), {name: cursor[name] for name in cursor if name != "of"})
    assert (found, after["of"]) == ([3], {"file": "shop.db", "table": "t"})
