"""Processes that record and ship traces, and die by SIGKILL where a test says."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from waybill.settings import S3Settings, TraceSettings
from waybill.storage import ObjectStore
from waybill.tracing import Compactor, Recorder, open_recorder, run_shipper, traces
from waybill.tracing.files import FileManager

BUCKETS = 4


def die_at(owner: Any, call: str, number: int, when: str) -> None:
    """Kill this process before or after the number-th call (from 1 on) of a function."""
    real: Callable[..., Any] = getattr(owner, call)
    calls = 0

    def dying(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = real(*arguments, **more)
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(owner, call, dying)


OWNERS = {
    "add": FileManager,
    "begin": FileManager,
    "put": ObjectStore,
    "swap": ObjectStore,
    "finish": FileManager,
    "unlink": Path,
}


def ship(spool_dir: Path, s3: S3Settings, point: tuple[str, int, str] | None) -> None:
    """Ship everything, or die at a point."""
    if point is not None:
        call, number, when = point
        die_at(OWNERS[call], call, number, when)
    settings = TraceSettings(spool_dir=spool_dir, buckets=BUCKETS, roll_s=0.1)
    run_shipper(settings, ObjectStore(s3), lambda: True, drain_s=60)


def compact(
    s3: S3Settings, point: tuple[str, int, str] | None, kept_s: float, lease_s: float = 0.0
) -> None:
    """Compact everything, and delete what was replaced so long ago, or die at a point."""
    if point is not None:
        call, number, when = point
        die_at(ObjectStore, call, number, when)
    Compactor(ObjectStore(s3), after_s=-60, kept_s=kept_s, lease_s=lease_s).run()


def ship_on(spool_dir: Path, s3: S3Settings, roll_s: float) -> None:
    """Ship until killed."""
    settings = TraceSettings(spool_dir=spool_dir, buckets=BUCKETS, roll_s=roll_s)
    run_shipper(settings, ObjectStore(s3), lambda: False)


def record_on(spool_dir: Path, name: str, told: Connection, at_us: int) -> None:
    """Record batches of 50 until killed; tell the number of each one whose write returned."""
    recorder: Recorder = open_recorder(TraceSettings(spool_dir=spool_dir))
    number = 0
    while True:
        ids = [f"{name}-{number}-{n}" for n in range(50)]
        recorder.write(
            [
                traces(
                    ids,
                    pipeline_id="p",
                    event_name="e",
                    phase="mapping",
                    outcome="passed",
                    at_us=at_us,
                )
            ]
        )
        told.send(number)
        number += 1
        time.sleep(0.005)
