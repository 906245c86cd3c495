"""``down`` leaves nothing, also of what others start while they are being ended."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
from tests.servers import wait_for

from waybill.settings import Settings
from waybill.stack import processes, supervisor
from waybill.stack.embedded import Stack
from waybill.stack.processes import Launch

STARTS_ANOTHER_WHEN_ENDED = """
import os, signal, sys, time
from pathlib import Path
from waybill.stack import processes
from waybill.stack.processes import Launch

run_dir = Path(sys.argv[1])

def another(*_):
    sleeper = [sys.executable, "-c", "import time; time.sleep(1200)"]
    processes.spawn(run_dir, Launch("late", sleeper, os.environ, run_dir, run_dir / "late.log"))
    while processes.read_record(run_dir / "late.json") is None:
        time.sleep(0.02)
    os._exit(0)

signal.signal(signal.SIGTERM, another)
print("ready", flush=True)
while True:
    time.sleep(1)
"""


def test_what_is_started_by_one_that_ends_is_ended_too(tmp_path: Path) -> None:
    stack = Stack(Settings(home=tmp_path / "home"))
    log = tmp_path / "first.log"
    command = [sys.executable, "-c", STARTS_ANOTHER_WHEN_ENDED, str(stack.run_dir)]
    child = processes.spawn(stack.run_dir, Launch("first", command, os.environ, tmp_path, log))
    wait_for(lambda: "ready" in log.read_text())
    stack.down()
    child.wait(300)
    assert processes.read_registry(stack.run_dir) == []
    left = [p for p in psutil.process_iter() if str(stack.run_dir) in _where(p)]
    assert left == []


def test_the_supervisor_is_named_among_what_is_stopped(tmp_path: Path) -> None:
    stack, told = Stack(Settings(home=tmp_path / "home")), list[tuple[str, str]]()
    command = [sys.executable, "-c", "import time; time.sleep(1200)"]
    log = tmp_path / "log"
    child = processes.spawn(
        stack.run_dir, Launch(supervisor.NAME, command, os.environ, tmp_path, log)
    )
    wait_for(lambda: processes.read_record(stack.run_dir / f"{supervisor.NAME}.json"))
    stack.down(notice=lambda name, what: told.append((name, what)))
    child.wait(300)
    assert told == [(supervisor.NAME, "stopping")]


def _where(process: psutil.Process) -> str:
    try:
        return str(process.cwd())
    except psutil.Error:
        return ""
