"""A table in a lake behind SQL: what ClickHouse's and Databricks's have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from waybill.destinations.drivers import Form, read_address
from waybill.destinations.per_table.destination import LakeDestination
from waybill.destinations.per_table.table import (
    FILE,
    Bounds,
    ConflictError,
    LakeTable,
    ShapePlan,
)
from waybill.errors import WaybillError

if TYPE_CHECKING:
    from waybill.settings import DestinationSettings


class SqlLakeSession(ABC):
    """A session; it raises what its engine says as Waybill's errors. Experimental.

    Args:
        name: the destination's name.
        settings: dsn and options.

    Raises:
        InputError: the dsn cannot be used.
    """

    form: Form
    """Of the engine's dsn."""

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        self.name = name
        self.address = read_address(name, settings, self.form)
        self.has_books = False
        """Waybill's own tables were made, or found, in this session."""

    @abstractmethod
    def execute(self, statement: str) -> None:
        """Run a statement that has no rows."""

    @abstractmethod
    def query(self, statement: str) -> pa.Table:
        """Run a query and return its rows; texts are strings."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class LakeSql:
    """How an engine spells what these tables have in common."""

    quoted: Callable[[str], str]
    """An identifier."""
    literal: Callable[[str], str]
    """A text."""
    day: str
    """A day; ``{}`` is its ISO text."""
    count: str
    """The number of rows."""
    create_books: Sequence[str]
    loads: str
    """The table of loads, qualified."""

    def within(self, bounds: Bounds) -> str:
        """Return the WHERE clause that keeps to bounds."""
        parts = [
            f"{self.quoted(name)} BETWEEN {self._bound(low)} AND {self._bound(high)}"
            for name, (low, high) in bounds.items()
        ]
        return f" WHERE {' AND '.join(parts)}" if parts else ""

    def _bound(self, value: Any) -> str:
        if isinstance(value, str):
            return self.literal(value)
        return self.day.format(value.isoformat()) if isinstance(value, date) else str(value)


class SqlLakeTable(ABC):
    """One table: see ``LakeTable``. Experimental.

    Args:
        session: with the server.
        schema_name: of the table.
        name: of the table.
    """

    sql: LakeSql

    def __init__(self, session: SqlLakeSession, schema_name: str, name: str) -> None:
        self.session = session
        self.schema_name = schema_name
        self.name = name
        self._fields: pa.Schema | None = None

    @property
    def place(self) -> str:
        """Return its qualified name."""
        return f"{self.sql.quoted(self.schema_name)}.{self.sql.quoted(self.name)}"

    @property
    def _rows(self) -> str:
        """Return what its rows are selected from."""
        return self.place

    @abstractmethod
    def _creation(self, schema: pa.Schema, partitions: Sequence[str]) -> list[str]:
        """Return the statements that make its schema and the table."""

    @abstractmethod
    def _alterations(self, plan: ShapePlan) -> list[str]:
        """Return the statements that bring its columns to a plan."""

    def fields(self) -> pa.Schema:
        """Return its columns."""
        if self._fields is None:
            raise ConflictError(f"{self.place} was not read yet")
        return self._fields

    def count(self) -> int:
        """Return how many rows it has."""
        rows = self.session.query(f"SELECT {self.sql.count} AS n FROM {self._rows}")
        return int(rows["n"][0].as_py())

    def scan(self, columns: Sequence[str], bounds: Bounds) -> pa.RecordBatchReader:
        """Read columns of rows within the bounds; all lie in file 0."""
        names = ", ".join(self.sql.quoted(name) for name in columns)
        rows = self.session.query(f"SELECT {names} FROM {self._rows}{self.sql.within(bounds)}")
        fields = [pa.field(name, self.fields().field(name).type) for name in columns]
        arrays = [rows[f.name].cast(f.type) for f in fields]
        files = pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows)
        schema = pa.schema([*fields, pa.field(FILE, pa.int32())])
        return pa.table([*arrays, files], schema=schema).to_reader()

    def replace(self, column: str, value: str, rows: pa.Table) -> None:
        """Refuse: nothing here tells whether others wrote meanwhile, and theirs would be lost."""
        del column, value, rows
        raise ConflictError(f"rows of {self.place} are not replaced")

    def create(self, schema: pa.Schema, *, partitions: Sequence[str] = ()) -> None:
        """Make the table, and Waybill's own; one with partitions is only ever appended to."""
        statements = self._creation(schema, partitions)
        self._make_books()
        for statement in statements:
            self.session.execute(statement)

    def alter(self, plan: ShapePlan) -> None:
        """Bring its columns to a plan."""
        for statement in self._alterations(plan):
            self.session.execute(statement)

    def drop(self) -> None:
        """Remove the table, and its lines in the books."""
        self._drop_table()
        place = self.sql.literal(self.place)
        self.session.execute(f"DELETE FROM {self.sql.loads} WHERE place = {place}")

    def _drop_table(self) -> None:
        self.session.execute(f"DROP TABLE IF EXISTS {self.place}")

    def _make_books(self) -> None:
        if not self.session.has_books:
            for statement in self.sql.create_books:
                self.session.execute(statement)
            self.session.has_books = True


@dataclass(frozen=True, slots=True)
class SqlLake:
    """One server, or catalog: see ``Lake``."""

    session: SqlLakeSession
    open_table: Callable[[str, str], LakeTable]
    """Opens a table, there or not, by schema and name."""

    def table(self, schema_name: str, name: str) -> LakeTable:
        """Return a table that may be there or not."""
        return self.open_table(schema_name, name)

    def check(self) -> None:
        """See whether it answers."""
        self.session.query("SELECT 1 AS answer")

    def close(self) -> None:
        """Let go of the connection."""
        self.session.close()


class SqlLakeDestination(LakeDestination):
    """A lake behind SQL, whose session sorts its driver's errors itself."""

    def __init__(self, name: str, lake: SqlLake) -> None:
        super().__init__(name, lake, _unsorted)


def _unsorted(_error: Exception) -> WaybillError | None:
    return None
