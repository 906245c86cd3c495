"""A table's first reading in ranges of its key: no gap, no row twice, wherever it goes on."""

from __future__ import annotations

import json
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.pool import NullPool
from tests.support.key_ranges import keyed, read, require_exact, split

from waybill.errors import InputError
from waybill.ingestion.connectors import first_pages, open_connector, sql_ranges
from waybill.ingestion.connectors.base import RateLimit, Standing
from waybill.ingestion.connectors.sql_ranges import KeyedTable, KeyRange, read_ranges
from waybill.pipelines import Source


@contextmanager
def table_of(columns, rows):
    with tempfile.NamedTemporaryFile(suffix=".db") as file:
        with sqlite3.connect(file.name) as database:
            database.execute(f"CREATE TABLE t ({columns})")
            marks = ", ".join("?" * len(columns.split(",")))
            database.executemany(f"INSERT INTO t VALUES ({marks})", rows)
        database.close()
        yield sa.create_engine(f"sqlite:///{file.name}", poolclass=NullPool)


INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=60)
TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    unique_by=lambda text: text.casefold(),
    max_size=60,
)
PAIRS = st.lists(st.tuples(st.sampled_from("aAbé"), st.integers(-3, 9)), unique=True, max_size=40)
READINGS = {
    "page_rows": st.integers(1, 7),
    "ranges": st.integers(2, 12),
    "connections": st.tuples(st.integers(1, 4), st.integers(1, 4)),
    "died_after": st.integers(1, 12),
}


@settings(max_examples=40, deadline=None)
@given(keys=INTEGERS, **READINGS)
def test_ranges_of_integers_have_each_row_once(keys, page_rows, **reading):
    rows = [(key,) for key in keys]
    with table_of("k integer PRIMARY KEY", rows) as engine:
        require_exact(engine, keyed("k", page_rows=page_rows), rows, **reading)


@settings(max_examples=40, deadline=None)
@given(keys=TEXTS, collation=st.sampled_from(["BINARY", "NOCASE", "RTRIM"]), **READINGS)
def test_ranges_of_text_have_each_row_once_in_the_database_s_own_order(
    keys, collation, page_rows, **reading
):
    rows = [(key,) for key in {key.rstrip(" "): key for key in keys}.values()]
    with table_of(f"k text COLLATE {collation} PRIMARY KEY", rows) as engine:
        require_exact(engine, keyed("k", page_rows=page_rows), rows, **reading)


@settings(max_examples=40, deadline=None)
@given(rows=PAIRS, **READINGS)
def test_ranges_of_keys_of_several_columns_have_each_row_once(rows, page_rows, **reading):
    with table_of("a text, b integer", rows) as engine:
        require_exact(engine, keyed("a", "b", page_rows=page_rows), rows, **reading)


@settings(max_examples=40, deadline=None)
@given(keys=st.lists(st.integers(0, 9), max_size=40), **READINGS)
def test_a_key_that_is_not_unique_is_read_exactly_or_refused(keys, page_rows, **reading):
    rows = [(key,) for key in keys]
    with table_of("k integer", rows) as engine:
        try:
            require_exact(engine, keyed("k", page_rows=page_rows), rows, **reading)
        except InputError as error:
            assert "several rows of one k" in str(error)
            assert max(Counter(keys).values()) > 1


def test_keys_that_only_the_database_takes_for_one_are_refused_where_a_page_ends():
    with table_of("k text COLLATE NOCASE", [("a",), ("A",), ("b",)]) as engine:
        with pytest.raises(InputError, match="table 't' has several rows of one k"):
            read(engine, keyed("k", page_rows=1), (KeyRange(),), 1, -1)


@pytest.mark.parametrize("most_sampled", [8, 1024])
def test_ranges_are_about_as_long_whatever_the_gaps_between_keys_are(monkeypatch, most_sampled):
    monkeypatch.setattr(sql_ranges, "_MOST_SAMPLED", most_sampled)
    rows = [(key**5 - 10**12,) for key in range(1000)]
    with table_of("k integer PRIMARY KEY", rows) as engine:
        table = keyed("k", page_rows=10)
        sizes = [len(read(engine, table, (part,), 1, -1)[0]) for part in split(engine, table, 4)]
    assert sum(sizes) == 1000
    assert len(sizes) == 4
    assert max(sizes) - min(sizes) <= (20 if most_sampled > 100 else 400)


@dataclass(frozen=True, slots=True)
class SlowTable(KeyedTable):
    """Takes its time with each page, and says how many are read at once."""

    def page(self, session, part):
        AT_ONCE.append(threading.current_thread().name)
        time.sleep(0.2)
        return KeyedTable.page(self, session, part)


