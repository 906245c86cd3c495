"""What somebody new to the command line meets: words that are near, closed sources, no stack."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tests.support import orders
from typer.testing import CliRunner

from waybill.cli import app

REST = """id: bank-loans
name: loans
team: bank
owner: bank@example.com
source:
  connector: dlt
  event: loan
  options:
    rest_api:
      client: {{base_url: "{url}"}}
      resources:
      - name: loans
        endpoint: {{path: "{path}"}}
      - name: a text that is long enough to be folded where the terminal has no more columns for it
    resources: [loans]
events:
  loan: {{key: [id], table: loans, columns: {{id: int64}}}}
destination: {{name: warehouse, schema: bank}}
"""


def run(*words, code=0):
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == code, (done.output, done.exception)
    return done


def flat(text):
    return " ".join(text.split())


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder with a folder of pipelines, in a terminal of 80 columns; no server."""
    for name, value in {
        "WAYBILL_HOME": str(tmp_path / "state"),
        "WAYBILL_TRACKER__DSN": "postgresql://nobody@127.0.0.1:1/none",
        "WAYBILL_PIPELINES_DIR": str(tmp_path / "pipelines"),
        "COLUMNS": "80",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(here, url, path="loans"):
    folder = here / "pipelines" / "loans"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pipeline.yaml").write_text(REST.format(url=url, path=path))
    (folder / "transformation.py").write_text("def transform(event):\n    return event\n")
    return folder


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://127.0.0.1:8931/v1", "127.0.0.1:8931"),
        ("https://LOCALHOST./v1", "localhost:443"),
        ("http://0x7f.1:80/", "0x7f.1:80"),
        ("http://2130706433/", "2130706433:80"),
        ("http://[::1]:8080/", "::1:8080"),
        ("http://169.254.169.254/latest/meta-data", "169.254.169.254:80"),
    ],
    ids=["number", "localhost", "hexadecimal", "decimal", "IPv6", "metadata"],
)
def test_check_warns_of_a_source_that_the_settings_close(here, url, place):
    folder = written(here, url)
    done = run("pipelines", "check", folder)
    said = flat(done.stderr)
    assert "pipelines/loans/pipeline.yaml:10 source.options.rest_api.client.base_url" in said
    assert "is not one of the public internet, and so closed to sources" in said
    assert f"WAYBILL_EGRESS__ALLOWED_HOSTS='[\"{place}\"]'" in said
    assert "no mistakes" in done.stdout
    answer = json.loads(run("pipelines", "check", folder, "--json").stdout)
    assert answer["ok"]
    assert len(answer["warnings"]) == 1


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example.com/v1",
        "https://8.8.8.8/v1",
        "https://${connection.host}/v1",
        "http://127.0.0.1:99999/",
        "http://[::1/",
        "http://",
        "no address",
        f"http://{'a' * 300}/",
    ],
    ids=["name", "open number", "reference", "port", "bracket", "no host", "no address", "long"],
)
def test_check_says_nothing_of_an_address_that_is_open_or_not_known_without_asking(here, url):
    folder = written(here, url)
    if "${" in url:
        declared = (folder / "pipeline.yaml").read_text()
        declared = declared.replace("connector: dlt", "connector: dlt\n  connection: bank")
        (folder / "pipeline.yaml").write_text(declared)
    assert run("pipelines", "check", folder).stderr == ""


def test_a_folder_of_closed_sources_is_looked_through_once_whatever_happens_to_it(
    here, monkeypatch
):
    from waybill.pipelines import pipeline_directories
    from waybill.services import closed_sources

    calls = []

    def counted_directories(folder):
        calls.append(folder)
        return pipeline_directories(folder)

    def renamed_meanwhile(settings, pipeline, folder):
        file = here / "pipelines" / "loans2" / "pipeline.yaml"
        file.write_text(file.read_text().replace("name: loans2", "name: other"))
        return closed_sources(settings, pipeline, folder)

    loans = written(here, "http://127.0.0.1:8931/v1")
    for number in (1, 2, 3):
        copy = loans.with_name(f"loans{number}")
        shutil.copytree(loans, copy)
        text = (copy / "pipeline.yaml").read_text()
        text = re.sub(r"(?m)^(id: bank-|name: )loans$", rf"\1loans{number}", text)
        (copy / "pipeline.yaml").write_text(text.replace("table: loans", f"table: loans{number}"))
    monkeypatch.setattr("waybill.pipelines.pipeline_directories", counted_directories)
    monkeypatch.setattr("waybill.services.closed_sources", renamed_meanwhile)
    done = run("pipelines", "check", loans.parent, "--json")
    answer = json.loads(done.stdout)
    assert answer["ok"], answer
    files = [Path(one["file"]).parent.name for one in answer["warnings"]]
    assert files == ["loans", "loans1", "loans2", "loans3"]
    assert len(calls) == 1


def test_check_warns_of_a_resource_with_an_address_of_its_own(here):
    folder = written(here, "https://api.example.com", "http://10.1.2.3/loans")
    said = flat(run("pipelines", "check", folder).stderr)
    assert "source.options.rest_api.resources.0.endpoint.path" in said
    assert "'10.1.2.3' is not one of the public internet" in said


def test_check_says_nothing_of_a_source_that_the_settings_open(here, monkeypatch):
    folder = written(here, "http://127.0.0.1:8931/v1")
    monkeypatch.setenv("WAYBILL_EGRESS__ALLOWED_HOSTS", '["127.0.0.1:8931"]')
    assert run("pipelines", "check", folder).stderr == ""
    monkeypatch.setenv("WAYBILL_EGRESS__ALLOWED_HOSTS", '["127.0.0.1:8932"]')
    assert "closed to sources" in flat(run("pipelines", "check", folder).stderr)


