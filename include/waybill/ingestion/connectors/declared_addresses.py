"""Addresses that a declaration names and the settings close, told without asking a server.

What is a number in whatever way of writing, or this machine's own name, is judged; any other name
would have to be resolved, and is judged where it is connected to.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from waybill.egress import EgressGuard, ForbiddenAddressError
from waybill.ingestion.connectors.references import has_references

if TYPE_CHECKING:
    from waybill.pipelines import Source
    from waybill.settings import EgressSettings

Place = tuple[str | int, ...]
"""Of a value in a declaration."""
_PORTS = {"http": 80, "https": 443}
_OWN_NAME = "localhost"


def closed_places(source: Source, egress: EgressSettings) -> list[tuple[Place, str]]:
    """Return (place in the declaration, why) of each address that ingestion would refuse.

    Those of ``rest_api``: where a function connects to is in its code.
    """
    guard = EgressGuard(egress, _without_asking)
    found = []
    for place, url in _rest_urls(source.options.get("rest_api")):
        if said := _refusal(guard, url):
            found.append((("source", "options", "rest_api", *place), said))
    return found


def _rest_urls(rest_api: Any) -> Iterator[tuple[Place, str]]:
    """Yield the addresses of dlt's description of a REST API, as far as they are whole."""
    client = _mapping(_mapping(rest_api).get("client"))
    given: list[tuple[Place, Any]] = [
        (("client", "base_url"), client.get("base_url")),
        (
            ("client", "auth", "access_token_url"),
            _mapping(client.get("auth")).get("access_token_url"),
        ),
    ]
    resources = _mapping(rest_api).get("resources")
    for number, resource in enumerate(resources if isinstance(resources, list) else []):
        endpoint = _mapping(resource).get("endpoint")
        place: Place = ("resources", number, "endpoint")
        given.append((place, endpoint))
        given.append(((*place, "path"), _mapping(endpoint).get("path")))
    for place, url in given:
        if isinstance(url, str) and not has_references(url):
            yield place, url


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _refusal(guard: EgressGuard, url: str) -> str:
    """Return why an address is closed; "": it is open, none, or not known before it is asked."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            return ""
        guard.addresses(parts.hostname, parts.port or _PORTS[parts.scheme])
    except ForbiddenAddressError as error:
        return str(error)
    except (OSError, ValueError):  # a name, or no address: whoever connects to it says so
        return ""
    return ""


def _without_asking(host: str, port: int, family: int = 0, kind: int = 0) -> Any:
    """Return what a host is as a number. Raises OSError: it is a name."""
    name = host.rstrip(".").lower()
    if name == _OWN_NAME or name.endswith(f".{_OWN_NAME}"):
        host = "127.0.0.1"
    return socket.getaddrinfo(host, port, family, kind, flags=socket.AI_NUMERICHOST)
