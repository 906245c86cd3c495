"""Failpoints: named places in real processes at which the campaign stops one of them.

The first process that comes to an armed failpoint disarms it, tells its pid and stops itself
(SIGSTOP): the campaign kills it there, or lets others go on without it and wakes it up later. The
product knows nothing of it: functions of its modules are replaced, in the campaign's processes
only, by ones that come to a failpoint before or behind the same work.

A failpoint is armed for a role: the processes of a cluster's application, or the coordinator.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest import MonkeyPatch

CHECKOUT = Path(__file__).parents[2]

COORDINATOR = (
    "version written",
    "teams measured",
    "samples written",
    "assignment locked",
    "capacities written",
    "decision committed",
)
"""Of a round: all but the second and the last one are inside a transaction."""
ROUND = """
from tests.faults import failpoints
from waybill.services import run_coordinator
failpoints.in_coordinator()
run_coordinator(settings)
"""
"""A round of the coordinator, for a process of its own; see ``tests.support.children``."""
_FOLDER, _ROLE = "FAILPOINTS", "FAILPOINTS_ROLE"


def put_up(patch: MonkeyPatch, folder: Path) -> None:
    """Let this process, and those that it starts from now on, find failpoints in a new folder."""
    folder.mkdir()
    patch.setenv(_FOLDER, str(folder))
    patch.setenv("PYTHONPATH", str(CHECKOUT), prepend=os.pathsep)


def arm(role: str, failpoint: str) -> None:
    """Stop the next process of a role that comes to a failpoint."""
    _path(role, failpoint, "pid").unlink(missing_ok=True)
    _path(role, failpoint, "armed").touch()


def caught(role: str, failpoint: str) -> int | None:
    """Return the pid that was told at a failpoint since it was armed; None: nobody came yet."""
    path = _path(role, failpoint, "pid")
    return int(path.read_text()) if path.exists() else None


def take_role(role: str) -> None:
    """Say what this process, and those that it starts, are."""
    os.environ[_ROLE] = role


def reached(failpoint: str, *, pid: int | None = None) -> None:
    """Come to a failpoint: go on, unless it is armed.

    Args:
        failpoint: its name.
        pid: of the process to tell; None: of this one, which stops.
    """
    role = os.environ[_ROLE]
    try:
        _path(role, failpoint, "armed").unlink()
    except FileNotFoundError:
        return
    path = _path(role, failpoint, "pid")
    unfinished = path.with_suffix(".new")
    unfinished.write_text(str(os.getpid() if pid is None else pid))
    unfinished.rename(path)
    if pid is None:
        os.kill(os.getpid(), signal.SIGSTOP)


def note(what: str) -> None:
    """Write down that something happened, whoever dies next."""
    descriptor = os.open(_notes(what), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o640)
    try:
        os.write(descriptor, b"\n")
    finally:
        os.close(descriptor)


def noted(what: str) -> int:
    """Return how often something was noted."""
    path = _notes(what)
    return path.stat().st_size if path.exists() else 0


def before(owner: Any, name: str, failpoint: str) -> None:
    """Have a function of a module, or of a class, come to a failpoint first."""
    function = getattr(owner, name)

    @wraps(function)
    def failing(*args: Any, **named: Any) -> Any:
        reached(failpoint)
        return function(*args, **named)

    setattr(owner, name, failing)


def behind(owner: Any, name: str, failpoint: str) -> None:
    """Have a function of a module, or of a class, come to a failpoint once it is done."""
    function: Callable[..., Any] = getattr(owner, name)

    @wraps(function)
    def failing(*args: Any, **named: Any) -> Any:
        result = function(*args, **named)
        reached(failpoint)
        return result

    setattr(owner, name, failing)


def in_coordinator() -> None:
    """Put failpoints into this process's rounds of the coordinator."""
    from waybill.clusters import DryRunInfra, coordinator

    take_role("coordinator")
    behind(coordinator, "measure", "teams measured")
    behind(coordinator, "write_samples", "samples written")
    behind(coordinator, "lock_assignment", "assignment locked")
    behind(coordinator, "write_assignment", "version written")
    behind(coordinator, "write_capacities", "capacities written")
    before(DryRunInfra, "request", "decision committed")


def _path(role: str, failpoint: str, kind: str) -> Path:
    return Path(os.environ[_FOLDER]) / f"{role}.{failpoint.replace(' ', '-')}.{kind}"


def _notes(what: str) -> Path:
    return Path(os.environ[_FOLDER]) / f"{what}.notes"
