"""Warehouses that the contract of destinations is tested on: one kind a destination.

A kind is added by a class with what ``Warehouse`` says and a line in ``MAKERS``. What a warehouse
shows of its tables it reads by itself, never through the destination that is under test.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from tests.support.lake_warehouses import delta_folder, iceberg_folder
from tests.unit.destinations.orders import clean_database

from waybill.destinations import Destination, open_destination
from waybill.pipelines import TableSpec
from waybill.settings import DestinationSettings, S3Settings

Row = dict[str, Any]


class Warehouse(Protocol):
    """One empty warehouse; what is asked of it is what its other users would see."""

    kind: str
    settings: DestinationSettings
    s3: S3Settings | None
    """Of kinds whose tables are objects."""
    takes_checks: bool
    """The engine checks constraints that users give their tables."""

    def open(self, name: str = "warehouse") -> Destination:
        """Open a destination on it; it is closed with the test."""
        ...

    def rows(self, spec: TableSpec, table: str | None = None) -> list[Row]:
        """Return a table's rows: the user's columns and the kept system columns, by name.

        Values are Python's own: Decimal, aware datetime, date, bytes; json columns are text. The
        order is the engine's. A table that is not there has no rows.

        Args:
            spec: of the table.
            table: another one of the same schema: a child's.
        """
        ...

    def types(self, spec: TableSpec, table: str | None = None) -> dict[str, str]:
        """Return column name to column type, as Waybill spells it, without system columns."""
        ...

    def tombstones(self, spec: TableSpec) -> dict[str, tuple[str, int, int]]:
        """Return key as JSON text to (event id, source version, intake version)."""
        ...

    def check(self, spec: TableSpec, condition: str) -> None:
        """Make the table, without rows, with a constraint: ``condition`` in SQL over its columns.

        Only where ``takes_checks``.
        """
        ...

    def remove_behind(self, spec: TableSpec, row_id: int) -> None:
        """Delete the row with this ``id`` as another user would, past Waybill."""
        ...

    def remove_below(self, spec: TableSpec, row_id: int) -> None:
        """Delete all rows with a lower ``id`` as another user would."""
        ...


class PostgresWarehouse:
    """A database of the session's server."""

    kind = "postgres"
    s3 = None
    takes_checks = True
    _types: Mapping[str, str] = {
        "boolean": "bool",
        "integer": "int32",
        "bigint": "int64",
        "double precision": "float64",
        "text": "string",
        "timestamp with time zone": "timestamp",
        "bytea": "bytes",
        "jsonb": "json",
    }

    def __init__(self, dsn: str) -> None:
        self.settings = DestinationSettings(kind="postgres", dsn=dsn)
        self._dsn = dsn
        self._opened: list[Destination] = []

    def open(self, name: str = "warehouse") -> Destination:
        self._opened.append(open_destination(name, self.settings))
        return self._opened[-1]

    def close(self) -> None:
        for destination in self._opened:
            destination.close()

    def rows(self, spec: TableSpec, table: str | None = None) -> list[Row]:
        place = sql.Identifier(spec.schema_name, table or spec.name)
        documents = [name for name, kind in self.types(spec, table).items() if kind == "json"]
        as_text = [
            sql.SQL(", {}::text AS {}").format(sql.Identifier(n), sql.Identifier(n))
            for n in documents
        ]
        with psycopg.connect(self._dsn, row_factory=dict_row) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            if not self.types(spec, table):
                return []
            query = sql.SQL("SELECT *{} FROM {}").format(sql.Composed(as_text), place)
            return connection.execute(query).fetchall()

    def types(self, spec: TableSpec, table: str | None = None) -> dict[str, str]:
        found = self.ask(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute a "
            "JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid = relnamespace "
            "WHERE nspname = %s AND relname = %s AND attnum > 0 AND NOT attisdropped "
            "AND attname NOT LIKE '\\_waybill%%' ORDER BY attnum",
            spec.schema_name,
            table or spec.name,
        )
        return {name: self._types.get(t, t.replace("numeric", "decimal")) for name, t in found}

    def tombstones(self, spec: TableSpec) -> dict[str, tuple[str, int, int]]:
        found = self.ask(
            "SELECT key, _waybill_id, _waybill_source_version, _waybill_intake_version "
            "FROM waybill._waybill_tombstones WHERE table_schema = %s AND table_name = %s",
            spec.schema_name,
            spec.name,
        )
        return {row[0]: row[1:] for row in found}

    def check(self, spec: TableSpec, condition: str) -> None:
        self.open().ensure_table(spec)
        self.ask(f"ALTER TABLE {_quoted(spec)} ADD CONSTRAINT checked CHECK ({condition})")

    def remove_behind(self, spec: TableSpec, row_id: int) -> None:
        self.ask(f"DELETE FROM {_quoted(spec)} WHERE id = %s", row_id)

    def remove_below(self, spec: TableSpec, row_id: int) -> None:
        self.ask(f"DELETE FROM {_quoted(spec)} WHERE id < %s", row_id)

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement in a transaction of its own."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            cursor = connection.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []


