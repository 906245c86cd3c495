"""The runner of the whole suite: both halves run, and one exit code tells of both."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests import halves
from tests.servers import CHECKOUT, wait_for

PASSES = "def test_{name}():\n    pass\n"
FAILS = "def test_{name}():\n    assert 'a' == 'b', 'for a reason'\n"
RUN = """
import sys
from tests import halves
sys.exit(halves.run({{"first": [{0!r}], "second": [{1!r}]}}, sys.argv[1:]))
"""
CONFTEST = "import signal\nsignal.signal(signal.SIGTERM, signal.default_int_handler)\n"
WAITS = """
import time
from pathlib import Path

def test_waits():
    here = Path(__file__).parent
    try:
        (here / "began").touch()
        time.sleep(60)
    finally:
        (here / "ended").touch()
"""


def folder(tmp_path: Path, name: str, code: str) -> str:
    made = tmp_path / name
    made.mkdir()
    (made / "conftest.py").write_text(CONFTEST)
    (made / f"test_{name}.py").write_text(code.format(name=name))
    return str(made)


def start(first: str, second: str, *arguments: str) -> subprocess.Popen[str]:
    words = ["--rootdir", str(Path(first).parent), *arguments]
    paths = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "include")])
    return subprocess.Popen(
        [sys.executable, "-c", RUN.format(first, second), *words],
        stdout=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


def outcome(first: str, second: str, *arguments: str) -> tuple[int, str]:
    process = start(first, second, *arguments)
    said, _ = process.communicate(timeout=120)
    return process.returncode, said


def test_both_halves_are_run_and_told_of(tmp_path: Path) -> None:
    first, second = folder(tmp_path, "one", PASSES), folder(tmp_path, "two", PASSES)
    code, said = outcome(first, second)
    assert code == 0, said
    for half in ("first", "second"):
        assert re.search(rf"^{half}: exit 0 after \d+\.\d min: 1 passed in", said, re.MULTILINE)


@pytest.mark.parametrize("bad", [0, 1])
def test_one_failure_in_either_half_fails_the_whole_and_is_shown(tmp_path: Path, bad: int) -> None:
    codes = [PASSES, PASSES]
    codes[bad] = FAILS
    first, second = folder(tmp_path, "one", codes[0]), folder(tmp_path, "two", codes[1])
    code, said = outcome(first, second)
    assert code == 1, said
    assert said.count("AssertionError: for a reason") >= 1
    assert f"{('first', 'second')[bad]}: exit 1" in said


def test_a_selection_that_one_half_knows_nothing_of_is_no_failure(tmp_path: Path) -> None:
    first, second = folder(tmp_path, "one", PASSES), folder(tmp_path, "two", PASSES)
    assert outcome(first, second, "-k", "test_one")[0] == 0
    assert outcome(first, second, "-k", "nowhere")[0] == halves.NOTHING_SELECTED


def test_a_half_that_dies_fails_the_whole(tmp_path: Path) -> None:
    dies = "import os, signal\ndef test_{name}():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    first, second = folder(tmp_path, "one", dies), folder(tmp_path, "two", PASSES)
    code, said = outcome(first, second)
    assert code == 128 + signal.SIGKILL, said
    assert "first: exit -9" in said


def test_sigterm_ends_both_halves_in_order(tmp_path: Path) -> None:
    first, second = folder(tmp_path, "one", WAITS), folder(tmp_path, "two", WAITS)
    process = start(first, second)
    for half in (first, second):
        wait_for((Path(half) / "began").exists, 60)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 2, "interrupted"
    assert all((Path(half) / "ended").exists() for half in (first, second))


@pytest.mark.parametrize(
    ("arguments", "alone"),
    [
        ([], False),
        (["-k", "wal"], False),
        (["--durations=60", "-x"], False),
        (["tests/unit"], True),
        (["tests/unit/test_halves.py::test_x", "-q"], True),
        (["--pdb"], True),
        (["-s"], True),
    ],
)
def test_a_path_or_a_terminal_is_asked_for_by_one_pytest(
    arguments: list[str], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CHECKOUT)
    assert halves.is_for_one(arguments) is alone


def test_the_halves_are_all_tests_and_no_test_twice() -> None:
    each_time = ["-m", "not campaign"]
    first = [word for word in halves.HALVES["faults"] if word not in each_time]
    everything, *ignored = [word for word in halves.HALVES["others"] if word not in each_time]
    assert len(halves.HALVES["faults"]) == len(first) + len(each_time)
    assert everything == "tests"
    assert ignored == [f"--ignore={path}" for path in first]
