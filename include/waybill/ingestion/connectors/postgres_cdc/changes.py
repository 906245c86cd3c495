"""From the log's changes to records, a page at a time.

- An update that changes the key is a delete of the old row and an upsert of the new one.
- A value that an update did not touch and that the log does not hold (TOAST) is taken from the old
  row, where the log has that whole (REPLICA IDENTITY FULL), else from the table as it is now: there
  it is the same, or of a later change, which the log brings as well. Where the row is not there any
  more, nor is the record: the log brings its delete, or its move to another key.
- A truncation says of no row that it is gone: it is parked, and the rows stay at the destination.
- Tables that are not declared are passed over.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import sql

from waybill.errors import InputError
from waybill.events import dumps
from waybill.ingestion.connectors.base import BadRow, Record
from waybill.ingestion.connectors.postgres_cdc.column_values import Convert, Converters
from waybill.ingestion.connectors.postgres_cdc.declaration import TableName
from waybill.ingestion.connectors.postgres_cdc.errors import answered
from waybill.ingestion.connectors.postgres_cdc.pgoutput import (
    UNCHANGED,
    Delete,
    Insert,
    Relation,
    Truncate,
    Update,
    Values,
    read_insert,
)
from waybill.ingestion.connectors.postgres_cdc.replication import lsn_text
from waybill.ingestion.connectors.postgres_cdc.rows import UNREADABLE, PageRows, row_of, unreadable
from waybill.ingestion.connectors.postgres_cdc.snapshot import as_type
from waybill.ingestion.connectors.postgres_cdc.source_database import SourceDatabase, SourceTable

_LOG = logging.getLogger(__name__)
_ASKED = 500
"""Rows whose untouched values are asked for by one statement."""
RowChange = Insert | Update | Delete | Truncate


@dataclass(frozen=True, slots=True)
class _Shape:
    """A declared table at some point of the log."""

    table: SourceTable
    names: tuple[str, ...]
    converts: list[Convert]
    columns: list[tuple[str, Convert]]
    """Both."""
    page_key: tuple[int, ...]
    """Places of the columns by which the table is read."""
    key: tuple[int, ...]
    """Places of the columns of the event's key."""
    identity: tuple[int, ...]
    """Places of the columns that a delete says."""


@dataclass(slots=True)
class _Incomplete:
    """A record that waits for values of the table as it is now."""

    place: int
    """In the page's records."""
    shape: _Shape
    key: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(slots=True)
class ChangePage(PageRows):
    """What is gathered for a page of changes."""

    incomplete: list[_Incomplete] = field(default_factory=list)


