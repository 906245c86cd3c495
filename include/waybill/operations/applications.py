"""The Spark applications as processes: started outside anybody's lifetime, found again, stopped.

An application is registered in ``<home>/run/spark-<kind>-<cluster>.json`` with its pid and the time
that process was created, so that a recycled pid is never taken for it. Two applications of one kind
started at once do no harm: the lease epoch fences the older one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
import psutil

from waybill.errors import InputError, StopError
from waybill.settings import Settings

Kind = Literal["processing", "loading"]
KINDS: tuple[Kind, ...] = ("processing", "loading")
_STOP_S = 20.0
_LOOK_S = 0.05
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


def start(settings: Settings, kind: Kind, cluster: str) -> int:
    """Start an application in a session of its own and return its pid; one that runs is kept.

    Raises:
        InputError: unknown kind, or its entry point is not there.
    """
    if kind not in KINDS:
        raise InputError(f"unknown application {kind!r}; known: {', '.join(KINDS)}")
    if not _CLUSTER.fullmatch(cluster):
        raise InputError(f"cluster {cluster!r} must be letters, digits, '-', '_' or '.'")
    found = status(settings, kind, cluster)
    if found.running and found.pid is not None:
        return found.pid
    script = settings.dags_dir.resolve().parent / "spark_jobs" / f"{kind}.py"
    if not script.is_file():
        raise InputError(f"{script} is not there; WAYBILL_DAGS_DIR must lie beside spark_jobs/")
    log = _log_path(settings, kind, cluster)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 - our own script
            [sys.executable, str(script), "--cluster", cluster],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=script.parents[1],
            env=_environment(settings),
        )
    _register(settings, kind, cluster, process.pid)
    return process.pid


def status(settings: Settings, kind: Kind, cluster: str) -> ApplicationStatus:
    """Tell whether an application runs."""
    process = _process(settings, kind, cluster)
    log = str(_log_path(settings, kind, cluster))
    if process is None:
        return ApplicationStatus(kind, cluster, None, running=False, log=log)
    return ApplicationStatus(kind, cluster, process.pid, running=True, log=log)


def stop(settings: Settings, kind: Kind, cluster: str) -> bool:
    """Stop an application: SIGTERM to its session, then SIGKILL; False when none runs.

    Raises:
        StopError: it does not end.
    """
    process = _process(settings, kind, cluster)
    if process is None:
        return False
    _signal_group(process.pid, signal.SIGTERM)
    ended = _ended(settings, kind, cluster, within_s=_STOP_S)
    _signal_group(process.pid, signal.SIGKILL)  # also what it left behind
    if not ended and not _ended(settings, kind, cluster, within_s=_STOP_S):
        raise StopError(f"{kind} of {cluster!r} (pid {process.pid}) does not end")
    _run_path(settings, kind, cluster).unlink(missing_ok=True)
    return True


def last_words(settings: Settings, kind: Kind, cluster: str, *, lines: int = 15) -> str:
    """Return the end of an application's log."""
    path = _log_path(settings, kind, cluster)
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 20_000))
        return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-lines:])


def _process(settings: Settings, kind: Kind, cluster: str) -> psutil.Process | None:
    try:
        found = orjson.loads(_run_path(settings, kind, cluster).read_bytes())
        process = psutil.Process(found["pid"])
        same = abs(process.create_time() - found["create_time"]) < 1.0
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (FileNotFoundError, psutil.NoSuchProcess, ValueError, KeyError, TypeError):
        return None


def _ended(settings: Settings, kind: Kind, cluster: str, *, within_s: float) -> bool:
    """Wait for the end; a process that its parent has not yet asked for (a zombie) has ended."""
    deadline = time.monotonic() + within_s
    while _process(settings, kind, cluster) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def _register(settings: Settings, kind: Kind, cluster: str, pid: int) -> None:
    path = _run_path(settings, kind, cluster)
    path.parent.mkdir(parents=True, exist_ok=True)
    row = {
        "name": path.stem,
        "pid": pid,
        "create_time": psutil.Process(pid).create_time(),
        "session": True,
        "started_at": time.time(),
    }
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(orjson.dumps(row))
    temporary.replace(path)


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def _run_path(settings: Settings, kind: Kind, cluster: str) -> Path:
    return settings.home / "run" / f"spark-{kind}-{cluster}.json"


def _log_path(settings: Settings, kind: Kind, cluster: str) -> Path:
    return settings.home / "logs" / f"spark-{kind}-{cluster}.log"


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
