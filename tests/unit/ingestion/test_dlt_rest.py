"""The ``dlt`` connector and REST APIs: pages by number, and cursors that are no times."""

from __future__ import annotations

import json
import re
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.rest_source import NumberedPages, RowsSince, serving
from typer.testing import CliRunner

from waybill.cli import app
from waybill.errors import InputError
from waybill.ingestion.connectors import open_connector
from waybill.pipelines import Source
from waybill.settings import EgressSettings, Settings

ROWS = [{"id": number} for number in range(18)]
DECLARATION = """
id: test-orders
name: orders
team: shop
owner: shop@example.com
source:
  connector: dlt
  event: orders
  options:
    rest_api:
      client:
        base_url: "{url}"
        {paginator}
      resources: [{{name: orders, primary_key: id, endpoint: {{path: orders, data_selector: data}}}}]
events:
  orders: {{key: [id], table: orders, columns: {{id: int64}}}}
destination: {{name: warehouse, schema: shop}}
"""


def pages_of(options: dict[str, Any], folder: Path, cursor: Any = None) -> list[Any]:
    source = Source(connector="dlt", event="orders", options=options)
    settings = Settings(egress=EgressSettings(allowed_hosts=("127.0.0.1",)))
    connector = open_connector(source, folder, settings=settings)
    return [page for page in connector.read(cursor) if page is not None]


def numbered(url: str, paginator: dict[str, Any] | None = None) -> dict[str, Any]:
    client: dict[str, Any] = {"base_url": url}
    if paginator is not None:
        client["paginator"] = paginator
    endpoint = {"path": "orders", "data_selector": "data"}
    return {"rest_api": {"client": client, "resources": [{"name": "orders", "endpoint": endpoint}]}}


# Pages by number


@pytest.mark.parametrize(
    ("base", "says_page", "advised"), [(0, True, 0), (1, True, 1), (1, False, 1)]
)
def test_pages_of_which_only_the_number_is_known_are_refused_with_the_lines_that_read_all(
    tmp_path, base, says_page, advised
):
    with serving(NumberedPages(ROWS, base=base, says_page=says_page)) as source:
        with pytest.raises(InputError, match="a page would never be read") as caught:
            pages_of(numbered(source.url), tmp_path)
        message = str(caught.value)
        assert message.startswith("/orders: the answer says how many pages there are")
        lines = re.search(r"paginator: (\{.*?\})", message)
        assert lines is not None, message
        pasted = yaml.safe_load(lines[1])
        assert pasted == {
            "type": "page_number",
            "base_page": advised,
            "page_param": "page",
            "total_path": "meta.total_pages",
        }
        assert ("nothing beside total_pages says" in message) is not says_page
        pages = pages_of(numbered(source.url, pasted), tmp_path)
        assert [row for page in pages for row in page.rows] == ROWS


@pytest.mark.parametrize(
    "command", [("sources", "discover"), ("sources", "test"), ("run", "--local")]
)
def test_whoever_tries_such_a_source_is_told_what_to_declare(tmp_path, monkeypatch, command):
    home = tmp_path / "orders"
    home.mkdir()
    (home / "transformation.py").write_text("def transform(event):\n    return event\n")
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(tmp_path))
    monkeypatch.setenv("WAYBILL_EGRESS__ALLOWED_HOSTS", '["127.0.0.1"]')
    monkeypatch.setenv("COLUMNS", "80")
    name, *more = command
    given = [name, *more, str(home)] if name == "sources" else [name, str(home), *more]
    with serving(NumberedPages(ROWS)) as source:
        (home / "pipeline.yaml").write_text(DECLARATION.format(url=source.url, paginator=""))
        result = CliRunner().invoke(app, given)
        said = " ".join(result.output.split())
        assert result.exit_code == 1, said
        assert "a page would never be read" in said
        line = "paginator: {type: page_number, base_page: 1, page_param: page, total_path: meta.total_pages}"
        assert line in said
        mended = DECLARATION.format(url=source.url, paginator=line)
        (home / "pipeline.yaml").write_text(mended)
        result = CliRunner().invoke(app, given)
        assert result.exit_code == 0, result.output


# Cursors that are no times


def since(url: str, initial: Any = "2024-01-01T00:00:00Z", **more: Any) -> dict[str, Any]:
    endpoint = {
        "path": "orders",
        "data_selector": "data",
        "paginator": "single_page",
        "params": {"since": "{incremental.start_value}"},
        "incremental": {"cursor_path": "at", "initial_value": initial, **more},
    }
    resource = {"name": "orders", "primary_key": "id", "endpoint": endpoint}
    return {"rest_api": {"client": {"base_url": url}, "resources": [resource]}}


def ids(pages: list[Any]) -> list[int]:
    return [row["id"] for page in pages for row in page.rows]


