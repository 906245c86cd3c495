"""The ``singer`` connector: taps of the operator's list, as processes that end with us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import SecretStr
from tests.servers import wait_for
from tests.support.processes import command_line

from waybill.errors import InputError, RetryError
from waybill.ingestion.connectors import Connections, Discovered, open_connector, singer_tap
from waybill.pipelines import Source
from waybill.settings import Settings, SourceSettings

TAP = Path(__file__).parents[2] / "support" / "small_tap.py"


@pytest.fixture
def tap(tmp_path: Path) -> Path:
    """The small tap, installed where taps are."""
    installed = tmp_path / "tap" / "bin" / "small_tap.py"
    installed.parent.mkdir(parents=True)
    installed.write_text(TAP.read_text())
    return installed


def opened(folder: Path, tap: Path, options: dict[str, Any], *, page_rows: int = 10):
    command = (sys.executable, str(tap))
    settings = Settings(sources=SourceSettings(taps={"small": command}))
    given: dict[str, Any] = {"tap": "small", **options}
    source = Source(
        connector="singer",
        event="orders",
        options=given,
        page_rows=page_rows,
        connection="shop",
    )
    connections = Connections({"shop": SecretStr("http://:canary-of-taps@example.com")})
    roots = (tap.parents[1],)
    return open_connector(source, folder, roots, connections=connections, settings=settings)


def read(connector: Any, cursor: Any = None) -> list[Any]:
    return [page for page in connector.read(cursor) if page is not None]


def ids(pages: list[Any]) -> list[int]:
    return [row["id"] for page in pages for row in page.rows]


def test_a_tap_that_dies_goes_on_from_its_last_state(tmp_path, tap, caplog):
    caplog.set_level("INFO")
    config = {"rows": 40, "die_at": 26, "token": "${connection.password}"}
    connector = opened(tmp_path, tap, {"config": config, "streams": ["orders"]})
    pages = []
    with pytest.raises(RetryError, match="status 137; the next run goes on from its last state"):
        for page in connector.read(None):
            pages += [page] if page is not None else []
    assert ids(pages) == list(range(1, 26))
    assert pages[-1].cursor == {"state": {"id": 20}}
    rest = read(connector, pages[-1].cursor)
    assert ids(rest) == list(range(21, 41))
    assert rest[-1].cursor == {"state": {"id": 40}}
    assert read(connector, rest[-1].cursor) == []
    assert "began with *** mode 600" in caplog.text
    assert "canary-of-taps" not in caplog.text
    assert "environment HOME,LANG,PATH,TMPDIR,TZ" in caplog.text.replace("LC_CTYPE,", "")


def test_a_tap_reads_no_file_of_the_platform_and_leaves_no_process_behind(tmp_path, tap, caplog):
    caplog.set_level("INFO")
    secret = tmp_path / "secret"
    secret.write_text("of the platform")
    folder = tmp_path / "pipeline"
    folder.mkdir()
    config = {"rows": 10, "read": str(secret), "child": True}
    pages = read(opened(folder, tap, {"config": config, "streams": ["orders"]}))
    assert ids(pages) == list(range(1, 11))
    assert "refused: Permission denied" in caplog.text

    def left() -> list[psutil.Process]:
        family = psutil.Process().children(recursive=True)
        return [one for one in family if "time.sleep(600)" in " ".join(command_line(one))]

    wait_for(lambda: not left())


def test_the_catalog_tells_key_cursor_and_types(tmp_path, tap):
    connector = opened(
        tmp_path,
        tap,
        {
            "streams": ["orders"],
            "replication_keys": {"orders": "at"},
            "events": {"orders": "order"},
        },
    )
    types = {"id": "int64", "at": "timestamp", "note": "string"}
    assert connector.discover() == [Discovered("orders", "order", ("id",), "at", types)]


def test_what_is_no_catalog_is_refused_and_says_so(tmp_path, tap):
    tap.write_text("print('[' * 100_000)")
    with pytest.raises(InputError, match="tap small gives no catalog: what it says is no JSON"):
        opened(tmp_path, tap, {}).discover()


@pytest.mark.parametrize(
    "stream",
    [
        "orders",
        {"metadata": {"breadcrumb": []}},
        {"metadata": ["orders"]},
        {"metadata": [{"metadata": 5}]},
        {"schema": ["id"]},
        {"schema": {"properties": ["id"]}},
    ],
)
def test_a_stream_of_a_catalog_that_is_none_is_known(stream):
    assert not singer_tap._is_stream(stream)
    assert singer_tap._is_stream({"stream": "orders", "metadata": None, "schema": {}})


def test_a_tap_that_reads_its_source_when_it_is_asked_for_a_catalog_is_ended(
    tmp_path, tap, monkeypatch
):
    monkeypatch.setattr(singer_tap, "LARGEST_LINE_BYTES", 1_000_000)
    tap.write_text('while True: print(\'{"type": "RECORD"}\')')
    with pytest.raises(InputError, match=r"too long to be one.*discover: false"):
        opened(tmp_path, tap, {}).discover()


def test_types_of_a_catalog_that_are_none_are_json():
    types = {"a": [["x"]], "b": 5, "c": ["null", "integer"], "d": []}
    properties = {name: {"type": given} for name, given in types.items()}
    found = singer_tap._types({"schema": {"properties": properties}})
    assert found == {"a": "json", "b": "json", "c": "int64", "d": "json"}


def test_only_taps_of_the_operator_run(tmp_path, tap):
    connector = opened(tmp_path, tap, {"tap": "/bin/sh", "config": {"rows": 1}})
    with pytest.raises(
        InputError, match=r"there is no tap '/bin/sh' \(small\).*WAYBILL_SOURCES__TAPS"
    ):
        read(connector)


def test_a_stream_that_there_is_not_is_named(tmp_path, tap):
    connector = opened(tmp_path, tap, {"streams": ["orderz"]})
    with pytest.raises(InputError, match=r"no stream 'orderz' \(orders, others\)"):
        read(connector)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"config": {"a": 1}, "command": "x"}, "there is no such option"),
        ({"config": {"dsn": "http://me:secret@host/"}}, "do not belong into a declaration"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(tmp_path, tap, options, words):
    with pytest.raises(InputError, match=words):
        opened(tmp_path, tap, options)


READER = """
import sys
from pathlib import Path
from waybill.ingestion.connectors import open_connector
from waybill.pipelines import Source
from waybill.settings import Settings, SourceSettings
taps = {"small": (sys.executable, sys.argv[2])}
settings = Settings(sources=SourceSettings(taps=taps))
config = {"rows": 10, "linger": 600, "child": True}
source = Source(connector="singer", event="orders", page_rows=10, options={"tap": "small", "config": config, "streams": ["orders"]})
roots = (Path(sys.argv[2]).parents[1],)
for page in open_connector(source, Path(sys.argv[1]), roots, settings=settings).read(None):
    print("page" if page else "waiting", flush=True)
