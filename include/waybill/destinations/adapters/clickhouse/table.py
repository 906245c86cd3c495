"""A ClickHouse table as a ``LakeTable``, and the destination that it belongs to.

A load of a table is four steps, each safe to do again:
  1  its rows in a working table
  2  an intent in ``waybill._waybill_loads``: that INSERT … SELECT, its deduplication token, the
     books
  3  the INSERT … SELECT
  4  the same line in ``waybill._waybill_loads``, done; the working table goes
Whoever reads the table next and finds an intent that is not done, does 3 and 4 first. So a load
that died between two steps was never there, or is there as it was judged. Of two loads that have
read the same books, one or both see the other's intent after 2, and step back.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from waybill.destinations.adapters.clickhouse import dialect
from waybill.destinations.adapters.clickhouse.dialect import (
    BOOKS,
    LOADS,
    LOADS_TABLE,
    field_of,
    literal,
    quoted,
)
from waybill.destinations.adapters.clickhouse.session import ClickHouseSession
from waybill.destinations.per_table.books import LoadRecord
from waybill.destinations.per_table.sql_table import SqlLake, SqlLakeDestination, SqlLakeTable
from waybill.destinations.per_table.table import (
    OP,
    SOFT_DELETE,
    TOUCH,
    Changes,
    ConflictError,
    RowStamp,
    ShapePlan,
)
from waybill.destinations.specs import with_children
from waybill.errors import InputError
from waybill.pipelines import TableSpec
from waybill.settings import DestinationSettings, S3Settings

_BEGUN, _DONE, _GIVEN_UP = 0, 1, 2
_ONE_BLOCK = {
    "max_insert_threads": 1,
    "max_threads": 1,
    "min_insert_block_size_rows": 100_000_000,
    "min_insert_block_size_bytes": 100_000_000_000,
}
"""The INSERT … SELECT of a load is one block, which is there as a whole or not at all."""
_LINE = pa.schema(
    [
        ("place", pa.string()),
        ("sequence", pa.int64()),
        ("id", pa.string()),
        ("destination", pa.string()),
        ("number", pa.int64()),
        ("statement", pa.string()),
        ("token", pa.string()),
        ("record", pa.string()),
        ("done", pa.uint8()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)


class ClickHouseTable(SqlLakeTable):
    """One table: see ``LakeTable``. Experimental.

    Args:
        session: with the server.
        schema_name: the database.
        name: the table's.
        keys: key columns of tables that are to be made, by (database, table).
    """

    sql = dialect.SQL
    session: ClickHouseSession

    def __init__(
        self,
        session: ClickHouseSession,
        schema_name: str,
        name: str,
        keys: Mapping[tuple[str, str], tuple[str, ...]],
    ) -> None:
        super().__init__(session, schema_name, name)
        self._keys = keys
        self._replacing = False
        self._sequence = 0
        self._record: LoadRecord | None = None
        self._numbers: dict[str, int] = {}

    @property
    def _rows(self) -> str:
        """Cost: a pass over its keys and versions."""
        return f"{self.place} FINAL" if self._replacing else self.place

    def refresh(self) -> bool:
        """Read what it is now; a load that was begun and not ended is ended first."""
        of = f"database = {literal(self.schema_name)} AND"
        rows = self.session.query(
            f"SELECT name, type, (SELECT engine FROM system.tables WHERE {of} "
            f"name = {literal(self.name)}) AS engine FROM system.columns WHERE {of} "
            f"table = {literal(self.name)} ORDER BY position"
        ).to_pylist()
        columns = [row for row in rows if row["name"] not in dialect.INTERNAL]
        self._fields = pa.schema([field_of(row["name"], row["type"]) for row in columns])
        self._replacing = any(row["name"] == dialect.VERSION for row in rows)
        if rows and not self._replacing and self.schema_name != BOOKS:
            raise InputError(
                f"table {self.place}: found engine {rows[0]['engine']}, expected a "
                "ReplacingMergeTree that Waybill made; declare another table, and INSERT INTO that "
                "one SELECT from this"
            )
        if self._replacing:
            self._make_books()
            self._read_books()
        return bool(rows)

    def checks(self) -> Mapping[str, str]:
        """Return the ranges of days and times: what lies beyond them is stored as another value.

        Its own constraints are not here: they refuse an insert as a whole.
        """
        return dialect.ranges(self.fields())

    def last_number(self, destination: str) -> int | None:
        """Return the greatest commit number of a destination that the table has."""
        return self._numbers.get(destination)

    def record(self) -> LoadRecord | None:
        """Return the newest books."""
        return self._record

    def commit(self, changes: Changes | None, stamp: RowStamp) -> None:
        """Insert the changed rows and leave the stamp; see above.

        Raises:
            ConflictError: another load has begun on the same books.
        """
        stage = f"_waybill_work_{uuid.uuid4().hex}"
        statement = "" if changes is None else self._staged(stage, changes)
        line = {
            "sequence": self._sequence + 1,
            "id": stage,
            "destination": stamp.destination,
            "number": stamp.number,
            "statement": statement,
            "token": stage,
            "record": "" if stamp.record is None else stamp.record.to_text(),
        }
        self._note(line, _BEGUN)
        rivals = self.session.query(
            f"SELECT id FROM {LOADS} WHERE place = {literal(self.place)} "
            f"AND sequence >= {line['sequence']} AND id != {literal(stage)}"
        )
        if rivals.num_rows:
            self._note(line, _GIVEN_UP)
            self._drop_stage(stage)
            raise ConflictError(f"another load of {self.place} has begun")
        self._end(line)
        self._read_books()

    def append(self, rows: pa.Table) -> None:
        """Add rows, whatever others do."""
        self.session.insert(self.schema_name, self.name, rows)

    def _creation(self, schema: pa.Schema, partitions: Sequence[str]) -> list[str]:
        required = tuple(item.name for item in schema if not item.nullable)
        key = self._keys.get((self.schema_name, self.name), required)
        return dialect.creation(self.schema_name, self.name, schema, key, partitions)

    def _alterations(self, plan: ShapePlan) -> list[str]:
        return dialect.alterations(self.place, self.fields(), plan)

    def _drop_table(self) -> None:
        self.session.execute(f"DROP TABLE IF EXISTS {self.place} SYNC")

    def _read_books(self) -> None:
        """Read the books; end what was begun."""
        lines = self._lines()
        ended = {line["id"] for line in lines if line["done"] != _BEGUN}
        for line in [line for line in lines if line["id"] not in ended]:
            self._end(line)
            lines.append({**line, "done": _DONE})
        done = [line for line in lines if line["done"] == _DONE]
        self._sequence = max((line["sequence"] for line in lines), default=0)
        self._numbers = {}
        for line in done:
            if line["destination"]:
                known = self._numbers.get(line["destination"], line["number"])
                self._numbers[line["destination"]] = max(known, line["number"])
        newest = max((line for line in done if line["record"]), key=_place_of, default=None)
        self._record = None if newest is None else LoadRecord.from_text(newest["record"])

    def _lines(self) -> list[dict[str, Any]]:
        """Return the newest line of each destination, and all that were begun and not ended."""
        kept = "sequence, id, destination, number, statement, token, record, done"
        mine = f"place = {literal(self.place)}"
        ended = f"SELECT id FROM {LOADS} WHERE {mine} AND done != {_BEGUN}"
        lines = self.session.query(
            f"SELECT {kept} FROM (SELECT {kept} FROM {LOADS} WHERE {mine} "
            f"AND done != {_BEGUN} ORDER BY sequence DESC, id LIMIT 1 BY destination, done) "
            f"UNION ALL SELECT {kept} FROM {LOADS} WHERE {mine} AND done = {_BEGUN} "
            f"AND id NOT IN ({ended})"
        )
        return list(lines.to_pylist())

    def _staged(self, stage: str, changes: Changes) -> str:
        """Fill the working table; return the statement that inserts from it."""
        rows, known = changes.rows, self.fields()
        columns = [f for f in known if f.name in rows.column_names]
        names = [f.name for f in columns]
        self.session.execute(dialect.stage_table(stage, columns, changes.key))
        self.session.insert(BOOKS, stage, rows.select([*names, OP]))
        joined = bool({TOUCH, SOFT_DELETE} & set(rows[OP].to_pylist())) or any(
            name not in names or rows[name].null_count for name in dialect.VERSIONS
        )
        return dialect.insertion(self.place, stage, known, names, changes.key, joined=joined)

    def _end(self, line: Mapping[str, Any]) -> None:
        """Do what an intent says, and note that it is done."""
        if line["statement"]:
            settings = {**_ONE_BLOCK, "insert_deduplication_token": line["token"]}
            self.session.execute(line["statement"], settings)
        self._note(line, _DONE)
        self._drop_stage(line["id"])

    def _note(self, line: Mapping[str, Any], done: int) -> None:
        row = {**line, "place": self.place, "at": datetime.now(UTC), "done": done}
        rows = pa.Table.from_pylist([row], schema=_LINE)
        self.session.insert(BOOKS, LOADS_TABLE, rows, f"{line['id']} {done}")

    def _drop_stage(self, stage: str) -> None:
        self.session.execute(f"DROP TABLE IF EXISTS {quoted(BOOKS)}.{quoted(stage)} SYNC")


def _place_of(line: Mapping[str, Any]) -> tuple[int, str]:
    return line["sequence"], line["id"]


class ClickHouseDestination(SqlLakeDestination):
    """One ClickHouse server, as ``waybill.destinations.Destination`` says.

    Experimental: its statements ran on ClickHouse's engine within a process, on no server.

    Args:
        name: commit numbers are kept under it.
        settings: dsn and options.
    """

    kind = "clickhouse"

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        self._session = session = ClickHouseSession(name, settings)
        self._keys: dict[tuple[str, str], tuple[str, ...]] = {}
        """Key columns of tables, by (database, table): what their rows are ordered by."""
        super().__init__(name, SqlLake(session, self._table))

    def _table(self, schema_name: str, name: str) -> ClickHouseTable:
        return ClickHouseTable(self._session, schema_name, name, self._keys)

    def _ensure(self, spec: TableSpec) -> None:
        for table in with_children(spec):
            self._keys[table.schema_name, table.name] = table.key
        super()._ensure(spec)


def open_clickhouse(
    name: str, settings: DestinationSettings, _s3: S3Settings | None = None
) -> ClickHouseDestination:
    """Open a warehouse; it connects on first use.

    Raises:
        InputError: the dsn is not of the kind's form.
    """
    return ClickHouseDestination(name, settings)
