"""Processes that start quickly and hold nothing of the tests' own: no threads, no RocksDB."""

from __future__ import annotations

import multiprocessing
import os
from contextlib import suppress
from multiprocessing import forkserver

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