class DuckWarehouse:
    """A file of its own."""

    kind = "duckdb"
    s3 = None
    takes_checks = True
    _types: Mapping[str, str] = {
        "BOOLEAN": "bool",
        "INTEGER": "int32",
        "BIGINT": "int64",
        "DOUBLE": "float64",
        "VARCHAR": "string",
        "TIMESTAMP WITH TIME ZONE": "timestamp",
        "BLOB": "bytes",
    }

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = DestinationSettings(kind="duckdb", dsn=str(path))

    def open(self, name: str = "warehouse") -> Destination:
        return open_destination(name, self.settings)

    def close(self) -> None:
        """There is nothing to close: a file is held only while a load runs."""

    def rows(self, spec: TableSpec, table: str | None = None) -> list[Row]:
        if not self.types(spec, table):
            return []
        place = _quoted(spec, table)
        return self.ask(f"SELECT * FROM {place}").to_pylist()

    def types(self, spec: TableSpec, table: str | None = None) -> dict[str, str]:
        found = self.ask(
            "SELECT column_name AS name, data_type AS type FROM duckdb_columns() "
            "WHERE schema_name = ? AND table_name = ? AND NOT starts_with(column_name, '_waybill')",
            spec.schema_name,
            table or spec.name,
        ).to_pylist()
        return {row["name"]: self._types.get(row["type"], row["type"].lower()) for row in found}

    def tombstones(self, spec: TableSpec) -> dict[str, tuple[str, int, int]]:
        found = self.ask(
            "SELECT key, _waybill_id, _waybill_source_version, _waybill_intake_version "
            "FROM waybill._waybill_tombstones WHERE table_schema = ? AND table_name = ?",
            spec.schema_name,
            spec.name,
        )
        keys, *others = (column.to_pylist() for column in found.columns)
        assert len(set(keys)) == len(keys), "a key has two tombstones"
        return {key: tuple(rest) for key, *rest in zip(keys, *others, strict=True)}

    def check(self, spec: TableSpec, condition: str) -> None:
        columns = ", ".join(
            f'"{c.name}" {self._spelt(c.type)}{"" if c.nullable else " NOT NULL"}'
            for c in spec.columns
        )
        self.ask(f"CREATE SCHEMA {spec.schema_name}", write=True)
        self.ask(f"CREATE TABLE {_quoted(spec)} ({columns}, CHECK ({condition}))", write=True)

    def remove_behind(self, spec: TableSpec, row_id: int) -> None:
        self.ask(f"DELETE FROM {_quoted(spec)} WHERE id = ?", row_id, write=True)

    def remove_below(self, spec: TableSpec, row_id: int) -> None:
        self.ask(f"DELETE FROM {_quoted(spec)} WHERE id < ?", row_id, write=True)

    def ask(self, query: str, *values: Any, write: bool = False) -> Any:
        """Run a statement as another user of the file; return an Arrow table."""
        import duckdb

        if not self.path.exists() and not write:
            return duckdb.query("SELECT 1 WHERE false").to_arrow_table()
        with duckdb.connect(str(self.path), read_only=not write) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            return connection.execute(query, list(values)).to_arrow_table()

    def _spelt(self, kind: str) -> str:
        return next((own for own, name in self._types.items() if name == kind), kind)


def _quoted(spec: TableSpec, table: str | None = None) -> str:
    names = (spec.schema_name, table or spec.name)
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def utc(*parts: int) -> datetime.datetime:
    """Return a time in UTC."""
    return datetime.datetime(*parts, tzinfo=datetime.UTC)


def _postgres(request: pytest.FixtureRequest, _folder: Path) -> PostgresWarehouse:
    return PostgresWarehouse(clean_database(request.getfixturevalue("postgres")))


def _duckdb(_request: pytest.FixtureRequest, folder: Path) -> DuckWarehouse:
    return DuckWarehouse(folder / "warehouse.duckdb")


MAKERS: dict[str, Callable[[pytest.FixtureRequest, Path], Any]] = {
    "postgres": _postgres,
    "duckdb": _duckdb,
    "delta": delta_folder,
    "iceberg": iceberg_folder,
}
"""Kind to what makes an empty warehouse from a test's fixtures and a folder of its own."""


def kinds_of(makers: Mapping[str, Any]) -> list[Any]:
    """Return kinds as parameters; `make test` takes one of those that commit alike, `make campaigns` the other."""
    late = {"duckdb", "iceberg"}
    marks = pytest.mark.campaign
    return [pytest.param(kind, marks=marks) if kind in late else kind for kind in makers]
