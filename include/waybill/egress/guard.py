"""Which addresses may be connected to, and the connection to one that was judged.

Open are addresses of the public internet. Private, loopback, link-local, shared (RFC 6598),
reserved and multicast ones are closed, and so are addresses of IPv6 that carry such one of IPv4.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from waybill.errors import InputError

Resolver: TypeAlias = Callable[..., Sequence[tuple[Any, ...]]]
"""As ``socket.getaddrinfo``."""
SocketOptions: TypeAlias = Sequence[tuple[int, int, int | bytes]]
_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_CLOSED = tuple(
    ipaddress.ip_network(text)
    for text in (
        "168.63.129.16/32",  # a cloud's own services, behind a public address
        "192.88.99.0/24",  # relays of 6to4
        "64:ff9b:1::/48",  # translation within a network (RFC 8215)
    )
)
"""Not for others, though the registries of addresses say nothing of it."""
_WITH_PORT = re.compile(r"(\[[^\]]*\]|[^:]+):([0-9]{1,5})")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE = ipaddress.ip_network("::/96")


class ForbiddenAddressError(InputError):
    """An address that the settings do not let anybody connect to."""


class OpenPlaces(Protocol):
    """Settings of egress, or what a process was told of them."""

    @property
    def allowed_hosts(self) -> Sequence[str]:
        """Hosts, with or without a port."""

    @property
    def allowed_networks(self) -> Sequence[str]:
        """Networks, such as ``10.20.0.0/16``."""


class EgressGuard:
    """Judges addresses, and connects to those that are open.

    Args:
        settings: which hosts and networks are open beside the public internet.
        resolve: gives the addresses of a name.
    """

    def __init__(self, settings: OpenPlaces, resolve: Resolver = socket.getaddrinfo) -> None:
        self._hosts = frozenset(_plain_place(text) for text in settings.allowed_hosts)
        self._networks = tuple(ipaddress.ip_network(text) for text in settings.allowed_networks)
        self._resolve = resolve

    def is_named(self, host: str, port: int) -> bool:
        """Tell whether the settings open a host by its name, whatever address it has."""
        name = plain_host(host)
        return name in self._hosts or f"{name}:{port}" in self._hosts

    def is_open(self, address: str) -> bool:
        """Tell whether a number such as ``192.0.2.1`` or ``fe80::1%eth0`` may be connected to."""
        number = ipaddress.ip_address(address.partition("%")[0])
        if any(_is_in(number, network) for network in self._networks):
            return True
        if (inner := getattr(number, "ipv4_mapped", None)) is not None:
            return self.is_open(str(inner))
        return _is_public(number)

    def addresses(self, host: str, port: int) -> list[tuple[Any, ...]]:
        """Return what a host resolves to, as ``socket.getaddrinfo`` does: what is open of it.

        Raises:
            ForbiddenAddressError: none of its addresses is open.
            OSError: it has none.
        """
        found = list(self._resolve(host, port, 0, socket.SOCK_STREAM))
        if self.is_named(host, port):
            return found
        opened = [entry for entry in found if self.is_open(str(entry[4][0]))]
        if found and not opened:
            raise self.refusal(host, port, str(found[0][4][0]))
        return opened

    def connect(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float | None,
        source_address: tuple[str, int] | None = None,
        options: SocketOptions = (),
    ) -> socket.socket:
        """Return a TCP connection to the first address of a host that answers.

        Raises:
            ForbiddenAddressError: no address of it is open; nothing was connected to.
            OSError: none answers.
        """
        failed: OSError | None = None
        for family, kind, protocol, _, place in self.addresses(host, port):
            line = socket.socket(family, kind, protocol)
            try:
                for option in options:
                    line.setsockopt(*option)
                line.settimeout(timeout_s)
                if source_address is not None:
                    line.bind(source_address)
                line.connect(place)
            except OSError as error:
                line.close()
                failed = error
            else:
                return line
        raise failed or OSError(f"{host!r} has no address")

    def refusal(self, host: str, port: int, address: str) -> ForbiddenAddressError:
        """Return the error for a host with an address that is closed."""
        name = plain_host(host)
        number = "" if name == address else f" has the address {address}, which"
        return ForbiddenAddressError(
            f"{name[:200]!a}{number} is not one of the public internet, and so closed to sources;"
            " who operates Waybill opens it:"
            f" WAYBILL_EGRESS__ALLOWED_HOSTS='[\"{name[:200]}:{port}\"]'"
        )


def plain_host(host: str) -> str:
    """Return a host as it is compared: small letters, without brackets and a last dot."""
    return host.strip("[]").rstrip(".").lower()


def _plain_place(text: str) -> str:
    """Return a host of the settings, with or without a port, as it is compared."""
    match = _WITH_PORT.fullmatch(text)
    return plain_host(text) if match is None else f"{plain_host(match[1])}:{match[2]}"


def _is_in(number: _Address, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    return number.version == network.version and number in network


def _is_public(number: _Address) -> bool:
    if any(_is_in(number, network) for network in _CLOSED):
        return False
    if number.is_multicast or number.is_reserved or not number.is_global:
        return isinstance(number, ipaddress.IPv6Address) and _is_translated(number)
    return not getattr(number, "is_site_local", False) and all(map(_is_public, _inside(number)))


def _is_translated(number: ipaddress.IPv6Address) -> bool:
    """Tell whether it stands for a public address of IPv4, by the prefix that all may use."""
    return number in _NAT64 and all(map(_is_public, _inside(number)))


def _inside(number: _Address) -> Iterator[ipaddress.IPv4Address]:
    """Yield the addresses of IPv4 that one of IPv6 leads to."""
    if not isinstance(number, ipaddress.IPv6Address):
        return
    if number.sixtofour is not None:
        yield number.sixtofour
    if number.teredo is not None:
        yield from number.teredo
    if number in _NAT64 or number in _COMPATIBLE:
        yield ipaddress.IPv4Address(int(number) & 0xFFFFFFFF)
