"""Which tables that pipelines write are one table, as far as the settings of destinations say.

Two names of destinations may lead to one database, and in some engines names that differ in case
are one name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from waybill.mappings.naming import NameRules, rules_of

if TYPE_CHECKING:
    from waybill.settings import DestinationSettings


class TeamLimit(NamedTuple):
    """What the settings say of who may write something."""

    what: str
    """The thing, for a message."""
    teams: Sequence[str]
    setting: str
    """That says so."""


class TablePlaces:
    """Tells which names of tables, in which destinations, are one table. Asks no server.

    PostgreSQL is one place where host, port and database are the same, whoever logs in, and DuckDB
    where the file is; of other kinds address and options are compared. One host by several names
    is not recognised.

    Args:
        destinations: those of the settings, by name.
    """

    def __init__(self, destinations: Mapping[str, DestinationSettings]) -> None:
        self._settings = dict(destinations)
        self._places: dict[str, bytes] = {}

    def rules(self, destination: str) -> NameRules:
        """Return the name rules of a destination; PostgreSQL's, if it is not configured."""
        settings = self._settings.get(destination)
        return rules_of("postgres" if settings is None else settings.kind)

    def is_known(self, destination: str) -> bool:
        """Tell whether a destination is configured."""
        return destination in self._settings

    def key(self, destination: str, schema: str, table: str) -> Hashable:
        """Return what tables have in common that are one, for certain."""
        if not self.is_known(destination):
            return destination, schema, table
        same = self.rules(destination).same
        return self._place(destination), same(schema), same(table)

    def elsewhere(self, destination: str) -> list[str]:
        """Return the destinations that are another place than this one, for certain."""
        if not self.is_known(destination):
            return []
        own = self._place(destination)
        return sorted(name for name in self._settings if self._place(name) != own)

    def limits(self, destination: str, schema: str, table: str) -> Iterator[TeamLimit]:
        """Yield what the settings say of who may write a table, or all tables of a schema.

        What they say of other destinations that are the same place counts as well.

        Args:
            destination: as a pipeline names it; not configured: nothing is said of it.
            schema: the table's.
            table: its name; empty: only what is said of destination and schema is yielded.
        """
        if not self.is_known(destination):
            return
        same, own = self.rules(destination).same, self._place(destination)
        for name in (one for one in self._settings if self._place(one) == own):
            settings = self._settings[name]
            if settings.teams and not table:
                yield TeamLimit(f"destination {name!r}", settings.teams, f"{name}.teams")
            said = settings.table_teams if table else settings.schema_teams
            setting = f"{name}.{'table_teams' if table else 'schema_teams'}"
            wanted = [same(schema), same(table)] if table else [same(schema)]
            for given, teams in said.items():
                if [same(part) for part in given.split(".", len(wanted) - 1)] == wanted:
                    what = "table" if table else "schema"
                    yield TeamLimit(f"{what} {given!r} of {name!r}", teams, setting)

    def spelling(self, destination: str, other: str) -> Callable[[str], str]:
        """Return what makes one text of names that are one, in destinations that may be one place.

        Where either is not configured nobody knows its kind: case does not count then.
        """
        if self.is_known(destination) and self.is_known(other):
            return self.rules(destination).same
        return str.casefold

    def _place(self, destination: str) -> bytes:
        """Return what destinations have in common that are one place; it tells no secret."""
        if destination not in self._places:
            settings = self._settings[destination]
            place = (settings.kind, _place_of(settings))
            self._places[destination] = hashlib.sha256(repr(place).encode()).digest()
        return self._places[destination]


def _place_of(settings: DestinationSettings) -> object:
    dsn = settings.dsn.get_secret_value()
    if settings.kind == "postgres":
        return _database(dsn)
    if settings.kind == "duckdb":
        return _file(dsn)
    options = {name: value.get_secret_value() for name, value in settings.options.items()}
    return _address(dsn), sorted(options.items())


def _file(dsn: str) -> str:
    try:
        return str(Path(dsn).resolve())
    except (OSError, RuntimeError, ValueError):  # the destination itself says what is wrong
        return dsn


def _address(dsn: str) -> str:
    """Return an address without its login."""
    try:
        url = urlsplit(dsn)
    except ValueError:  # the destination itself says what is wrong
        return dsn
    return url._replace(netloc=url.netloc.rpartition("@")[2].lower()).geturl().rstrip("/")


def _database(dsn: str) -> object:
    """Return hosts, ports and database of a libpq address, with what libpq fills in."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import Conninfo

    filled_in = {
        one.keyword.decode(): one.val.decode(errors="replace")
        for one in Conninfo.get_defaults()
        if one.val
    }
    try:
        given = filled_in | {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    except (psycopg.Error, ValueError):  # the destination itself says what is wrong
        return _address(dsn)
    hosts = given.get("hostaddr") or given.get("host", "")
    database = given.get("dbname") or given.get("user", "")
    service = given.get("service", "")  # names all of these in a file of libpq's
    return sorted(map(_host, hosts.split(","))), given.get("port", ""), database, service


def _host(host: str) -> str:
    """Return a host's name; of all ways to this very host one."""
    host = host.lower().rstrip(".")
    is_own = host in ("", "localhost", "::1") or host.startswith(("/", "@", "127."))
    return "localhost" if is_own else host
