"""The guard over all that a process connects to, whatever library does it.

Python tells its audit hooks the address before it connects to it, as a number that was resolved
already; a hook cannot be taken off. So code that others wrote, with clients of their own, is held
as well, as long as it connects by Python. What a library of C connects to by itself is not seen.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
from typing import Any

from waybill.egress.guard import EgressGuard

_EVENTS = ("socket.connect", "socket.sendto", "socket.sendmsg")


def guard_process(guard: EgressGuard) -> None:
    """Let this process connect to open addresses only, from now on and for good."""
    named: set[tuple[str, int]] = set()
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *rest: Any, **settings: Any) -> Any:
        found = resolve(host, port, *rest, **settings)
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
        for entry in found:
            number, at = entry[4][:2]
            if isinstance(name, str) and isinstance(at, int) and guard.is_named(name, at):
                named.add((str(number), at))
        return found

    socket.getaddrinfo = getaddrinfo

    def judge(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS:
            return
        line, place = arguments[0], arguments[1]
        if line.family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(place, tuple):
            return
        host, port = place[0], place[1]
        if not _is_open(guard, host, named=(host, port) in named):
            raise guard.refusal(str(host), int(port), str(host))

    sys.addaudithook(judge)


def _is_open(guard: EgressGuard, host: Any, *, named: bool) -> bool:
    """Tell whether a number may be connected to; a name is not: it is not resolved yet."""
    if named:
        return True
    try:
        ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return False
    return guard.is_open(str(host))
