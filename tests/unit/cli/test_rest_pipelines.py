"""A REST API from its address to rows on the screen: ``new --rest-api``, ``sources``, ``run``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest
import yaml
from typer.testing import CliRunner

from waybill.cli import app
from waybill.pipelines import load_pipeline

PAGE, LOANS = 200, 600
DOCS = Path(__file__).parents[3] / "docs" / "connectors.md"


class Api(BaseHTTPRequestHandler):
    """Loans in pages of 200, by a cursor; its fields have no names that dlt knows."""

    @staticmethod
    def seen(path: str) -> None:
        """Take note of a request."""

    def do_GET(self) -> None:
        self.seen(self.path)
        url = urlsplit(self.path)
        at = int(parse_qs(url.query).get("cursor", ["x0"])[0][1:])
        end = min(at + PAGE, LOANS)
        loans = [
            {
                "loan_id": n,
                "fine": n % 4 * 0.25,
                "returned_at": None if n % 2 else "2026-01-01T00:00:00Z",
                "is_late": True,
                **{f"a_long_field_{at}": "some words of text" for at in range(4)},
            }
            for n in range(at, end)
        ]
        answer = {"loans": loans, "meta": {"after": f"x{end}" if end < LOANS else None}}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(folder))
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    return folder


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        hosts = json.dumps([f"127.0.0.1:{server.server_port}"])
        monkeypatch.setenv("WAYBILL_EGRESS__ALLOWED_HOSTS", hosts)
        yield server.server_port
        server.shutdown()
        thread.join()


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    return result


def documented(port: int) -> Any:
    """Return the example of the page, at the address of this API."""
    [text] = re.findall(r"```yaml\n(    rest_api:\n.*?cursor_param.*?)```", DOCS.read_text(), re.S)
    return yaml.safe_load(text.replace("http://127.0.0.1:8081", f"http://127.0.0.1:{port}"))


def test_an_api_is_a_pipeline_with_columns_after_two_commands(root: Path, port: int) -> None:
    url = f"http://127.0.0.1:{port}/v1/loans"
    said = run("new", "loans", "--connector", "dlt", "--rest-api", url, "--key", "loan_id").stdout
    assert "WAYBILL_EGRESS__ALLOWED_HOSTS" not in said, "it is open already"
    assert said.index("sources discover loans --write") < said.index("next: waybill test loans")
    file = root / "loans" / "pipeline.yaml"
    written = yaml.safe_load(file.read_text())
    assert written["source"]["options"]["rest_api"]["client"] == {
        "base_url": f"http://127.0.0.1:{port}/v1/"
    }
    assert not (root / "loans" / "source.py").exists()
    written["source"]["options"] = documented(port)
    file.write_text(yaml.safe_dump(written))
    trial = run("sources", "test", "loans", "--rows", "2").stdout
    assert f"a first page of {LOANS} rows" in trial, "of three answers"
    assert "as many answers of the source as go into 10,000 rows" in " ".join(trial.split())
    assert "  returned_at: null\n" in trial
    assert "  is_late: true\n" in trial
    run("sources", "discover", "loans", "--write")
    event = load_pipeline(root / "loans").events["loans"]
    types = {one.name: one.type for one in event.table.columns}
    assert (types["loan_id"], types["fine"], types["returned_at"]) == (
        "int64",
        "decimal(18,2)",
        "timestamp",
    )
    assert event.version is None
    assert json.loads(run("test", "loans", "--json").stdout)["ok"]
    shown = run("run", "loans", "--local").stdout
    assert shown.count("loan_id:") == 5
    assert "… 15 more: --rows 20" in shown
    assert re.search(r"returned_at: +null\n", shown)
    assert run("run", "loans", "--local", "--rows", "6").stdout.count("loan_id:") == 6
    written["source"]["options"]["rest_api"]["resources"][0]["endpoint"]["data_selector"] = "loan"
    file.write_text(yaml.safe_dump(written))
    nothing = " ".join(run("sources", "test", "loans").stdout.split())
    assert "endpoint.data_selector names where the records stand" in nothing
    assert "settle_s" not in nothing


def test_a_closed_address_is_named_unless_the_settings_open_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://10.1.2.3:8080/v1/loans?limit=5"
    said = run("new", "loans", "--connector", "dlt", "--rest-api", url).stdout
    assert "  WAYBILL_EGRESS__ALLOWED_HOSTS='[\"10.1.2.3:8080\"]'" in said.splitlines()
    assert "the path and all other parameters stand in pipeline.yaml" in " ".join(said.split())
    assert max(len(line) for line in said.splitlines() if str(root) not in line) <= 80
    assert 'api_key: "${connection.password}"' in (root / "loans" / "pipeline.yaml").read_text()
    monkeypatch.setenv("WAYBILL_EGRESS__ALLOWED_NETWORKS", '["10.1.0.0/16"]')
    said = run("new", "more", "--connector", "dlt", "--rest-api", url).stdout
    assert "WAYBILL_EGRESS" not in said


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://example.com/x", "expected an address such as"),
        ("https://example.com", "expected an address such as"),
        ("https://example.com:x/a", "expected an address such as"),
        ("https://me:secret@example.com/a", "leave user and password out"),
        ("https://example.com/${connection.password}", "expected an address such as"),
        ("https://example.com/a\nid: x", "expected an address such as"),
        ("https://example.com/a#b", "expected an address such as"),
        ("https://example.com/a b?api_key=secret@", "expected an address such as"),
        ("https://example.com:x/a?api_key=secret@", "expected an address such as"),
        ("https://example.com/?api_key=secret@", "expected an address such as"),
        ("https://[::1/a", "expected an address such as"),
        ("", "expected an address such as"),
    ],
)
def test_what_is_no_address_of_records_is_refused_and_nothing_is_written(
    root: Path, url: str, words: str
) -> None:
    said = run("new", "x", "--connector", "dlt", "--rest-api", url, code=1).stderr
    assert words in " ".join(said.split())
    assert "secret@" not in said
    assert list(root.iterdir()) == []


def test_an_address_goes_with_dlt_only(root: Path) -> None:
    said = run("new", "x", "--rest-api", "https://example.com/a", code=1).stderr
    assert "goes with --connector dlt, not csv" in said


@pytest.mark.parametrize(
    ("url", "name", "path", "params"),
    [
        ("https://example.com/My-Loans/", "my_loans", "My-Loans/", None),
        ("https://example.com/v1/2024?a=b%20c&d=", "records_2024", "2024", {"a": "b c", "d": ""}),
        ("https://example.com/%22x", "22x", "%22x", None),
    ],
)
def test_resource_and_event_have_the_name_of_the_last_part(
    root: Path, url: str, name: str, path: str, params: dict[str, str] | None
) -> None:
    run("new", "x", "--connector", "dlt", "--rest-api", url, "--batch")
    written = yaml.safe_load((root / "x" / "pipeline.yaml").read_text())
    [resource] = written["source"]["options"]["rest_api"]["resources"]
    name = f"records_{name}" if name[0].isdigit() else name
    assert (resource["name"], written["source"]["event"], list(written["events"])) == (
        name,
        name,
        [name],
    )
    assert (resource["endpoint"]["path"], resource["endpoint"].get("params")) == (path, params)


@pytest.mark.parametrize(
    "name",
    "api_key apikey X-Api-Key accessToken PASSWORD auth sig appid key1 token2 apikey2 pass"
    " user_pass pw pat code hash".split(),
)
def test_a_secret_of_the_address_is_read_from_a_connection_and_written_nowhere(
    root: Path, name: str
) -> None:
    url = f"https://example.com/v1/loans?state=all&{name}=hush%21hush&tag=a&tag=b"
    result = run("new", "loans", "--connector", "dlt", "--rest-api", url)
    assert "hush" not in result.output
    assert 'WAYBILL_SOURCES__CONNECTIONS__LOANS_API=\'{"conn_type": "http"' in result.stdout
    assert not any("hush" in path.read_text() for path in (root / "loans").iterdir())
    source = yaml.safe_load((root / "loans" / "pipeline.yaml").read_text())["source"]
    assert source["connection"] == "loans_api"
    [resource] = source["options"]["rest_api"]["resources"]
    params = {"state": "all", name: "${connection.password}", "tag": ["a", "b"]}
    assert resource["endpoint"] == {"path": "loans", "params": params}


def test_parameters_reach_the_server_as_the_address_has_them(
    root: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Api, "seen", asked.append)
    odd = {"filter": '{"state": {"is": "open"}}', "of": "${connection.password}", "smile": "😀"}
    url = f"http://127.0.0.1:{port}/v1/loans/?{urlencode(odd)}"
    assert run("new", "loans", "--connector", "dlt", "--rest-api", url).exit_code == 0
    run("sources", "test", "loans")
    assert urlsplit(asked[0]).path == "/v1/loans/"
    assert dict(parse_qsl(urlsplit(asked[0]).query)) == odd


@pytest.mark.parametrize("query", ["", "?state=all"])
def test_the_lines_that_read_only_what_changed_need_no_more_than_to_be_put_in_force(
    root: Path, port: int, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Api, "seen", asked.append)
    run("new", "loans", "--connector", "dlt", "--rest-api", f"http://127.0.0.1:{port}/loans{query}")
    file = root / "loans" / "pipeline.yaml"
    text = re.sub(r"\n {12}params: .*", "", file.read_text())
    text = re.sub(r"# (?=(params|incremental): \{)", "", text)
    text = text.replace("cursor_path: updated_at", "cursor_path: loan_id")
    file.write_text(text.replace('initial_value: "2024-01-01T00:00:00Z"', "initial_value: 7"))
    run("sources", "test", "loans")
    assert parse_qsl(urlsplit(asked[0]).query) == [*parse_qsl(query[1:]), ("since", "7")]


def test_each_secret_of_the_address_has_a_place_in_the_connection_that_is_sent(
    root: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Api, "seen", asked.append)
    url = f"http://127.0.0.1:{port}/v1/loans?api_key=hush1&token=hush2&key=&token=hush3"
    said = run("new", "loans", "--connector", "dlt", "--rest-api", url).stdout
    [given] = re.findall("CONNECTIONS__LOANS_API='(.*)'", said)
    monkeypatch.setenv("WAYBILL_SOURCES__CONNECTIONS__LOANS_API", given)
    file = root / "loans" / "pipeline.yaml"
    written = yaml.safe_load(file.read_text())
    [resource] = written["source"]["options"]["rest_api"]["resources"]
    resource["endpoint"]["data_selector"] = "loans"
    file.write_text(yaml.safe_dump(written))
    run("sources", "test", "loans")
    query = parse_qs(urlsplit(asked[0]).query)
    assert query == {"api_key": ["<api_key>"], "token": ["<token>"] * 2, "key": ["<key>"]}
    assert "stand in pipeline.yaml as given" not in said


@pytest.mark.parametrize("address", ["v1;token=S/loans", "v1/loans?state=all"])
def test_what_of_an_address_stands_in_the_file_is_said(root: Path, address: str) -> None:
    said = run("new", "loans", "--connector", "dlt", "--rest-api", f"https://example.com/{address}")
    assert "the path and all other parameters stand in pipeline.yaml as given" in said.stdout


@pytest.mark.parametrize(
    "name", ["state", "author", "sort_by", "keyword", "page", "country_code", "compass"]
)
def test_what_is_no_secret_stays_as_it_is(root: Path, name: str) -> None:
    url = f"https://example.com/v1/loans?{name}=open"
    run("new", "loans", "--connector", "dlt", "--rest-api", url)
    source = yaml.safe_load((root / "loans" / "pipeline.yaml").read_text())["source"]
    assert "connection" not in source
    assert source["options"]["rest_api"]["resources"][0]["endpoint"]["params"] == {name: "open"}
