"""Who loads a destination: the driver, or executors, which must reach it as the driver does.

Nothing here says that an address is wrong: that is for the load, which waits with words. Reasons
show nothing of an address.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from waybill.settings import BUILT_IN_KINDS, DestinationSettings

_FILES = ("sslcert", "sslkey", "sslrootcert", "sslcrl", "sslcrldir", "passfile", "service")
"""Parameters of libpq that name a file of its own host."""
_ANYWHERE = ("application_name", "connect_timeout", "client_encoding")
"""Those that an address may lack without a difference."""
_LAKES = ("delta", "iceberg")
_AMBIENT = {
    "redshift": "AWS credentials for its staging folder",
    "bigquery": "Google's credentials",
}
"""Kinds whose credentials, or some of them, are never in an address: what they are."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Who loads a destination, and why."""

    by_executors: bool
    reason: str = ""
    """Why the driver does, where executors were wanted or could be expected; else empty."""


def placement_of(
    settings: DestinationSettings | None,
    *,
    has_executors: bool,
    environment: Mapping[str, str] = os.environ,
) -> Placement:
    """Return who loads a destination. Never raises for what is odd about its settings.

    Args:
        settings: its own; None: it is not configured.
        has_executors: Spark has executors of its own (its master is not ``local[n]``).
        environment: of the driver.
    """
    if settings is None or settings.loaded_by == "driver":
        return Placement(by_executors=False)
    if settings.loaded_by is None and not has_executors:
        return Placement(by_executors=False)
    reason = _always_here(settings)
    if not reason and settings.loaded_by is None:
        reason = _only_here(settings, environment)
    return Placement(by_executors=not reason, reason=reason)


def _always_here(settings: DestinationSettings) -> str:
    """Return why no executor can load it, whatever was asked for; empty: one may."""
    if settings.kind == "duckdb":
        return "a DuckDB file has one writer"
    if settings.kind == "iceberg" and _catalogue(settings).startswith("sqlite:"):
        return "its catalogue is a SQLite file"
    return ""


def _only_here(settings: DestinationSettings, environment: Mapping[str, str]) -> str:
    """Return why executors may not have what the driver has; empty: they do."""
    dsn = settings.dsn.get_secret_value()
    if settings.kind not in BUILT_IN_KINDS:
        return f"the package that brings kind {settings.kind!r} may not be on them"
    if settings.kind in _LAKES:
        if "://" not in dsn or dsn.startswith("file:"):
            return "its tables are in a folder, which they may not see"
        return "" if settings.kind == "delta" else _postgres_here(_catalogue(settings), environment)
    if settings.kind == "postgres":
        return _postgres_here(dsn, environment)
    return _warehouse_here(settings, dsn)


def _warehouse_here(settings: DestinationSettings, dsn: str) -> str:
    if settings.kind in _AMBIENT:
        return f"{_AMBIENT[settings.kind]} are in the driver's surroundings"
    if "private_key_file" in settings.options or "private_key_file=" in dsn:
        return "its credentials are in a file of the driver's host"
    return _url_here(dsn)


def _catalogue(settings: DestinationSettings) -> str:
    given = settings.options.get("catalog")
    return "sqlite:" if given is None else given.get_secret_value()


def _url_here(dsn: str) -> str:
    try:
        host = urlsplit(dsn).hostname
    except ValueError:  # its words show the address
        return "its address cannot be read"
    return "its server is on the driver's host" if not host or is_own_host(host) else ""


def _postgres_here(dsn: str, environment: Mapping[str, str]) -> str:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        found = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    except (psycopg.Error, ValueError):  # their words show the address
        return "its address cannot be read"
    hosts = f"{found.get('host', '')},{found.get('hostaddr', '')}".split(",")
    named = [host for host in hosts if host]
    if not named or any(map(is_own_host, named)):
        return "its server is on the driver's host"
    if any(found.get(name, "system") != "system" for name in _FILES):
        return "its address names files of the driver's host"
    if _has_surroundings(found, environment):
        return "its user, password or TLS is in part in the driver's surroundings"
    return ""


def _has_surroundings(found: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Tell whether libpq takes what an address lacks from the driver's user, variables or home."""
    from psycopg.pq import Conninfo

    options = Conninfo.get_defaults()
    known = {one.envvar.decode(): one.keyword.decode() for one in options if one.envvar}
    lacking = {variable for variable, name in known.items() if name not in (*found, *_ANYWHERE)}
    if "user" not in found or lacking & environment.keys():
        return True
    mode = found.get("sslmode", "")
    if mode.startswith("verify-") and "sslrootcert" not in found:
        return True
    of_home = {".pgpass": "password" not in found, ".postgresql": mode != "disable"}
    return any(used and _is_in_home(name) for name, used in of_home.items())


def _is_in_home(name: str) -> bool:
    try:
        return (Path.home() / name).exists()
    except (OSError, RuntimeError):  # it has no home, or may not look there
        return False


def is_own_host(host: str) -> bool:
    """Tell whether a host is the driver's own: its name, a loopback address, a socket."""
    host = host.lower().rstrip(".")
    own = socket.gethostname().lower()
    if host.startswith(("/", "@")) or host in ("localhost", own, own.partition(".")[0]):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        try:
            address = ipaddress.ip_address(socket.inet_aton(host))  # 127.1
        except (OSError, ValueError):
            return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified
