"""Which process it is: its name says host, boot and start beside the pid, so it is no other's."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Literal

import psutil

ProcessState = Literal["alive", "dead", "unknown"]
_PARTS = 5


def process_identity(pid: int) -> str:
    """Return ``<host>:<machine id>:<pid namespace>:<boot id>:<start>:<pid>`` of a process here.

    Containers of one machine share the boot, and count pids for themselves: hence the namespace.
    Hosts may share a name: hence the machine.

    Raises:
        psutil.NoSuchProcess: there is none.
    """
    return f"{_place()}:{_start(pid)}:{pid}"


def process_place(identity: str) -> str:
    """Return ``pid 31667 on vm``: what of an identity people look for; what is none, as it is."""
    parts = identity.rsplit(":", _PARTS)
    is_one = len(parts) > _PARTS and parts[-1].isdecimal()
    return f"pid {parts[-1]} on {parts[0]}" if is_one else identity


def process_state(identity: str) -> ProcessState:
    """Tell whether a process lives; ``unknown``: it is not of this host, or the text names none.

    A pid that was given to another process since, and a boot since then, are a death. A process
    that this user may not look at is not known.
    """
    parts = identity.rsplit(":", _PARTS)
    if len(parts) <= _PARTS or not parts[-1].isdecimal():
        return "unknown"
    *place, boot, start, pid = parts
    *own_place, own_boot = _place().rsplit(":", 3)
    if place != own_place:
        return "unknown"
    if boot != own_boot:
        return "dead"
    try:
        return "alive" if _lives(int(pid), start) else "dead"
    except psutil.AccessDenied:
        return "unknown"


def _lives(pid: int, start: str) -> bool:
    try:
        is_zombie = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return not is_zombie and _start(pid) == start
    except psutil.NoSuchProcess:
        return False


def _place() -> str:
    """Return ``<host>:<machine id>:<pid namespace>:<boot id>``; what is not told is empty."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
    except OSError:
        namespace = ""
    machine, boot = _told("/etc/machine-id"), _told("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()}:{machine}:{namespace}:{boot}"


def _told(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _start(pid: int) -> str:
    """Return the tick at which a process was started, which no change of the clock moves.

    Raises:
        psutil.NoSuchProcess: there is none.
    """
    created = psutil.Process(pid).create_time()
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return f"{created:.0f}"
