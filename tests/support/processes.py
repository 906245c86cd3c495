"""Processes that start quickly and hold nothing of the tests' own: no threads, no RocksDB."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path

import psutil
import pytest
from tests.servers import CHECKOUT

PROCESSES = multiprocessing.get_context("forkserver")
_PRELOAD = [
    *(
        "tests.integration.tracing_child",
        "tests.unit.tracing_files.acts",
        "tests.unit.tracing_files.dying",
    ),
    *("boto3", "rocksdict", "tenacity", "pytest", "pandas"),
    *("pyarrow.parquet", "pyarrow.compute"),
]


def start_server() -> None:
    """Start the process that the others are forked from, with everything imported once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(CHECKOUT / "include"), str(CHECKOUT)]))
        PROCESSES.set_forkserver_preload(_PRELOAD)
        forkserver.ensure_running()


def command_line(process: psutil.Process) -> list[str]:
    """Return a process's command line; empty where it ended meanwhile, be it a zombie or gone."""
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def has_ended(process: psutil.Process) -> bool:
    """Tell whether a process is gone, or is a zombie."""
    with suppress(psutil.NoSuchProcess):
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    return True


def freeze(pids: Iterable[int], *, limit_s: float = 300.0) -> None:
    """Stop processes until `wake`; return when each of their threads stands still.

    The signal alone does not do it: a thread has to take it first, and until that one has its turn
    the others go on, on a busy machine long enough for a broker to answer. A process that has ended
    is left out.
    """
    pids = list(pids)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + limit_s
    while running := [pid for pid in pids if not is_still(pid)]:
        if time.monotonic() > deadline:
            wake(pids)
            raise AssertionError(f"processes {running} did not stop within {limit_s:g} s")
        time.sleep(0.001)


def wake(pids: Iterable[int]) -> None:
    """Have processes that `freeze` stopped go on; one that has ended is left out."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def is_still(pid: int) -> bool:
    """Say whether each thread of a process is stopped; or it has ended."""
    return not _states(pid) - {"T", "t", "Z", "X"}


def _states(pid: int) -> set[str]:
    """Return the states of a process's threads, as /proc has them; none where it is gone."""
    found = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # the thread ended
            found.add(stat.read_text().rpartition(")")[2].split()[0])
    return found
