"""Become a long-living process: write down who I am, then exec the command.

Run by path (``python -I launch.py RECORD FIELDS COMMAND...``), imports nothing of waybill. The
record ``{**FIELDS, pid, create_time, boot}`` is on disk before the command's first instruction:
whenever the starter dies, no process runs that no record names. A pid and its start time survive
``exec``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import psutil

RECORD, FIELDS, COMMAND = 1, 2, 3


def boot_mark(pid: int) -> str:
    """Boot id and start tick of a process: exact, and steady when the clock is set. Linux only."""
    try:
        ticks = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (OSError, IndexError):
        return ""
    return f"{boot}:{ticks}"


def write_record(path: Path, fields: dict[str, object], pid: int) -> None:
    """Write ``fields`` and the identity of ``pid`` to ``path``, atomically.

    Raises:
        psutil.NoSuchProcess: when ``pid`` is gone.
    """
    created = psutil.Process(pid).create_time()
    record = {**fields, "pid": pid, "create_time": created, "boot": boot_mark(pid)}
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(record, indent=1) + "\n")
    scratch.replace(path)


def main() -> None:
    """Entry point; never returns."""
    write_record(Path(sys.argv[RECORD]), json.loads(sys.argv[FIELDS]), os.getpid())
    command = sys.argv[COMMAND:]
    os.execvp(command[0], command)  # noqa: S606 - the command comes from the stack, not from a user


if __name__ == "__main__":
    main()
