"""Names of files: when each was created, and by which process, which may be dead by now.

``<created µs>-<pid>-<process start ms>-<random>``: 16 digits of time, so that names sort by time.
"""

from __future__ import annotations

import os
import time
import uuid

import psutil

_NAME_PARTS = 4
_START_TOLERANCE_MS = 5000


class _Start:
    """Start time of this process in ms; looked up once a process, again after a fork."""

    _pid = 0
    _ms = 0

    @classmethod
    def ms(cls) -> int:
        if cls._pid != os.getpid():
            cls._ms = int(psutil.Process().create_time() * 1000)
            cls._pid = os.getpid()
        return cls._ms


def new_name() -> str:
    """Return a file id that no file ever had."""
    created_us = time.time_ns() // 1000
    return f"{created_us:016d}-{os.getpid()}-{_Start.ms()}-{uuid.uuid4().hex[:12]}"


def created_us(name: str) -> int | None:
    """Return when a file was created, from its name; None when it is not one of ours."""
    parts = name.partition(".")[0].split("-")
    if len(parts) != _NAME_PARTS or not all(part.isdigit() for part in parts[:3]):
        return None
    return int(parts[0])


def owner_lives(name: str) -> bool:
    """Tell whether the process that made a file runs; pids are used again, so start times count."""
    if created_us(name) is None:
        return True
    _, pid, start_ms, _ = name.partition(".")[0].split("-")
    try:
        began_ms = psutil.Process(int(pid)).create_time() * 1000
    except psutil.NoSuchProcess:
        return False
    return bool(abs(began_ms - int(start_ms)) < _START_TOLERANCE_MS)
