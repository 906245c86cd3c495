"""The Spark applications as processes of this host, and looks at them wherever they run.

A process is started outside anybody's lifetime, found again, stopped. It is in the registry of
processes (``waybill.stack.processes``) as ``spark-<kind>-<cluster>``, from its first instruction
on. Two applications of one kind started at once do no harm: the epoch fences the older one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from waybill.clusters import PROCESS, process_identity, process_state, supervise
from waybill.clusters import ApplicationKind as Kind
from waybill.errors import InputError, RetryError, StopError
from waybill.settings import Settings
from waybill.stack import Launch, ProcessRecord, processes, state_folder
from waybill.storage import open_tracker

if TYPE_CHECKING:
    from waybill.clusters import Application, Backend, Look, Word

KINDS: tuple[Kind, ...] = ("processing", "loading")
_STOP_S = 30.0
"""Batches may take 20 s to end, and Spark some more."""
_OTHER_START_S = 120.0
"""That another start of the same application may take, with the end of an older one."""
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


@dataclass(frozen=True, slots=True)
class Start:
    """How a start differs from one by hand, on this host's Python."""

    epoch: int | None = None
    """Taken for this start; None: the application takes the next one itself."""
    command: Callable[[Path, Sequence[str]], Sequence[str]] | None = None
    """Makes the command of an entry point and its arguments; None: this Python."""
    environment: Mapping[str, str] | None = None
    """More of the driver's environment."""


_BY_HAND = Start()


def start_application(settings: Settings, kind: Kind, cluster: str, how: Start = _BY_HAND) -> int:
    """Start an application in a session of its own and return its pid.

    One that runs on this host is kept; with an epoch, an older one is ended first. Starts of one
    application wait for each other.

    Raises:
        InputError: unknown kind, or its entry point is not there.
        RetryError: the machine is too busy to start it, or one of a newer epoch runs, or another
            start takes over two minutes.
    """
    if kind not in KINDS:
        raise InputError(f"unknown application {kind!r}; known: {', '.join(KINDS)}")
    if not _CLUSTER.fullmatch(cluster):
        raise InputError(f"cluster {cluster!r} must be letters, digits, '-', '_' or '.'")
    lock = settings.home / "run" / f"{_name(kind, cluster)}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with state_folder.exclusive(lock, _OTHER_START_S):  # from the look until there is a record
        return _start(settings, kind, cluster, how)


def _start(settings: Settings, kind: Kind, cluster: str, how: Start) -> int:
    if how.epoch is not None:
        _stop_older(settings, kind, cluster, how.epoch)
    found = application_status(settings, kind, cluster)
    if found.running and found.pid is not None:
        return found.pid
    script = application_script(settings, kind)
    log = _log_path(settings, kind, cluster)
    dead = _record(settings, kind, cluster)
    if dead is not None and dead.process() is None:  # else somebody started it just now
        processes.end(dead, grace_s=0)  # what a killed one left in its session
    state_folder.rotate(log)
    launch = Launch(
        _name(kind, cluster),
        _command(script, cluster, how),
        {**_environment(settings), **(how.environment or {})},
        script.parents[1],
        log,
    )
    child = processes.spawn(settings.home / "run", launch)
    deadline = time.monotonic() + _RECORDED_S
    while child.poll() is None and _record(settings, kind, cluster) is None:
        if time.monotonic() > deadline:
            child.kill()  # it has run nothing of the application yet
            raise RetryError(f"{kind} of {cluster!r} did not start within {_RECORDED_S:.0f} s")
        time.sleep(_LOOK_S)
    return child.pid


def _stop_older(settings: Settings, kind: Kind, cluster: str, epoch: int) -> None:
    record = _record(settings, kind, cluster)
    process = None if record is None else record.process()
    if record is None or process is None:
        return
    if (running := _epoch(process)) > epoch:
        raise RetryError(f"{kind} of {cluster!r}: start {running}, newer than {epoch}, runs")
    _end(record)


def _epoch(process: psutil.Process) -> int:
    """Return the epoch that a process was started with; 0: with none, or it is gone."""
    try:
        words = pairwise(process.cmdline())
    except psutil.NoSuchProcess:
        return 0
    return next((int(word) for name, word in words if name == "--epoch" and word.isdecimal()), 0)


