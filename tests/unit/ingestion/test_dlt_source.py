"""The ``dlt`` connector: resources as iterators, dlt's state as our cursor, a process of its own."""

from __future__ import annotations

import io
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from pydantic import SecretStr
from tests.support.rest_source import RestSource, serving
from typer.testing import CliRunner

from waybill.cli import app
from waybill.errors import InputError, RetryError
from waybill.events import loads
from waybill.ingestion.connectors import Connections, open_connector
from waybill.ingestion.connectors.dlt_process import LENGTH_BYTES, Order, _answer
from waybill.ingestion.connectors.dlt_source import ENVIRONMENT
from waybill.pipelines import Source
from waybill.processing.sandbox import Limits
from waybill.settings import EgressSettings, Settings

MANY = """
import enum
import uuid
from datetime import datetime
from decimal import Decimal

class Colour(enum.Enum):
    RED = "red"
    NONE = float("nan")

class Text(str):
    pass

STRANGE = {
    100: Colour.RED,
    151: {7: (1, datetime(2024, 1, 1))},
    250: float("nan"),
    302: 2**70,
    353: "\\ud800",
    404: (1, [2.5]),
    451: [{"deep": float("inf")}],
    505: uuid.UUID(int=5),
    556: Decimal("1.50"),
    607: "x" * 2_000_000,
    652: Colour.NONE,
    708: Text("text"),
}

def many():
    plain = [{"id": number, "a": None} for number in range(950)]
    for number, value in STRANGE.items():
        plain[number] = {"id": number, "v": value}
    yield plain
"""
FRAGMENTS = """
import orjson

def fragments():
    rows = [{"id": number} for number in range(100)]
    for number, text in {
        5: b'{"whole": [1, 2]}', 31: b'{"half": NaN', 52: b'"\\xff"', 73: b'1}, {"id": 7, "v": 2',
    }.items():
        rows[number]["v"] = [orjson.Fragment(text)] if number == 31 else orjson.Fragment(text)
    yield rows
"""
SHOP = """
import dlt
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

ROWS = [{"id": n, "seq": n // 2} for n in range(10)]

@dlt.resource(primary_key="id")
def ascending(seq=dlt.sources.incremental("seq", row_order="asc"), last=9):
    rows = [row for row in ROWS if row["id"] <= last and row["seq"] >= (seq.start_value or 0)]
    for at in range(0, len(rows), 2):
        yield rows[at : at + 2]

@dlt.resource(primary_key="id")
def unordered(seq=dlt.sources.incremental("seq")):
    for row in reversed(ROWS):
        if row["seq"] >= (seq.start_value or 0):
            yield row

def falls(at=3):
    for n in range(at):
        yield {"id": n}
    raise KeyError("the seventh column")

def away():
    yield {"id": 1}
    raise ConnectionResetError("the peer went")

@dlt.source
def both():
    @dlt.resource(name="first")
    def one():
        state = dlt.current.resource_state()
        state["runs"] = state.get("runs", 0) + 1
        yield {"id": state["runs"]}

    @dlt.resource(name="second")
    def two():
        yield [{"id": 1}, {"id": 2}]
        if not Path(__file__).with_name("is_back").exists():
            raise ConnectionError("not now")
    return one, two

@dlt.source
def tree():
    @dlt.resource
    def parents():
        yield [{"id": 1}, {"id": 2}]

    @dlt.transformer(data_from=parents)
    def children(rows):
        for row in rows:
            yield {"parent": row["id"], "id": row["id"] * 10}
    return parents, children

@dlt.resource(columns={"gone": {"hard_delete": True, "data_type": "bool"}})
def deleting():
    yield [{"id": 1, "gone": False}, {"id": 2, "gone": True}, {"id": 3, "gone": None}]

def values():
    zone = timezone(timedelta(hours=2))
    yield {
        "moment": datetime(2024, 5, 1, 12, 0, 0, 5, tzinfo=zone), "naive": datetime(2024, 5, 1),
        "day": date(2024, 5, 1), "exact": Decimal("1E+3"), "fine": Decimal("0.10"),
        "bytes": bytes([0, 255]), "big": 2**70, "list": [Decimal("1.5"), {"at": date(2024, 1, 1)}],
    }
    yield {"id": 2, "bad": float("nan")}
    yield {"id": 3, "bad": object()}
    yield {"id": 4}
"""


