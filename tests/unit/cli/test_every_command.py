"""What holds for every command, found by walking the tree: no list of commands is kept here."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.support.commands import commands, flags, words
from typer.testing import CliRunner

from waybill.cli import COMMANDS, PANELS, app
from waybill.cli.command import DECLARED, DEPLOYED, DESTINATION
from waybill.cli.exit_codes import ExitCode

EVERY = dict(commands())
_SERVICES = {"up", "demo", "collector", "capacity enhance", "traces ship", "connect", "dev"}
"""Those that start servers, go on until they are ended and wait for servers by themselves, or become
another program."""
_SAID_OTHERWISE = {
    "pipelines list": ExitCode.DONE,
    "pipelines show": ExitCode.DONE,
    "retention show": ExitCode.DONE,
    "destination check": ExitCode.FOUND,
}
"""What is away is a part of what these show."""
PIPELINES = Path(__file__).parents[3] / "include" / "pipelines"


def run(*given: str) -> Any:
    return CliRunner().invoke(app, ["--wait", "0", *given])


class Trap:
    """A server that takes connections and says nothing: what is away, and was asked."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.asked = 0
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                taken, _ = self._socket.accept()
                self.asked += 1
                taken.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture
def trap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Trap]:
    folder = tmp_path / "pipelines"
    shutil.copytree(PIPELINES / "flights", folder / "flights")
    made = Trap()
    place = f"127.0.0.1:{made.port}"
    for name, value in {
        "HOME": str(tmp_path / "home"),
        "PIPELINES_DIR": str(folder),
        "TRACKER__DSN": f"postgresql://waybill:x@{place}/waybill?connect_timeout=2",
        "KAFKA__BOOTSTRAP_SERVERS": place,
        "S3__ENDPOINT_URL": f"http://{place}",
        "S3__ACCESS_KEY": "key",
        "S3__SECRET_KEY": "secret",
        "AIRFLOW__URL": f"http://{place}",
        "AIRFLOW__USER": "admin",
        "AIRFLOW__PASSWORD": "x",
        "DESTINATIONS": json.dumps(
            {"warehouse": {"kind": "postgres", "dsn": f"postgresql://u:x@{place}/w"}}
        ),
        "TRACES__SPOOL_DIR": str(tmp_path / "spool"),
    }.items():
        monkeypatch.setenv(f"WAYBILL_{name}", value)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield made
    finally:
        made.close()
        for number, handler in handlers.items():  # a service takes signals as its own
            signal.signal(number, handler)


@pytest.mark.parametrize("path", EVERY)
def test_wrong_input_ends_with_1(path: str) -> None:
    done = run(*path.split(), "--no-such-option")
    assert done.exit_code == ExitCode.INPUT, done.output
    assert "No such option" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("path", EVERY)
def test_it_prints_json_and_can_do_without_colors(path: str) -> None:
    assert {"--json", "--no-color"} <= flags(EVERY[path])


@pytest.mark.parametrize("path", EVERY)
def test_a_pipeline_can_be_given_as_an_option(path: str) -> None:
    means_one = any(
        one.metavar in {DEPLOYED, DECLARED} or one.name == "pipeline" for one in EVERY[path].params
    )
    assert means_one == ({"-p", "--pipeline"} <= flags(EVERY[path]))


@pytest.mark.parametrize("path", [path for path in EVERY if path not in _SERVICES])
def test_a_server_that_is_away_and_was_asked_ends_it_with_4(
    path: str, trap: Trap, tmp_path: Path
) -> None:
    texts = {
        DEPLOYED: "flights",
        DECLARED: str(tmp_path / "pipelines" / "flights"),
        DESTINATION: "warehouse",
        "int": "1",
        "Path": str(tmp_path / "out.jsonl"),
    }
    done = run(*path.split(), *words(EVERY[path], texts, other="something"))
    if path in _SAID_OTHERWISE:
        assert (done.exit_code, bool(trap.asked)) == (_SAID_OTHERWISE[path], True), done.output
        assert "not answer" in " ".join(done.output.split())
    elif trap.asked or path == "status":  # which looks at processes
        assert done.exit_code == ExitCode.AWAY, done.output
    else:
        assert done.exit_code != ExitCode.AWAY, done.output
        assert isinstance(done.exception, SystemExit | None), done.exception


def test_most_commands_ask_a_server(trap: Trap) -> None:
    assert run("parked", "list").exit_code == ExitCode.AWAY
    assert trap.asked == 1


@pytest.mark.parametrize(
    "path",
    [
        "pipelines undeploy",
        "pipelines rollback",
        "pipelines reread",
        "parked replay",
        "destination settle",
        "destination settle-lost",
    ],
)
def test_what_cannot_be_taken_back_is_told_which(
    path: str, trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = {kind: lambda: ["warehouse"] for kind in (DEPLOYED, DESTINATION)}
    monkeypatch.setattr("waybill.cli.command._CHOICES", only)
    yes = ["--yes"] if "--yes" in flags(EVERY[path]) else []
    given = words(EVERY[path], {"int": "1"}, other="something")
    done = run(*path.split(), *[one for one in given if one != "something"], *yes)
    assert (done.exit_code, trap.asked) == (ExitCode.INPUT, 0), done.output


def help_of(monkeypatch: pytest.MonkeyPatch, *given: str) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    done = run(*given, "--help")
    assert done.exit_code == 0, done.output
    return str(done.output)


def test_the_help_has_each_command_in_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    grouped = [name for names in PANELS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS)
    lines = help_of(monkeypatch).splitlines()
    titles = [line.split()[1:3] for line in lines if line.startswith("╭─")]
    assert titles[:3] == [["Options", titles[0][1]], ["Start", "here"], ["Pipelines", "and"]]
    first = next(number for number, line in enumerate(lines) if "─ Start here" in line)
    assert [line.split()[1] for line in lines[first + 1 : first + 4]] == ["up", "new", "test"]


@pytest.mark.parametrize("name", EVERY)
def test_the_help_names_arguments_alike_and_breaks_no_number(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = help_of(monkeypatch, *name.split())
    usage = said.partition("Usage:")[2].partition("\n")[0].partition(f" {name} ")[2]
    assert usage.startswith("[OPTIONS]")
    assert usage == usage.upper()
    assert not {"{", "}"} & set(usage)
    for line in said.splitlines():
        opened = re.search(r"\[[0-9x.]", line)
        assert opened is None or "]" in line[opened.start() :], line
        assert re.search(r"│ +[0-9.<=x]+\]", line) is None, line
    assert not re.search(r"--(no-)?un\w+ +--no-un", said)


def test_an_upper_bound_that_the_help_leaves_out_is_checked() -> None:
    done = run("campaigns", "start", "--all-pipelines", "--limit", str(10**18))
    assert done.exit_code == ExitCode.INPUT
    assert "less than or equal to" in " ".join(done.stderr.split())
