"""Who loads a destination: the driver, or executors, which must reach it as the driver does.

Nothing here says that an address is wrong: that is for the load, which waits with words. Reasons
show nothing of an address.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from waybill.settings import BUILT_IN_KINDS, DestinationSettings

_FILES = ("sslcert", "sslkey", "sslrootcert", "sslcrl", "sslcrldir", "passfile", "service")
"""Parameters of libpq that name a file of its own host."""
_SURROUNDINGS = ("PGPASSWORD", "PGPASSFILE", "PGSERVICE", "PGSERVICEFILE", "PGSSLCERT", "PGHOST")
"""Variables that libpq takes what an address lacks from."""
_OWN_HOST = ("localhost", "127.0.0.1", "::1")
_LAKES = ("delta", "iceberg")
_FILE_OPTIONS = ("credentials", "private_key_file")


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
    if settings.kind in _LAKES and ("://" not in dsn or dsn.startswith("file:")):
        return "its tables are in a folder, which they may not see"
    if settings.kind == "postgres":
        return _postgres_here(dsn, environment)
    if settings.kind == "iceberg":
        return _postgres_here(_catalogue(settings), environment)
    if any(name in settings.options or f"{name}=" in dsn for name in _FILE_OPTIONS):
        return "its credentials are in a file of the driver's host"
    return ""


def _catalogue(settings: DestinationSettings) -> str:
    given = settings.options.get("catalog")
    return "sqlite:" if given is None else given.get_secret_value()


def _postgres_here(dsn: str, environment: Mapping[str, str]) -> str:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        found = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    except (psycopg.Error, ValueError):  # their words show the address
        return "its address cannot be read"
    hosts = f"{found.get('host', '')},{found.get('hostaddr', '')}".split(",")
    named = [host for host in hosts if host]
    if not named or any(host in _OWN_HOST or host.startswith(("/", "@")) for host in named):
        return "its server is on the driver's host"
    if any(found.get(name, "system") != "system" for name in _FILES):
        return "its address names files of the driver's host"
    if "password" not in found and _has_surroundings(environment):
        return "its password is in the driver's surroundings"
    return ""


def _has_surroundings(environment: Mapping[str, str]) -> bool:
    if any(name in environment for name in _SURROUNDINGS):
        return True
    try:
        return (Path.home() / ".pgpass").exists()
    except (OSError, RuntimeError):  # it has no home, or may not look there
        return False
