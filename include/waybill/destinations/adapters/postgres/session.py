"""One session: connects when needed, is thrown away after any error, keeps no state on the server.

The driver runs with autocommit, transactions are opened in SQL: in its own transactions the driver
cannot roll back to a savepoint. Every setting is local to the transaction, so poolers are no trap.

Errors: SQLSTATE to what the caller must do. What no rule names stops: better than to guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from waybill.destinations.transactional.session import RevertingSession, SqlError, shortened
from waybill.errors import InputError, RetryError, StopError, WaybillError

if TYPE_CHECKING:
    import pyarrow as pa
    from adbc_driver_manager import Error

_REFUSED_CODES = {
    "23505": "destination_unique_violation",
    "23P01": "destination_unique_violation",  # exclusion constraint
    "23503": "destination_foreign_key_violation",
    "23001": "destination_foreign_key_violation",  # ON DELETE RESTRICT
    "23514": "destination_check_violation",
    "23502": "destination_not_null_violation",
    "44000": "destination_check_violation",  # a view's CHECK OPTION
    "P0001": "destination_check_violation",  # a trigger's RAISE EXCEPTION
    "54000": "destination_value_refused",  # an index entry that is too large
}
_REFUSED_CLASSES = {"22": "destination_value_refused", "23": "destination_check_violation"}
_RETRY_CLASSES = ("08", "40", "53", "57", "58")
_RETRY_CODES = {
    "55P03": "another load holds a lock for too long",
    "55006": "an object is in use",
    "42P01": "a table is gone; it is looked for again",
    "42703": "a column is gone; it is looked for again",
    "3F000": "a schema is gone; it is looked for again",
    "25P03": "the transaction was idle for too long",
    "25P04": "the transaction took too long",
    "25006": "the server takes no writes now",
}
_PARKED_UNDER = {
    "53100": "destination_full",
    "53": "destination_throttled",
    "55P03": "destination_timeout",
    "57014": "destination_timeout",
    "25P03": "destination_timeout",
    "25P04": "destination_timeout",
}
"""What rows park under when nobody waits for it; all others: it did not answer."""
_ADVICE = {
    "28": "check user and password in the destination's dsn",
    "3D": "create the database, or correct the destination's dsn",
    "42501": "grant the right to the destination's user: CREATE on the database, and on the tables "
    "and schemas of the mappings USAGE, SELECT, INSERT, UPDATE, DELETE",
}
_CONFIGURATION_WORDS = (
    ("does not exist", "create it, or correct the destination's dsn"),
    ("authentication failed", "check user and password in the destination's dsn"),
    ("no password supplied", "add the password to the destination's dsn"),
    ("pg_hba.conf", "let the server's pg_hba.conf admit this host and user"),
    ("permission denied", "grant CONNECT on the database to the destination's user"),
    ("is not permitted to log in", "grant LOGIN to the destination's user"),
    ("certificate", "check sslmode and the certificates in the destination's dsn"),
    ("does not support ssl", "check sslmode in the destination's dsn"),
)


class PostgresError(SqlError):
    """What the server, or the way to it, said.

    Args:
        message: the primary message.
        sqlstate: five characters; None when it came from no server.
        detail: the server's detail; holds values of the row.
    """

    def __init__(self, message: str, sqlstate: str | None = None, detail: str = "") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.detail = detail

    @property
    def refused_code(self) -> str | None:
        """Return the error type when a row is at fault, else None."""
        if self.sqlstate is None:
            return None
        by_class = _REFUSED_CLASSES.get(self.sqlstate[:2])
        return _REFUSED_CODES.get(self.sqlstate, by_class)

    @property
    def words(self) -> str:
        """Return the message for people, with the keys that clash where keys clash."""
        shows_keys = self.sqlstate in ("23505", "23503", "23P01")
        text = f"{self.message}: {self.detail}" if shows_keys and self.detail else self.message
        return shortened(text)


def sql_error(error: Error) -> PostgresError:
    """Return the driver's error as ours."""
    details = {
        key if isinstance(key, str) else key.decode(): value for key, value in error.details or ()
    }

    def text(name: str) -> str:
        value = details.get(name, b"")
        return value if isinstance(value, str) else value.decode(errors="replace")

    message = text("PG_DIAG_MESSAGE_PRIMARY") or _first_lines(str(error))
    return PostgresError(message, error.sqlstate, text("PG_DIAG_MESSAGE_DETAIL"))


