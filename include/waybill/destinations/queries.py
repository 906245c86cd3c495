"""One statement that reads, at a destination: as whoever may load it, in a way that cannot write.

PostgreSQL runs it as the query of a cursor in a READ ONLY transaction, which is rolled back; DuckDB
opens the file read-only and reaches no other file and no network. Both end it after a time.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from waybill.errors import AwayError, InputError, RetryError

if TYPE_CHECKING:
    from waybill.settings import DestinationSettings

_UNREACHABLE = ("08", "57P")
"""Classes of SQLSTATE: the server is not there, or not now."""
_TOO_LONG = "57014"
_AGAIN_S = 0.1
_DEEPEST = 200
"""Levels of a value that are taken apart: writers of JSON end at 254."""
_BEYOND_PYTHON = ("date", "time", "timetz", "timestamp", "timestamptz", "interval")
"""Types with values that Python's have not, as ``infinity``: read as text."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a statement returned."""

    columns: tuple[str, ...]
    """May have one name twice."""
    rows: list[tuple[Any, ...]]
    is_cut: bool
    """There are more rows than were asked for."""


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """A statement that reads."""

    statement: str
    """SQL in the destination's own words."""
    most: int
    """Rows that are fetched at most; all of them are held in memory."""
    timeout_s: float = 300.0
    """The statement is ended after this."""


def read_rows(name: str, settings: DestinationSettings, query: ReadQuery) -> QueryResult:
    """Run one statement that reads.

    Args:
        name: the destination's name, for messages.
        settings: how to reach it.
        query: the statement, and its limits.

    Raises:
        InputError: it is no statement that reads, it is wrong, or the kind has no such reader.
        RetryError: the destination does not answer; a DuckDB file is held by a load; the statement
            took longer than it may.
        KeyboardInterrupt: Ctrl-C; the statement is ended.
    """
    statement = query.statement
    if not statement.isascii() and statement != statement.encode(errors="replace").decode():
        raise InputError("the statement holds bytes that are no UTF-8")
    if "\0" in statement or not statement.strip():
        raise InputError("the statement is empty, or holds a NUL character; give one SELECT")
    if settings.kind == "postgres":
        return _read_postgres(name, settings.dsn.get_secret_value(), query)
    if settings.kind == "duckdb":
        return _read_duckdb(name, settings.dsn.get_secret_value(), query)
    raise InputError(
        f"destination {name!r} is of kind {settings.kind}: ask it with a client of its own;"
        " `waybill sql` asks postgres and duckdb"
    )


def _too_long(where: str, query: ReadQuery) -> RetryError:
    return RetryError(
        f"{where}: the statement was ended after {query.timeout_s:g} s; make it read less, or give "
        "it longer with --timeout"
    )


def _read_postgres(name: str, dsn: str, query: ReadQuery) -> QueryResult:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    from waybill.destinations.adapters.postgres.session import LIMITS

    where = f"destination {name!r}"
    try:
        given = {**LIMITS, **conninfo_to_dict(dsn)}
        with psycopg.connect(**given) as connection:  # type: ignore[arg-type]
            _limit(connection, query.timeout_s)
            try:
                with connection.cursor("waybill_sql") as cursor:
                    cursor.execute(query.statement.encode())
                    columns = tuple(one.name for one in cursor.description or ())
                    rows = cursor.fetchmany(query.most + 1)
            finally:
                if not connection.closed:
                    connection.rollback()
    except psycopg.Error as error:
        if error.sqlstate == _TOO_LONG:
            raise _too_long(where, query) from error
        said = str(error).strip()
        is_lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if error.sqlstate.startswith(_UNREACHABLE) if error.sqlstate else is_lost:
            setting = f"WAYBILL_DESTINATIONS__{name.upper()}"
            raise AwayError(f"{where} did not answer: {said}", setting=setting) from error
        raise InputError(f"{where} refused the statement: {said}") from error
    return QueryResult(columns, rows[: query.most], len(rows) > query.most)