class ChangeReader:
    """Turns changes into records; knows what the tables look like at this point of the log.

    Args:
        database: whose log it is.
        converters: for its values.
        tables: that are declared.
    """

    def __init__(
        self, database: SourceDatabase, converters: Converters, tables: Sequence[SourceTable]
    ) -> None:
        self._database = database
        self._converters = converters
        self._declared: Mapping[TableName, SourceTable] = {table.name: table for table in tables}
        self._names = {table.oid: table.name for table in tables}
        """By id: a table keeps it when it is renamed."""
        self._shapes: dict[int, _Shape] = {}

    def require_server(self) -> None:
        """Ask the server whether it is there beside the stream.

        Raises:
            RetryError: it shuts down, or is away.
        """
        self._database.rows("SELECT 1 AS answer")

    def relate(self, relation: Relation) -> None:
        """Take note of what a table looks like from here on.

        Raises:
            InputError: a declared table has another name now.
        """
        name = TableName((relation.schema, relation.name))
        table = self._declared.get(name)
        if table is None:
            self._shapes.pop(relation.oid, None)
            if relation.oid in self._names:
                raise InputError(
                    f"table {str(self._names[relation.oid])!r} was renamed to {str(name)!r};"
                    " declare it by its new name in source.options.tables, and read it again: its"
                    " changes are kept in the slot meanwhile"
                )
            return
        self._names[relation.oid] = name
        columns = relation.columns
        names = tuple(column.name for column in columns)
        converts = self._converters.of(column.type_oid for column in columns)
        page_key = tuple(names.index(part) for part in table.page_key if part in names)
        key = tuple(names.index(part) for part in table.key if part in names)
        identity = tuple(place for place, column in enumerate(columns) if column.in_identity)
        both = list(zip(names, converts, strict=True))
        self._shapes[relation.oid] = _Shape(table, names, converts, both, page_key, key, identity)

    def add_insert(self, page: ChangePage, data: bytes, lsn: int) -> bool:
        """Add a new row, if its message is like most; False: nothing was added, ``add`` it.

        Args:
            page: where to.
            data: the message, as ``decode`` takes it.
            lsn: of what it tells, in the log.
        """
        shape = self._shapes.get(int.from_bytes(data[1:5]))
        row = None if shape is None else read_insert(data, shape.columns)
        if shape is None or row is None:
            return False
        page.records.append(Record(row, shape.table.event, "upsert", lsn))
        return True

    def add(self, page: ChangePage, change: RowChange, lsn: int) -> None:
        """Add a change to a page."""
        if isinstance(change, Truncate):
            page.bad.extend(self._truncated(change, lsn))
            return
        shape = self._shapes.get(change.oid)
        if shape is None:
            return
        if isinstance(change, Insert):
            self._upsert(page, shape, change.new, lsn)
        elif isinstance(change, Delete):
            self._delete(page, shape, change.old, lsn)
        else:
            self._update(page, shape, change, lsn)

    def _update(self, page: ChangePage, shape: _Shape, change: Update, lsn: int) -> None:
        new, old = change.new, change.old
        if old is not None:
            known = range(len(new)) if change.whole else shape.identity
            for place in known:
                if new[place] is UNCHANGED:
                    new[place] = old[place]
            if any(old[place] != new[place] for place in shape.key):
                self._delete(page, shape, old, lsn)
        self._upsert(page, shape, new, lsn)

    def _upsert(self, page: ChangePage, shape: _Shape, values: Values, lsn: int) -> None:
        missing: tuple[str, ...] = ()
        if UNCHANGED in values:
            missing = tuple(
                name for name, value in zip(shape.names, values, strict=True) if value is UNCHANGED
            )
            values = [None if value is UNCHANGED else value for value in values]
        record = self._record(page, shape, values, lsn)
        if record is None:
            return
        if missing:
            key = tuple(_text(values[place]) for place in shape.page_key)
            page.incomplete.append(_Incomplete(len(page.records), shape, key, missing))
        page.records.append(record)

    def _record(self, page: ChangePage, shape: _Shape, values: Values, lsn: int) -> Record | None:
        try:
            row = row_of(shape.names, shape.converts, values)  # type: ignore[arg-type]
        except UNREADABLE as error:
            page.bad.append(unreadable(str(shape.table.name), lsn, shape.names, values, error))
            return None
        return Record(row, shape.table.event, version=lsn)

    def _delete(self, page: ChangePage, shape: _Shape, values: Values, lsn: int) -> None:
        record = self._record(page, shape, values, lsn)
        if record is None:
            return
        data = {shape.names[place]: record.data[shape.names[place]] for place in shape.identity}
        page.records.append(Record(data, record.event, "delete", lsn))

    def _truncated(self, change: Truncate, lsn: int) -> Iterator[BadRow]:
        for oid in change.oids:
            shape = self._shapes.get(oid)
            if shape is not None:
                name = str(shape.table.name)
                yield BadRow(
                    dumps({"truncate": name, "log_position": lsn_text(lsn)}),
                    0,
                    "source_truncated",
                    f"table {name} was truncated; its rows stay at the destination",
                    where=f"{name}, log position {lsn_text(lsn)}",
                )

    def complete(self, page: ChangePage) -> None:
        """Fill in the values that the log did not hold, from the tables as they are now.

        Raises:
            RetryError: the server does not answer.
            InputError: it refuses.
        """
        groups: dict[tuple[int, tuple[str, ...]], list[_Incomplete]] = defaultdict(list)
        for one in page.incomplete:
            groups[one.shape.table.oid, one.missing].append(one)
        gone: set[int] = set()
        for group in groups.values():
            for first in range(0, len(group), _ASKED):
                gone.update(self._complete(page, group[first : first + _ASKED]))
        if gone:
            _LOG.info("%d updates are of rows that the log deletes or moves later on", len(gone))
            page.records = [
                record for place, record in enumerate(page.records) if place not in gone
            ]
        page.incomplete.clear()

    def _complete(self, page: ChangePage, group: Sequence[_Incomplete]) -> Iterator[int]:
        """Complete records of one table that lack the same values; yield those without a row."""
        found = self._now(group)
        for one in group:
            row = found.get(one.key)
            if row is None:
                yield one.place
            else:
                page.records[one.place].data.update(row)

    def _now(self, group: Sequence[_Incomplete]) -> dict[tuple[str, ...], dict[str, Any]]:
        shape, missing = group[0].shape, group[0].missing
        table = shape.table
        there = [name for name in missing if name in self._columns(table)]
        names = [*table.page_key, *there]
        keys = sql.SQL(", ").join(
            sql.SQL("({})").format(sql.SQL(", ").join(map(as_type, key, table.page_key_types)))
            for key in {one.key for one in group}
        )
        query = sql.SQL("SELECT {} FROM {} WHERE ({}) IN ({})").format(
            sql.SQL(", ").join(map(sql.Identifier, names)),
            sql.Identifier(*table.name),
            sql.SQL(", ").join(map(sql.Identifier, table.page_key)),
            keys,
        )
        with answered(self._database.connection, f"reading table {str(table.name)!r}"):
            result = self._database.sql.execute(query).pgresult
        assert result is not None  # noqa: S101 - a SELECT has one
        converts = self._converters.of(result.ftype(place) for place in range(len(names)))
        width, found = len(table.page_key), {}
        for number in range(result.ntuples):
            values = [result.get_value(number, place) for place in range(len(names))]
            key = tuple(_text(value) for value in values[:width])
            found[key] = row_of(there, converts[width:], values[width:])
        return found

    def _columns(self, table: SourceTable) -> set[str]:
        rows = self._database.rows(_COLUMNS, [table.oid])
        return {row.name for row in rows}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else ""


_COLUMNS = """
SELECT attname::text AS name FROM pg_attribute
WHERE attrelid = %s::int8::oid AND attnum > 0 AND NOT attisdropped
"""