def _first_lines(text: str) -> str:
    return " ".join(text.partition("\n\nQuery was")[0].split())


def sorted_error(error: SqlError, destination: str) -> WaybillError:
    """Return the error to raise: RetryError, InputError or StopError, in words."""
    code = error.sqlstate if isinstance(error, PostgresError) else None
    where = f"destination {destination!r}"
    if code is None:
        return _connection_error(error, where)
    if code in _RETRY_CODES:
        message = f"{where}: {_RETRY_CODES[code]}: {error.words} ({code})"
        return RetryError(message, code=_parked_under(code))
    if code[:2] in _RETRY_CLASSES:
        message = f"{where} cannot take the load now: {error.words} ({code})"
        return RetryError(message, code=_parked_under(code))
    if code == "54011":
        message = f"{where}: {error.words} ({code}); declare tables of at most 800 columns"
        return InputError(message, code="destination_schema_conflict")
    advice = _ADVICE.get(code) or _ADVICE.get(code[:2])
    if advice is not None:
        message = f"{where}: {error.words} ({code}); {advice}"
        return InputError(message, code="destination_unauthorized")
    return StopError(f"{where}: {error.words} ({code})")


def _parked_under(sqlstate: str) -> str:
    by_class = _PARKED_UNDER.get(sqlstate[:2], "destination_unreachable")
    return _PARKED_UNDER.get(sqlstate, by_class)


def _connection_error(error: SqlError, where: str) -> WaybillError:
    if "Failed to connect" in error.message:
        for phrase, advice in _CONFIGURATION_WORDS:
            if phrase in error.message.lower():
                opened = f"{where} cannot be opened: {error.words}; {advice}"
                return InputError(opened, code="destination_unauthorized")
    return RetryError(f"{where} did not answer: {error.words}", code="destination_unreachable")


