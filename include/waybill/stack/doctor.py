"""What Waybill needs on this machine: what is there, what is not, how to get it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from waybill.errors import InputError, RetryError, StopError, WaybillError
from waybill.processing import shared_sandbox
from waybill.settings import Settings
from waybill.stack import java, ports
from waybill.stack.embedded import ServiceStatus, Stack
from waybill.stack.jars import locked, missing
from waybill.storage import open_log, open_tracker
from waybill.topics import topic_lines

OLDEST_PYTHON = (3, 11)
DISK_BYTES = 5 * 1024**3
MEMORY_BYTES = 5 * 1024**3
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
_SHOWN = 4
_NEWER_KERNEL = (
    "Linux 5.13 or newer with Landlock and seccomp, as common distributions have them; it works "
    "without, but then user code reaches what its user reaches"
)


@dataclass(frozen=True)
class Check:
    """One thing looked at. ``remedy`` is empty when it is all right."""

    name: str
    ok: bool
    found: str
    remedy: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the check as JSON."""
        return asdict(self)


def examine(settings: Settings) -> list[Check]:
    """Look at everything. Asks the services when they run: some seconds."""
    stack = Stack(settings)
    services = stack.status() if stack.home.exists() else []
    return [
        _python(),
        _java(),
        _jars(stack.settings.spark.jars_dir.parent),
        _packages(stack.settings.dags_dir.parent / "requirements.txt"),
        _disk(stack.home),
        _memory(services),
        _user_code(settings),
        *_ports(stack.settings, services),
        *_services(services),
        *(topic_checks(stack.settings) if _all_healthy(services) else ()),
    ]


def _python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    oldest = ".".join(map(str, OLDEST_PYTHON))
    if sys.version_info >= OLDEST_PYTHON:
        return Check("Python", ok=True, found=found)
    return Check(
        "Python", ok=False, found=found, remedy=f"Python {oldest} or newer, then: make venv"
    )


def _user_code(settings: Settings) -> Check:
    """Start a process for user code and ask what this machine does not close to it."""
    try:
        missing = shared_sandbox(settings).missing()
    except (RetryError, StopError) as error:
        return Check("user code", ok=False, found=str(error), remedy=_NEWER_KERNEL)
    if not missing:
        found = "runs apart: files, network, processes are closed"
        if os.geteuid() != 0:
            found += "; all teams' code runs as this user (started as root, each has its own)"
        return Check("user code", ok=True, found=found)
    return Check(
        "user code", ok=False, found=f"not closed here: {'; '.join(missing)}", remedy=_NEWER_KERNEL
    )


def _java() -> Check:
    try:
        found = java.find_java()
    except java.JavaError as error:
        return Check("Java", ok=False, found=error.found, remedy=error.remedy)
    return Check("Java", ok=True, found=f"{found.version} ({found.path})")


def _jars(root: Path) -> Check:
    absent, needed = missing(root), len(locked())
    found = f"{needed - len(absent)} of {needed} in {root}"
    if not absent:
        return Check("jars", ok=True, found=found)
    return Check("jars", ok=False, found=found, remedy="waybill up fetches them")


def _packages(requirements: Path) -> Check:
    if not requirements.is_file():
        return Check("packages", ok=True, found=f"not compared: no {requirements}")
    pins = [m for line in requirements.read_text().splitlines() if (m := _PIN.match(line))]
    wrong = [
        f"{m[1]} {_installed(m[1])} instead of {m[2]}" for m in pins if _installed(m[1]) != m[2]
    ]
    if not wrong:
        return Check("packages", ok=True, found=f"{len(pins)} as pinned")
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    shown = ", ".join(wrong[:_SHOWN]) + more
    return Check("packages", ok=False, found=shown, remedy="make venv")


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _disk(home: Path) -> Check:
    there = next(p for p in (home, *home.parents) if p.exists())
    free = shutil.disk_usage(there).free
    remedy = (
        f"free {DISK_BYTES // 1024**3} GiB there, or name another folder: WAYBILL_HOME=<folder>"
    )
    ok = free >= DISK_BYTES
    return Check("disk", ok=ok, found=f"{_gib(free)} free at {home}", remedy="" if ok else remedy)


def _memory(services: list[ServiceStatus]) -> Check:
    free = psutil.virtual_memory().available + sum(s.memory_bytes for s in services)
    ok = free >= MEMORY_BYTES
    remedy = (
        ""
        if ok
        else f"the stack takes up to {MEMORY_BYTES // 1024**3} GiB at rest: end other programs"
    )
    return Check("memory", ok=ok, found=f"{_gib(free)} for the stack", remedy=remedy)


def _gib(count: int) -> str:
    return f"{count / 1024**3:.1f} GiB"


def _ports(settings: Settings, services: list[ServiceStatus]) -> Iterator[Check]:
    own = {port for s in services if s.pid is not None for port in s.ports}
    wanted = {s: p for s, p in ports.port_settings(settings.stack).items() if p not in own}
    busy = 0
    for setting, port in wanted.items():
        try:
            ports.require_free({setting: port})
        except InputError as error:
            busy += 1
            found, _, remedy = str(error).partition("\n")
            yield Check("port", ok=False, found=found, remedy=remedy)
    if not busy:
        yield Check("ports", ok=True, found=f"{len(wanted)} free, {len(own)} in use by the stack")


def _all_healthy(services: list[ServiceStatus]) -> bool:
    return bool(services) and all(service.healthy for service in services)


def topic_checks(settings: Settings) -> Iterator[Check]:
    """Look for topics that somebody altered in Kafka."""
    try:
        with open_tracker(settings.tracker) as tracker:
            lines = topic_lines(tracker, open_log(settings.kafka))
    except WaybillError as error:
        yield Check("topics", ok=False, found=str(error), remedy="waybill topics list")
        return
    for line in lines:
        if line.unknown:
            found = f"{line.topic}: in Kafka, with records, and unknown to the tracker"
            yield Check("topic", ok=False, found=found, remedy='docs/operations.md, "Backup"')
    altered = [f"{line.topic}: {line.altered}" for line in lines if line.altered]
    for found in altered:
        remedy = "waybill topics grow: keys keep their order in a new generation"
        yield Check("topic", ok=False, found=found, remedy=remedy)
    if not altered:
        yield Check("topics", ok=True, found=f"none of {len(lines)} was altered")


def _services(services: list[ServiceStatus]) -> Iterator[Check]:
    if not any(s.pid for s in services):
        yield Check("services", ok=True, found="down (waybill up starts them)")
        return
    for s in services:
        state = "healthy" if s.healthy else "does not answer" if s.pid else "down"
        remedy = "" if s.healthy else f"waybill up; its log: {s.log}"
        if s.suspended:
            state, remedy = "suspended by a signal", s.resume
        yield Check(s.name, ok=s.healthy, found=state, remedy=remedy)
