"""One session with a warehouse: connects when needed, is thrown away after any error."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from waybill.destinations.drivers import WarehouseError

if TYPE_CHECKING:
    import pyarrow as pa

    from waybill.destinations.transactional import session as sql
    from waybill.destinations.transactional.staged.dialect import Dialect

_LOG = logging.getLogger(__name__)

Columns = Sequence[tuple[str, str]]
"""Names and column types."""


class WarehouseSession(ABC):
    """A connection to one warehouse.

    Args:
        dialect: of the engine.
        name: the destination's name, for messages.
    """

    begin = "BEGIN TRANSACTION"

    def __init__(self, dialect: Dialect, name: str) -> None:
        self.dialect = dialect
        self.name = name
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

    def execute(self, statement: str) -> int:
        """Run a statement; return the count of rows it changed (-1: not known)."""
        return self._told(statement)[1]

    def query(self, statement: str) -> pa.Table:
        """Run a query and return its rows."""
        rows, _ = self._told(statement)
        if rows is None:
            raise WarehouseError(f"no rows came for: {statement[:200]}")
        return rows

    def perform(self, text: str) -> int:
        """Run a statement of Waybill's definition; return what ``execute`` does of the last."""
        changed = -1
        for statement in self.dialect.rendered(text):
            changed = self.execute(statement)
        return changed

    def ask(self, text: str) -> pa.Table:
        """Run a query of Waybill's definition."""
        [statement] = self.dialect.rendered(text)
        return self.query(statement)

    @property
    def defined(self) -> sql.Session:
        """Return it as the room of SQL engines asks sessions: for queries alone."""
        return cast("sql.Session", Defined(self))

    def refresh(self) -> None:
        """Make sure of a connection: one that died since it was last used is made anew."""
        if self.connection is None:
            self._open()
            return
        try:
            self.query("SELECT 1 AS answer")
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
        """One transaction, within ``speaking``; on any error it is rolled back."""
        self.execute(self.begin)
        try:
            yield
        except BaseException:
            self.abandon()
            raise
        self.execute("COMMIT")

    def abandon(self) -> None:
        """Roll back, as far as the connection lives; without one the engine does it by itself."""
        try:
            self.execute("ROLLBACK")
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

    def _told(self, statement: str) -> tuple[pa.Table | None, int]:
        with self.translating():
            return self.run(statement)


@dataclass(frozen=True, slots=True)
class Defined:
    """A session that is told statements of Waybill's definition."""

    session: WarehouseSession

    def query(self, statement: str) -> pa.Table:
        """Run a query and return its rows."""
        return self.session.ask(statement)
