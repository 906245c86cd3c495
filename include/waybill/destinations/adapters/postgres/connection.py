"""One session: connects when needed, is thrown away after any error, keeps no state on the server.

The driver runs with autocommit, transactions are opened in SQL: in its own transactions the driver
cannot roll back to a savepoint. Every setting is local to the transaction, so poolers are no trap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from waybill.destinations.adapters.postgres.errors import sorted_error, sql_error
from waybill.destinations.transactional.session import SqlError
from waybill.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

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


class PostgresSession:
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

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction; on any error the connection is dropped, and the server rolls back.

        Raises:
            RetryError, InputError, StopError: as the server's error says.
        """
        try:
            self._begin()
            self.query(_OPENING)
            yield
            self.execute("COMMIT")
        except SqlError as error:
            self.close()
            raise sorted_error(error, self._name) from error
        except BaseException:
            self.close()
            raise

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