def _limit(connection: Any, timeout_s: float) -> None:
    """Begin a transaction that writes nothing and ends in time; take what Python has no value for.

    Times beyond Python's are text, and so is JSON that is nested deeply.
    """
    from psycopg.types.json import set_json_loads
    from psycopg.types.string import TextLoader

    connection.read_only = True
    limit = f"{timeout_s * 1000:.0f}"
    connection.execute("SELECT set_config('statement_timeout', %s, true)", [limit])
    set_json_loads(_json_or_text, connection)
    for kind in _BEYOND_PYTHON:
        connection.adapters.register_loader(kind, TextLoader)


def _json_or_text(text: str | bytes) -> Any:
    """Return what a JSON column holds; what is nested deeply, as it is written."""
    try:
        value = json.loads(text)
    except RecursionError:
        value = None
    else:
        if not _is_deep(value):
            return value
    return text if isinstance(text, str) else bytes(text).decode()


def _is_deep(value: Any) -> bool:
    """Tell whether a value is nested deeper than what shows it takes."""
    level = [value]
    for _ in range(_DEEPEST):
        inner = [one for one in level if isinstance(one, list | tuple | dict)]
        if not inner:
            return False
        level = [item for one in inner for item in (one.values() if isinstance(one, dict) else one)]
    return True


def _shallow(value: Any) -> Any:
    """Return a value; one that is nested deeply, as text."""
    if isinstance(value, list | tuple | dict) and _is_deep(value):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value


def _read_duckdb(name: str, path: str, query: ReadQuery) -> QueryResult:
    import os

    import duckdb

    from waybill.destinations.adapters.duckdb.session import duck_error, sorted_error

    where = f"destination {name!r}"
    if not os.path.isfile(path):
        raise InputError(f"{where}: there is no file {path!r} yet; the first load makes it")
    limits = {"enable_external_access": "false", "lock_configuration": "true"}
    try:
        with (
            _noted_interrupts() as interrupts,
            duckdb.connect(path, read_only=True, config=limits) as connection,
            ThreadPoolExecutor(1) as reader,
        ):
            reading = reader.submit(_duckdb_rows, connection, query)
            ends_at = time.monotonic() + query.timeout_s
            while not reading.done():
                wait([reading], _AGAIN_S)
                if interrupts or time.monotonic() > ends_at:  # it does not hear each of them
                    connection.interrupt()
            return reading.result()
    except duckdb.InterruptException as error:
        raise _too_long(where, query) from error
    except duckdb.IOException as error:
        raise sorted_error(duck_error(error), name) from error
    except duckdb.Error as error:
        raise InputError(f"{where} refused the statement: {str(error).strip()}") from error


@contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Note each Ctrl-C and raise one at the end, so that none leaves DuckDB at work.

    Where Ctrl-C ends the thread that asked, DuckDB waits for threads of its own that nobody told.
    """
    noted: list[int] = []
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not raises or threading.current_thread() is not threading.main_thread():
        yield noted
        return
    signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if noted:
            raise KeyboardInterrupt


def _duckdb_rows(connection: Any, query: ReadQuery) -> QueryResult:
    _refuse_other_statements(connection, query.statement)
    found = connection.execute(query.statement)
    columns = tuple(str(one[0]) for one in found.description or ())
    rows = [tuple(map(_shallow, row)) for row in found.fetchmany(query.most + 1)]
    return QueryResult(columns, rows[: query.most], len(rows) > query.most)


def _refuse_other_statements(connection: Any, statement: str) -> None:
    """Refuse what is not one statement that returns rows.

    Raises:
        InputError: it is not.
    """
    found = connection.extract_statements(statement)
    kinds = [one.type.name for one in found]
    if kinds not in (["SELECT"], ["EXPLAIN"]):
        raise InputError(
            f"found {', '.join(kinds) or 'no statement'}; `waybill sql` runs one SELECT"
        )
