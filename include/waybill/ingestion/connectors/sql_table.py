"""A table or view of a database as a source: PostgreSQL, MySQL and MariaDB, SQLite.

Pages are read by keyset: ``WHERE (cursor, key) > (last cursor, last key) ORDER BY cursor, key LIMIT
page_rows + 1``, each a short statement of its own, so that neither a table nor a snapshot is held.
A run ends at the greatest cursor that the table had when it began. Without a cursor column a run
reads the whole table, in the order of its key.

The cursor is ``{"by": columns, "at": [the last row's values], "whole": did a run end there,
"until": where that run ends, "of": the table}``, and what ``sql_ties`` knows. After a run that
ended, the next one begins ``overlap`` before that, so that rows are met which were committed late;
what it reads twice is known by id and version. Without an overlap it begins at that very value, and
leaves out what was sent of it. A run that goes on where one died first ends that one, where it was
to end, and then begins as after any other: rows that were late meanwhile are behind where it stood.
Where the declared columns are others, reading starts at the beginning. ``{"by": columns, "from":
value}`` is a beginning by hand: before the first row of that value.

``"of"`` names the table by what a declaration says of it, and the connection's database: no host,
as a database may move. A cursor of another table is refused: its place there says nothing of what
was read here. Cursors of releases that did not write it have none, and get it with the next page.

With ``backfill``, a first reading goes by ranges of the key, some of them at once: see
``sql_ranges``. Meanwhile the cursor is ``{"by": columns, "backfill": what is left}``, and then
``{"by": columns, "mark": value}``, the greatest cursor of before: from there on, a step back before
it where there is one, all is read that changed meanwhile.

``"rereads"`` are ranges of the cursor's values to be read again first, ``{"from" or "at", "to"}``;
the rest of the cursor stays what it is.

With ``deletes: compare``, a run that has read all looks for rows that are gone, when it is time for
that: see ``sql_deletes``, which has its part of the cursor.

SQLite has no booleans: 0 and 1 of a column that its table declares ``BOOLEAN`` are false and true
where the event's column is ``bool``, or none is declared yet.

Identifiers are quoted by SQLAlchemy, values are bound. The session is read-only.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import psycopg
import sqlalchemy as sa
from pydantic import Field, StringConstraints
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import DBAPIError, NoSuchTableError, OperationalError
from sqlalchemy.pool import NullPool

from waybill.errors import InputError, RetryError
from waybill.events import dumps, loads
from waybill.ingestion.connectors.base import Cursor, Discovered, Page, RateLimit, Standing
from waybill.ingestion.connectors.connections import Connection
from waybill.ingestion.connectors.opening import Opening, Options
from waybill.ingestion.connectors.sql_deletes import ComparedTable, TableDeletes
from waybill.ingestion.connectors.sql_order import require_ordered
from waybill.ingestion.connectors.sql_ranges import (
    MOST_RANGES,
    Backfill,
    KeyedTable,
    read_ranges,
)
from waybill.ingestion.connectors.sql_statements import fetched
from waybill.ingestion.connectors.sql_ties import Ties
from waybill.ingestion.connectors.sql_values import (
    behind,
    column_type,
    is_behind,
    json_rows,
    json_value,
    kept,
    read_as,
    read_text,
    restored,
    same_kind,
    stepped_back,
)
from waybill.nearest_name import hint
from waybill.pipelines import find_file

Name = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
_WAIT_S = 10
_STATEMENT_S = 600
_SORTED_BYTES, _SORTED_CHARACTERS = 8192, 1024
"""So much of a text MySQL sorts by; of a character, some collations have eight bytes."""
_BOOLEANS = {0: False, 1: True}
_TURN_S = 0.5
"""While the limits are waited for, so often the run looks whether it is to stop."""
_LIBPQ = frozenset(
    {"sslmode", "sslrootcert", "sslcert", "sslkey", "channel_binding", "target_session_attrs"}
)
"""What a connection's extra may say to libpq."""
_PYMYSQL = frozenset(
    {"unix_socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_cert", "ssl_verify_identity"}
)
"""And to PyMySQL."""


class BackfillOptions(Options):
    """How a table is read that was not read before."""

    ranges: int = Field(ge=2, le=MOST_RANGES)


class Limits(Options):
    """How hard a source may be hit."""

    max_connections: int | None = Field(None, ge=1, le=MOST_RANGES)
    rows_per_second: int | None = Field(None, ge=1, le=1_000_000_000)