def application_script(settings: Settings, kind: Kind) -> Path:
    """Return the entry point of an application on this host.

    Raises:
        InputError: it is not there.
    """
    script = settings.dags_dir.resolve().parent / "spark_jobs" / f"{kind}.py"
    if not script.is_file():
        raise InputError(f"{script} is not there; WAYBILL_DAGS_DIR must lie beside spark_jobs/")
    return script


def _command(script: Path, cluster: str, how: Start) -> Sequence[str]:
    epoch = [] if how.epoch is None else ["--epoch", str(how.epoch)]
    arguments = [*epoch, "--cluster", cluster]
    if how.command is None:
        return [sys.executable, str(script), *arguments]
    return how.command(script, arguments)


def application_status(settings: Settings, kind: Kind, cluster: str) -> ApplicationStatus:
    """Tell whether an application runs."""
    record = _record(settings, kind, cluster)
    process = None if record is None else record.process()
    pid = None if process is None else process.pid
    log = str(_log_path(settings, kind, cluster))
    return ApplicationStatus(kind, cluster, pid, running=pid is not None, log=log)


def stop_application(settings: Settings, kind: Kind, cluster: str) -> bool:
    """Stop an application with its whole session, by force after 30 s; False when none runs.

    Raises:
        StopError: it does not end.
    """
    record = _record(settings, kind, cluster)
    if record is None or record.process() is None:
        return False
    _end(record)
    return True


def _end(record: ProcessRecord) -> None:
    processes.end(record, grace_s=_STOP_S)
    if record.process() is not None:
        raise StopError(f"{record.name} (pid {record.pid}) does not end")


def application_last_words(settings: Settings, kind: Kind, cluster: str, *, lines: int = 15) -> str:
    """Return the end of an application's log."""
    path = _log_path(settings, kind, cluster)
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 20_000))
        return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-lines:])


class ProcessBackend:
    """Applications as processes of this host; those of another host cannot be asked after.

    Args:
        settings: of the drivers.
        command: makes the command of an entry point and its arguments; None: this Python.
        environment: more of the drivers' environment.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        command: Callable[[Path, Sequence[str]], Sequence[str]] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._command = command
        self._environment = environment

    def start(self, application: Application) -> str:
        """Start it; see ``start_application``."""
        how = Start(application.epoch, self._command, self._environment)
        try:
            pid = start_application(self._settings, application.kind, application.cluster, how)
            return process_identity(pid)
        except StopError as error:  # an older one does not end
            raise RetryError(str(error)) from error
        except psutil.NoSuchProcess as error:
            words = self.last_words(application)
            raise RetryError(f"it ended at its start; its log:\n{words}") from error

    def ask(self, application: Application) -> Word:
        """Tell whether the process of this host lives."""
        return process_state(application.external_id)

    def stop(self, application: Application) -> None:
        """Stop it with its whole session, by force after 30 s.

        Of one that the registry does not name (it was started by hand) the process is ended.

        Raises:
            RetryError: it does not end.
        """
        pid = int(application.external_id.rpartition(":")[2])
        record = _record(self._settings, application.kind, application.cluster)
        if record is None or record.pid != pid:
            with suppress(psutil.NoSuchProcess):
                if self.ask(application) == "alive":
                    processes.end_all([psutil.Process(pid)], grace_s=_STOP_S)
            return
        try:
            stop_application(self._settings, application.kind, application.cluster)
        except StopError as error:
            raise RetryError(str(error)) from error

    kill = stop

    def last_words(self, application: Application) -> str:
        """Return the end of its log, as this host has it."""
        return application_last_words(self._settings, application.kind, application.cluster)


def supervise_application(
    settings: Settings, kind: Kind, cluster: str, more: Mapping[str, Backend] | None = None
) -> Look:
    """Look at an application once, and start, stop or leave it: ``waybill.clusters.supervise``.

    Args:
        settings: with the tracker.
        kind: of the application.
        cluster: which one it serves.
        more: backends beside the processes of this host, or in their place; what is started is
            started on the last of them.

    Raises:
        InputError: it cannot be started as things are.
        RetryError: the tracker does not answer.
    """
    backends: dict[str, Backend] = {PROCESS: ProcessBackend(settings), **(more or {})}
    start_on = [PROCESS, *(more or {})][-1]
    with open_tracker(settings.tracker) as tracker:
        return supervise(tracker, backends, kind, cluster, start_on=start_on)


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
