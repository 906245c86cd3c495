"""The file: held while a load runs and no longer, so that readers get in between.

Within a process one destination at a time holds a file; between processes DuckDB's own lock on the
file says who does. A file that another process holds is waited for by the caller: RetryError.

Errors: DuckDB's exceptions to what the caller must do. What no rule names stops.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waybill.destinations.merging import literal, quoted
from waybill.destinations.transactional.session import RevertingSession, SqlError
from waybill.errors import InputError, RetryError, StopError, WaybillError

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import Error

_REFUSED = (
    ("ConstraintException", "not null", "destination_not_null_violation"),
    ("ConstraintException", "check", "destination_check_violation"),
    ("ConstraintException", "foreign key", "destination_foreign_key_violation"),
    ("ConstraintException", "", "destination_unique_violation"),
    ("ConversionException", "", "destination_value_refused"),
    ("OutOfRangeException", "", "destination_value_refused"),
    ("InvalidInputException", "json", "destination_value_refused"),
)
"""Kind of exception, words in it, error type; the first that fits counts."""
_FULL = re.compile(
    r"no space left|disk quota|file too large|could not write|failed to offload|"
    r"max_temp_directory_size",
    re.IGNORECASE,
)
_FULL_KINDS = ("IOException", "OutOfMemoryException", "FatalException", "TransactionException")
"""Other kinds show values of rows."""
_RETRY = (
    ("IOException", "could not set lock", "another process holds the file"),
    ("TransactionException", "", "another transaction was at the same rows"),
    ("CatalogException", "does not exist", "a table is gone; it is looked for again"),
    ("BinderException", "column", "a column is gone; it is looked for again"),
    ("FatalException", "", "the file is opened anew"),
)
_ADVICE = (
    ("IOException", "no such file or directory", "make the folder, or correct the dsn: a file"),
    ("IOException", "not a valid duckdb", "give the destination a file of its own in its dsn"),
    ("IOException", "is a directory", "let the dsn name a file"),
    ("IOException", "permission denied", "let this user write the file and its folder"),
    ("IOException", "read-only", "let this user write the file and its folder"),
    (
        "SerializationException",
        "",
        "another version of DuckDB made the file: export, import",
    ),
    ("OutOfMemoryException", "", "raise the option memory_limit, or lower max_rows"),
    ("ParserException", "memory", "correct the option memory_limit, such as 1GB"),
    ("InvalidInputException", "failed to cast value", "correct the option threads: a number"),
)


class DuckError(SqlError):
    """What DuckDB said.

    Args:
        message: its words.
        kind: the name of its exception.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message, _code(kind, message))
        self.kind = kind

    @property
    def full(self) -> bool:
        """Say whether there is no room: on the disk, or within a limit of it."""
        return self.kind in _FULL_KINDS and _FULL.search(self.message) is not None


def duck_error(error: Error) -> DuckError:
    """Return an exception of DuckDB's as ours."""
    text = str(error).partition("\n")[0].partition(" See also")[0]
    return DuckError(text, type(error).__name__)


def sorted_error(error: SqlError, destination: str) -> WaybillError:
    """Return the error to raise: RetryError, InputError or StopError, in words."""
    where = f"destination {destination!r}"
    kind = error.kind if isinstance(error, DuckError) else ""
    if isinstance(error, DuckError) and error.full:
        return RetryError(f"{where}: the disk is full, or a limit is reached: {error.words}")
    message = error.message.lower()
    for name, phrase, advice in _ADVICE:
        if kind == name and phrase in message:
            return InputError(f"{where}: {error.words}; {advice}")
    for name, phrase, meaning in _RETRY:
        if kind == name and phrase in message:
            return RetryError(f"{where}: {meaning}: {error.words}")
    return StopError(f"{where}: {error.words}")


def _code(kind: str, message: str) -> str | None:
    text = message.lower()
    return next((code for name, phrase, code in _REFUSED if kind == name and phrase in text), None)


_LONGEST_WAIT_S = 180.0
_OPTIONS = {"memory_limit": "640MB", "threads": "", "temp_directory": ""}
"""Options with their defaults; empty: DuckDB's own (all cores; a folder beside the file)."""
_CATALOG = "_waybill_file"
"""What the file is called inside: by its own name it could be mistaken for a schema."""
_LOCKS: dict[Path, threading.Lock] = {}