def order(folder: Path, function: str, **changes: Any) -> Order:
    given: dict[str, Any] = {
        "name": "shop",
        "resource": f"shop:{function}",
        "rest_api": None,
        "arguments": {},
        "hints": {},
        "resources": [],
        "state": None,
        "page_rows": 2,
        "describe": False,
        "somebody_waits": False,
        "source_folder": str(folder),
        "folder": str(folder),
        "readable": [],
        "limits": Limits(1024, 64, 60),
        "strict": False,
        "owner": "shop",
        "allowed_hosts": [],
        "allowed_networks": [],
    }
    return Order(**{**given, **changes})


def answered(asked: Order) -> list[dict[str, Any]]:
    """Return the frames of an order, answered in this process."""
    output = io.BytesIO()
    _answer(asked, output)
    content, frames = output.getvalue(), []
    while content:
        end = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "big")
        frames.append(loads(content[LENGTH_BYTES:end]))
        content = content[end:]
    return frames


def told_of(frames: list[dict[str, Any]]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (table, operation, row) of all rows."""
    runs = [run for frame in frames if frame["kind"] == "page" for run in frame["runs"]]
    return [(table, op, row) for table, _, op, rows in runs for row in rows]


def rows_of(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for *_, row in told_of(frames)]


def state_of(frame: dict[str, Any]) -> dict[str, Any]:
    return {"dlt": frame["dlt"], "done": frame["done"]}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def test_in_ascending_order_each_page_can_be_gone_on_from(shop):
    """Wherever a run ended, the next one gives the rows that follow, in the same order."""
    frames = answered(order(shop, "ascending"))
    assert [row["id"] for row in rows_of(frames)] == list(range(10))
    pages = [frame for frame in frames if frame["kind"] == "page"]
    assert len(pages) == 5
    for number, page in enumerate(pages[:-1]):
        rest = answered(order(shop, "ascending", state=state_of(page)))
        assert rows_of(rest) == rows_of(frames[number + 1 :])
        assert answered(order(shop, "ascending", state=state_of(page))) == rest


def test_without_an_order_the_state_moves_only_when_all_is_read(shop):
    frames = answered(order(shop, "unordered"))
    *within, last, end = frames
    assert end == {"kind": "end"}
    assert {frame["dlt"] for frame in within} == {None}
    assert last["dlt"] is not None
    again = answered(order(shop, "unordered", state=state_of(within[1])))
    assert rows_of(again) == rows_of(frames)
    assert rows_of(answered(order(shop, "unordered", state=state_of(last)))) == []


def test_a_run_that_ends_between_resources_goes_on_with_the_next(shop):
    *pages, failed = answered(order(shop, "both"))
    assert failed["kind"] == "retry"
    assert "not now" in failed["message"]
    assert state_of(pages[-1])["done"] == ["first"]
    again = answered(order(shop, "both", state=state_of(pages[-1])))
    assert {table for table, *_ in told_of(again)} == {"second"}


def test_a_run_that_goes_on_reads_again_what_may_have_grown_since(shop):
    """What the dead run had read to its end would otherwise wait for the run behind this one."""
    *pages, _ = answered(order(shop, "both"))
    (shop / "is_back").touch()
    *again, end = answered(order(shop, "both", state=state_of(pages[-1])))
    assert end == {"kind": "end"}
    assert [table for table, *_ in told_of(again)] == ["second", "second", "first"]
    assert rows_of(again)[-1] == {"id": 2}
    assert state_of(again[-1])["done"] == []


def test_a_round_that_is_over_begins_anew_with_the_state_of_the_resources(shop):
    [page, _] = answered(order(shop, "both", resources=["first"]))
    assert state_of(page)["done"] == []
    [again, _] = answered(order(shop, "both", resources=["first"], state=state_of(page)))
    assert rows_of([page]) == [{"id": 1}]
    assert rows_of([again]) == [{"id": 2}]


def test_a_tree_of_resources_gives_the_rows_of_each_under_its_name(shop):
    frames = answered(order(shop, "tree"))
    found = {(table, row["id"]) for table, _, row in told_of(frames)}
    assert found == {("parents", 1), ("parents", 2), ("children", 10), ("children", 20)}


def test_a_row_that_the_hint_marks_as_deleted_is_a_delete(shop):
    frames = answered(order(shop, "deleting"))
    assert [op for _, op, _ in told_of(frames)] == ["upsert", "delete", "upsert"]


def test_values_keep_their_digits_and_a_row_without_a_form_parks_alone(shop):
    frames = answered(order(shop, "values"))
    first, last = rows_of(frames)
    assert first == {
        "moment": "2024-05-01T10:00:00.000005Z", "naive": "2024-05-01T00:00:00Z",
        "day": "2024-05-01", "exact": "1000", "fine": "0.10", "bytes": "AP8=", "big": 2**70,
        "list": ["1.5", {"at": "2024-01-01"}],
    }  # fmt: skip
    assert last == {"id": 4}
    bad = [one for frame in frames[:-1] for one in frame["bad"]]
    assert [one["number"] for one in bad] == [2, 3]
    assert "nan" in bad[0]["message"]
    assert "object" in bad[1]["message"]


def test_many_rows_are_written_as_each_is_alone(shop):
    """Rows of strange values among many plain ones: in their order, with their numbers."""
    (shop / "many.py").write_text(MANY)
    frames = answered(order(shop, "many", page_rows=1_000, resource="many:many"))
    runs = [run for frame in frames[:-1] for run in frame["runs"]]
    bad = [one for frame in frames[:-1] for one in frame["bad"]]
    rows = {number + index: row for _, number, _, found in runs for index, row in enumerate(found)}
    assert len(runs) < 250, "plain rows go together"
    assert sorted([*rows, *(one["number"] for one in bad)]) == list(range(1, 951))
    assert [one["number"] for one in bad] == [251, 452, 653]
    assert {
        number: row for number, row in rows.items() if row != {"id": number - 1, "a": None}
    } == {
        101: {"id": 100, "v": "red"},
        152: {"id": 151, "v": {"7": [1, "2024-01-01T00:00:00Z"]}},
        303: {"id": 302, "v": 2**70},
        354: {"id": 353, "v": "\ud800"},
        405: {"id": 404, "v": [1, [2.5]]},
        506: {"id": 505, "v": "00000000-0000-0000-0000-000000000005"},
        557: {"id": 556, "v": "1.50"},
        608: {"id": 607, "v": "x" * 2_000_000},
        709: {"id": 708, "v": "text"},
    }


def test_a_fragment_that_is_no_json_parks_alone(shop):
    (shop / "parts.py").write_text(FRAGMENTS)
    frames = answered(order(shop, "fragments", page_rows=1_000, resource="parts:fragments"))
    bad = [one for frame in frames[:-1] for one in frame["bad"]]
    assert [one["number"] for one in bad] == [32, 53, 74]
    assert all("Fragment holds no JSON" in one["message"] for one in bad)
    rows = {row["id"]: row for row in rows_of(frames)}
    assert sorted(rows) == [number for number in range(100) if number not in (31, 52, 73)]
    assert rows[5] == {"id": 5, "v": {"whole": [1, 2]}}


def test_code_that_fails_is_named_with_its_line_and_a_peer_that_is_away_is_tried_again(shop):
    *pages, failed = answered(order(shop, "falls"))
    assert rows_of(pages) == [{"id": 0}, {"id": 1}]
    assert failed["kind"] == "input"
    line = SHOP.splitlines().index('    raise KeyError("the seventh column")') + 1
    assert failed["message"].endswith(f"KeyError: 'the seventh column' (shop.py, line {line})")
    assert answered(order(shop, "away"))[-1]["kind"] == "retry"


def test_a_server_that_nobody_answers_for_is_named_with_the_reason_first(shop):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (shop / "asking.py").write_text(
        "import requests\n\ndef ask(url):\n    yield requests.get(url, timeout=5).json()\n"
    )
    for url, words in {
        f"http://me:secret@127.0.0.1:{port}/loans?token=secret": f"127.0.0.1:{port} (connection refused)",
        "http://nobody.invalid/loans": "nobody.invalid (there is no such host)",
    }.items():
        [frame] = answered(order(shop, "", resource="asking:ask", arguments={"url": url}))
        assert (frame["kind"], frame["message"]) == ("retry", f"nobody answers at {words}")
        assert "Max retries exceeded" in frame["detail"]


def test_discovery_tells_key_cursor_and_order_and_reads_no_row(shop):
    [found, _] = answered(order(shop, "ascending", describe=True))
    [one] = found["resources"]
    assert (one["name"], one["key"], one["cursor"], one["ascending"]) == (
        "ascending",
        ["id"],
        "seq",
        True,
    )


def test_hints_of_the_declaration_make_a_resource_incremental(shop):
    hints = {"deleting": {"primary_key": "id", "incremental": {"cursor_path": "id"}}}
    [found, _] = answered(order(shop, "deleting", describe=True, hints=hints))
    assert (found["resources"][0]["key"], found["resources"][0]["cursor"]) == (["id"], "id")
    [*_, page, _] = answered(order(shop, "deleting", hints=hints))
    assert rows_of(answered(order(shop, "deleting", hints=hints, state=state_of(page)))) == []


def test_a_page_ends_where_an_item_does_and_an_item_beyond_a_page_makes_several(shop):
    frames = answered(order(shop, "ascending", page_rows=3))
    assert [len(rows_of([frame])) for frame in frames[:-1]] == [2] * 5
    states = [frame["dlt"] for frame in frames[:-1]]
    assert all(one != other for one, other in itertools.pairwise(states))
    frames = answered(order(shop, "ascending", page_rows=1))
    assert [len(rows_of([frame])) for frame in frames[:10]] == [1] * 10
    again = answered(order(shop, "ascending", page_rows=1, state=state_of(frames[4])))
    assert rows_of(again) == rows_of(frames[4:])


@pytest.mark.parametrize(
    ("function", "words"),
    [("nothing", "no function 'nothing'"), ("both", "no resource 'third' (first, second)")],
)
def test_what_there_is_not_is_named(shop, function, words):
    [failed] = answered(order(shop, function, resources=["third"] if function == "both" else []))
    assert failed["kind"] == "input"
    assert words in failed["message"]


@pytest.mark.parametrize(
    ("options", "more", "words"),
    [
        ({}, {}, "either resource or rest_api"),
        ({"resource": "shop"}, {}, "a module's name, a colon, a function's name"),
        ({"resource": "../shop:x"}, {}, "a module's name, a colon, a function's name"),
        ({"resource": "s:x", "hints": {"x": {"nothing": 1}}}, {}, "no hint 'nothing'"),
        ({"rest_api": {}, "arguments": {"a": 1}}, {}, "arguments are those of resource"),
        ({"resource": "s:x"}, {"path": "x.csv"}, "has no use for it"),
        ({"resource": "s:x", "arguments": {"k": "${connection.password}"}}, {}, "needs one"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(tmp_path, options, more, words):
    source = Source(connector="dlt", event="orders", options=options, **more)
    with pytest.raises(InputError, match=words):
        open_connector(source, tmp_path)


# In a process of its own

REST = {
    "rest_api": {
        "client": {
            "base_url": "",
            "auth": {"type": "bearer", "token": "${connection.password}"},
            "paginator": {"type": "json_link", "next_url_path": "next"},
        },
        "resources": [
            {
                "name": "orders",
                "primary_key": "id",
                "endpoint": {
                    "path": "orders",
                    "data_selector": "data",
                    "params": {"since": "{incremental.start_value}"},
                    "incremental": {"cursor_path": "seq", "initial_value": 0, "row_order": "asc"},
                },
            }
        ],
    }
}


def opened(folder: Path, options: dict[str, Any], settings: Settings, **changes: Any):
    source = Source(connector="dlt", event="orders", options=options, page_rows=4, **changes)
    text = SecretStr("http://:secret-token-1@example.com")
    connections = Connections({"shop": text})
    return open_connector(source, folder, connections=connections, settings=settings)


def rest_options(source: RestSource) -> dict[str, Any]:
    client = {**REST["rest_api"]["client"], "base_url": source.url}
    return {"rest_api": {**REST["rest_api"], "client": client}}


def open_to(*hosts: str) -> Settings:
    return Settings(egress=EgressSettings(allowed_hosts=hosts))


def test_a_rest_source_is_read_over_pages_a_429_a_500_and_on_from_its_cursor(tmp_path):
    rows = [{"id": n, "seq": n} for n in range(10)]
    later = [(429, {"Retry-After": "1"}), (500, {})]
    with serving(RestSource(rows, instead=later)) as source:
        settings = open_to(f"127.0.0.1:{source.port}")
        connector = opened(tmp_path, rest_options(source), settings, connection="shop")
        began = time.monotonic()
        pages = [page for page in connector.read(None) if page is not None]
        assert time.monotonic() - began > 1.0
        found = [row for page in pages for row in page.rows]
        assert found == rows
        assert len(source.asked) == 5
        assert pages[0].start is None
        assert [page.start for page in pages[1:]] == [page.cursor for page in pages[:-1]]
        assert pages[1].place(0) == "resource orders, record 5 of the run"
        source.rows.append({"id": 10, "seq": 10})
        again = [page for page in connector.read(pages[-1].cursor) if page is not None]
        assert [row["id"] for page in again for row in page.rows] == [10]


NEVER_AGAIN = """
from dlt.sources.helpers.requests import Client
from dlt.sources.rest_api import rest_api_source

def orders(url):
    client = Client(request_max_attempts=2, request_backoff_factor=2000, raise_for_status=False)
    return rest_api_source({
        "client": {"base_url": url, "session": client.session},
        "resources": [{"name": "orders", "primary_key": "id"}],
    })
"""
"""A REST API whose second try begins 2,000 s after the first."""


def pipeline_of(folder: Path, url: str) -> Path:
    home = folder / "orders"
    home.mkdir()
    (home / "rest.py").write_text(NEVER_AGAIN)
    (home / "transformation.py").write_text("def transform(event):\n    return event\n")
    (home / "pipeline.yaml").write_text(f"""
id: test-orders
name: orders
team: shop
owner: shop@example.com
source:
  connector: dlt
  event: orders
  options: {{resource: "rest:orders", arguments: {{url: "{url}"}}}}
events:
  orders: {{key: [id], table: orders, columns: {{id: int64}}}}
destination: {{name: warehouse, schema: shop}}
""")
    return home


@pytest.mark.parametrize("command", [("sources", "test"), ("run", "--local")])
def test_a_server_that_is_not_there_is_told_at_once_to_who_waits(tmp_path, monkeypatch, command):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    name, *options = command
    home = pipeline_of(tmp_path, url)
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(tmp_path))
    monkeypatch.setenv("WAYBILL_EGRESS__ALLOWED_HOSTS", '["127.0.0.1"]')
    given = ["sources", "test", str(home)] if name == "sources" else [name, str(home), *options]
    began = time.monotonic()
    result = CliRunner().invoke(app, given)
    took_s = time.monotonic() - began
    assert "nobody answers at 127.0.0.1" in " ".join(result.output.split()), result.output
    assert result.exit_code == 4
    assert took_s < 1000, "it waited for a second try"


def test_a_run_tries_a_server_again_that_is_not_there_yet(tmp_path):
    rows = [{"id": n, "seq": n} for n in range(3)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = open_to(f"127.0.0.1:{port}")
    later = RestSource(rows, port=port)
    connector = opened(tmp_path, rest_options(later), settings, connection="shop")
    with ExitStack() as stack:
        timer = threading.Timer(3.0, lambda: stack.enter_context(serving(later)))
        timer.start()
        found = [row for page in connector.read(None) if page for row in page.rows]
        timer.join()
    assert found == rows


@pytest.mark.campaign
def test_a_token_that_expired_is_told_and_not_shown(tmp_path, caplog):
    caplog.set_level("INFO")
    with serving(RestSource([], token="another")) as source:
        settings = open_to(f"127.0.0.1:{source.port}")
        connector = opened(tmp_path, rest_options(source), settings, connection="shop")
        with pytest.raises(InputError, match=r"answered 401.*expired") as caught:
            list(connector.read(None))
    assert "secret-token" not in str(caught.value)
    assert caplog.text
    assert "secret-token" not in caplog.text


HOSTILE = """
import os, pathlib, socket, subprocess

def attempts(port, secret):
    def inside():
        socket.create_connection(("127.0.0.1", port), timeout=5)

    def file():
        return pathlib.Path(secret).read_text()

    def program():
        return subprocess.run(["/bin/true"])

    for attempt in (inside, file, program):
        try:
            attempt()
            yield {"id": attempt.__name__, "error": None}
        except Exception as error:
            yield {"id": attempt.__name__, "error": type(error).__name__}
    yield {"id": "environment", "error": ",".join(sorted(n for n in os.environ if "WAYBILL" in n))}
    print("printed")
    os.kill(os.getpid(), 9)
"""


def test_code_of_a_source_reaches_nothing_of_the_platform_and_its_death_is_told(
    tmp_path, caplog, monkeypatch
):
    caplog.set_level("INFO")
    folder, secret = tmp_path / "pipeline", tmp_path / "secret"
    folder.mkdir()
    secret.write_text("of the platform")
    (folder / "hostile.py").write_text(HOSTILE)
    monkeypatch.setenv("WAYBILL_S3__SECRET_KEY", "canary")
    with serving(RestSource([])) as source:
        arguments = {"port": source.port, "secret": str(secret)}
        options = {"resource": "hostile:attempts", "arguments": arguments}
        connector = opened(folder, options, Settings())
        found: dict[str, Any] = {}
        with pytest.raises(RetryError, match="ended by itself"):
            for page in connector.read(None):
                found |= {one.data["id"]: one.data["error"] for one in page.rows} if page else {}
        assert source.asked == []
    assert found["inside"] == "ForbiddenAddressError"
    assert found["file"] == "PermissionError"
    assert found["program"] in {"PermissionError", "OSError", "BlockingIOError"}
    assert found["environment"] == ""
    assert "printed" in caplog.text


PERHAPS = """
try:
    import perhaps
except ImportError:
    perhaps = None

def rows():
    yield {"id": 1, "perhaps": perhaps is not None}
"""


def test_a_package_in_a_folder_that_is_closed_to_sources_is_one_that_is_missing(
    tmp_path, monkeypatch
):
    """dlt's own packages import some that may be missing: a PermissionError ended each source."""
    folder, packages = tmp_path / "pipeline", tmp_path / "packages"
    (packages / "perhaps").mkdir(parents=True)
    (packages / "perhaps" / "__init__.py").write_text("")
    folder.mkdir()
    (folder / "listed.py").write_text(PERHAPS)
    monkeypatch.syspath_prepend(str(packages))
    connector = opened(folder, {"resource": "listed:rows"}, Settings())
    [page] = [page for page in connector.read(None) if page is not None]
    assert page.rows[0].data == {"id": 1, "perhaps": False}


ENDLESS = """
import time

def endless():
    while True:
        yield {"id": 1}
        time.sleep(0.01)
"""
READER = """
import sys
from pathlib import Path
from waybill.ingestion.connectors import open_connector
from waybill.pipelines import Source
source = Source(connector="dlt", event="x", page_rows=1, options={"resource": "endless:endless"})
for page in open_connector(source, Path(sys.argv[1])).read(None):
    print("page" if page else "waiting", flush=True)
"""


@pytest.mark.campaign
def test_a_source_ends_with_whoever_reads_it(tmp_path):
    (tmp_path / "endless.py").write_text(ENDLESS)
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    while reader.stdout.readline().strip() != "page":
        assert reader.poll() is None
    [child] = psutil.Process(reader.pid).children()
    os.kill(reader.pid, signal.SIGKILL)
    reader.wait()
    reader.stdout.close()
    psutil.wait_procs([child], timeout=60)
    assert not child.is_running()


UNCONFINED = """
from waybill.ingestion.connectors import dlt_process
dlt_process.Confinement.apply = lambda self: ["closed files", "closed system calls"]
dlt_process.main()
"""


def test_code_is_not_run_where_it_cannot_be_confined_and_the_settings_ask_for_that(tmp_path):
    (tmp_path / "shop.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('ran').touch()\ndef rows(): yield {}"
    )
    asked = msgspec.json.encode(order(tmp_path, "rows", strict=True))
    done = subprocess.run(
        [sys.executable, "-c", UNCONFINED],
        check=False,
        input=asked + b"\n",
        stdout=subprocess.PIPE,
        timeout=600,
    )
    frame = loads(done.stdout[LENGTH_BYTES:])
    assert frame["kind"] == "input"
    assert "no closed files, no closed system calls; WAYBILL_SANDBOX__STRICT" in frame["message"]
    assert not (tmp_path / "ran").exists()


def test_the_user_is_told_that_the_machine_cannot_confine_a_source(tmp_path, monkeypatch):
    """Through the connector: what the child says reaches whoever asked as wrong input."""

    def unconfined(path):
        entries = [str(Path(entry).resolve()) for entry in path if entry]
        return [sys.executable, "-c", f"import sys; sys.path[:] = {entries!r}\n{UNCONFINED}"]

    monkeypatch.setattr("waybill.ingestion.connectors.dlt_source._command", unconfined)
    (tmp_path / "shop.py").write_text("def rows(): yield {}")
    source = Source(connector="dlt", event="x", options={"resource": "shop:rows"})
    settings = Settings(sandbox={"strict": True})
    connector = open_connector(source, tmp_path, settings=settings)
    with pytest.raises(InputError, match="this machine cannot confine a source's code: it has no"):
        list(connector.read(None))  # a silent second is None
