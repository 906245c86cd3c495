"""One statement that reads, at a destination: as whoever may load it, in a way that cannot write.

PostgreSQL runs it as the query of a cursor in a READ ONLY transaction, which is rolled back; DuckDB
opens the file read-only and reaches no other file and no network. Both end it after a time.
"""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from waybill.errors import AwayError, InputError, RetryError
from waybill.nearest_name import nearest, shown_name

if TYPE_CHECKING:
    import psycopg

    from waybill.settings import DestinationSettings

_UNREACHABLE = ("08", "57P")
"""Classes of SQLSTATE: the server is not there, or not now."""
_TOO_LONG = "57014"
_NO_TABLE = "42P01"
_SYNTAX = "42601"
_READING = re.compile(
    r"(?:\s|\(|--[^\n]*(?:\n|$)|/\*(?:[^*]|\*(?!/))*\*/)*(?:SELECT|WITH|VALUES|TABLE)\b[^;]*;?\s*$",
    re.IGNORECASE,
)
_ONE_SELECT = "\n`waybill sql` runs one SELECT, and nothing that writes"
_CURSOR = "waybill_sql"
_DECLARE = f'DECLARE "{_CURSOR}" CURSOR FOR '
"""What psycopg puts before a statement: places in errors count from it."""
_WINDOW = 56
"""Characters of a line of a statement that an error shows."""
_QUOTED = re.compile(r'"(.+)"')
_DUCKDB_TABLE = re.compile(r'Table with name "?(.+?)"? does not exist')
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_MOST_NEAR = 3
_LOOK_S = 5.0
_TABLES = """
SELECT s.nspname, t.relname FROM pg_class t JOIN pg_namespace s ON s.oid = t.relnamespace
WHERE t.relkind IN ('r', 'p', 'v', 'm', 'f') AND s.nspname !~ '^pg_'
  AND s.nspname <> 'information_schema' AND has_schema_privilege(s.oid, 'USAGE')
  AND t.relname !~ '^_waybill_' LIMIT 5000
"""
_AGAIN_S = 0.1
_DEEPEST = 200
"""Levels of a value that are taken apart: writers of JSON end at 254."""
_BEYOND_PYTHON = ("date", "time", "timetz", "timestamp", "timestamptz", "interval")
"""Types with values that Python's have not, as ``infinity``: read as text."""


class TableMissingError(InputError):
    """A statement names a table that the destination does not have.

    Args:
        message: what the destination says.
        table: as it names it, with a schema or without.
        there: schema and name of each table that it has, as far as they were asked for.
    """

    def __init__(self, message: str, table: str, there: Sequence[tuple[str, str]]) -> None:
        super().__init__(message)
        self.table = table
        self.there = frozenset(there)


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
        TableMissingError: it names a table that is not there.
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
                with connection.cursor(_CURSOR) as cursor:
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
        raise _postgres_refusal(where, dsn, query.statement, error) from error
    return QueryResult(columns, rows[: query.most], len(rows) > query.most)


def _postgres_refusal(where: str, dsn: str, statement: str, error: psycopg.Error) -> InputError:
    """Return the error of a statement that the server does not take."""
    said = _in_own_words(error, statement) or str(error).strip()
    said = f"{where} refused the statement: {said}"
    asked = _QUOTED.search(error.diag.message_primary or "")
    if error.sqlstate == _NO_TABLE and asked is not None:
        there = _tables_of(dsn)
        said += _named_nearly(asked.group(1), there)
        return TableMissingError(said, asked.group(1), there)
    said += _ONE_SELECT if error.sqlstate == _SYNTAX and _is_another(statement) else ""
    return InputError(said)


def _is_another(statement: str) -> bool:
    """Tell whether a statement does not begin as one that reads, or more than one was given."""
    return _READING.match(statement) is None