def at(day: int) -> str:
    return f"2024-05-{day:02}T10:00:00Z"


@pytest.mark.parametrize("more", [{}, {"row_order": "asc"}])
@pytest.mark.parametrize("value", ["not a time", "9999-99-99T00:00:00Z", "~"])
def test_a_cursor_that_is_no_time_parks_its_row_once_and_holds_nothing_up(tmp_path, value, more):
    rows = [{"id": 1, "at": at(1)}, {"id": 2, "at": value}, {"id": 3, "at": at(3)}]
    with serving(RowsSince(rows)) as source:
        options = since(source.url, **more)
        first = pages_of(options, tmp_path)
        assert ids(first) == [1, 3]
        [bad] = [bad for page in first for bad in page.bad]
        assert bad.code == "source_row_malformed"
        assert bad.message.startswith("at: expected a time")
        assert "source" in bad.message
        assert value not in bad.message
        assert value.encode() in bad.raw
        cursor = first[-1].cursor
        assert pages_of(options, tmp_path, cursor) == []
        assert source.asked[-1] == at(3)
        rows.append({"id": 4, "at": at(4)})
        second = pages_of(options, tmp_path, cursor)
        assert ids(second) == [4]
        assert [bad for page in second for bad in page.bad] == []
        rows[1] = {"id": 2, "at": value, "what": "another"}
        third = pages_of(options, tmp_path, second[-1].cursor)
        assert len([bad for page in third for bad in page.bad]) == 1
        rows[1] = {"id": 2, "at": at(5)}
        assert ids(pages_of(options, tmp_path, third[-1].cursor)) == [2]


def test_the_same_place_has_the_same_cursor_whatever_order_refused_rows_came_in(tmp_path):
    rows = [{"id": n, "at": f"bad {n}"} for n in range(5)] + [{"id": 9, "at": at(1)}]
    with serving(RowsSince(rows)) as source:
        one = pages_of(since(source.url), tmp_path)[-1].cursor
        for number, row in enumerate(rows[:5]):
            row["at"] = f"bad {number}"
        rows.reverse()
        other = pages_of(since(source.url), tmp_path)[-1].cursor
    assert one == other


def test_a_refused_row_that_no_longer_comes_is_forgotten(tmp_path):
    rows = [{"id": 1, "at": at(1)}, {"id": 2, "at": "none"}]
    with serving(RowsSince(rows)) as source:
        cursor = pages_of(since(source.url), tmp_path)[-1].cursor
        assert "waybill" in cursor["dlt"]
        rows[1] = {"id": 3, "at": at(3)}
        cursor = pages_of(since(source.url), tmp_path, cursor)[-1].cursor
        assert "waybill" not in cursor["dlt"]


@pytest.mark.parametrize("by", [timedelta(days=400), timedelta(hours=1)], ids=str)
def test_a_time_ahead_is_a_row_and_not_the_cursor(tmp_path, by):
    ahead = (datetime.now(UTC) + by).strftime("%Y-%m-%dT%H:%M:%SZ")
    rows = [{"id": 1, "at": at(1)}, {"id": 2, "at": ahead}]
    with serving(RowsSince(rows)) as source:
        first = pages_of(since(source.url, row_order="asc"), tmp_path)
        assert sorted(ids(first)) == [1, 2]
        rows.append({"id": 3, "at": at(3)})
        second = pages_of(since(source.url, row_order="asc"), tmp_path, first[-1].cursor)
        assert ids(second) == [3]
        assert source.asked[-1] == at(1)
        rows[1]["what"] = "changed"
        third = pages_of(since(source.url, row_order="asc"), tmp_path, second[-1].cursor)
        assert ids(third) == [2]


def test_a_source_that_begins_in_the_future_is_read_there(tmp_path):
    rows = [{"id": 1, "at": "2998-01-01T00:00:00Z"}]
    with serving(RowsSince(rows)) as source:
        options = since(source.url, "2997-01-01T00:00:00Z")
        first = pages_of(options, tmp_path)
        rows.append({"id": 2, "at": "2999-01-01T00:00:00Z"})
        assert 2 in ids(pages_of(options, tmp_path, first[-1].cursor))


def test_bad_rows_behind_good_ones_are_bad_rows_however_many(tmp_path):
    code = """
        import dlt
        @dlt.resource
        def rows(at=dlt.sources.incremental("at", initial_value="2024-01-01T00:00:00Z")):
            for n in range(30):
                yield {"id": n, "at": "2024-02-01T00:00:00Z" if n < 5 else f"none {n}"}
    """
    (tmp_path / "shop.py").write_text(textwrap.dedent(code))
    pages = pages_of({"resource": "shop:rows"}, tmp_path)
    assert sorted(row.data["id"] for page in pages for row in page.rows) == [*range(5)]
    assert sum(len(page.bad) for page in pages) == 25


