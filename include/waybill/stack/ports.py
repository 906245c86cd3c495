"""Loopback ports: is it free, who holds it, pick another."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable, Mapping, Sequence

import psutil

from waybill.errors import InputError
from waybill.settings import StackSettings

HOST = "127.0.0.1"
GRPC_OFFSET = 10_000
"""SeaweedFS opens a gRPC port at this distance from each of its ports."""
PICK_FROM = range(12_000, 22_000)
"""Below the range of outgoing connections, also with GRPC_OFFSET added."""


def is_free(port: int) -> bool:
    """Say whether a server could listen on the loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def holder(port: int) -> str:
    """Describe who listens on the port: ``pid 12 (java -cp ...)``, as far as may be seen."""
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status != psutil.CONN_LISTEN or tuple(connection.laddr)[1:2] != (port,):
            continue
        if connection.pid is None:
            return "a process of another user"
        try:
            words = psutil.Process(connection.pid).cmdline()
        except psutil.Error:
            words = []
        return f"pid {connection.pid} ({' '.join(words)[:80] or 'unknown program'})"
    return "a process that cannot be seen from here"


def require_free(ports: Mapping[str, int]) -> None:
    """Raise unless every port is free. ``ports``: setting name of `StackSettings` -> port.

    Raises:
        InputError: naming the port, who holds it, and the setting that moves it.
    """
    for setting, port in ports.items():
        for taken in needed(setting, port):
            if is_free(taken):
                continue
            also = "" if taken == port else f" (opened beside {port})"
            raise InputError(
                f"port {taken}{also} is in use by {holder(taken)}.\n"
                "End that process, or choose another port: "
                f"WAYBILL_STACK__{setting.upper()}=<port>, "
                "or let Waybill choose: waybill up --free-ports"
            )


def needed(setting: str, port: int) -> tuple[int, ...]:
    """Return all ports that a service opens for one port setting."""
    return (port, port + GRPC_OFFSET) if setting.startswith("s3_") else (port,)


def with_free_ports(stack: StackSettings, keep: Iterable[str] = ()) -> StackSettings:
    """Replace each port that is in use, except those named in ``keep``, by one that is free.

    Raises:
        InputError: when 200 tries found none.
    """
    taken = [
        setting
        for setting, port in port_settings(stack).items()
        if setting not in keep and not all(map(is_free, needed(setting, port)))
    ]
    return _moved(stack, taken)


def with_random_ports(stack: StackSettings) -> StackSettings:
    """Replace every port by a free one, drawn at random."""
    return _moved(stack, list(port_settings(stack)))


def free_port() -> int:
    """Return a port that is free now, drawn at random.

    Raises:
        InputError: when 200 tries found none.
    """
    return _pick("port", set())


def _moved(stack: StackSettings, settings: Sequence[str]) -> StackSettings:
    stay = {name: port for name, port in port_settings(stack).items() if name not in settings}
    used = {port for name, first in stay.items() for port in needed(name, first)}
    chosen: dict[str, int] = {}
    for setting in settings:
        chosen[setting] = _pick(setting, used)
        used.update(needed(setting, chosen[setting]))
    return stack.model_copy(update=chosen)


def port_settings(stack: StackSettings) -> dict[str, int]:
    """Return every port setting of the stack: name -> port."""
    return {name: value for name, value in stack if name.endswith("_port")}


def _pick(setting: str, used: set[int]) -> int:
    for _ in range(200):
        port = random.choice(PICK_FROM)  # noqa: S311 - no secret
        wanted = needed(setting, port)
        if used.isdisjoint(wanted) and all(map(is_free, wanted)):
            return port
    raise InputError(f"no free port found for {setting} in {PICK_FROM}")