class SqlOptions(Options):
    """``source.options`` of connector ``sql``."""

    table: Name = Field(description="the name of a table or view (text)")
    schema_name: Name | None = Field(None, alias="schema", description="a schema's name (text)")
    file: Name | None = Field(None, description="an SQLite file's path (text)")
    cursor: Name | None = Field(
        None, description="a column that rises with each change of a row (text)"
    )
    key: list[Name] | None = Field(
        None, min_length=1, description="a list of columns that name a row; else the event's key"
    )
    columns: list[Name] | None = Field(
        None, min_length=1, description="a list of the columns to read; else all"
    )
    overlap: int | float = Field(
        0, ge=0, description="seconds (of a cursor of times) or units (of numbers), 0 or more"
    )
    deletes: Literal["compare"] | None = Field(
        None,
        description="compare, or nothing (text); with compare, a row that is gone is a delete, of"
        " its key alone",
    )
    compare_every: int = Field(
        86_400, ge=0, description="seconds between two comparisons, 0 or more"
    )
    compare_limit: float = Field(
        10,
        ge=0,
        le=100,
        description="per cent of the rows that one comparison may delete, 0 to 100",
    )
    backfill: BackfillOptions | None = Field(
        None,
        description=f"an object {{ranges: 2 to {MOST_RANGES}}}: a first reading goes by so many"
        " ranges of the key",
    )
    limits: Limits = Field(
        Limits(),
        description=f"an object with max_connections (1 to {MOST_RANGES}) or rows_per_second (1 or"
        " more), or both",
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    """What is read, once the table was looked at."""

    table: sa.TableClause
    columns: tuple[str, ...]
    order: tuple[str, ...]
    """The cursor's column, if there is one, then the key's."""
    nullable: tuple[str, ...]
    """Those of them that the table says may be null."""
    documents: frozenset[str]
    """Columns of JSON that the driver gives as text."""
    booleans: frozenset[str]
    """Columns of booleans that the driver gives as numbers."""

    @property
    def place(self) -> int:
        """Where a row that was read has the first column of the order."""
        return self.columns.index(self.order[0])


class SqlConnector:
    """Reads one table; connects at the first call of ``read``."""

    def __init__(self, opening: Opening) -> None:
        opening.refuse("path", "order_by", "null_values", "columns")
        self._opening = opening
        self._options = options = opening.options(SqlOptions)
        if (options.file is None) == (opening.source.connection is None):
            raise InputError(
                "source: expected a connection (PostgreSQL, MySQL), or options.file (the path of an"
                " SQLite file); found"
                f" {'neither' if options.file is None else 'both'}"
            )
        if options.overlap and options.cursor is None:
            raise InputError("source.options.overlap: there is no cursor to step back from")
        if options.backfill is not None and options.cursor is None:
            raise InputError(
                "source.options.backfill: expected a cursor beside it: without one each run reads"
                " the whole table, by its key"
            )
        self._ranges = 1 if options.backfill is None else options.backfill.ranges
        self._deletes = None if options.deletes is None else self._table_deletes()
        self._connection: Connection | None = None
        self._identity: dict[str, str | None] = {}
        """Of the table, once it was looked at."""
        if options.file is not None:
            self._file(options.file)

    def read(self, cursor: Cursor | None) -> Iterator[Page | None]:
        """Yield the pages from a position on, ``page_rows`` rows each, or a second's by the limits.

        None while the limits, or ranges of the key, are waited for.

        Raises:
            InputError: no such table or column, a cursor or key that is null or not unique, a
                position of another table, no such connection, or the server refuses.
            RetryError: the server did not answer.
        """
        limit = RateLimit(self._options.limits.rows_per_second)
        with self._said(), closing(self._pages(cursor)) as pages:
            for page in pages:
                if page is None:
                    yield None
                else:
                    limit.met(len(page.rows))
                    yield self._of_table(page)
                while wait_s := limit.wait_s:
                    time.sleep(min(wait_s, _TURN_S))
                    yield None

    def preview(self) -> Iterator[Page | None]:
        """Yield the first pages; nothing is kept of them, and nothing is compared."""
        self._deletes, self._ranges = None, 1
        return self.read(None)

    def discover(self) -> list[Discovered]:
        """Return what the table's schema says; no row is read.

        Raises:
            InputError, RetryError: as ``read``.
        """
        options, event = self._options, self._opening.source.event
        with self._said(), self._engine().connect() as session:
            reading = self._look(session)
            found = [one for one in self._columns(session) if one["name"] in reading.columns]
        key = reading.order if options.cursor is None else reading.order[1:]
        columns = {one["name"]: column_type(one["type"]) for one in found}
        return [
            Discovered(
                options.table,
                event,
                key,
                options.cursor,
                types={one["name"]: _shown_type(one["type"]) for one in found},
                table=options.table,
                columns={name: kind for name, kind in columns.items() if kind is not None},
                never_null=frozenset(one["name"] for one in found if not one["nullable"]),
            )
        ]

    def only(self, name: str) -> SqlConnector:
        """Return this connector: it reads one table."""
        del name
        return self

    def confirm(self, cursor: Cursor) -> None:
        """Take note of what is committed, for the comparison of keys."""
        if self._deletes is not None:
            self._deletes.confirm(cursor)

    def count(self) -> int | None:
        """Return None: to count a table is to read it."""
        return None

    def cursor_at(self, value: str, stands: Cursor | None) -> dict[str, Any]:
        """Return the cursor before the first row whose cursor column has a value, or a greater one.

        Raises:
            InputError: there is no cursor column, or the value is not of its type, or greater than
                where the last run stopped.
        """
        if self._options.cursor is None:
            raise InputError(
                "from: the source declares no options.cursor: each run reads the whole table"
            )
        with self._said(), self._engine().connect() as session:
            reading = self._look(session)
            at = self._read_as(session, reading, value, "from")
            if (left := self._left(stands, reading)) is not None:
                raise InputError(
                    f"from: the first reading of table {self._options.table!r} is not at its end"
                    f" ({len(left.ranges)} of {left.of} key ranges are left): a run from there"
                    " would leave rows out; one without it goes on"
                )
            stood = self._stands(stands, reading)
            if stood is None or not stood.whole:
                begins = None if stood is None else stood.values
            else:
                begins = self._begin(session, reading, stood).values
            if begins is not None and self._leaves_out(session, reading, begins[0], at):
                raise InputError(
                    f"from: {value!r} is ahead of where the last run stopped, {begins[0]}: a run"
                    " from there would leave rows out; one without it reads them"
                )
        return {"by": list(reading.order), "from": kept(at), "of": self._identity}

    def reread_between(self, begin: str, end: str, stands: Cursor | None) -> dict[str, Any]:
        """Return the range of the rows that have one of two values, or lie between them.

        Raises:
            InputError: there is no cursor column, a value is not of its type, ``begin`` is behind
                ``end``, nothing was read before, or it was of another table.
        """
        if self._options.cursor is None:
            raise InputError(
                "to: the source declares no options.cursor: each run reads the whole table"
            )
        with self._said(), self._engine().connect() as session:
            reading = self._look(session)
            self._refuse_other_table(stands)
            first = self._read_as(session, reading, begin, "from")
            last = self._read_as(session, reading, end, "to")
            if stands is None or stands.get("by") != list(reading.order):
                raise InputError(
                    f"to: nothing of table {self._options.table!r} was read yet with this cursor"
                    " and key, so nothing can be read again: a run without from and to reads it all"
                )
            if isinstance(first, str):
                self._refuse_empty(session, reading, first, last)
            elif first > last:
                raise InputError(f"to: {end!r} is less than from, {begin!r}")
        return {"from": kept(first), "to": kept(last)}

    def _read_as(self, session: sa.Connection, reading: _Reading, text: str, name: str) -> Any:
        """Return a value of the cursor's column that a person gave."""
        column = reading.table.c[reading.order[0]]
        ends = [session.execute(_outermost(column, last=last)).scalar() for last in (False, True)]
        if None in ends:
            raise InputError(
                f"{name}: table {self._options.table!r} is empty: nothing to read again"
            )
        self._require_same_kind(*ends)
        value = read_as(type(ends[0]), text, like=ends[0], name=name)
        if isinstance(value, str):
            value = read_text(value, ends, name=name)
        self._require_comparable(session, column, value, name)
        return value

    def _require_same_kind(self, before: Any, now: Any) -> None:
        """Refuse to compare values of a column whose type was changed, as texts and numbers."""
        if not same_kind(before, now):
            raise InputError(
                f"source.options.cursor: values of column {self._options.cursor!r} are not of one"
                f" type: {type(before).__name__} and {type(now).__name__}. If the column's type was"
                " changed, read all rows again (`waybill ingest … --full`); if single rows are"
                " wrong, mend them"
            )

    def _refuse_mixed(self, session: sa.Connection, reading: _Reading, end: Any) -> None:
        """Refuse a column of SQLite with values of several types: it sorts numbers before texts.

        A later number would lie behind the greatest text, and so before where the last run stopped.
        """
        if end is None or self._options.cursor is None or session.dialect.name != "sqlite":
            return
        least = session.execute(_outermost(reading.table.c[reading.order[0]], last=False)).scalar()
        if not same_kind(least, end):
            raise InputError(
                f"source.options.cursor: column {self._options.cursor!r} has values of several"
                f" types: {type(least).__name__} and {type(end).__name__}. SQLite sorts texts"
                " behind all numbers, so later rows would be left out: make them of one type"
            )

    def _leaves_out(
        self, session: sa.Connection, reading: _Reading, stood: Any, value: Any
    ) -> bool:
        """Tell whether a run from a value on would leave out what one from ``stood`` on reads."""
        self._require_same_kind(stood, value)
        if not isinstance(value, str):
            return is_behind(stood, value)
        column = reading.table.c[reading.order[0]]  # whose order of text may not be Python's
        return self._is_any(session, reading, column >= stood, column < value)

    def _refuse_empty(
        self, session: sa.Connection, reading: _Reading, first: str, last: str
    ) -> None:
        """Refuse values of text that the database has in the other order."""
        column = reading.table.c[reading.order[0]]
        if not self._is_any(session, reading, column >= first, column <= last):
            raise InputError(
                f"to: table {self._options.table!r} has no row from {first!r} to {last!r}, in the"
                f" order that the database has for column {column.name!r}"
            )

    @staticmethod
    def _is_any(session: sa.Connection, reading: _Reading, *where: sa.ColumnElement[bool]) -> bool:
        query = sa.select(sa.literal(1)).select_from(reading.table).where(*where).limit(1)
        return session.execute(query).first() is not None

    def standing(self, cursor: Cursor) -> Standing | None:
        """Return the cursor's value, and how far below the column's greatest that is now.

        None where there is no cursor's column. Cost: a connection, unless the limits or readers of
        ranges leave none, and a statement that an index on the column answers.
        """
        column = self._options.cursor
        if column is None:
            return None
        if "backfill" in cursor:  # a connection more would pass the limit
            left, of = len(cursor["backfill"]["ranges"]), cursor["backfill"]["of"]
            return Standing(f"first reading, {left} of {of} key ranges left", left, "key ranges")
        if cursor.get("rereads"):
            told = cursor["rereads"][0]
            at, to = restored(told["at"][0] if "at" in told else told["from"]), restored(told["to"])
            said = f"{column} {json_value(at)}, read again up to {json_value(to)}"
            return Standing(said, *behind(at, to))
        place = cursor.get("at") or [cursor[name] for name in ("from", "mark") if name in cursor]
        at = restored(place[0]) if place else None
        if "mark" in cursor or self._options.limits.max_connections == 1:
            return Standing(f"{column} {json_value(at)}")
        with self._said(), self._engine().connect() as session:
            table = sa.table(
                self._options.table, sa.column(column), schema=self._options.schema_name
            )
            end = session.execute(_outermost(table.c[column], last=True)).scalar()
        found = behind(at, end)
        return Standing(f"{column} {json_value(at)}", *found)

    def _pages(self, cursor: Cursor | None) -> Generator[Page | None, None, None]:
        engine = self._engine()
        start = None if cursor is None else dict(cursor)
        with engine.connect() as session:
            reading = self._look(session)
            self._refuse_other_table(start)
            self._refuse_nulls(session, reading)
            if self._deletes is not None and start is not None and "gone" in start:
                start = yield from self._deletes.go_on(start)
            if start is not None and start.get("by") == list(reading.order):
                start = yield from self._read_again(session, reading, start)
            left = self._left(start, reading)
            if left is None and self._ranges > 1 and self._stands(start, reading) is None:
                left = yield from self._plan(session, reading)
            if left is None:
                yield from self._increments(session, reading, start)
                return
        start = yield from self._backfill(engine, reading, left, start)
        with engine.connect() as session:
            yield from self._increments(session, reading, start)

    def _increments(
        self, session: sa.Connection, reading: _Reading, start: dict[str, Any] | None
    ) -> Generator[Page, None, None]:
        """Yield the pages from where a run stopped to the greatest cursor that there is now."""
        stands = self._stands(start, reading)
        end = self._end(session, reading)
        if stands is not None and end is not None:
            self._require_same_kind(stands.values[0], end)
        self._refuse_mixed(session, reading, end)
        if stands is not None and not stands.whole:
            begin = _Begin(stands.values, ties=stands.ties)
            until = end if stands.until is None else stands.until
            ended = yield from self._stretch(session, reading, begin, until, start)
            start = start if ended is None else ended
            stands = self._stands(start, reading)
            if end is None:
                return
        begin = self._begin(session, reading, stands)
        ended = yield from self._stretch(session, reading, begin, end, start)
        start = start if ended is None else ended
        if self._deletes is not None and start is not None and self._deletes.is_due(start):
            stands = self._stands(start, reading)
            read_to = [end, *([] if stands is None else stands.values[:1])]
            yield from self._deletes.compare(session, reading.table, start, read_to)

    # Ranges of the key, and of the cursor

    @property
    def _connections(self) -> int:
        """How many connections a first reading may have at once."""
        if self._options.file is not None:
            return 1
        settings, name = self._opening.settings, self._opening.source.connection
        slots = {} if settings is None else settings.airflow.source_slots
        limits = [self._options.limits.max_connections, slots.get(name or "")]
        return min([self._ranges, *(limit for limit in limits if limit is not None)])

    def _keyed(self, reading: _Reading) -> KeyedTable:
        key = reading.order[1:]
        return KeyedTable(self._options.table, reading.table, reading.columns, key, self._page_rows)

    def _left(self, cursor: Cursor | None, reading: _Reading) -> Backfill | None:
        """Return what a cursor says is left of a first reading; None: nothing is."""
        if cursor is None or "backfill" not in cursor or cursor.get("by") != list(reading.order):
            return None
        try:
            return Backfill.from_json(cursor["backfill"], len(reading.order) - 1)
        except (KeyError, TypeError, ValueError) as error:
            raise _no_cursor(cursor) from error

    def _plan(
        self, session: sa.Connection, reading: _Reading
    ) -> Generator[None, None, Backfill | None]:
        """Return the ranges of a first reading; None: the table is too small for two."""
        mark = self._end(session, reading)
        session.rollback()
        if mark is None:
            return None
        ranges = yield from self._keyed(reading).split(session, self._ranges)
        return Backfill(mark, len(ranges), ranges) if len(ranges) > 1 else None

    def _backfill(
        self, engine: sa.Engine, reading: _Reading, left: Backfill, start: dict[str, Any] | None
    ) -> Generator[Page | None, None, dict[str, Any] | None]:
        """Yield the pages of the ranges that are left; return the cursor behind them."""
        by, table = list(reading.order), self._keyed(reading)
        with closing(read_ranges(engine, table, left.ranges, self._connections)) as pages:
            for found in pages:
                if found is None:
                    yield None
                    continue
                after: dict[str, Any] = {"by": by}
                if found.left:
                    after["backfill"] = replace(left, ranges=found.left).to_json()
                else:
                    after["mark"] = kept(left.mark)
                page = self._page(reading, found.rows, after, start)
                if self._deletes is not None:
                    after |= self._deletes.note(page.rows, start, in_order=False)
                yield page
                start = after
        return start

    def _read_again(
        self, session: sa.Connection, reading: _Reading, start: dict[str, Any]
    ) -> Generator[Page, None, dict[str, Any]]:
        """Yield the pages of ranges of the cursor's values; return the cursor without them."""
        size, now = self._page_rows, None
        if start.get("rereads"):
            now = self._end(session, reading)
        while rereads := start.get("rereads"):
            asked, *others = rereads
            begin, end = _bounds(start, asked)
            if now is not None:
                self._require_same_kind(end, now)
            found = fetched(session, _statement(reading, begin, end, size + 1))
            session.rollback()
            if len(found) > size:
                self._refuse_tie(session, reading, found[size - 1], found[size])
                found = found[:size]
                at = [kept(value) for value in _order_of(reading, found[-1])]
                others = [{"at": at, "to": asked["to"]}, *others]
            after = {name: value for name, value in start.items() if name != "rereads"}
            after |= {"rereads": others} if others else {}
            page = self._page(reading, found, after, start)
            if self._deletes is not None:
                after |= self._deletes.note(page.rows, start)
            yield page
            start = after
        return start

    # The order of the cursor

    def _require_comparable(
        self, session: sa.Connection, column: sa.ColumnElement[Any], at: Any, name: str
    ) -> None:
        """Refuse a value that the database cannot be asked for: no run would get past it."""
        try:
            session.execute(sa.select(sa.literal(1)).where(column >= at).limit(1)).first()
        except (OverflowError, UnicodeError) as error:
            raise InputError(
                f"{name}: {at!r} cannot be compared with column {self._options.cursor!r}: {error}"
            ) from error

    def _stretch(
        self,
        session: sa.Connection,
        reading: _Reading,
        begin: _Begin,
        end: Any,
        start: dict[str, Any] | None,
    ) -> Generator[Page, None, dict[str, Any] | None]:
        """Yield the pages up to a value of the cursor; return the last one's; None: there is none.

        Args:
            session: at the database.
            reading: what is read.
            begin: where.
            end: the value; None: the end of the table.
            start: the cursor before the first page.
        """
        size, place = self._page_rows, reading.place
        last = [] if start is None else start.get("at", [])
        after = None
        until = None if end is None else kept(end)
        while True:
            limit = size + 1 + len(begin.ties.skip)
            found = fetched(session, _statement(reading, begin, end, limit))
            session.rollback()
            fresh = begin.ties.fresh(found) if begin.ties.skip else range(len(found))
            more = len(fresh) > size
            if more:
                self._refuse_tie(session, reading, found[fresh[size - 1]], found[fresh[size]])
                found = found[: fresh[size - 1] + 1]
            elif not fresh and begin.ended:
                return after
            ties = begin.ties
            if found:
                last = [kept(value) for value in _order_of(reading, found[-1])]
                equal = _equality(session, reading)
                ties = ties if self._steps_back else ties.after(found, place, equal)
            after = {"by": list(reading.order), "at": last, "whole": not more}
            if end is not None:
                after |= {"until": until} if more else {}
                after |= {} if self._steps_back else ties.to_json()
            page = self._page(reading, [found[index] for index in fresh[:size]], after, start)
            if self._deletes is not None:
                after |= self._deletes.note(page.rows, start)
            yield page
            if not more:
                return after
            start, begin = after, _Begin([restored(value) for value in last], ties=ties)

    def _page(
        self,
        reading: _Reading,
        rows: Sequence[Sequence[Any]],
        after: dict[str, Any],
        start: dict[str, Any] | None,
    ) -> Page:
        names = reading.columns
        if self._connection is not None and self._connection.kind == "mysql":
            self._refuse_long(reading, rows)
        made = [dict(zip(names, values, strict=True)) for values in json_rows(rows)]
        for name in reading.documents:
            for row in made:
                row[name] = _document(row[name])
        for name in reading.booleans:
            for row in made:
                row[name] = _BOOLEANS.get(row[name], row[name])
        place = partial(_place, self._options.table, reading.order, made)
        return Page(made, [], cursor=after, start=start, place=place)

    def keys_prefix(self) -> str | None:
        """Return what the names of the objects with known keys begin with; None: it keeps none."""
        return None if self._deletes is None else self._deletes.prefix

    def _refuse_long(self, reading: _Reading, rows: Sequence[Sequence[Any]]) -> None:
        """Refuse values that MySQL sorts by their beginning only, and compares whole."""
        for name in reading.order:
            place = reading.columns.index(name)
            for row in rows:
                value = row[place]
                most = _SORTED_CHARACTERS if isinstance(value, str) else _SORTED_BYTES
                if isinstance(value, str | bytes) and len(value) > most:
                    raise InputError(
                        f"table {self._options.table!r} has a value of {len(value):,} characters or"
                        f" bytes in {name!r}: MySQL sorts by the beginning of so long ones, so rows"
                        " would be left out; declare another column, or read a view that has the"
                        f" value's digest (at most {most:,})"
                    )

    def _table_deletes(self) -> TableDeletes:
        options, event = self._options, self._opening.event
        if options.cursor is None:
            raise InputError(
                "source.options.deletes: expected a cursor beside it, as the deletes' version"
            )
        key = options.key or list(self._opening.key)
        if event is not None and event.version != options.cursor:
            raise InputError(
                f"source.options.deletes: event {event.name!r} must have version:"
                f" {options.cursor}, the cursor: a delete is put behind its row by that"
            )
        if event is not None and key != list(event.key):
            raise InputError(
                f"source.options.deletes: expected source.options.key to be the key of event"
                f" {event.name!r}, {', '.join(event.key)}; found {', '.join(key)}"
            )
        table = ComparedTable(
            options.table,
            options.schema_name,
            key,
            options.cursor,
            options.compare_every,
            options.compare_limit,
        )
        return TableDeletes(self._opening, table)

    # What is there

    def _columns(self, session: sa.Connection) -> list[ReflectedColumn]:
        options = self._options
        try:
            return sa.inspect(session).get_columns(options.table, schema=options.schema_name)
        except NoSuchTableError as error:
            within = "" if options.schema_name is None else f" in schema {options.schema_name!r}"
            known = sa.inspect(session).get_table_names(schema=options.schema_name)
            raise InputError(
                f"source.options.table: there is no table or view {options.table!r}{within}"
                f"{hint(options.table, known)}"
            ) from error

    def _look(self, session: sa.Connection) -> _Reading:
        options = self._options
        found = self._columns(session)
        self._identity = self._identify(session)
        there = [column["name"] for column in found]
        columns = options.columns or there
        order = self._order(session)
        fields = [*columns, *order]
        _require(fields, there, f"table {options.table!r}")
        _require(order, columns, "source.options.columns")
        self._require_event_fields(columns)
        for column in found:
            if (name := column["name"]) in order:
                option = "cursor" if name == options.cursor else "key"
                require_ordered(options.table, name, column["type"], session.dialect.name, option)
        return _Reading(
            sa.table(options.table, *map(sa.column, there), schema=options.schema_name),
            tuple(columns),
            tuple(order),
            tuple(
                column["name"] for column in found if column["nullable"] and column["name"] in order
            ),
            frozenset(
                column["name"]
                for column in found
                if isinstance(column["type"], sa.JSON)
                and column["name"] in columns
                and session.dialect.name != "postgresql"
            ),
            self._booleans(session, found).intersection(columns).difference(order),
        )

    def _identify(self, session: sa.Connection) -> dict[str, str | None]:
        """Return what the cursor knows the table by."""
        options = self._options
        if options.file is not None:
            return {"file": os.path.normpath(options.file), "table": options.table}
        database = None if self._connection is None else self._connection.schema or None
        return {
            "connection": self._opening.source.connection,
            "database": None if session.dialect.name == "mysql" else database,  # it is the schema
            "schema": options.schema_name or session.dialect.default_schema_name,
            "table": options.table,
        }

    def _of_table(self, page: Page) -> Page:
        """Return a page whose positions say which table they are of."""
        of = {"of": self._identity}
        start = None if page.start is None else page.start | of
        return replace(page, cursor=page.cursor | of, start=start)

    def _refuse_other_table(self, cursor: Cursor | None) -> None:
        """Refuse a position in another table: rows of this one before it would never be read."""
        stood = None if cursor is None else cursor.get("of")
        if stood is None or stood == self._identity:
            return
        name = shlex.quote(self._opening.folder.name)
        raise InputError(
            f"source: its cursor is of {_shown_identity(stood)}; the declaration now names"
            f" {_shown_identity(self._identity)}: a run from there on would leave out rows. Read it"
            f" from its beginning (waybill ingest {name} --full --why …); where it is the same"
            f" table under another name, go on from a value of its cursor (waybill ingest {name}"
            " --from … --why …; `waybill sources status` shows where it stands), or deploy the"
            " former declaration"
        )

    def _booleans(self, session: sa.Connection, found: Sequence[ReflectedColumn]) -> frozenset[str]:
        """Return columns of booleans that SQLite has as numbers, and the event does not."""
        event = self._opening.event
        if session.dialect.name != "sqlite":
            return frozenset()
        names = {one["name"] for one in found if isinstance(one["type"], sa.Boolean)}
        if event is not None:
            names &= {one.source for one in event.table.columns if one.type == "bool"}
        return frozenset(names)

    def _order(self, session: sa.Connection) -> list[str]:
        options = self._options
        key = options.key or list(self._opening.key) or self._primary_key(session)
        if not key:
            raise InputError(
                f"source.options.key: table {options.table!r} has no primary key: expected the"
                " columns that name a row, here or as the event's key; found none"
            )
        return [*([] if options.cursor is None else [options.cursor]), *key]

    def _primary_key(self, session: sa.Connection) -> list[str]:
        """Return the table's own key, for a source whose event is not declared yet."""
        options = self._options
        found = sa.inspect(session).get_pk_constraint(options.table, schema=options.schema_name)
        return found["constrained_columns"]

    def _require_event_fields(self, columns: Sequence[str]) -> None:
        event = self._opening.event
        if event is not None:
            version = [] if event.version is None else [event.version]
            _require([*event.key, *version], columns, f"event {event.name!r}: what is read")

    def _refuse_nulls(self, session: sa.Connection, reading: _Reading) -> None:
        """Refuse rows that no order has a place for: they would never be read."""
        if not reading.nullable:
            return
        columns = [reading.table.c[name] for name in reading.nullable]
        missing = sa.or_(*(column.is_(None) for column in columns))
        if session.execute(
            sa.select(sa.literal(1)).select_from(reading.table).where(missing).limit(1)
        ).first():
            raise InputError(
                f"table {self._options.table!r} has rows in which {' or '.join(reading.nullable)}"
                " is null: they would never be read; fill them, or read a view that gives them one"
            )

    def _refuse_tie(
        self,
        session: sa.Connection,
        reading: _Reading,
        last: Sequence[Any],
        following: Sequence[Any],
    ) -> None:
        """Refuse a key that is none, where the next page would begin behind rows never read."""
        if _are_equal(
            session, reading, reading.order, _order_of(reading, last), _order_of(reading, following)
        ):
            raise InputError(
                f"table {self._options.table!r} has several rows of one"
                f" {', '.join(reading.order)}: declare a key that is unique in source.options.key"
            )

    # Where to begin and to end

    @property
    def _page_rows(self) -> int:
        """A page has no more rows than the limit lets be read in a second."""
        limit = self._options.limits.rows_per_second
        page_rows = self._opening.source.page_rows
        return page_rows if limit is None else min(page_rows, limit)

    @property
    def _steps_back(self) -> bool:
        """Whether a run begins before where the last one ended, or with the whole table."""
        return self._options.cursor is None or bool(self._options.overlap)

    def _stands(self, cursor: Cursor | None, reading: _Reading) -> _Stands | None:
        """Return what a cursor says; None: the beginning."""
        if cursor is None or cursor.get("by") != list(reading.order):
            return None
        try:
            if begin := cursor.get("from") or cursor.get("mark"):
                value, by_hand = restored(begin), "from" in cursor
                return _Stands([value], whole=True, until=None, ties=Ties(), by_hand=by_hand)
            last, until = list(cursor["at"]), cursor.get("until")
            values = [restored(value) for value, _ in zip(last, reading.order, strict=True)]
            return _Stands(
                values,
                bool(cursor["whole"]),
                None if until is None else restored(until),
                Ties() if self._steps_back else Ties.of(values[0], cursor),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _no_cursor(cursor) from error

    def _begin(self, session: sa.Connection, reading: _Reading, stands: _Stands | None) -> _Begin:
        """Return where to begin after a run that ended, or that there was none of."""
        if stands is None or self._options.cursor is None:
            return _Begin(None, ended=True)
        value, ties, overlap = stands.values[0], stands.ties, self._options.overlap
        if stands.by_hand:
            return _Begin([value], ended=True, inclusive=True)
        if overlap:
            return _Begin([stepped_back(value, overlap)], ended=True, inclusive=True)
        if ties.sent is None and _count_up_to(session, reading, stands.values) == ties.met:
            return _Begin(stands.values, ended=True, ties=ties)
        return _Begin([value], ended=True, inclusive=True, ties=ties.anew())

    def _end(self, session: sa.Connection, reading: _Reading) -> Any:
        """Return the greatest value of the cursor's column now; None: there is no such column."""
        if self._options.cursor is None:
            return None
        end = session.execute(_outermost(reading.table.c[reading.order[0]], last=True)).scalar()
        if isinstance(end, float | Decimal) and not isfinite(end):
            raise InputError(
                f"table {self._options.table!r} has a row with {end} in {reading.order[0]!r}:"
                " nothing comes behind it, so later rows would never be read; mend the row, or read"
                " a view without it"
            )
        if end is not None and self._options.overlap:
            stepped_back(end, self._options.overlap)  # refused before the first row, not next time
        return end

    # The server

    def _file(self, path: str) -> Path:
        opening = self._opening
        return find_file(path, opening.folder, opening.roots, field="source.options.file")

    def _engine(self) -> sa.Engine:
        if self._options.file is not None:
            file = self._file(self._options.file)
            if not file.is_file():
                raise InputError(f"source.options.file: there is no file {str(file)!r}")
            url = sa.URL.create(
                "sqlite", database=f"file:{quote(str(file))}", query={"mode": "ro", "uri": "true"}
            )
            return sa.create_engine(
                url, connect_args={"timeout": 30.0}, poolclass=NullPool, hide_parameters=True
            )
        self._connection = found = self._opening.connection("postgres", "mysql")
        return _postgres(found) if found.kind == "postgres" else _mysql(found)

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Say a driver's error in our words, without a secret."""
        try:
            yield
        except DBAPIError as error:
            words = " ".join(str(error.orig).split())
            if isinstance(error.orig, psycopg.DataError) and error.orig.sqlstate is None:
                words += " (Python has no such value: mend the row, or read a view that casts it)"
            if self._connection is not None:
                words = self._connection.hide(words)
            said = f"source table {self._options.table!r}: {words}"
            if isinstance(error, OperationalError) or error.connection_invalidated:
                raise RetryError(said) from None
            raise InputError(said) from None


@dataclass(frozen=True, slots=True)
class _Stands:
    """What a cursor says."""

    values: list[Any]
    """Of the order's columns."""
    whole: bool
    """A run ended there."""
    until: Any
    """Where one that did not was to end; None: at the end of the table, or it is not known."""
    ties: Ties
    by_hand: bool = False
    """A user said where to begin: there, whatever the overlap is."""


@dataclass(frozen=True, slots=True)
class _Begin:
    """A position to read on from."""

    values: list[Any] | None
    """Of the order's columns, or of the first of them; None: the beginning of the table."""
    ended: bool = False
    """A run has ended there: nothing behind it is no news."""
    inclusive: bool = False
    ties: Ties = field(default_factory=Ties)


def _statement(
    reading: _Reading, begin: _Begin, end: Any, limit: int
) -> sa.Select[tuple[Any, ...]]:
    table = reading.table
    order = [table.c[name] for name in reading.order]
    statement = sa.select(*(table.c[name] for name in reading.columns))
    if begin.values is not None and begin.inclusive:
        statement = statement.where(order[0] >= begin.values[0])
    elif begin.values is not None:
        bound = [sa.literal(value) for value in begin.values]
        statement = statement.where(
            order[0] >= bound[0],  # by which MySQL finds the index
            sa.tuple_(*order) > sa.tuple_(*bound),
        )
    if end is not None:
        statement = statement.where(order[0] <= end)
    return statement.order_by(*order).limit(limit)


def _count_up_to(session: sa.Connection, reading: _Reading, values: Sequence[Any]) -> int:
    """Return how many rows there are of a position's cursor value, up to its key."""
    order = [reading.table.c[name] for name in reading.order]
    bound = [sa.literal(value) for value in values]
    statement = sa.select(sa.func.count()).where(
        order[0] == bound[0], sa.tuple_(*order) <= sa.tuple_(*bound)
    )
    found = int(session.execute(statement.select_from(reading.table)).scalar_one())
    session.rollback()
    return found


def _outermost(column: sa.ColumnElement[Any], *, last: bool) -> sa.Select[tuple[Any]]:
    """Return a query of a column's greatest value, or of its least one.

    Not by ``max``: PostgreSQL has none of UUIDs.
    """
    query = sa.select(column).where(column.is_not(None))
    return query.order_by(column.desc() if last else column).limit(1)


def _are_equal(
    session: sa.Connection,
    reading: _Reading,
    columns: Sequence[str],
    one: Sequence[Any],
    other: Sequence[Any],
) -> bool:
    """Tell whether the values of some columns are equal: of text, the database says it.

    By its collation 'a' may be 'A', or 'á', or 'a ', which no comparison tells from each other.
    """
    different = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
    if not all(isinstance(a, str) and isinstance(b, str) for a, b in different):
        return False
    if not different:
        return True
    same = [
        reading.table.c[name] == sa.literal(value)
        for values in (one, other)
        for name, value in zip(columns, values, strict=True)
    ]
    query = sa.select(sa.literal(1)).select_from(reading.table).where(*same).limit(1)
    found = fetched(session, query)
    session.rollback()
    return bool(found)


def _equality(session: sa.Connection, reading: _Reading) -> Callable[[Any, Any], bool]:
    """Return what tells whether two values of the cursor are equal."""
    known: dict[tuple[Any, Any], bool] = {}

    def equal(one: Any, other: Any) -> bool:
        if one == other:
            return True
        if (one, other) not in known:
            column = reading.order[:1]
            known[one, other] = _are_equal(session, reading, column, [one], [other])
        return known[one, other]

    return equal


def _bounds(cursor: Cursor, asked: Mapping[str, Any]) -> tuple[_Begin, Any]:
    """Return where the reading of a range of the cursor's values goes on, and its last value."""
    try:
        if "at" in asked:
            begin = _Begin([restored(value) for value in asked["at"]])
        else:
            begin = _Begin([restored(asked["from"])], inclusive=True)
        return begin, restored(asked["to"])
    except (KeyError, TypeError, ValueError) as error:
        raise _no_cursor(cursor) from error


def _no_cursor(cursor: Cursor) -> InputError:
    return InputError(f"cursor {str(dict(cursor))[:1000]} is not one of this connector; reset it")


def _shown_identity(of: Any) -> str:
    """Return which table a cursor is of, for people."""
    if not isinstance(of, Mapping):
        return repr(of)[:200]
    beside = [f"{name} {value!r}" for name, value in of.items() if value and name != "table"]
    return f"table {of.get('table')!r} ({', '.join(beside)})"[:1000]


def _order_of(reading: _Reading, row: Sequence[Any]) -> list[Any]:
    return [row[reading.columns.index(name)] for name in reading.order]


def _shown_type(kind: sa.types.TypeEngine[Any]) -> str:
    """Return a column's type in words; some types of a database have none."""
    return type(kind).__name__ if isinstance(kind, sa.types.NullType) else str(kind)


def _document(text: Any) -> Any:
    """Return the JSON that a text is; what is none, as it is."""
    try:
        return loads(text.encode()) if isinstance(text, str) else text
    except ValueError:
        return text


def _place(table: str, order: Sequence[str], rows: Sequence[Mapping[str, Any]], index: int) -> str:
    values = {name: rows[index][name] for name in order}
    return f"table {table}, {dumps(values).decode()}"[:500]


def _require(wanted: Sequence[str], there: Sequence[str], where: str) -> None:
    missing = [name for name in wanted if name not in there]
    if missing:
        near = hint(missing[0], there)
        raise InputError(
            f"{where} has no column {', '.join(map(repr, missing))}; it has"
            f" {', '.join(there)[:1000]}{near}"
        )


def _postgres(found: Connection) -> sa.Engine:
    """Return an engine whose sessions wait for nothing for ever, write nothing, and know UTC."""
    given = {name: str(value) for name, value in found.extra.items() if name in _LIBPQ}
    limits = {
        "connect_timeout": _WAIT_S,
        "keepalives_idle": 30,
        "tcp_user_timeout": 60_000,
        "application_name": "waybill",
        "options": f"-c statement_timeout={_STATEMENT_S * 1000} -c timezone=UTC"
        " -c default_transaction_read_only=on",
    }
    return sa.create_engine(
        _url("postgresql+psycopg", found),
        connect_args=given | limits,
        poolclass=NullPool,
        hide_parameters=True,
        json_deserializer=loads,
    )


def _mysql(found: Connection) -> sa.Engine:
    """Return such an engine for MySQL and MariaDB."""
    given = {name: value for name, value in found.extra.items() if name in _PYMYSQL}
    limits = {
        "connect_timeout": _WAIT_S,
        "read_timeout": _STATEMENT_S,
        "write_timeout": _STATEMENT_S,
        "charset": "utf8mb4",
    }
    engine = sa.create_engine(
        _url("mysql+pymysql", found),
        connect_args=given | limits,
        poolclass=NullPool,
        hide_parameters=True,
    )
    sa.event.listen(engine, "connect", _begin_mysql)
    return engine


def _begin_mysql(connection: Any, _: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION READ ONLY")
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SET max_sort_length = {_SORTED_BYTES}")


def _url(driver: str, found: Connection) -> sa.URL:
    return sa.URL.create(
        driver,
        username=found.login or None,
        password=found.password.get_secret_value() or None,
        host=found.host or None,
        port=found.port,
        database=found.schema or None,
    )
