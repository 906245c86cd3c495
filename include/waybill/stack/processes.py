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
    leader is dead, a member is known by the session number and one of these, since each of them can
    be lost (`ProcessRecord.members`):
    - the mark in its environment: inherited over ``exec``; lost when a program writes its title
      over it, as Airflow's workers do, or starts a child with another environment;
    - the mark file ``<name>.mark``, open and locked: inherited over ``fork``, whatever becomes of
      title and session; lost when a child is started with its descriptors closed;
    - the log, open: standard output is what most children keep;
    - that it shows nobody its descriptors (Airflow's task processes, unless root asks) while
      somebody holds the lock of the mark file.
    The kernel gives no number to a new process while a session of that number has a member.
P4  In other sessions, the mark or the locked mark file names what was started (`end_marked`). Such
    a process is ended by ``waybill down``, and before its service is started anew, unless its
    session leader is registered itself: a Spark application carries the mark of the scheduler
    whose task started it, and outlives that scheduler; only ``down`` ends it.
P5  Task processes of a dead Airflow scheduler are ended with it when it is started anew. They could
    still report to the API server, but no executor would know of them, and each task may be killed
    at any moment and repeated (docs/guarantees.md).
P6  Who only reads the mark file or the log is nobody's member: a lock and a session are asked for.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from waybill.stack import launch

MARK_VARIABLE = "_WAYBILL_MARK"
CLOCK_TOLERANCE_S = 1.0


@dataclass(frozen=True)
class ProcessRecord:
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

    @property
    def log_file(self) -> Path:
        """Return the log, by its usual name when the record does not tell."""
        return Path(self.log or self.path.parents[1] / "logs" / f"{self.name}.log")

    def members(self) -> list[psutil.Process]:
        """Return all living processes of this process's session, the leader last (P3)."""
        leader = self.process()
        if leader is None and psutil.pid_exists(self.pid) and not _is_zombie(self.pid):
            return []  # the number is somebody else's now, and so is its session
        others = [p for p in _session(self.pid) if leader is not None or self._left(p)]
        return others if leader is None else [*others, leader]

    def _left(self, process: psutil.Process) -> bool:
        """Say whether a process of the dead leader's session number was left by it."""
        if self.mark and _mark(process) == self.mark:
            return True
        held = launch.mark_file(self.path)
        try:
            return _holds(process.pid, held) or self.log_file.resolve() in _open_files(process.pid)
        except PermissionError:
            return _is_own(process) and _is_locked(held)


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _session(session: int) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        if process.pid != session and _sid(process) == session:
            yield process


def _sid(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except (ProcessLookupError, PermissionError):
        return None


def _open_files(pid: int) -> dict[Path, str]:
    """Return what a process has open, with the descriptor's number; empty when it is gone.

    Raises:
        PermissionError: it belongs to somebody else, or does not let itself be looked at.
    """
    found = {}
    with suppress(FileNotFoundError, ProcessLookupError, NotADirectoryError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                target = str(link.readlink()).removesuffix(" (deleted)")
                found[Path(target)] = link.name
    return found


def _holds(pid: int, mark_file: Path) -> bool:
    """Say whether a process has inherited the mark file: open, with the lock.

    Raises:
        PermissionError: as `_open_files`.
    """
    number = _open_files(pid).get(mark_file.resolve())
    if number is None:
        return False
    with suppress(FileNotFoundError, ProcessLookupError):
        return "lock:" in Path(f"/proc/{pid}/fdinfo/{number}").read_text()
    return False


def _is_locked(mark_file: Path) -> bool:
    """Say whether anybody lives who has inherited the mark file."""
    try:
        with mark_file.open("r+") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _is_own(process: psutil.Process) -> bool:
    try:
        return bool(process.uids().real == os.getuid())
    except psutil.NoSuchProcess:
        return False


def read_record(path: Path) -> ProcessRecord | None:
    """Read one registry file; None when it is missing or does not name a process."""
    try:
        raw = json.loads(path.read_text())
        return ProcessRecord(
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


def read_registry(run_dir: Path) -> list[ProcessRecord]:
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


def spawn(run_dir: Path, what: Launch, *, claim: int | None = None) -> subprocess.Popen[bytes]:
    """Start a process in its own session, output appended to its log, recorded in the registry.

    It goes on when the caller ends. The handle is for a caller that stays and wants to notice its
    end.

    Args:
        run_dir: the registry.
        what: is started.
        claim: a descriptor with a lock of the caller, which the process holds too until its record
            is there: if the caller dies in between, who waits for the lock waits for the record.
    """
    for folder in (run_dir, what.log.parent):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    mark = secrets.token_hex(8)
    fields: dict[str, object] = {"name": what.name, "mark": mark, "log": str(what.log)}
    fields |= {"ports": dict(what.ports)} | ({} if claim is None else {"claim": claim})
    record = run_dir / f"{what.name}.json"
    record.unlink(missing_ok=True)
    argv = [sys.executable, "-I", launch.__file__, str(record), json.dumps(fields), *what.command]
    with open(what.log, "ab", opener=_private) as log:
        return subprocess.Popen(  # noqa: S603 - the stack's own commands
            argv,
            cwd=what.cwd,
            env={**what.env, MARK_VARIABLE: mark},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[] if claim is None else [claim],
        )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def end(record: ProcessRecord, *, grace_s: float, sign: int = signal.SIGTERM) -> None:
    """End the process (``sign``, then KILL), then what is left of its session (TERM, then KILL).

    Takes up to ``grace_s`` for the leader and 2 s for what it leaves. The record is removed, unless
    it names another process by now.
    """
    leader = record.process()
    others = [p for p in record.members() if p != leader]
    if leader is not None:
        _signal([leader], sign)
        _signal(_wait([leader], grace_s), signal.SIGKILL)
    others = list({p.pid: p for p in [*others, *record.members()]}.values())
    end_all(others, grace_s=2.0)
    _wait([leader] if leader else [], 5.0)
    end_all(record.members(), grace_s=0)  # what those had started meanwhile
    newer = read_record(record.path)
    if newer is None or (newer.pid, newer.create_time) == (record.pid, record.create_time):
        record.path.unlink(missing_ok=True)


def end_all(
    processes: Sequence[psutil.Process], *, grace_s: float, sign: int = signal.SIGTERM
) -> None:
    """Send ``sign`` to each, after ``grace_s`` KILL to what is left; wait for their end, 5 s."""
    _signal(processes, sign)
    left = _wait(processes, grace_s) if processes else []
    _signal(left, signal.SIGKILL)
    _wait(left, 5.0)


def end_marked(
    marks: Collection[str], mark_files: Collection[Path], *, spared: Collection[int] = ()
) -> None:
    """End every process that has one of the marks or holds one of the files, in any session (P4).

    ``spared``: numbers of sessions that are left alone.
    """
    if not marks and not mark_files:
        return
    strays = [
        p
        for p in psutil.process_iter()
        if p.pid != os.getpid() and _is_marked(p, marks, mark_files) and _sid(p) not in spared
    ]
    end_all(strays, grace_s=2.0)


def mark_files(run_dir: Path, name: str = "*") -> list[Path]:
    """Return the mark files of a service, or of all that ever ran; they stay when it ends."""
    return list(run_dir.glob(launch.mark_file(Path(f"{name}.json")).name))


def registered_sessions(run_dir: Path) -> set[int]:
    """Return the session numbers of all living processes of the registry."""
    return {record.pid for record in read_registry(run_dir) if record.process() is not None}


def _is_marked(process: psutil.Process, marks: Collection[str], files: Collection[Path]) -> bool:
    if _mark(process) in marks:
        return True
    with suppress(PermissionError):
        return any(_holds(process.pid, path) for path in files)
    return False


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