AT_ONCE: list[str] = []


def test_so_many_ranges_are_read_at_once_and_others_have_turns_while_a_page_is_waited_for(
    monkeypatch,
):
    monkeypatch.setattr(sql_ranges, "_TURN_S", 0.005)
    AT_ONCE.clear()
    rows = [(key,) for key in range(40)]
    with table_of("k integer PRIMARY KEY", rows) as engine:
        table = SlowTable("t", sa.table("t", sa.column("k")), ("k",), ("k",), 5)
        pages = list(read_ranges(engine, table, split(engine, table, 4), 3))
    assert [row for page in pages if page for row in page.rows] != rows, "they take turns"
    assert Counter(tuple(row) for page in pages if page for row in page.rows) == Counter(rows)
    assert None in pages
    assert len(set(AT_ONCE)) == 3


def test_a_reading_that_is_ended_leaves_no_thread_and_no_connection():
    with table_of("k integer PRIMARY KEY", [(key,) for key in range(40)]) as engine:
        opened, closed = [], []
        sa.event.listen(engine, "connect", lambda *given: opened.append(given[0]))
        sa.event.listen(engine, "close", lambda *given: closed.append(given[0]))
        table = keyed("k", page_rows=5)
        reading = read_ranges(engine, table, split(engine, table, 4), 3)
        next(reading)
        reading.close()
        assert not [one for one in threading.enumerate() if one.name.startswith("key range")]
        assert 1 < len(opened) == len(closed)


# The connector


@pytest.fixture
def database(tmp_path):
    opened = sqlite3.connect(tmp_path / "shop.db")
    opened.execute("CREATE TABLE t (id integer, at integer)")
    yield opened
    opened.close()


@pytest.fixture
def connector(tmp_path):
    def make(page_rows=10, **options):
        given = {"file": "shop.db", "table": "t", "key": ["id"], "cursor": "at", **options}
        given = {name: value for name, value in given.items() if value is not None}
        source = Source(connector="sql", event="e", page_rows=page_rows, options=given)
        return open_connector(source, tmp_path)

    return make


def fill(database, *rows):
    database.executemany("INSERT INTO t VALUES (?, ?)", rows)
    database.commit()


def read_pages(connector, cursor=None, pages=None):
    found = (page for page in connector.read(cursor) if page is not None)
    return list(islice(found, pages))


def ids(pages):
    return [row["id"] for page in pages for row in page.rows]


RANGES = {"backfill": {"ranges": 4}}


def test_what_changes_while_the_ranges_are_read_is_read_again_behind_them(database, connector):
    """Rows behind, in and before the place change, come and go; the mark is 99."""
    fill(database, *((n, n) for n in range(100)))
    first = read_pages(connector(**RANGES), pages=3)
    cursor = json.loads(json.dumps(first[-1].cursor))
    assert cursor["backfill"]["mark"] == ["int", "99"]
    database.execute("UPDATE t SET at = 101 WHERE id IN (0, 50, 99)")
    database.execute("DELETE FROM t WHERE id = 60")
    fill(database, (-5, 102), (55_555, 103))
    rest = read_pages(connector(**RANGES), cursor)
    newest = {row["id"]: row["at"] for page in [*first, *rest] for row in page.rows}
    now = dict(database.execute("SELECT id, at FROM t").fetchall())
    assert now.items() <= newest.items()
    assert newest.keys() - now.keys() <= {60}
    assert [row["at"] for row in rest[-1].rows] == [101, 101, 101, 102, 103]
    assert read_pages(connector(**RANGES), rest[-1].cursor) == []


def test_the_increments_step_back_before_the_mark_by_the_overlap(database, connector):
    fill(database, *((n, n) for n in range(100)))
    pages = read_pages(connector(overlap=3, **RANGES))
    assert sorted(ids(pages[:-1])) == list(range(100))
    assert ids(pages[-1:]) == [96, 97, 98, 99]


