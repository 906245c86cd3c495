"""Children that are forked off a Python which has imported everything: as if started anew."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support import children

from waybill.settings import Settings

SETTINGS = Settings(_env_file=None)
TELL = """
import json, os, sys, threading
told = {"name": __name__, "parent": os.getppid(), "session": os.getsid(0), "pid": os.getpid(),
        "folder": os.getcwd(), "threads": threading.active_count(), "home": str(settings.home),
        "one": os.environ.get("ONLY_ONE"), "input": sys.stdin.read()}
print(json.dumps(told))
"""


def test_a_child_has_the_environment_the_folder_and_the_settings_of_now_and_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children.run(SETTINGS, "import os; os.environ['ONLY_ONE'] = 'of the first child'")
    monkeypatch.chdir(tmp_path)
    settings = SETTINGS.model_copy(update={"home": tmp_path / "home"})
    child = children.start(settings, TELL)
    told: dict[str, Any] = json.loads(child.communicate(timeout=600)[0])
    assert (told["parent"], told["pid"], told["session"]) == (os.getpid(), child.pid, child.pid)
    assert (told["folder"], told["home"]) == (str(tmp_path), str(tmp_path / "home"))
    assert (told["name"], told["threads"], told["one"], told["input"]) == ("__main__", 1, None, "")


@pytest.mark.parametrize(
    ("code", "end", "output"),
    [
        ("import sys; print('said'); sys.exit(3)", 3, "said\n"),
        ("raise ValueError('a mistake')", 1, "ValueError: a mistake\n"),
        ("import atexit; atexit.register(print, 'at the end')", 0, "at the end\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    ],
)
def test_a_child_ends_as_python_does(code: str, end: int, output: str) -> None:
    child = children.start(SETTINGS, code)
    assert child.communicate(timeout=600)[0].decode().endswith(output)
    assert child.returncode == end


def test_a_child_is_stopped_goes_on_and_is_killed_with_its_session() -> None:
    child = children.start(
        SETTINGS,
        "import os, signal, subprocess, time; subprocess.Popen(['sleep', '60'])\n"
        "os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)",
    )
    assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
    [sleeper] = psutil.Process(child.pid).children()
    os.kill(child.pid, signal.SIGCONT)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(timeout=0.1)
    children.kill(child)
    assert child.returncode == -signal.SIGKILL
    psutil.wait_procs([sleeper], timeout=600)
    assert not sleeper.is_running() or sleeper.status() == psutil.STATUS_ZOMBIE