"""


def test_a_tap_ends_with_all_that_it_started_when_its_reader_is_killed(tmp_path, tap):
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(tmp_path), str(tap)], stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    while reader.stdout.readline().strip() != "page":
        assert reader.poll() is None
    started = psutil.Process(reader.pid).children(recursive=True)
    folder = Path(started[0].cwd())
    assert (folder / "config.json").is_file()
    assert len(started) >= 3
    os.kill(reader.pid, signal.SIGKILL)
    reader.wait()
    reader.stdout.close()
    _, alive = psutil.wait_procs(started, timeout=600)
    assert alive == []
    assert list(folder.glob("*")) == []


@pytest.mark.campaign
def test_a_real_tap_of_pypi_is_read_killed_and_gone_on_with(tmp_path):
    """tap-jsonl, made with the Meltano SDK, from the registry into an environment of its own."""
    home = tmp_path / "tap"
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, home], check=True)
    python = home / "bin" / "python"
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", python, "tap-jsonl==0.3.1"], check=True
    )
    folder = tmp_path / "pipeline"
    folder.mkdir()
    file = folder / "orders.jsonl"
    total = 30_000
    file.write_text("".join(f'{{"id": {n}, "name": "x"}}\n' for n in range(total)))
    config = {
        "stream_name": "orders",
        "path": str(file),
        "primary_keys": ["id"],
        "emit_state_every": 1000,
    }
    settings = Settings(sources=SourceSettings(taps={"jsonl": (str(home / "bin" / "tap-jsonl"),)}))
    options: dict[str, Any] = {"tap": "jsonl", "config": config}
    source = Source(connector="singer", event="orders", options=options, page_rows=5000)
    connector = open_connector(source, folder, settings=settings)
    assert connector.discover()[0].key == ("id",)
    pages = []
    with pytest.raises(RetryError, match="status 137"):
        for page in connector.read(None):
            if page is None:
                continue
            pages.append(page)
            if len(pages) == 2:
                running = psutil.Process().children(recursive=True)
                [tap] = [one for one in running if str(home) in " ".join(one.cmdline())][-1:]
                tap.kill()
    assert 0 < len(set(ids(pages))) < total
    rest = read(connector, pages[-1].cursor)
    assert set(ids(pages)) | set(ids(rest)) == set(range(total))
    again = [row for page in read(connector, rest[-1].cursor) for row in page.rows]
    known = {row["id"]: row for page in [*pages, *rest] for row in page.rows}
    assert all(row == known[row["id"]] for row in again)  # the tap gives its last file once more
