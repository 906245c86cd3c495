"""Connector ``sql`` with ``deletes: compare``: rows that are gone from a table are deletes."""

from __future__ import annotations

import json
from itertools import islice, pairwise

import pytest
from tests.support.connector_sources import MysqlTable, PostgresTable, SqliteTable

from waybill.errors import InputError
from waybill.ingestion.connectors import Record, open_connector
from waybill.pipelines import Column, EventDeclaration, Source, TableSpec
from waybill.settings import Settings, TrackerSettings
from waybill.storage import open_objects

pytestmark = pytest.mark.serves
COLUMNS = (
    Column(name="id", type="int64"),
    Column(name="seq", type="int64"),
    Column(name="name", type="string"),
)
EVENT = EventDeclaration(
    name="e",
    key=("id",),
    version="seq",
    table=TableSpec(schema_name="s", name="t", columns=COLUMNS, key=("id",)),
)


class Table:
    """A table that is read again and again, each time from where the last reading ended."""

    def __init__(self, source, settings):
        self.source, self.settings = source, settings
        self.cursor = None

    def open(self, page_rows=1000, event=EVENT, **options):
        declaration = self.source.declaration()
        given = {**declaration["options"], "deletes": "compare", "compare_every": 0, **options}
        declared = Source(event="e", page_rows=page_rows, **{**declaration, "options": given})
        return open_connector(
            declared,
            self.source.folder,
            events={"e": event},
            connections=self.source.connections(),
            settings=self.settings,
        )

    def read(self, pages=None, page_rows=1000, **options):
        """Return (ids of upserts, keys and versions of deletes) of some pages, or of all."""
        connector = self.open(page_rows, **options)
        upserts, deletes = [], []
        read = (page for page in connector.read(self.cursor) if page is not None)
        for page in islice(read, pages):
            self.cursor = json.loads(json.dumps(page.cursor))
            connector.confirm(self.cursor)
            for row in page.rows:
                if isinstance(row, Record):
                    assert row.op == "delete"
                    deletes.append((row.data, row.version))
                else:
                    upserts.append(row["id"])
        return upserts, sorted(deletes, key=str)

    def add(self, *ids, seq):
        self.source.add([{"id": n, "seq": seq, "name": f"row {n}"} for n in ids])

    def delete(self, where):
        self.source.run(f'DELETE FROM "or""ders" WHERE {where}')


@pytest.fixture(
    params=[
        pytest.param(SqliteTable, id="sqlite", marks=pytest.mark.campaign),
        pytest.param(PostgresTable, id="postgres"),
        pytest.param(MysqlTable, id="mysql", marks=pytest.mark.campaign),
    ]
)
def table(request, tmp_path, postgres, s3):
    tracker = TrackerSettings(dsn=postgres.tracker())
    settings = Settings(_env_file=None, s3=s3.bucket("keys"), tracker=tracker)
    return Table(request.param(tmp_path, request), settings)


def of(*ids, version):
    return [({"id": n}, version) for n in sorted(ids, key=str)]


def test_rows_that_are_gone_are_deletes_once_and_come_back_when_they_are_inserted_again(table):
    table.add(1, 2, 3, seq=7)
    assert table.read() == ([1, 2, 3], [])
    table.delete("id IN (1, 3)")
    assert table.read() == ([], of(1, 3, version=7))
    assert table.read() == ([], [])
    table.add(1, seq=8)
    assert table.read() == ([1], [])
    table.delete("id = 1")
    assert table.read() == ([], of(1, version=8)), "and behind the row as it was inserted again"


def test_a_delete_is_behind_its_row_where_the_cursor_was_moved_back_since_that_was_sent(table):
    table.add(1, seq=1)
    table.read()
    before = table.cursor
    table.add(2, seq=8)
    table.add(3, seq=9)
    table.read()
    table.delete("id = 3")
    table.cursor = None
    assert table.read() == ([1, 2], of(3, version=9))
    table.delete("id = 2")
    table.cursor = before
    assert table.read() == ([], of(2, version=9))


def test_a_row_that_goes_amid_a_first_reading_in_ranges_of_the_key_is_a_delete_behind_it(table):
    table.add(*range(0, 40, 2), seq=9)
    table.add(*range(1, 41, 2), seq=3)
    ranges = {"page_rows": 4, "backfill": {"ranges": 3}}
    assert table.read(pages=1, **ranges)[0] == [0, 1, 2, 3]
    assert table.cursor["top"] == 9, "the greatest of the page, not that of its last row"
    first = table.read(pages=2, **ranges)[0]
    table.delete(f"id IN (2, 3, {first[0]})")
    upserts, deletes = table.read(**ranges)
    assert deletes == of(2, 3, first[0], version=9)
    assert {0, 1, 2, 3, *first, *upserts} == set(range(40))
    assert table.read(**ranges) == ([], [])


def test_a_row_that_came_and_went_between_two_comparisons_is_a_delete(table):
    table.add(1, seq=1)
    table.read()
    table.add(2, seq=2)
    assert table.read(compare_every=3600) == ([2], [])
    table.delete("id = 2")
    assert table.read(compare_every=3600) == ([], []), "it is not time yet"
    assert table.read() == ([], of(2, version=2))