_CONNECT_TIMEOUT_S = 10
LIMITS = {
    "connect_timeout": str(_CONNECT_TIMEOUT_S),
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""libpq's parameters by which a server that is gone is noticed, unless a DSN has others."""
_IDLE_LIMIT = "2min"
"""A loader that is frozen in mid-load loses its transaction after this; others may go on."""
_LOCK_LIMIT = "3min"
_UNDONE_LIMITS = {
    "lock_timeout": "5s",
    "statement_timeout": "20s",
    "idle_in_transaction_session_timeout": "20s",
}
"""Of a dry run. Who waits for a table's lock, or holds it, has others wait behind: no dry run is
worth that, and one that its process left, or that is frozen, ends after this."""
_STATEMENT_LIMIT = "30min"
_SETTINGS = {
    "TimeZone": "'UTC'",
    "lock_timeout": f"'{_LOCK_LIMIT}'",
    "idle_in_transaction_session_timeout": f"'{_IDLE_LIMIT}'",
    "statement_timeout": f"'{_STATEMENT_LIMIT}'",
    "bytea_output": "'hex'",
    "extra_float_digits": "'1'",
    "standard_conforming_strings": "'on'",
    "jit": "'off'",
    # an acknowledged load must outlive the server's crash
    "synchronous_commit": "replace(current_setting('synchronous_commit'), 'off', 'on')",
    "work_mem": "pg_size_bytes(current_setting('work_mem')) / 1024",
}
_MIN_WORK_MEM_KB = 64 * 1024
_OPENING = "SELECT " + ", ".join(
    f"set_config('{name}', {value}, true)"
    for name, value in (
        _SETTINGS | {"work_mem": f"greatest({_SETTINGS['work_mem']}, {_MIN_WORK_MEM_KB})::text"}
    ).items()
)
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_SAVEPOINT = "waybill_try"
_TRIAL = "waybill_trial"


class PostgresSession(RevertingSession):
    """A connection to one destination.

    Args:
        dsn: libpq URL or key=value text.
        name: the destination's name, for messages and for ``pg_stat_activity``.

    Raises:
        InputError: the dsn cannot be read.
    """

    def __init__(self, dsn: str, name: str) -> None:
        self._conninfo = _conninfo(dsn, name)
        self._name = name
        self._connection: Any = None

    def held(self) -> AbstractContextManager[None]:
        """Do nothing: a connection is kept until an error."""
        return nullcontext()

    def execute(self, statement: str, parameters: tuple[int, ...] | None = None) -> int:
        """Run a statement; return the count of rows it changed (-1: not known)."""
        with self._cursor() as cursor:
            cursor.execute(statement, parameters)
            return int(cursor.rowcount)

    def query(self, statement: str) -> pa.Table:
        """Run a query and return its rows."""
        with self._cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetch_arrow_table()

    def append(self, table: str, rows: pa.Table) -> None:
        """COPY rows into a temporary table, columns by name; Arrow types must be the columns'."""
        with self._cursor() as cursor:
            cursor.adbc_ingest(table, rows, mode="append", temporary=True)

    def attempt(self, action: Callable[[], object]) -> SqlError | None:
        """Run under a savepoint; return the error when a row is at fault, undone.

        Raises:
            SqlError: any other error.
        """
        self.execute(f"SAVEPOINT {_SAVEPOINT}")
        try:
            action()
        except SqlError as error:
            if error.refused_code is None:
                raise
            self.execute(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            self.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")
            return error
        self.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        return None

    def keep_if(self, action: Callable[[], bool]) -> bool:
        """Run under a savepoint; undo it and return False if it says so, or a row is at fault.

        Raises:
            SqlError: any other error.
        """
        kept = False

        def run() -> None:
            nonlocal kept
            self.execute(f"SAVEPOINT {_TRIAL}")
            kept = action()
            if not kept:
                self.execute(f"ROLLBACK TO SAVEPOINT {_TRIAL}")

        return self.attempt(run) is None and kept

    def close(self) -> None:
        """Close the connection, whatever state it is in."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _begin(self) -> None:
        """Begin a transaction; a connection that died since the last one is made anew."""
        reused = self._connection is not None
        try:
            if not reused:
                self._connect()
            self.execute(_BEGIN)
        except SqlError:
            if not reused:
                raise
            self.close()
            self._connect()
            self.execute(_BEGIN)
        self.query(_OPENING)

    def _limit_trial(self) -> None:
        for name, limit in _UNDONE_LIMITS.items():
            self.execute(f"SET LOCAL {name} = '{limit}'")

    def _drop(self) -> None:
        self.close()

    def _sorted(self, error: SqlError) -> WaybillError:
        return sorted_error(error, self._name)

    def _connect(self) -> None:
        from adbc_driver_manager import Error
        from adbc_driver_postgresql import dbapi

        try:
            self._connection = dbapi.connect(self._conninfo, autocommit=True)
        except Error as error:
            raise sql_error(error) from error

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        from adbc_driver_manager import Error

        try:
            with self._connection.cursor() as cursor:
                yield cursor
        except Error as error:
            raise sql_error(error) from error


def _conninfo(dsn: str, name: str) -> str:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        given = conninfo_to_dict(dsn)
    except psycopg.Error:  # its words would show the password
        raise InputError(
            f"destination {name!r}: its dsn cannot be read; it must look like "
            "postgresql://user:password@host:5432/database"
        ) from None
    missing = {key: value for key, value in LIMITS.items() if key not in given}
    missing.setdefault("application_name", f"waybill loading {name}"[:63])
    return make_conninfo(dsn, **{**missing, "client_encoding": "UTF8"})
