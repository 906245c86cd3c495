"""What holds for every kind of connector, each against a real source."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from tests.support.connector_sources import (
    KINDS,
    KINDS_IN_PROCESSES,
    KINDS_OF_CAMPAIGNS,
    KINDS_ON_SERVERS,
    SourceOfRows,
)

from waybill.errors import InputError
from waybill.ingestion.connectors import Page, StandingConnector

ALL = [
    *(pytest.param(kind, id=name) for name, kind in KINDS.items()),
    *(
        pytest.param(kind, id=name, marks=pytest.mark.campaign)
        for name, kind in KINDS_IN_PROCESSES.items()
    ),
    *(
        pytest.param(kind, id=name, marks=pytest.mark.serves)
        for name, kind in KINDS_ON_SERVERS.items()
    ),
    *(
        pytest.param(kind, id=name, marks=pytest.mark.campaign)
        for name, kind in KINDS_OF_CAMPAIGNS.items()
    ),
]


@pytest.fixture(params=ALL)
def source(request, tmp_path) -> SourceOfRows:
    return request.param(tmp_path, request)


def rows(first: int, last: int, **more):
    return [{"id": n, "seq": n, "name": f"row {n}, é", **more} for n in range(first, last)]


def read(source, cursor=None, page_rows=1000) -> list[Page]:
    return [page for page in source.open(page_rows).read(cursor) if page is not None]


def same(one: Page, other: Page) -> bool:
    return (one.rows, one.bad, one.cursor, one.start) == (
        other.rows, other.bad, other.cursor, other.start,
    )  # fmt: skip


def through_json(cursor):
    return json.loads(json.dumps(cursor))


def test_each_record_is_in_one_page_and_pages_have_at_most_so_many(source):
    source.add(rows(0, 1500))
    source.add(rows(1500, 2500))
    pages = read(source, page_rows=400)
    assert [row for page in pages for row in page.rows] == rows(0, 2500)
    assert max(len(page.rows) for page in pages) <= 400
    assert not any(page.bad for page in pages)


def test_the_same_cursor_gives_the_same_page_and_pages_are_a_chain(source):
    source.add(rows(0, 1000))
    source.add(rows(1000, 1300))
    pages = read(source, page_rows=350)
    assert len(pages) > 3
    before = None
    for page in pages:
        assert page.start == before
        again = next(page for page in source.open(350).read(through_json(before)) if page)
        assert same(again, page)
        before = page.cursor


def test_a_source_that_was_read_gives_what_is_new(source):
    source.add(rows(0, 30))
    cursor = through_json(read(source)[-1].cursor)
    assert read(source, cursor) == []
    source.add(rows(30, 50))
    found = [row for page in read(source, cursor) for row in page.rows]
    assert found[-20:] == rows(30, 50)
    assert len(found) == (20 if source.grows else 50)


def test_a_connector_that_says_how_far_it_is_has_less_behind_it_with_each_page_and_none_at_the_end(
    source,
):
    source.add(rows(0, 300))
    source.add(rows(300, 500))
    connector = source.open(100)
    if not isinstance(connector, StandingConnector):
        pytest.skip("it cannot say")
    left, cursor = [], None
    for page in connector.read(None):
        if page is not None:
            cursor = through_json(page.cursor)
            standing = connector.standing(cursor)
            if standing is None:
                pytest.skip("it cannot say of this source")
            assert standing.position
            assert standing.unit
            left.append(standing.behind)
    assert min(left) >= 0
    if type(connector).__name__ == "PostgresCdcConnector":
        return  # bytes of a log to which all of the server writes
    assert left == sorted(left, reverse=True)
    assert connector.standing(cursor).behind == 0
    assert left[0] > 0


def test_an_empty_source_gives_no_row_and_is_read_once_it_has_some(source):
    pages = read(source)
    assert [row for page in pages for row in page.rows] == []
    source.add(rows(0, 3))
    cursor = pages[-1].cursor if pages else None
    assert [row for page in read(source, cursor) for row in page.rows] == rows(0, 3)


def test_a_page_of_a_source_that_has_grown_begins_with_what_it_held(source):
    if not source.grows:
        pytest.skip("a file that changed is read from its beginning")
    source.add(rows(0, 30))
    [page] = read(source)
    source.add(rows(30, 60))
    first = read(source)[0]
    assert first.rows[:30] == page.rows


def test_a_new_column_is_in_the_rows_that_have_it(source):
    source.add(rows(0, 3))
    cursor = read(source)[-1].cursor
    source.add(rows(3, 6, colour="red") if source.grows else rows(3, 6))
    found = [row for page in read(source, cursor) for row in page.rows]
    assert found[-3:] == (rows(3, 6, colour="red") if source.grows else rows(3, 6))


def test_a_broken_record_is_told_with_its_place_and_its_neighbours_are_rows(source):
    if not source.breaks:
        pytest.skip("the source holds no broken records")
    source.add_broken()
    pages = read(source)
    assert [row["id"] for page in pages for row in page.rows] == [1, 3]
    [bad] = [bad for page in pages for bad in page.bad]
    assert bad.raw in (b"2,2", b'{"id":2,')
    assert bad.code == "source_row_malformed"
    assert bad.place.endswith(f"line {3 if bad.raw == b'2,2' else 2}")


def test_a_row_without_a_key_has_a_place(source):
    source.add(rows(0, 3))
    [page] = read(source)
    if page.place is not None:
        assert page.place(1).endswith(source.place_of(1))


def test_a_missing_key_fails_before_the_first_page_and_says_what_is_there(source):
    source.add(rows(0, 3))
    with pytest.raises(InputError, match="number") as caught:
        next(page for page in source.open(key="number").read(None) if page is not None)
    assert "name" in str(caught.value)


def test_a_run_that_ends_early_gives_its_source_back(source):
    source.add(rows(0, 50))
    pages = source.open(10).read(None)
    assert len(list(islice(pages, 2))) == 2
    pages.close()
    assert len(read(source, page_rows=10)) == 5