def test_a_row_that_was_deleted_and_inserted_again_between_comparisons_is_an_upsert(table):
    table.add(1, 2, seq=1)
    table.read()
    table.delete("id = 1")
    table.add(1, seq=2)
    assert table.read() == ([1], [])


def test_a_table_that_came_back_empty_or_half_deletes_nothing_until_that_is_confirmed(table):
    table.add(*range(100), seq=1)
    table.read()
    table.delete("id >= 60")
    with pytest.raises(InputError, match="40 of 100 rows are gone.*nothing was deleted"):
        table.read()
    table.add(200, seq=2)
    with pytest.raises(InputError, match="40 of 101 rows are gone"):
        table.read()
    assert table.cursor["at"][0] == ["int", "2"], "increments go on"
    assert table.read(compare_limit=100) == ([], of(*range(60, 100), version=2))
    table.delete("id >= 0")
    with pytest.raises(InputError, match="all 61 rows are gone"):
        table.read(compare_limit=99)
    assert len(table.read(compare_limit=100)[1]) == 61


@pytest.mark.campaign
def test_a_few_rows_of_a_small_table_may_go_but_not_all(table):
    table.add(1, 2, 3, seq=1)
    table.read()
    table.delete("id < 3")
    assert table.read() == ([], of(1, 2, version=1))
    table.delete("id = 3")
    with pytest.raises(InputError, match="all 1 rows are gone"):
        table.read()


def test_a_comparison_that_died_anywhere_sends_each_delete(table):
    table.add(*range(300), seq=1)
    table.read(page_rows=100)
    table.delete("id >= 290")
    begun = table.open(page_rows=4).read(table.cursor)
    next(begun)  # its page was never committed
    begun.close()
    sent = []
    for _ in range(100):
        _, deletes = table.read(pages=1, page_rows=4)
        sent += deletes
        if "gone" not in table.cursor:
            break
    assert sorted(sent, key=str) == of(*range(290, 300), version=1)
    assert table.read(compare_every=3600) == ([], [])


@pytest.mark.campaign
def test_the_same_cursor_gives_the_same_page_of_deletes(table):
    table.add(*range(50), seq=1)
    table.read()
    table.delete("id < 10")
    pages = list(table.open(page_rows=4).read(table.cursor))
    for before, page in pairwise(pages):
        again = next(table.open(page_rows=4).read(json.loads(json.dumps(before.cursor))))
        assert (again.rows, again.cursor, again.start) == (page.rows, page.cursor, page.start)


def test_what_is_not_needed_any_more_is_deleted_and_a_cursor_that_is_reset_forgets_nothing(table):
    objects = open_objects(table.settings.s3)
    prefix = f"source-keys/{table.source.folder.name}/"
    for number in range(5):
        table.add(number, seq=number + 1)
        table.read()
    assert len(list(objects.list(prefix))) == 1
    table.delete("id = 0")
    table.cursor = None
    upserts, deletes = table.read()
    assert (upserts, deletes) == ([1, 2, 3, 4], of(0, version=5))
    assert len(list(objects.list(prefix))) == 1


def test_what_went_while_it_was_not_compared_is_a_delete_behind_its_row(table):
    table.add(1, 2, seq=7)
    table.read()
    table.delete("id = 1")
    assert table.read(deletes=None) == ([], [])
    table.cursor = {name: table.cursor[name] for name in ("by", "at", "whole", "met", "sent")}
    assert table.read() == ([], of(1, version=7))


@pytest.mark.campaign
def test_a_cursor_that_is_put_back_amid_deletes_which_a_later_comparison_sent_compares_again(table):
    options = {"page_rows": 3, "compare_limit": 100}
    table.add(*range(20), seq=5)
    table.read(**options)
    table.delete("id < 8")
    _, sent = table.read(1, **options)
    amid = table.cursor
    assert sent
    assert "gone" in amid
    table.cursor = None
    assert len(table.read(**options)[1]) == 8
    table.delete("id = 9")
    table.cursor = amid
    assert table.read(**options) == ([], of(9, version=5))
    assert table.read(**options) == ([], [])


def test_another_key_is_another_comparison(table):
    table.add(1, 2, seq=7)
    table.read()
    both = EVENT.model_copy(update={"key": ("id", "name")})
    assert table.read(event=both, compare_limit=100) == ([1, 2], [])


def test_a_look_at_the_first_pages_keeps_nothing(table):
    table.add(1, seq=1)
    assert len(list(table.open().preview())) == 1
    assert not list(open_objects(table.settings.s3).list("source-keys/"))


@pytest.mark.parametrize(
    ("options", "event", "said"),
    [
        ({"cursor": None}, EVENT, "expected a cursor beside it"),
        ({"key": ["name"]}, EVENT, "expected source.options.key to be the key of event 'e', id"),
        ({"cursor": "name"}, EVENT, "event 'e' must have version: name, the cursor"),
        ({"compare_limit": 101}, EVENT, "per cent of the rows"),
        ({"deletes": "guess"}, EVENT, "source.options.deletes: expected compare, or nothing"),
    ],
)
def test_what_could_delete_wrongly_is_refused_when_it_is_declared(
    tmp_path, request, options, event, said
):
    source = Table(SqliteTable(tmp_path, request), None)
    with pytest.raises(InputError, match=said):
        source.open(event=event, **options)
