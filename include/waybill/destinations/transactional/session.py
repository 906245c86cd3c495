"""What a connection must do, what an error of the engine says, and sessions with a warehouse.

A ``Session`` takes statements as Waybill defines them. PostgreSQL and DuckDB read these as they
are; a ``WarehouseSession`` renders them in its engine's dialect.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from waybill.destinations.drivers import Form, WarehouseError, read_address

if TYPE_CHECKING:
    import pyarrow as pa

    from waybill.destinations.transactional.dialect import Dialect
    from waybill.settings import DestinationSettings

_LOG = logging.getLogger(__name__)
_SHOWN_CHARACTERS = 500

Columns = Sequence[tuple[str, str]]
"""Names and column types."""


class SqlError(Exception):
    """What the engine, or the way to it, said.

    Args:
        message: in the engine's words.
        refused_code: the error type when a row is at fault, else None.
    """

    def __init__(self, message: str, refused_code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self._refused_code = refused_code

    @property
    def refused_code(self) -> str | None:
        """Return the error type when a row is at fault, else None."""
        return self._refused_code

    @property
    def words(self) -> str:
        """Return the message for people, not too long."""
        return shortened(self.message)


Refused = dict[int, SqlError]
"""Ordinal to what the engine said."""


def shortened(text: str) -> str:
    """Return a text of a length that may be shown."""
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


class Session(Protocol):
    """A connection to one destination; connects when needed."""

    def held(self) -> AbstractContextManager[None]:
        """Keep the connection for several transactions; what it costs to connect is paid once."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """One transaction; on any error nothing of it is there.

        Raises:
            RetryError, InputError, StopError: as the engine's error says.
        """
        ...

    def execute(self, statement: str) -> int:
        """Run a statement; return the count of rows it changed (-1: not known).

        Raises:
            SqlError: the engine refuses it.
        """
        ...

    def query(self, statement: str) -> pa.Table:
        """Run a query and return its rows.

        Raises:
            SqlError: the engine refuses it.
        """
        ...

    def close(self) -> None:
        """Close the connection, whatever state it is in."""
        ...


class RevertingSession(ABC):
    """A ``Session`` with an engine that rolls definitions of tables back too."""

    _is_undone = False
    """All is within a transaction that will be rolled back."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction; on any error the connection is dropped, and nothing of it is there.

        Raises:
            RetryError, InputError, StopError: as the engine's error says.
        """
        if self._is_undone:
            with self._translating():
                yield
            return
        with self.held(), self._translating():
            try:
                self._begin()
                yield
                self.execute("COMMIT")
            except BaseException:
                self._drop()
                raise

    @contextmanager
    def rolled_back(self) -> Iterator[None]:
        """One transaction that is rolled back at its end; transactions within are parts of it.

        Raises:
            RetryError, InputError, StopError: as the engine's error says.
        """
        with self.held(), self._translating():
            try:
                self._begin()
                self._limit_trial()
                self._is_undone = True
                yield
            finally:
                self._is_undone = False
                self._drop()

    @contextmanager
    def _translating(self) -> Iterator[None]:
        """Raise what the engine says as Waybill's errors."""
        try:
            yield
        except SqlError as error:
            raise self._sorted(error) from error

    @abstractmethod
    def held(self) -> AbstractContextManager[None]:
        """Keep the connection for several transactions; what it costs to connect is paid once."""

    @abstractmethod
    def execute(self, statement: str) -> int:
        """Run a statement; return the count of rows it changed (-1: not known).

        Raises:
            SqlError: the engine refuses it.
        """

    @abstractmethod
    def query(self, statement: str) -> pa.Table:
        """Run a query and return its rows.

        Raises:
            SqlError: the engine refuses it.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection, whatever state it is in."""

    @abstractmethod
    def _begin(self) -> None:
        """Connect where needed, and begin a transaction."""

    @abstractmethod
    def _limit_trial(self) -> None:
        """Keep a transaction that will be rolled back from waiting, or being waited for, long."""

    @abstractmethod
    def _drop(self) -> None:
        """Close the connection; what was not committed is gone."""

    @abstractmethod
    def _sorted(self, error: SqlError) -> Exception:
        """Return what an error means to the caller."""