def test_pages_of_ranges_are_a_chain_and_the_same_at_each_cursor(database, connector):
    fill(database, *((n * 7 - 300, n // 3) for n in range(95)))
    pages = read_pages(connector(page_rows=6, **RANGES))
    assert pages[0].start is None
    for before, page in pairwise(pages):
        assert page.start == before.cursor
        again = read_pages(
            connector(page_rows=6, **RANGES), json.loads(json.dumps(before.cursor)), pages=1
        )
        assert (again[0].rows, again[0].cursor) == (page.rows, page.cursor)


def test_ranges_that_were_begun_are_ended_where_none_are_declared_any_more(database, connector):
    fill(database, *((n, n) for n in range(100)))
    first = read_pages(connector(**RANGES), pages=3)
    rest = read_pages(connector(), first[-1].cursor)
    assert set(ids([*first, *rest])) == set(range(100))
    assert len(ids([*first, *rest])) == 101, "and the row of the mark again"


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_a_table_of_less_than_one_page_is_read_by_its_cursor(database, connector, rows):
    fill(database, *((n, n) for n in range(rows)))
    pages = read_pages(connector(**RANGES))
    assert ids(pages) == list(range(rows))
    assert all("at" in page.cursor for page in pages)


def test_a_table_that_is_emptied_meanwhile_ends_its_ranges(database, connector):
    fill(database, *((n, n) for n in range(100)))
    first = read_pages(connector(**RANGES), pages=1)
    database.execute("DELETE FROM t")
    database.commit()
    [last] = read_pages(connector(**RANGES), first[0].cursor)
    of = {"file": "shop.db", "table": "t"}
    assert (last.rows, last.cursor) == ([], {"by": ["at", "id"], "mark": ["int", "99"], "of": of})
    fill(database, (1, 99), (2, 98), (3, 100))
    assert ids(read_pages(connector(**RANGES), last.cursor)) == [1, 3]


def test_a_source_that_is_only_looked_at_is_not_walked_along_for_ranges(database, connector):
    fill(database, *((n, 99 - n) for n in range(100)))
    first = next(first_pages(connector(**RANGES)))
    assert [row["at"] for row in first.rows] == list(range(10))


def test_a_first_reading_says_how_many_ranges_are_left(database, connector):
    fill(database, *((n, n) for n in range(100)))
    source = connector(**RANGES)
    pages = read_pages(source)
    first, marked = source.standing(pages[0].cursor), source.standing(pages[-2].cursor)
    assert (first.position, first.behind, first.unit) == (
        "first reading, 4 of 4 key ranges left",
        4,
        "key ranges",
    )
    assert marked == Standing("at 99")


def test_a_source_is_not_asked_how_far_it_is_while_readers_of_ranges_have_all_connections(
    database, connector, monkeypatch
):
    fill(database, *((n, n) for n in range(100)))
    source = connector(**RANGES)
    reading = (page for page in source.read(None) if page is not None)
    last = next(page for page in reading if "mark" in page.cursor)
    monkeypatch.setattr(source, "_engine", None)
    assert source.standing(last.cursor) == Standing("at 99")


def test_a_value_to_begin_at_is_refused_until_all_ranges_are_read(database, connector):
    fill(database, *((n, n) for n in range(100)))
    source = connector(**RANGES)
    first = read_pages(source, pages=3)
    with pytest.raises(InputError, match="3 of 4 key ranges are left.*would leave rows out"):
        source.cursor_at("3", first[-1].cursor)


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ([(1, 1)], {"cursor": None, **RANGES}, "source.options.backfill: expected a cursor"),
        ([(1, 1)], {"backfill": {"ranges": 1}}, "backfill.ranges: expected an object"),
        ([(1, 1)], {"backfill": {"ranges": 65}}, "backfill.ranges: expected an object"),
        ([(1, 1)], {"backfill": {"ranges": True}}, "backfill.ranges: expected an object"),
        ([(1, 1)], {"backfill": {}}, "backfill.ranges: expected an object .* it is missing"),
        ([(1, 1)], {"backfill": {"rnges": 3, "ranges": 3}}, "backfill.rnges: expected an object"),
        ([(1, 1)], {"backfill": 8}, "source.options.backfill: expected an object"),
        ([(1, 1)], {"limits": {"rows": 8}}, "limits.rows: expected an object with max_connections"),
        ([(1, 1)], {"limits": {"rows_per_second": 0}}, "limits.rows_per_second: expected an object"),
        ([(None, 1), *((n, n) for n in range(50))], RANGES, "has rows in which id or at is null"),
        ([(n % 2, n) for n in range(50)], RANGES, "several rows of one id: ranges need a key"),
    ],
    ids=["no-cursor", "one", "many", "bool", "missing", "unknown", "number", "unknown-limit",
         "no-rows", "null-key", "no-key"],
)  # fmt: skip
def test_ranges_and_limits_that_cannot_be_kept_are_refused(
    database, connector, rows, options, said
):
    fill(database, *rows)
    with pytest.raises(InputError, match=said):
        read_pages(connector(**options))


@pytest.mark.parametrize(
    "left",
    [
        {},
        {"mark": ["int", "1"], "of": 2, "ranges": []},
        {"mark": ["int", "1"], "of": 2, "ranges": [{"after": None, "until": [["int", "1"]] * 2}]},
        {"mark": ["int", "1"], "of": 2, "ranges": [{"after": 7, "until": None}]},
    ],
    ids=["nothing", "no-range", "other-key", "no-key"],
)
def test_ranges_of_something_else_are_refused(database, connector, left):
    fill(database, (1, 1))
    with pytest.raises(InputError, match="reset it"):
        read_pages(connector(**RANGES), {"by": ["at", "id"], "backfill": left})


# Limits


def test_a_limit_lets_so_many_records_be_read_in_a_second_whatever_happens_between():
    now = [100.0]
    limit = RateLimit(10, now=lambda: now[0])
    assert limit.wait_s == 0
    limit.met(5)
    assert limit.wait_s == pytest.approx(0.5)
    now[0] += 0.4
    assert limit.wait_s == pytest.approx(0.1)
    now[0] += 9
    assert limit.wait_s == 0
    limit.met(20)
    assert limit.wait_s == pytest.approx(2), "what was not read before is not made up for"
    unlimited = RateLimit(None, now=lambda: now[0])
    unlimited.met(10**9)
    assert unlimited.wait_s == 0


@pytest.mark.parametrize("options", [{}, RANGES], ids=["by-cursor", "by-ranges"])
def test_a_table_is_read_at_the_rate_that_its_source_declares_and_others_have_turns_meanwhile(
    database, connector, options
):
    fill(database, *((n, n) for n in range(60)))
    began, stamps = time.monotonic(), []
    waits = 0
    for page in connector(page_rows=15, limits={"rows_per_second": 50}, **options).read(None):
        if page is None:
            waits += 1
        else:
            stamps.append((time.monotonic() - began, len(page.rows)))
    assert sum(rows for _, rows in stamps) >= 60
    before = 0
    for at, rows in stamps:
        assert at >= before / 50 - 0.01
        before += rows
    assert waits >= len(stamps)


def test_a_source_of_one_connection_is_not_asked_how_far_it_is_while_it_is_read(
    database, connector, monkeypatch
):
    fill(database, *((n, n) for n in range(9)))
    source = connector(limits={"max_connections": 1})
    [page] = read_pages(source)
    monkeypatch.setattr(source, "_engine", None)
    assert source.standing(page.cursor) == Standing("at 8")


def test_a_page_has_no_more_rows_than_may_be_read_in_a_second(database, connector):
    fill(database, *((n, n) for n in range(9)))
    pages = read_pages(connector(limits={"rows_per_second": 5}))
    assert [len(page.rows) for page in pages] == [5, 4]


@pytest.mark.parametrize(
    ("key_bytes", "least", "most"),
    [(100, 60, 64), (20_000, 2, 12), (200_000, 2, 2), (300_000, 1, 1)],
    ids=["short", "long", "of-two-ranges", "too-long"],
)
def test_bounds_that_would_fill_the_cursor_are_fewer_ranges(key_bytes, least, most):
    rows = [(f"{number:0{key_bytes}}",) for number in range(70)]
    with table_of("k text PRIMARY KEY", rows) as engine:
        table = keyed("k", page_rows=1)
        parts = split(engine, table, 64)
        assert least <= len(parts) <= most
        found, left = read(engine, table, parts, 2, -1)
    assert left == ()
    assert Counter(found) == Counter(rows)


def test_keys_that_a_walk_remembers_are_fewer_where_they_are_long(monkeypatch):
    monkeypatch.setattr(sql_ranges, "_MOST_SAMPLED_BYTES", 2000)
    rows = [(f"{number:0100}",) for number in range(300)]
    with table_of("k text PRIMARY KEY", rows) as engine:
        parts = split(engine, keyed("k", page_rows=1), 8)
        assert len(parts) == 8
        require_exact(
            engine, keyed("k", page_rows=1), rows, ranges=8, connections=(2, 2), died_after=9
        )


def test_a_reading_of_sqlite_that_is_closed_ends_its_statement():
    endless = (
        "CREATE VIEW slow AS WITH RECURSIVE n(k) AS"
        " (SELECT 1 UNION ALL SELECT k + 1 FROM n WHERE k < 100000000000) SELECT max(k) AS k FROM n"
    )
    with table_of("k integer", []) as engine:
        with engine.begin() as session:
            session.execute(sa.text(endless))
        reading = read_ranges(engine, keyed("k", page_rows=1, name="slow"), (KeyRange(),), 1)
        assert next(reading) is None
        began = time.monotonic()
        reading.close()
        assert time.monotonic() - began < 300, "it waited for it"
