"""Commands that ask: once, on standard error; where nobody can answer, they say which option does."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import waybill.cli
from waybill import services
from waybill.cli import app

ASKING = [
    ("retention", "run"),
    ("pipelines", "reread", "orders", "--why", "x"),
    ("ingest", "orders", "--full", "--why", "x"),
    ("logs", "settle", "log", "--why", "x"),
    ("pipelines", "undeploy", "orders", "--why", "x"),
]
QUESTIONS = frozenset({"confirm", "prompt"})
ASKERS = {
    "destinations.py": {"_address"},
    "options.py": {"ask"},
    "new_pipeline.py": {"_answer"},
    "undeployments.py": {"_confirm_drop"},
}
"""The only functions that ask; `_answer` and `_address` ask in a terminal only."""


@pytest.fixture(autouse=True)
def nothing_done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have the tracker know of a pipeline and a log; return what was changed."""
    done: list[str] = []
    orders = SimpleNamespace(name="orders", id="orders-1", source=SimpleNamespace(connector="csv"))
    known = SimpleNamespace(pipeline=orders, tables=("shop.orders",), ended=None)
    log = SimpleNamespace(wal_id="log", pipeline="orders", unsettled=0, rereadable=True, purpose="")
    monkeypatch.setattr(services, "ingestible_pipeline", lambda *_: orders)
    monkeypatch.setattr(services, "check_values", lambda *_: None)
    monkeypatch.setattr(services, "undeployable", lambda *_: known)
    monkeypatch.setattr(services, "write_ahead_log", lambda *_: log)
    monkeypatch.setattr("waybill.cli.logs._show", lambda _: None)
    for name in ("apply_retention", "ask_rereads", "settle_log", "run_undeploy"):
        monkeypatch.setattr(services, name, lambda *_, name=name: done.append(name))
    monkeypatch.setattr("waybill.services.airflow_client.AirflowClient", lambda *_: done.append(""))
    return done


def run(*words: str, stdin: str = "") -> Any:
    return CliRunner().invoke(app, ["--wait", "0", *words], input=stdin)


@pytest.mark.parametrize("command", ASKING, ids=lambda words: " ".join(words[:2]))
def test_where_nobody_can_answer_the_error_names_yes(
    command: tuple[str, ...], nothing_done: list[str]
) -> None:
    asked = run(*command)
    said = " ".join(asked.stderr.split())
    assert asked.exit_code == 1
    assert said.count("[y/N]") == 1
    assert "nobody answered, as standard input is no terminal; add --yes to go on" in said
    assert "Aborted" not in said
    assert not nothing_done


def test_a_drop_of_tables_names_the_option_that_confirms_it(nothing_done: list[str]) -> None:
    asked = run("pipelines", "undeploy", "orders", "--drop-tables", "--why", "x")
    assert asked.exit_code == 1
    assert "add --confirm orders to go on" in " ".join(asked.stderr.split())
    assert not nothing_done


@pytest.mark.parametrize("command", ASKING, ids=lambda words: " ".join(words[:2]))
def test_no_ends_it_and_json_is_not_asked(
    command: tuple[str, ...], nothing_done: list[str]
) -> None:
    refused = run(*command, stdin="n\n")
    assert (refused.exit_code, refused.stderr.rstrip()[-8:]) == (1, "Aborted.")
    unasked = run(*command, "--json")
    assert (unasked.exit_code, unasked.stdout) == (1, "")
    assert "--json asks no questions: add --yes" in " ".join(unasked.stderr.split())
    assert not nothing_done


def test_no_command_asks_in_a_way_of_its_own() -> None:
    folder = Path(waybill.cli.__file__).parent
    found = {
        path.name: askers
        for path in sorted(folder.glob("*.py"))
        if (askers := _askers(ast.parse(path.read_text("utf-8"))))
    }
    assert found == ASKERS


def _askers(module: ast.Module) -> set[str]:
    """Return the functions that call ``typer.confirm`` or ``typer.prompt``."""
    return {
        function.name
        for function in ast.walk(module)
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in QUESTIONS
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "typer"
    }
