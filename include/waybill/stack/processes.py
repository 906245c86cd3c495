"""Processes that outlive their starter: how they are started, found again and ended.

The registry is a folder, ``<home>/run``. Each ``*.json`` in it is one process::

    {"name": "spark-processing-a", "pid": 4711, "create_time": 1763718000.12,    # required
     "boot": "<boot id>:<start tick>", "mark": "<random>",                       # optional
     "ports": {...}, "log": "..."}                                               # optional

Any room may put its own long-living process there (`register`); ``waybill down`` ends it.

P1  A process is named by pid *and* start time. A pid that was given to somebody else is never
    signalled.
P2  A process started by `spawn` has its record before it runs its first instruction (see `launch`).
P3  A started process leads its own session; ending it ends what it left in that session. After the
    leader is dead, members are known by the session number and the mark in their environment.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from waybill.stack import launch

MARK_VARIABLE = "_WAYBILL_MARK"
CLOCK_TOLERANCE_S = 1.0


@dataclass(frozen=True)
class Record:
    """One registered process. ``create_time``: seconds since the epoch, as psutil tells it."""

    path: Path
    name: str
    pid: int
    create_time: float
    boot: str = ""
    mark: str = ""
    ports: Mapping[str, int] = field(default_factory=dict)
    log: str = ""

    def process(self) -> psutil.Process | None:
        """Return the living process of this record; None if it is gone or the pid is another's."""
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE or not self._names(process):
                return None
        except psutil.NoSuchProcess:
            return None
        return process

    def _names(self, process: psutil.Process) -> bool:
        boot = launch.boot_mark(process.pid)
        if self.boot and boot:
            return self.boot == boot
        return bool(abs(process.create_time() - self.create_time) < CLOCK_TOLERANCE_S)

    def members(self) -> list[psutil.Process]:
        """Return all living processes of this process's session, the leader last."""
        leader = self.process()
        if leader is None and psutil.pid_exists(self.pid) and not _is_zombie(self.pid):
            return []  # the number is somebody else's now, and so is its session
        others = [p for p in _session(self.pid) if leader is not None or self._is_marked(p)]
        return others if leader is None else [*others, leader]

    def _is_marked(self, process: psutil.Process) -> bool:
        return bool(self.mark) and _mark(process) == self.mark


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _session(session: int) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.pid != session and os.getsid(process.pid) == session:
                yield process
        except (ProcessLookupError, PermissionError):
            continue


def read_record(path: Path) -> Record | None:
    """Read one registry file; None when it is missing or does not name a process."""
    try:
        raw = json.loads(path.read_text())
        return Record(
            path=path,
            name=str(raw.get("name", path.stem)),
            pid=int(raw["pid"]),
            create_time=float(raw["create_time"]),
            boot=str(raw.get("boot", "")),
            mark=str(raw.get("mark", "")),
            ports=dict(raw.get("ports", {})),
            log=str(raw.get("log", "")),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def read_registry(run_dir: Path) -> list[Record]:
    """Return every record in the registry, the oldest process first."""
    records = [r for r in map(read_record, run_dir.glob("*.json")) if r is not None]
    return sorted(records, key=lambda r: (r.create_time, r.name))


def register(run_dir: Path, name: str, pid: int, **fields: object) -> Path:
    """Put a running process into the registry, so that ``waybill down`` ends it.

    It should lead its own session (``start_new_session=True``): the whole session is ended.

    Raises:
        psutil.NoSuchProcess: when ``pid`` is gone already.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / f"{name}.json"
    launch.write_record(path, {"name": name, **fields}, pid)
    return path


@dataclass(frozen=True)
class Launch:
    """What `spawn` starts. ``env`` is the whole environment; ``ports`` go to the record."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    ports: Mapping[str, int] = field(default_factory=dict)


def spawn(run_dir: Path, what: Launch) -> subprocess.Popen[bytes]:
    """Start a process in its own session, output appended to its log, recorded in the registry.

    It goes on when the caller ends. The handle is for a caller that stays and wants to notice its
    end.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    what.log.parent.mkdir(parents=True, exist_ok=True)
    mark = secrets.token_hex(8)
    fields = {"name": what.name, "mark": mark, "ports": dict(what.ports), "log": str(what.log)}
    record = run_dir / f"{what.name}.json"
    record.unlink(missing_ok=True)
    argv = [sys.executable, "-I", launch.__file__, str(record), json.dumps(fields), *what.command]
    with what.log.open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - the stack's own commands
            argv,
            cwd=what.cwd,
            env={**what.env, MARK_VARIABLE: mark},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(record: Record, *, grace_s: float, sign: int = signal.SIGTERM) -> None:
    """End the process (``sign``, then KILL), then what is left of its session (TERM, then KILL).

    Takes up to ``grace_s`` for the leader and 2 s for what it leaves. The record is removed.
    """
    leader = record.process()
    others = [p for p in record.members() if p != leader]
    if leader is not None:
        _signal([leader], sign)
        _signal(_wait([leader], grace_s), signal.SIGKILL)
    others = list({p.pid: p for p in [*others, *record.members()]}.values())
    _signal(others, signal.SIGTERM)
    _signal(_wait(others, 2.0), signal.SIGKILL)
    _wait([*others, leader] if leader else others, 5.0)
    record.path.unlink(missing_ok=True)


def end_marked(marks: Collection[str], *, grace_s: float = 2.0) -> None:
    """End every process that carries one of these marks, in whatever session."""
    strays = [p for p in psutil.process_iter() if marks and _mark(p) in marks]
    _signal(strays, signal.SIGTERM)
    left = _wait(strays, grace_s)
    _signal(left, signal.SIGKILL)
    _wait(left, 5.0)


def _mark(process: psutil.Process) -> str:
    try:
        return str(process.environ().get(MARK_VARIABLE, ""))
    except (psutil.Error, OSError):
        return ""


def _signal(processes: Sequence[psutil.Process], sign: int) -> None:
    for process in processes:
        try:
            process.send_signal(sign)
        except psutil.NoSuchProcess:
            continue


def _wait(processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until all are gone (a zombie is gone); return those that are not."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = [p for p in processes if _lives(p)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