@pytest.mark.parametrize("stands", ["not a time", "2999-01-01T00:00:00Z"])
def test_a_cursor_that_stands_where_no_row_can_follow_is_told(tmp_path, stands):
    """As runs of before left it: each later one read nothing, and said that it went well."""
    rows = [{"id": 1, "at": at(1)}]
    with serving(RowsSince(rows)) as source:
        options = since(source.url)
        [*_, page] = pages_of(options, tmp_path)
        cursor = json.loads(json.dumps(page.cursor).replace(f'"{at(1)}"', json.dumps(stands)))
        with pytest.raises(InputError, match=r"no row can follow.*--full"):
            pages_of(options, tmp_path, cursor)


def test_an_initial_value_of_another_kind_than_all_rows_fails_the_run(tmp_path):
    rows = [{"id": n, "at": f"Mon, {n:02} Jan"} for n in range(40)]
    with serving(RowsSince(rows)) as source:
        with pytest.raises(InputError, match="initial_value"):
            pages_of(since(source.url), tmp_path)


def test_texts_that_are_no_times_stay_a_cursor(tmp_path):
    rows = [{"id": n, "at": f"v{n}"} for n in range(3)]
    with serving(RowsSince(rows)) as source:
        first = pages_of(since(source.url, "a"), tmp_path)
        assert ids(first) == [0, 1, 2]
        rows += [{"id": 3, "at": "zz"}, {"id": 4, "at": "2024-01-01"}]
        assert ids(pages_of(since(source.url, "a"), tmp_path, first[-1].cursor)) == [3]


FUNCTIONS = """
import dlt
from datetime import UTC, datetime

@dlt.resource(primary_key="id")
def numbers(at=dlt.sources.incremental("at", initial_value=0)):
    yield {"id": 1, "at": 1}
    yield {"id": 2, "at": float("nan")}
    yield {"id": 3, "at": "7"}
    yield {"id": 4, "at": 4}

@dlt.resource(primary_key="id")
def undeclared(at=dlt.sources.incremental("at")):
    yield [{"id": 1, "at": "none"}, {"id": 2, "at": "2024-05-01"}, {"id": 3, "at": "2024-05-02"}]

@dlt.resource(primary_key="id")
def moments(at=dlt.sources.incremental("at", initial_value=datetime(2024, 1, 1, tzinfo=UTC))):
    yield [{"id": 1, "at": datetime(2024, 5, 1, tzinfo=UTC)}, {"id": 2, "at": "2024-05-02"}]
    yield {"id": 3, "at": datetime(2999, 1, 1, tzinfo=UTC)}

@dlt.resource(primary_key="id")
def timed(at=dlt.sources.incremental("at", initial_value=datetime(2024, 1, 1, tzinfo=UTC))):
    import pyarrow
    times = [datetime(year, 1, 1, tzinfo=UTC) for year in (2024, 2025, 2999)]
    yield pyarrow.table({"id": [1, 2, 3], "at": times})

@dlt.source
def tree():
    @dlt.resource
    def parents(at=dlt.sources.incremental("at", initial_value="2024-01-01")):
        yield [{"id": 1, "at": "2024-05-01"}, {"id": 2, "at": "no"}, {"id": 3, "at": "2999-01-01"}]

    @dlt.transformer(data_from=parents)
    def children(rows):
        for row in rows:
            yield {"id": row["id"] * 10}
    return parents, children

@dlt.resource(primary_key="id")
def tables(at=dlt.sources.incremental("at", initial_value="2024-01-01")):
    import pyarrow
    yield pyarrow.table({"id": [1, 2, 3], "at": ["2024-05-01", "not a time", "2999-01-01"]})
"""


@pytest.mark.parametrize(
    ("function", "rows", "bad", "last"),
    [
        ("numbers", [1, 4], 2, "4"),
        ("undeclared", [2, 3], 1, "2024-05-02"),
        ("tree", [1, 3, 10, 30], 1, "2024-05-01"),
        ("tables", [1, 3], 1, "2024-05-01"),
        ("moments", [1, 3], 1, "2024-05-01"),
        ("timed", [1, 2, 3], 0, "2025-01-01"),
    ],
)
def test_cursors_of_functions_are_guarded_alike(tmp_path, function, rows, bad, last):
    (tmp_path / "shop.py").write_text(FUNCTIONS)
    options = {"resource": f"shop:{function}"}
    pages = pages_of(options, tmp_path)
    found = [row if isinstance(row, dict) else row.data for page in pages for row in page.rows]
    assert sorted(row["id"] for row in found) == rows
    assert sum(len(page.bad) for page in pages) == bad
    kept = repr(pages[-1].cursor).replace(r"\uf027", "")  # how dlt marks times
    assert re.search(rf"'last_value': '?{last}(?!\d)", kept)
    assert pages_of(options, tmp_path, pages[-1].cursor) == []
