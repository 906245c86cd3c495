"""The whole test suite in two halves at once: ``python -m tests.halves [arguments of pytest]``.

``tests/faults`` mostly waits: for servers that come up again, for Spark to start, for streams to
come to rest. With the destinations and the unit tests it runs beside all the rest, each half with servers
of its own. A half's progress is shown line by line under its name; what it has to say at its end comes in one
piece. What is marked ``campaign`` is left to ``make campaigns``. Arguments go to both halves; with a path, or what wants the terminal (``-s``, ``--pdb``), it is
one pytest as ever.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

_FIRST = ("tests/faults", "tests/integration/destinations", "tests/unit")
_EACH_TIME = ("-m", "not campaign")
HALVES = {
    "faults": (*_FIRST, *_EACH_TIME),
    "others": ("tests", *_EACH_TIME, *(f"--ignore={path}" for path in _FIRST)),
}
NOTHING_SELECTED = 5
_ALONE = {"-s", "--capture=no", "--pdb", "--trace", "--help", "-h", "--collect-only", "--co"}
_AT_THE_END = re.compile(r"=+ (?!test session starts)\S")
_SAYS_IT_ALL = re.compile(r"=* ?(.* in \d[\d.]*s\b.*?) ?=*")


@dataclass
class Half:
    """One pytest: its name, its process, and its last line."""

    name: str
    process: subprocess.Popen[str]
    began: float = field(default_factory=time.monotonic)
    minutes: float = 0.0
    summary: str = "ended without a summary"

    def show(self, lock: threading.Lock) -> None:
        """Show the progress as it comes, and all from the first heading on at the end."""
        assert self.process.stdout is not None
        at_the_end: list[str] = []
        for line in self.process.stdout:
            if found := _SAYS_IT_ALL.fullmatch(line.rstrip("\n")):
                self.summary = found[1]
            if at_the_end or _AT_THE_END.match(line):
                at_the_end.append(line)
                continue
            with lock:
                print(f"{self.name} | {line}", end="", flush=True)
        self.process.wait()
        self.minutes = (time.monotonic() - self.began) / 60
        with lock:
            print(f"\n{self.name}:\n{''.join(at_the_end)}", flush=True)


def run(halves: dict[str, Sequence[str]], arguments: Sequence[str]) -> int:
    """Run the halves at once; 0 when no test failed, else the exit code of one that did."""
    running = [Half(name, _start(name, [*words, *arguments])) for name, words in halves.items()]
    _pass_on_the_end(running)
    lock = threading.Lock()
    readers = [threading.Thread(target=half.show, args=(lock,)) for half in running]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    for half in running:
        code = half.process.returncode
        print(f"{half.name}: exit {code} after {half.minutes:.1f} min: {half.summary}", flush=True)
    return code_of([half.process.returncode for half in running])


def code_of(codes: Sequence[int]) -> int:
    """Return one exit code for all; a half without a selected test is none that failed."""
    failed = [code for code in codes if code not in {0, NOTHING_SELECTED}]
    if failed:
        return failed[0] if failed[0] > 0 else 128 - failed[0]
    return min(codes)


def is_for_one(arguments: Sequence[str]) -> bool:
    """Say whether the arguments name tests by path, or want a terminal for themselves."""
    paths = [Path(word.split("::")[0]) for word in arguments if not word.startswith("-")]
    return bool(_ALONE & set(arguments)) or any(path.exists() for path in paths)


def _start(name: str, words: Sequence[str]) -> subprocess.Popen[str]:
    """Start pytest with a cache of its own; with ``--lf`` a half in which nothing failed is idle."""
    own = ["-o", f"cache_dir=.pytest_cache/{name}", "--last-failed-no-failures=none"]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *own, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def _pass_on_the_end(running: Sequence[Half]) -> None:
    """SIGTERM goes to the halves, which end their servers; a terminal's Ctrl-C they get as well."""

    def tell(_number: int, _frame: FrameType | None) -> None:
        for half in running:
            half.process.terminate()

    signal.signal(signal.SIGTERM, tell)
    signal.signal(signal.SIGINT, lambda _number, _frame: None)  # not ignored: that is inherited


def main(arguments: Sequence[str]) -> int:
    if is_for_one(arguments):
        return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode
    return run(HALVES, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
