"""``status`` tells a process that a signal suspended from one that works."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.servers import wait_for

from waybill.settings import Settings
from waybill.stack import processes
from waybill.stack.embedded import Stack
from waybill.stack.processes import Launch


def test_an_application_that_a_signal_suspended_is_not_healthy(tmp_path: Path) -> None:
    stack = Stack(Settings(home=tmp_path / "home"))
    sleeper = [sys.executable, "-c", "import time; time.sleep(300)"]
    name = "spark-processing-default"
    launch = Launch(name, sleeper, os.environ, tmp_path, tmp_path / "app.log")
    child = processes.spawn(stack.run_dir, launch)

    def state() -> tuple[bool, tuple[int, ...]] | None:
        lines = {line.name: line for line in stack.status()}
        return (lines[name].healthy, lines[name].suspended) if name in lines else None

    try:
        wait_for(lambda: state() == (True, ()))
        child.send_signal(signal.SIGSTOP)
        wait_for(lambda: state() == (False, (child.pid,)))
        child.send_signal(signal.SIGCONT)
        wait_for(lambda: state() == (True, ()))
    finally:
        child.kill()
        child.wait(300)