class WarehouseSession(ABC):
    """A ``Session`` with one warehouse: connects when needed, is thrown away after any error.

    ``execute`` and ``query`` take statements of Waybill's definition, ``execute_native`` and
    ``query_native`` those of the engine.

    Args:
        name: the destination's name, for messages.
        settings: dsn and options.

    Raises:
        InputError: the dsn cannot be used.
    """

    dialect: Dialect
    form: Form
    """Of the engine's dsn."""
    begin = "BEGIN TRANSACTION"

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        self.name = name
        self.address = read_address(name, settings, self.form)
        self.connection: Any = None

    @abstractmethod
    def connect(self) -> Any:
        """Open the driver's connection."""

    @abstractmethod
    def run(self, statement: str) -> tuple[pa.Table | None, int]:
        """Run one statement: its rows, and the count of rows it changed (-1: not known)."""

    @abstractmethod
    def translated(self, error: BaseException) -> WarehouseError | None:
        """Return a driver's error as ours; None: it is none of the driver's."""

    @abstractmethod
    def stage(self, wanted: str, columns: Columns, rows: pa.Table) -> str:
        """Make a working table and fill it in bulk, outside of any transaction.

        Args:
            wanted: a name that nobody else has.
            columns: the table's.
            rows: with these columns, in this order.

        Returns:
            The table's name: the one wanted, or another.
        """

    @abstractmethod
    def lock(self) -> None:
        """Wait until no other load is at work, or fail as one to be tried again."""

    def settle(self) -> None:  # noqa: B027 - most engines are set when they are connected to
        """Set a new connection's settings."""

    def execute_native(self, statement: str) -> int:
        """Run a statement; return the count of rows it changed (-1: not known)."""
        return self._answer(statement)[1]

    def query_native(self, statement: str) -> pa.Table:
        """Run a query and return its rows."""
        rows, _ = self._answer(statement)
        if rows is None:
            raise WarehouseError(f"no rows came for: {statement[:200]}")
        return rows

    def execute(self, statement: str) -> int:
        """Run a statement; return the count of rows that the last of its native ones changed."""
        changed = -1
        for native in self.dialect.rendered(statement):
            changed = self.execute_native(native)
        return changed

    def query(self, statement: str) -> pa.Table:
        """Run a query and return its rows."""
        [native] = self.dialect.rendered(statement)
        return self.query_native(native)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep a connection that answers; see ``speaking`` for errors."""
        with self.speaking():
            self.refresh()
            yield

    def refresh(self) -> None:
        """Make sure of a connection: one that died since it was last used is made anew."""
        if self.connection is None:
            self._open()
            return
        try:
            self.query_native("SELECT 1 AS answer")
        except WarehouseError as error:
            if not error.away:
                raise
            self.close()
            self._open()

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Raise what the warehouse says as Waybill's errors; after any the connection is closed.

        Raises:
            RetryError, InputError, StopError: as the engine's error says.
        """
        try:
            yield
        except WarehouseError as error:
            self.close()
            raise self.dialect.errors.sorted(error, self.name) from error
        except BaseException:
            self.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction, within ``held``; on any error it is rolled back."""
        self.execute_native(self.begin)
        try:
            yield
        except BaseException:
            self.abandon()
            raise
        self.execute_native("COMMIT")

    def abandon(self) -> None:
        """Roll back, as far as the connection lives; without one the engine does it by itself."""
        try:
            self.execute_native("ROLLBACK")
        except WarehouseError as error:
            _LOG.warning("destination %r: not rolled back by hand: %s", self.name, error.words)

    def close(self) -> None:
        """Close the connection, whatever state it is in."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        try:
            connection.close()
        except Exception as error:
            if self.translated(error) is None:
                raise
            _LOG.warning("destination %r: closing its connection: %s", self.name, error)

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Raise the driver's errors as ours."""
        try:
            yield
        except Exception as error:
            ours = self.translated(error)
            if ours is None:
                raise
            raise ours from error

    def _open(self) -> None:
        with self.translating():
            self.connection = self.connect()
        self.settle()

    def _answer(self, statement: str) -> tuple[pa.Table | None, int]:
        with self.translating():
            return self.run(statement)
