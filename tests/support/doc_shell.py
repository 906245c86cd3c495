"""A bash in which blocks of the docs run, one after the other, as in one terminal.

``waybill …`` runs within the test's own process: a start of Python costs half a second of CPU. It has the shell's
working folder and environment, and what it prints goes where the shell says: into a pipe, a file, the terminal.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.doc_blocks import Block, differences

_OTHER_PROCESSES = {"up", "down", "demo", "collector", "connect", "dev"}
"""These become or outlive a process: not in ours."""
_IN_PROCESS = """
waybill() {
  printf '%s\\0' "$PWD" "$@" > "$DOC_SHELL/call"
  env -0 > "$DOC_SHELL/environment"
  echo call > "$DOC_SHELL/to"
  read -r DOC_CODE < "$DOC_SHELL/from"
  if [ /dev/fd/1 -ef "$DOC_SHELL/said" ] && [ /dev/fd/2 -ef "$DOC_SHELL/said" ]; then cat "$DOC_SHELL/both"; else
    cat "$DOC_SHELL/out"; cat "$DOC_SHELL/err" >&2; fi
  return "$DOC_CODE"
}
"""


class DocShell:
    """A bash; use it in a ``with`` block.

    Args:
        folder: where it begins.
        state: a folder of its own, for what it passes on.
        env: its environment, besides ``PATH`` and ``HOME``.
        in_process: whether ``waybill`` runs in this process.
        limit_s: how long a block may take.
    """

    def __init__(
        self,
        folder: Path,
        state: Path,
        env: Mapping[str, str],
        *,
        in_process: bool = True,
        limit_s: float = 300.0,
    ) -> None:
        self._folder = folder
        self._state = state
        self._limit_s = limit_s
        state.mkdir(parents=True)
        for name in ("to", "from"):
            os.mkfifo(state / name)
        self._said = state / "said"
        self._said.touch()
        self._to = os.open(state / "to", os.O_RDWR | os.O_NONBLOCK)
        self._from = os.open(state / "from", os.O_RDWR)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env={
                "PATH": path,
                "HOME": os.environ.get("HOME", str(folder)),
                "USER": "ann",
                "LOGNAME": "ann",
                "COLUMNS": "80",
                "LANG": "C.UTF-8",
                **env,
                "DOC_SHELL": str(state),
            },
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._type("trap 'DOC_CODES=\"$DOC_CODES $?\"' ERR\n")
        if in_process:
            self._type(_IN_PROCESS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        os.close(self._to)
        os.close(self._from)

    def run(self, block: Block) -> None:
        """Run a block; fail where a command fails, or prints other than the page shows.

        Raises:
            AssertionError: says which block, what was expected and what was printed.
        """
        codes: list[int] = []
        if block.language != "console":
            _, codes = self._source(block.text, block)
        else:
            for step in block.steps():
                printed, ended = self._source(step.command, block)
                codes += ended
                if step.output.strip():
                    wrong = differences(step.output, printed, self._folder)
                    assert not wrong, "\n".join([f"{block}: $ {step.command}", *wrong])
        said = self._said.read_text("utf-8", "replace")
        assert codes == block.codes, f"{block}: exit codes {codes}, not {block.codes}:\n{said}"

    def _source(self, script: str, block: Block) -> tuple[str, list[int]]:
        """Run a script; return what it printed, and the exit codes other than 0."""
        began = self._said.stat().st_size
        file = self._state / "script"
        file.write_text(f"{script}\n:\n", "utf-8")  # else what ends it would count twice
        said, after = shlex.quote(str(self._said)), shlex.quote(str(self._state / "codes"))
        self._type(
            f". {shlex.quote(str(file))} >> {said} 2>&1 < /dev/null\n"
            f'echo "$DOC_CODES" > {after}; DOC_CODES=; echo done > "$DOC_SHELL/to"\n'
        )
        deadline = time.monotonic() + self._limit_s
        for request in self._requests(deadline, block):
            if request == "done":
                break
            self._call()
        with self._said.open("rb") as file_said:
            file_said.seek(began)
            printed = file_said.read().decode("utf-8", "replace")
        return printed, [int(code) for code in (self._state / "codes").read_text().split()]

    def _type(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def _requests(self, deadline: float, block: Block) -> Iterator[str]:
        while True:
            ready, _, _ = select.select([self._to], [], [], 0.2)
            if ready:
                yield from os.read(self._to, 4096).decode().split()
            elif self._process.poll() is not None or time.monotonic() > deadline:
                what = "ended the shell" if self._process.poll() is not None else "is not over"
                said = self._said.read_text("utf-8", "replace")
                raise AssertionError(f"{block} {what} after {self._limit_s:g} s at most:\n{said}")

    def _call(self) -> None:
        """Run the command that the shell asks for."""
        folder, *words = self._fields("call")
        environment = dict(field.split("=", 1) for field in self._fields("environment"))
        result = _invoke(Path(folder), words, environment)
        for name, text in zip(("out", "err", "both"), result[1:], strict=True):
            (self._state / name).write_bytes(text.encode("utf-8", "surrogateescape"))
        os.write(self._from, f"{result[0]}\n".encode())

    def _fields(self, name: str) -> list[str]:
        text = (self._state / name).read_bytes().decode("utf-8", "surrogateescape")
        return text.split("\0")[:-1]


def _invoke(
    folder: Path, words: Sequence[str], environment: Mapping[str, str]
) -> tuple[int, str, str, str]:
    """Run ``waybill …``; return its exit code, standard output, standard error, and both."""
    from typer.testing import CliRunner

    from waybill.cli import app

    asked = next((word for word in words if not word.startswith("-")), "")
    assert asked not in _OTHER_PROCESSES, f"waybill {asked} is for blocks tagged campaign"
    with _within(folder, environment):
        done = CliRunner().invoke(app, list(words))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr, done.output


@contextmanager
def _within(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Have this process in a folder, with an environment."""
    before, was = Path.cwd(), dict(os.environ)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(was)
