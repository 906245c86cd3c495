"""The Spark applications as processes: started outside anybody's lifetime, found again, stopped.

An application is in the registry of processes (``waybill.stack.processes``) as
``spark-<kind>-<cluster>``, from its first instruction on. Two applications of one kind started at
once do no harm: the lease epoch fences the older one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from waybill.errors import InputError, RetryError, StopError
from waybill.settings import Settings
from waybill.stack import Launch, ProcessRecord, processes, state_folder

Kind = Literal["processing", "loading"]
KINDS: tuple[Kind, ...] = ("processing", "loading")
_STOP_S = 20.0
_LOOK_S = 0.05
_RECORDED_S = 20.0
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class ApplicationStatus:
    """One Spark application as a process."""

    kind: str
    cluster: str
    pid: int | None
    running: bool
    log: str

    def to_json(self) -> dict[str, Any]:
        """Return the status as JSON."""
        return asdict(self)


def start_application(settings: Settings, kind: Kind, cluster: str) -> int:
    """Start an application in a session of its own and return its pid; one that runs is kept.

    Raises:
        InputError: unknown kind, or its entry point is not there.
        RetryError: the machine is too busy to start it.
    """
    if kind not in KINDS:
        raise InputError(f"unknown application {kind!r}; known: {', '.join(KINDS)}")
    if not _CLUSTER.fullmatch(cluster):
        raise InputError(f"cluster {cluster!r} must be letters, digits, '-', '_' or '.'")
    found = application_status(settings, kind, cluster)
    if found.running and found.pid is not None:
        return found.pid
    script = settings.dags_dir.resolve().parent / "spark_jobs" / f"{kind}.py"
    if not script.is_file():
        raise InputError(f"{script} is not there; WAYBILL_DAGS_DIR must lie beside spark_jobs/")
    log = _log_path(settings, kind, cluster)
    dead = _record(settings, kind, cluster)
    if dead is not None and dead.process() is None:  # else somebody started it just now
        processes.end(dead, grace_s=0)  # what a killed one left in its session
    state_folder.rotate(log)
    command = [sys.executable, str(script), "--cluster", cluster]
    launch = Launch(_name(kind, cluster), command, _environment(settings), script.parents[1], log)
    child = processes.spawn(settings.home / "run", launch)
    deadline = time.monotonic() + _RECORDED_S
    while child.poll() is None and _record(settings, kind, cluster) is None:
        if time.monotonic() > deadline:
            child.kill()  # it has run nothing of the application yet
            raise RetryError(f"{kind} of {cluster!r} did not start within {_RECORDED_S:.0f} s")
        time.sleep(_LOOK_S)
    return child.pid


def application_status(settings: Settings, kind: Kind, cluster: str) -> ApplicationStatus:
    """Tell whether an application runs."""
    record = _record(settings, kind, cluster)
    process = None if record is None else record.process()
    pid = None if process is None else process.pid
    log = str(_log_path(settings, kind, cluster))
    return ApplicationStatus(kind, cluster, pid, running=pid is not None, log=log)


def stop_application(settings: Settings, kind: Kind, cluster: str) -> bool:
    """Stop an application with its whole session, by force after 20 s; False when none runs.

    Raises:
        StopError: it does not end.
    """
    record = _record(settings, kind, cluster)
    if record is None or record.process() is None:
        return False
    processes.end(record, grace_s=_STOP_S)
    if record.process() is not None:
        raise StopError(f"{kind} of {cluster!r} (pid {record.pid}) does not end")
    return True


def application_last_words(settings: Settings, kind: Kind, cluster: str, *, lines: int = 15) -> str:
    """Return the end of an application's log."""
    path = _log_path(settings, kind, cluster)
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 20_000))
        return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-lines:])


def _name(kind: Kind, cluster: str) -> str:
    return f"spark-{kind}-{cluster}"


def _record(settings: Settings, kind: Kind, cluster: str) -> ProcessRecord | None:
    return processes.read_record(settings.home / "run" / f"{_name(kind, cluster)}.json")


def _log_path(settings: Settings, kind: Kind, cluster: str) -> Path:
    return settings.home / "logs" / f"{_name(kind, cluster)}.log"


def _environment(settings: Settings) -> dict[str, str]:
    spec = importlib.util.find_spec("pyspark")
    found = None if spec is None else spec.origin
    home = {} if found is None else {"SPARK_HOME": str(Path(found).parent)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WAYBILL_")}
    return {
        **kept,
        **settings.to_env(),
        **home,
        "SPARK_LOCAL_IP": settings.spark.driver_host,
        "PYSPARK_PYTHON": kept.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
    }
