"""``waybill pipelines``: tables for people, JSON for programs, exit code 1 with every problem."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from waybill.cli import app


def run(*arguments, code: int = 0):
    result = CliRunner().invoke(app, ["pipelines", *(str(argument) for argument in arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def bad(folder, good):
    folder.write("good")
    text = good.replace("team:", "taem:").replace("note: string", "note: '[red]strng'")
    folder.write("bad", text=text)
    return folder.root


def test_check_says_that_all_is_well(folder):
    (folder.write() / "orders.csv").touch()
    said = run("check", folder.root)
    assert said.stdout == "1 pipeline, no mistakes (orders)\n"
    assert said.stderr == ""
    assert json.loads(run("check", folder.root, "--json").stdout) == {
        "ok": True,
        "pipelines": ["orders"],
        "problems": [],
        "warnings": [],
    }


@pytest.mark.parametrize(
    ("kind", "table", "destination", "code"),
    [
        ("duckdb", "Orders", "warehouse", 1),
        ("duckdb", "orders", "second", 1),
        ("duckdb", "orders", "third", 0),
        ("postgres", "Orders", "warehouse", 0),
        ("postgres", "orders", "second", 1),
        ("postgres", "orders", "third", 0),
    ],
)
def test_a_table_belongs_to_one_pipeline_by_whatever_names_its_engine_knows_it(
    folder, good, monkeypatch, kind, table, destination, code
):
    dsns = {
        "duckdb": ("house.duckdb", "./house.duckdb", "other.duckdb"),
        "postgres": (
            "postgresql://ann:a@localhost/house",
            "postgresql://ben:b@127.0.0.1:5432/house?connect_timeout=5",
            "postgresql://ann:a@localhost/other",
        ),
    }[kind]
    names = ("warehouse", "second", "third")
    given = {name: {"kind": kind, "dsn": dsn} for name, dsn in zip(names, dsns, strict=True)}
    monkeypatch.setenv("WAYBILL_DESTINATIONS", json.dumps(given))
    (folder.write("a") / "orders.csv").touch()
    text = good.replace("shop-orders", "other").replace("name: orders", "name: other")
    text = text.replace("name: warehouse", f"name: {destination}")
    text = text.replace("table: orders", f"table: {table}")
    (folder.write("b", text=text) / "orders.csv").touch()
    said = flat(run("check", folder.root, code=code).stderr)
    assert (f"expected a table of its own; found {table!r}, which" in said) is bool(code)
    assert ("has too, as 'orders'" in said) is (table == "Orders" and bool(code))


def flat(text):
    return " ".join(text.split())


def test_a_source_that_is_not_there_is_a_warning_and_no_mistake(folder, good):
    home = folder.write()
    said = run("check", folder.root)
    assert "orders/pipeline.yaml:8 source.path" in said.stderr
    assert "warning: no file" in said.stderr
    assert "1 pipeline, no mistakes" in said.stdout
    answer = json.loads(run("check", folder.root, "--json").stdout)
    assert answer["ok"]
    assert [warning["field"] for warning in answer["warnings"]] == ["source.path"]
    (home / "orders.csv").touch()
    assert run("check", folder.root).stderr == ""


@pytest.mark.parametrize(
    ("path", "warns"),
    [
        (f"{Path(__file__).parent}/no.csv", True),
        ("package:no_such_package/a.csv", True),
        ("package:waybill/a.csv", False),
        (__file__, False),
    ],
)
def test_a_source_may_lie_elsewhere(folder, good, path, warns, monkeypatch):
    monkeypatch.setenv("WAYBILL_SOURCES__ROOTS", json.dumps([str(Path(__file__).parent)]))
    folder.write(text=good.replace("orders.csv", path))
    assert ("warning" in run("check", folder.root).stderr) is warns


def test_a_mistake_in_the_yaml_names_its_line_and_no_field(folder, good):
    folder.write(text=good.replace("team: shop", "team: *shop"))
    said = run("check", folder.root, code=1).stderr.splitlines()
    assert said[0].endswith("pipeline.yaml:3")
    assert said[1].startswith("  expected YAML; found undefined alias")
    assert said[-1] == "1 mistake in 1 file"


def test_a_quote_that_is_not_closed_is_reported_where_it_begins(folder, good):
    text = good.replace("{name: warehouse", '{name: "warehouse') + "# the end\n" * 3
    number = len(good.splitlines())
    folder.write(text=text)
    said = run("check", folder.root, code=1).stderr.splitlines()
    assert said[0].endswith(f"pipeline.yaml:{number}")
    assert f"which begins in line {number}; a quote is not closed" in " ".join(said)


def test_check_lists_every_problem_and_fails(bad):
    said = run("check", bad, code=1).stderr
    assert "bad/pipeline.yaml:3 taem" in said
    assert "did you mean 'team'?" in said
    assert "[red]strng" in said  # shown as it stands, not as colour
    assert "mistakes in 2 files" in said


def test_check_json_has_every_problem_by_field(bad):
    answer = json.loads(run("check", bad, "--json", code=1).stdout)
    assert not answer["ok"]
    fields = [problem["field"] for problem in answer["problems"]]
    assert "taem" in fields
    assert "team" not in fields  # a typo is told once
    assert set(answer["problems"][0]) == {"file", "line", "field", "message"}


@pytest.mark.parametrize("command", [["list"], ["show", "orders"]])
def test_list_and_show_fail_with_the_problems(bad, command):
    result = run(*command, "--from", bad, "--json", code=1)
    assert result.stdout == ""
    assert "did you mean 'team'?" in result.stderr


def test_list_shows_each_pipeline(folder):
    folder.write()
    assert "orders" in run("list", "--from", folder.root).stdout
    (one,) = json.loads(run("list", "--from", folder.root, "--json").stdout)
    assert (one["name"], one["topic"], one["events"]) == (
        "orders", "events.shop.warehouse", ["order"],
    )  # fmt: skip


def test_show_has_the_facts_and_the_columns(folder):
    folder.write()
    said = run("show", "orders", "--from", folder.root).stdout
    for part in ("shop-orders", "events.shop.warehouse", "placed_at", "decimal(10,2)", "key"):
        assert part in said
    assert "@hourly, at minute 54" in said
    answer = json.loads(run("show", "orders", "--from", folder.root, "--json").stdout)
    assert answer["events"]["order"]["key"] == ["number"]


def test_show_of_an_unknown_name_offers_the_nearest(folder):
    folder.write()
    said = run("show", "order", "--from", folder.root, code=3).stderr
    assert "did you mean 'orders'?" in said


def test_the_folder_comes_from_the_settings_when_none_is_given(folder, monkeypatch):
    folder.write()
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(folder.root))
    assert json.loads(run("check", "--json").stdout)["pipelines"] == ["orders"]


def test_check_takes_the_name_of_a_declared_pipeline(folder, monkeypatch):
    folder.write()
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(folder.root))
    assert json.loads(run("check", "orders", "--json").stdout)["pipelines"] == ["orders"]
    assert "no_such" in run("check", "no_such", code=3).output


@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a socket", "a device"])
def test_a_source_that_is_no_file_is_a_warning_and_is_not_waited_for(folder, good, kind):
    home = folder.write()
    path = home / "orders.csv"
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as found, contextlib.chdir(home):
            found.bind("orders.csv")
    else:
        path.symlink_to("/dev/null")
    began = time.monotonic()
    said = run("check", folder.root, code=int(kind == "a device"))  # it lies outside
    assert time.monotonic() - began < 120
    assert "orders/pipeline.yaml:8 source.path" in said.stderr
    assert re.search(
        rf"warning: '.*' is {kind}: ingestion would refuse it; name a file", said.stderr
    )


def test_a_path_that_cannot_be_looked_up_is_a_warning(folder, good):
    folder.write(text=good.replace("orders.csv", "x" * 300))
    assert "is there cannot be seen: File name too long" in run("check", folder.root).stderr


@pytest.mark.parametrize("url", ["https://example.org/a.csv", "s3://bucket/a.csv", "file:///a"])
def test_a_source_that_is_a_url_is_a_mistake(folder, good, url):
    folder.write(text=good.replace("orders.csv", url))
    said = run("check", folder.root, code=1).stderr
    assert "orders/pipeline.yaml:8 source.path" in said
    assert "it is a URL; a source is a file here: fetch it, and name the file" in said
