"""Become a long-living process: write down who I am, hold my mark file, then exec the command.

Run by path (``python -I launch.py RECORD FIELDS COMMAND...``), imports nothing of waybill. The
record ``{**FIELDS, pid, create_time, boot}`` is on disk before the command's first instruction:
whenever the starter dies, no process runs that no record names. FIELDS may have ``claim``: a
descriptor with a lock of the starter, which is held until the record is there, and then closed: who
gets the lock next finds the record. A pid and its start time survive
``exec``, and so does the mark file's descriptor, with its lock; every child inherits it.

What the command writes only its owner may read (umask 077).
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from pathlib import Path

import psutil

RECORD, FIELDS, COMMAND = 1, 2, 3
UMASK = 0o077
FIRST_DESCRIPTOR = 10
"""The mark file's descriptor is at least this: shell scripts use those below as they like."""


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


def mark_file(record: Path) -> Path:
    """Return the file that a recorded process and its descendants hold."""
    return record.with_suffix(".mark")


def hold(path: Path) -> None:
    """Open ``path`` with a shared lock, for this process and all it will fork or become."""
    opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    held = fcntl.fcntl(opened, fcntl.F_DUPFD, FIRST_DESCRIPTOR)  # not closed by exec
    fcntl.flock(held, fcntl.LOCK_SH)
    os.close(opened)


def main() -> None:
    """Entry point; never returns."""
    os.umask(UMASK)
    record = Path(sys.argv[RECORD])
    fields = json.loads(sys.argv[FIELDS])
    claim = fields.pop("claim", None)
    write_record(record, fields, os.getpid())
    hold(mark_file(record))
    if claim is not None:
        os.close(claim)
    command = sys.argv[COMMAND:]
    os.execvp(command[0], command)  # noqa: S606 - the command comes from the stack, not from a user


if __name__ == "__main__":
    main()
