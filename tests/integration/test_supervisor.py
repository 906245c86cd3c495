"""What dies between ``up`` and ``down`` is started again: the real servers, one after the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from tests import servers
from tests.servers import wait_for

from waybill.settings import Settings, SparkSettings
from waybill.stack import credentials, jars, processes, supervisor
from waybill.stack.embedded import Stack

pytestmark = [pytest.mark.serves, pytest.mark.timeout(1800), pytest.mark.campaign]
WATCHED = ("postgres", "kafka", "s3", "trace-shipper")
"""Without Airflow: its components are in ``test_stack_up``."""
BACK_S = 400


@pytest.fixture
def stack() -> Iterator[Stack]:
    """A stack without Airflow, supervised."""
    home = servers.new_home()
    jars.ensure(servers.JARS)
    settings = Settings(
        _env_file=None,
        home=home,
        stack=servers.random_ports(),
        spark=SparkSettings(jars_dir=servers.JARS / jars.SPARK),
    )
    made = Stack(settings)
    made.run_dir.mkdir(parents=True, mode=0o700)
    keys = credentials.read_or_draw(home)
    light = [one for one in made.supervised(keys) if one.name in WATCHED]
    try:
        made._start(light, lambda _name, _what: None)
        supervisor.begin(home, WATCHED)
        yield made
    finally:
        made.down()
        servers.end_home(home)


def status(stack: Stack) -> dict[str, dict[str, object]]:
    return {line.name: line.to_json() for line in stack.status()}


def pids(stack: Stack) -> dict[str, int | None]:
    return {name: line["pid"] for name, line in status(stack).items()}


def run(stack: Stack, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WAYBILL_")}
    return subprocess.run(
        [sys.executable, "-m", "waybill.cli", *words],
        env={**kept, "WAYBILL_HOME": str(stack.home)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_each_server_that_is_killed_comes_back(stack: Stack) -> None:
    first = pids(stack)
    for number, name in enumerate(WATCHED):
        os.kill(first[name], signal.SIGKILL)
        wait_for(lambda n=name: _is_back(stack, n, first[n]), BACK_S)
        told = status(stack)[name]
        assert told["restarts"] == 1
        assert "exit code not seen" in str(told["last_exit"])
        assert {n: pids(stack)[n] for n in WATCHED[number + 1 :]} == {
            n: first[n] for n in WATCHED[number + 1 :]
        }
    _backend_killed(stack)
    again = pids(stack)["trace-shipper"]
    os.kill(again, signal.SIGKILL)
    wait_for(lambda: _is_back(stack, "trace-shipper", again), BACK_S)
    assert "signal 9" in str(status(stack)["trace-shipper"]["last_exit"])
    said = run(stack, "status").stdout
    assert "trace-shipper was started again 2 times" in said
    _supervisor_killed(stack, pids(stack))
    _down_leaves_nothing(stack)


def _is_back(stack: Stack, name: str, before: int) -> bool:
    line = status(stack)[name]
    return bool(line["healthy"]) and line["pid"] != before


def _backend_killed(stack: Stack) -> None:
    """PostgreSQL's own children are its postmaster's to care for; it lives on."""
    before = pids(stack)["postgres"]
    dsn = Settings(home=stack.home).tracker.dsn.get_secret_value()
    with psycopg.connect(dsn) as connection:
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    wait_for(lambda: bool(status(stack)["postgres"]["healthy"]), BACK_S)
    assert pids(stack)["postgres"] == before


def _supervisor_killed(stack: Stack, before: dict[str, int | None]) -> None:
    """The next command starts it; what it had started, PostgreSQL too, lives on."""
    os.kill(before["supervisor"], signal.SIGKILL)
    wait_for(lambda: processes.read_record(stack.run_dir / "supervisor.json").process() is None)
    done = run(stack, "status", "--json")
    lines = {line["name"]: line for line in json.loads(done.stdout)}
    assert "supervisor had died; it is started again" in done.stderr
    assert lines["supervisor"]["pid"] not in (None, before["supervisor"])
    assert {n: lines[n]["pid"] for n in WATCHED} == {n: before[n] for n in WATCHED}


def _down_leaves_nothing(stack: Stack) -> None:
    """One server dies just before: the supervisor starts it while ``down`` begins."""
    os.kill(pids(stack)["s3"], signal.SIGKILL)
    assert run(stack, "down").returncode == 0
    assert processes.read_registry(stack.run_dir) == []
    assert supervisor.read_state(stack.run_dir) is None
    wait_for(lambda: not _works_in(stack.home), 30)
    assert run(stack, "files", "list").stderr.count("supervisor") == 0


def _works_in(home: Path) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.environ().get("WAYBILL_HOME", "")]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(home) in word for word in words):
            found.append(process.pid)
    return found