def _in_own_words(error: psycopg.Error, statement: str) -> str:
    """Return what the server says, with the place in the statement as it was given.

    The server marks a place in what it ran: the statement of a cursor.
    """
    diag = error.diag
    if not diag.message_primary:
        return ""
    lines = [diag.message_primary]
    place = int(diag.statement_position or 0) - len(_DECLARE) - 1
    if 0 <= place <= len(statement):
        before = statement[:place]
        number = before.count("\n") + 1
        column = place - (before.rfind("\n") + 1)
        lines += _marked(statement.split("\n")[number - 1], number, column)
    for word, text in (("DETAIL", diag.message_detail), ("HINT", diag.message_hint)):
        if text:
            lines.append(f"{word}:  {text}")
    return "\n".join(lines)


def _marked(line: str, number: int, column: int) -> list[str]:
    """Return a line of a statement, a window of it where it is long, and a mark below a column."""
    begin = max(0, column - _WINDOW // 2) if len(line) > _WINDOW else 0
    shown = line[begin : begin + _WINDOW].replace("\t", " ").rstrip("\r")
    head = f"LINE {number}: {'…' if begin else ''}"
    end = "…" if begin + _WINDOW < len(line) else ""
    return [f"{head}{shown}{end}", " " * (len(head) + column - begin) + "^"]


def _tables_of(dsn: str) -> list[tuple[str, str]]:
    """Return schema and name of the tables of a PostgreSQL; none where it does not answer now."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    from waybill.destinations.adapters.postgres.session import LIMITS

    given = {**LIMITS, **conninfo_to_dict(dsn)}
    try:
        with psycopg.connect(**given) as connection:  # type: ignore[arg-type]
            _limit(connection, _LOOK_S)
            return [(str(row[0]), str(row[1])) for row in connection.execute(_TABLES).fetchall()]
    except psycopg.Error:
        return []  # the statement's own error is told


def _named_nearly(asked: str, there: Sequence[tuple[str, str]]) -> str:
    """Return words on the tables whose names are near one that there is not.

    Args:
        asked: as the statement has it, with a schema or without.
        there: (schema, name) of each table.
    """
    bare = asked.rpartition(".")[2].casefold()
    same = [(schema, name) for schema, name in there if name.casefold() == bare]
    if not same:
        near = nearest(bare, [name for _, name in there])
        same = [(schema, name) for schema, name in there if name == near]
    names = [shown_name(f"{_quoted(schema)}.{_quoted(name)}") for schema, name in sorted(same)]
    return f"\ndid you mean {' or '.join(names[:_MOST_NEAR])}?" if names else ""


def _quoted(name: str) -> str:
    """Return a name as a statement has it: quoted where it has to be."""
    escaped = name.replace('"', '""')
    return name if _PLAIN.fullmatch(name) else f'"{escaped}"'


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
            ThreadPoolExecutor(2) as threads,
        ):
            reading = threads.submit(_duckdb_rows, connection, query)
            left = threading.Event()
            ends_at = time.monotonic() + query.timeout_s
            threads.submit(
                _interrupt_if,
                lambda: bool(interrupts) or left.is_set() or time.monotonic() > ends_at,
                connection,
                reading,
            )
            try:
                return reading.result()
            except duckdb.CatalogException as error:
                raise _duckdb_refusal(where, connection, error) from error
            finally:
                left.set()
    except duckdb.InterruptException as error:
        raise _too_long(where, query) from error
    except duckdb.IOException as error:
        raise sorted_error(duck_error(error), name) from error
    except duckdb.Error as error:
        raise InputError(f"{where} refused the statement: {str(error).strip()}") from error


def _duckdb_refusal(where: str, connection: Any, error: Exception) -> InputError:
    """Return the error of a statement that names what the file does not have."""
    said = f"{where} refused the statement: {str(error).strip()}"
    asked = _DUCKDB_TABLE.search(str(error))
    if asked is None:
        return InputError(said)
    found = connection.execute("SELECT schema_name, table_name FROM duckdb_tables()").fetchall()
    return TableMissingError(said, asked.group(1), [(str(row[0]), str(row[1])) for row in found])


def _interrupt_if(asked: Callable[[], bool], connection: Any, reading: Future[Any]) -> None:
    """Have DuckDB end a statement once that is asked, until it has ended.

    In a thread of its own: a handler of signals may raise wherever the caller waits.
    """
    while not reading.done():
        wait([reading], _AGAIN_S)
        if asked():  # it does not hear each of them
            connection.interrupt()


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