def test_show_has_the_options_of_a_source_whole_as_yaml(here, monkeypatch):
    written(here, "https://api.example.com/v1")
    said = run("pipelines", "show", "loans").stdout
    assert max(map(len, said.splitlines())) <= 80
    assert "{'" not in said
    _, _, rest = said.partition("options of the source, as declared\n")
    shown, _, _ = rest.partition("\n\n")
    declared = yaml.safe_load(REST.format(url="https://api.example.com/v1", path="loans"))
    assert yaml.safe_load(shown) == declared["source"]["options"]


def test_show_says_what_else_an_event_declares_within_80_columns(here):
    home = orders.write_orders(here / "pipelines", rows=1)
    text = (home / "pipeline.yaml").read_text()
    more = "    personal: [amount]\n    nested: flatten\n    deletes: soft\n    columns:"
    (home / "pipeline.yaml").write_text(text.replace("    columns:", more))
    said = run("pipelines", "show", "orders").stdout
    assert max(map(len, said.splitlines())) <= 80
    assert "policy strict; objects: flatten; arrays: json; deletes: soft" in said
    assert re.search("^version: ", said, re.MULTILINE)
    assert "\npersonal: amount\n" in said


def test_what_a_terminal_would_obey_in_an_option_is_written_out(here):
    written(here, "https://api.example.com/\\e[2J")
    assert "\x1b" not in run("pipelines", "show", "loans").output


@pytest.mark.parametrize("command", ["check", "deploy"])
def test_mistakes_are_folded_and_their_files_named_from_here(here, command, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    home = orders.write_orders(here / "pipelines", rows=1)
    text = (home / "pipeline.yaml").read_text()
    (home / "pipeline.yaml").write_text(text.replace("amount: int64", "amount: a type of no kind"))
    said = re.sub(r"\x1b\[[0-9;]*m", "", run("pipelines", command, home, code=1).stderr)
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("pipelines/orders/pipeline.yaml:") for line in lines)
    assert str(here) not in said
    assert lines[-1].endswith("in 1 file")


def test_an_error_is_folded_between_words_on_a_terminal(here, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    orders.write_orders(here / "pipelines", rows=1)
    said = run("pipelines", "show", "no_such_pipeline_of_a_long_name", code=3).stderr
    said = re.sub(r"\x1b\[[0-9;]*m", "", said)
    assert said.startswith("Error: no pipeline 'no_such_pipeline_of_a_long_name':")
    lines = said.splitlines()
    assert len(lines) > 1
    assert all(len(line) <= 80 or " " not in line.strip() for line in lines)


@pytest.mark.parametrize(
    ("word", "places"),
    [
        ("list", "'pipelines list', 'parked list', 'destination list'?"),
        ("rollback", "'pipelines rollback'?"),
        ("discover", "'sources discover'?"),
    ],
)
def test_a_word_that_groups_have_is_not_guessed_to_be_another(word, places):
    said = flat(run(word, code=1).output.replace("│", " "))
    assert f"No such command '{word}'. Did you mean {places}" in said


def test_a_word_that_no_group_has_gets_the_nearest_command():
    said = flat(run("pipelinse", code=1).output.replace("│", " "))
    assert "Did you mean 'pipelines'?" in said


def shell(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with no setting but these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WAYBILL_")}
    return subprocess.run(
        [sys.executable, "-m", "waybill.cli", *words],
        cwd=folder,
        env={**kept, **more},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_status_says_that_no_stack_was_started_here(tmp_path):
    done = shell(tmp_path, "status")
    assert done.returncode == 4, done.stderr
    words = f"no stack was started in this folder (WAYBILL_HOME={tmp_path / '.waybill'})"
    assert words in flat(done.stderr)
    (tmp_path / ".waybill" / "run").mkdir(parents=True)
    assert "no stack was started" not in shell(tmp_path, "status").stderr


def test_a_tracker_that_nobody_named_is_not_waited_for(tmp_path):
    began = time.monotonic()
    done = shell(tmp_path, "pipelines", "holds", WAYBILL_TRACKER__CONNECT_TIMEOUT_S="5")
    assert done.returncode == 4, done.stderr
    assert time.monotonic() - began < 300
    assert "waiting" not in done.stderr
    assert "no stack was started in this folder" in done.stderr
    assert "no tracker is set (WAYBILL_TRACKER__DSN): `waybill up` starts one" in done.stderr


@pytest.mark.parametrize("named", ["by a setting", "by a stack"])
def test_a_tracker_that_was_named_is_waited_for(tmp_path, named):
    dsn = "postgresql://nobody@127.0.0.1:1/none"
    given = {"WAYBILL_TRACKER__DSN": dsn} if named == "by a setting" else {}
    if not given:
        (tmp_path / ".waybill").mkdir()
        (tmp_path / ".waybill" / "stack.env").write_text(f"WAYBILL_TRACKER__DSN={dsn}\n")
    done = shell(tmp_path, "--wait", "1", "pipelines", "holds", **given)
    assert done.returncode == 4, done.stderr
    assert "waiting up to 1 s: tracker did not answer" in done.stderr
    assert "no stack" not in done.stderr


def test_help_of_a_run_says_when_a_reason_must_be_given() -> None:
    said = " ".join(CliRunner().invoke(app, ["ingest", "--help"]).output.replace("│", " ").split())
    assert "Each of these needs --why." in said
    assert "must be given with any of these" in said
