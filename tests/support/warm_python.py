"""Pythons of a test's own that start in 20 ms of CPU: forked off one that has imported everything.

To start Python and to import what ingestion or a replay needs takes 1.1 s of CPU, most of what a child
that is killed amid its work costs. One process for each that starts children (`WarmPython`) imports it
once; it has one thread (beside those of numpy and of Arrow's allocator, which both know of forks), no
setting and no connection. A child is forked off it twice, so that it is
orphaned at once, and the kernel makes it a child of the process that asked: it is waited for and
killed like any `subprocess.Popen`.
"""

from __future__ import annotations

import array
import ctypes
import functools
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

_CHECKOUT = Path(__file__).resolve().parents[2]
_IMPORTED = (
    *("waybill.services", "waybill.ingestion.run", "waybill.ingestion.connectors.csv_file"),
    *(
        "waybill.cli",
        "waybill.collector",
        "waybill.replay",
        "waybill.undeployment",
        "waybill.clusters",
        "waybill.producer",
    ),
    *("sqlalchemy.dialects.postgresql.psycopg", "psycopg", "botocore.session"),
    *("boto3", "pandas", "pyarrow.parquet", "pyarrow.compute", "confluent_kafka.admin"),
)
_PROGRAM = "from tests.support.warm_python import forked_code; exec(forked_code({fd}))"
_ASKED_BYTES = 1 << 20
_SET_CHILD_SUBREAPER = 36
"""``PR_SET_CHILD_SUBREAPER`` of ``prctl(2)``: orphans below the process become its children."""


class WarmPopen(subprocess.Popen[bytes]):
    """``Popen`` of ``python -c code``, in a session of its own, with nothing on its standard input.

    What it says, also of its mistakes, comes through a pipe, or goes into a file.
    """

    def __init__(
        self, code: str, env: dict[str, str], output: int | IO[bytes] = subprocess.PIPE
    ) -> None:
        super().__init__(["python", "-c", code], env=env, stdout=output)

    def _execute_child(self, args: list[str], *given: Any) -> None:
        env, read, written = given[5], given[11], given[12]
        try:
            self.pid = _server(os.getpid()).fork(args[-1], env, written)
        finally:
            if read != -1:  # a pipe, whose other end is the child's
                os.close(written)
        self._child_created = True


class _Server:
    """The process that children are forked off; it ends with the one that started it."""

    def __init__(self) -> None:
        self._asks, answers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asks.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ASKED_BYTES)
        self._turn = threading.Lock()
        without = {
            name: text for name, text in os.environ.items() if not name.startswith("WAYBILL_")
        }
        with answers:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM.format(fd=answers.fileno())],
                env=without,
                cwd=_CHECKOUT,
                pass_fds=[answers.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def fork(self, code: str, env: dict[str, str], output: int) -> int:
        """Have code run in a new process; return its pid once it is a child of this process."""
        asked = json.dumps({"code": code, "env": env, "folder": str(Path.cwd())}).encode()
        with self._turn:
            _adopt_orphans(yes=True)
            try:
                socket.send_fds(self._asks, [asked], [output])
                answer = self._asks.recv(64)
            finally:
                _adopt_orphans(yes=False)
        assert answer, "what forks children has ended: see its standard error"
        return int(answer)


@functools.cache
def _server(_pid: int) -> _Server:
    """Return the server of this process: one that was forked needs its own."""
    return _Server()


def _adopt_orphans(*, yes: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def forked_code(fd: int) -> str:
    """Serve on a socket; return in each child, with the code that it is to run."""
    for name in _IMPORTED:
        importlib.import_module(name)
    assert threading.active_count() == 1, (
        "an import has started a thread, which no child would have"
    )
    gc.freeze()
    asks = socket.socket(fileno=fd)
    while True:
        asked, fds, _, _ = socket.recv_fds(asks, _ASKED_BYTES, 1)
        if not asked:
            os._exit(0)
        pid = _fork_orphan()
        if pid == 0:
            asks.close()
            return _become(json.loads(asked), fds[0])
        os.close(fds[0])
        asks.send(str(pid).encode())


def _fork_orphan() -> int:
    """Fork a child of a child that has ended; return its pid, and 0 in it."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        if os.fork():
            os._exit(0)
        os.close(reading)
        os.setsid()  # before its number is known: who kills the session at once finds one
        os.write(writing, array.array("i", [os.getpid()]).tobytes())
        os.close(writing)
        return 0
    os.close(writing)
    os.waitpid(between, 0)
    pid = array.array("i", os.read(reading, 4))[0]
    os.close(reading)
    return pid


def _become(asked: dict[str, Any], output: int) -> str:
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["folder"])
    return str(asked["code"])