class DuckSession(RevertingSession):
    """A connection to one file.

    Args:
        path: the file; made when it is missing, in a folder that is there.
        name: the destination's name, for messages.
        options: memory_limit ("1GB"), threads, temp_directory.

    Raises:
        InputError: an option that there is not, or a path that is none.
    """

    def __init__(self, path: str, name: str, options: Mapping[str, str]) -> None:
        unknown = sorted(options.keys() - _OPTIONS.keys())
        if unknown:
            raise InputError(
                f"destination {name!r}: found option {unknown[0]!r}, expected some of "
                f"{', '.join(_OPTIONS)}"
            )
        if not path or path.startswith((":", "md:")) or "\0" in path:
            raise InputError(
                f"destination {name!r}: its dsn must be a file, such as /data/warehouse.duckdb"
            )
        self._path, self._name = Path(path).resolve(), name
        given = {key: value for key, value in {**_OPTIONS, **options}.items() if value}
        self._options = {**given, "preserve_insertion_order": "false"}  # a third of the memory
        self._lock = _LOCKS.setdefault(self._path, threading.Lock())
        self._depth = 0
        self._connection: Any = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the file.

        Raises:
            RetryError: another process, or thread, holds it.
        """
        if self._depth == 0:
            self._take()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._let_go()

    @property
    def path(self) -> Path:
        """Return where the file is."""
        return self._path

    def restart(self) -> None:
        """Roll the transaction back and begin it anew."""
        self.execute("ROLLBACK")
        self.execute("BEGIN")

    def execute(self, statement: str) -> int:
        """Run a statement; return the count of rows it changed (-1: not known)."""
        import duckdb

        try:
            done = self._connection.execute(statement)
            row = done.fetchone() if done.description[0][0] == "Count" else None
            return -1 if row is None else int(row[0])
        except duckdb.Error as error:
            raise duck_error(error) from error

    def query(self, statement: str) -> pa.Table:
        """Run a query and return its rows."""
        import duckdb

        try:
            return self._connection.execute(statement).to_arrow_table()
        except duckdb.Error as error:
            raise duck_error(error) from error

    def append(self, table: str, rows: pa.Table) -> None:
        """Insert rows, columns by name."""
        self.register("waybill_appended", rows)
        self.execute(f"INSERT INTO {quoted(table)} BY NAME SELECT * FROM waybill_appended")

    def register(self, name: str, rows: pa.Table) -> None:
        """Let rows be read as a table of this name; they are not copied."""
        import duckdb

        try:
            self._connection.register(name, rows)
        except duckdb.Error as error:
            raise duck_error(error) from error

    def close(self) -> None:
        """Do nothing: the file is held only in calls."""

    def _take(self) -> None:
        if not self._lock.acquire(timeout=_LONGEST_WAIT_S):
            raise RetryError(f"destination {self._name!r}: another load holds {self._path}")

    def _let_go(self) -> None:
        try:
            self._drop()
        finally:
            self._lock.release()

    def _begin(self) -> None:
        if self._connection is None:
            self._open()
        self.execute("BEGIN")

    def _limit_trial(self) -> None:
        """Nobody else waits within it: the file is this session's."""

    def _open(self) -> None:
        import duckdb

        try:
            spill = {"temp_directory": f"{self._path}.tmp"}
            self._connection = duckdb.connect(":memory:", config=spill | self._options)
            self._connection.execute("SET TimeZone = 'UTC'")
            self._connection.execute(f"ATTACH {literal(str(self._path))} AS {_CATALOG}")
            self._connection.execute(f"USE {_CATALOG}")
        except duckdb.Error as error:
            raise duck_error(error) from error

    def _drop(self) -> None:
        """Close the file; what was not committed is gone."""
        import duckdb

        connection, self._connection = self._connection, None
        if connection is not None:
            # a checkpoint that finds no room fails here: the log holds all that is committed
            with suppress(duckdb.Error):
                connection.close()

    def _sorted(self, error: SqlError) -> WaybillError:
        return sorted_error(error, self._name)
