"""A table in ranges of its key, read by several connections at once.

A range is what lies behind one key, up to another one and with it, so that ranges that follow each
other leave no key out and have none twice, whatever keys are chosen. They are chosen by a walk
along the key: each ``step``-th key is looked up, the next one behind the last, and of these some
are taken at equal distances. So ranges have about as many rows each, whatever the key is made of.
The database alone compares keys: its order of text is not Python's.

Invariants
  I1  The ranges that are left, in their order, say which page is next: readers take turns.
  I2  A page is read after the ranges were chosen, in a transaction of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import sqlalchemy as sa

from waybill.errors import InputError
from waybill.events import dumps
from waybill.ingestion.connectors.sql_statements import cancel, fetched
from waybill.ingestion.connectors.sql_values import kept, restored

MOST_RANGES = 64
_MOST_SAMPLED = 1024
"""Keys that a walk remembers; even. Each time there are as many, every second one is let go."""
_MOST_SAMPLED_BYTES = 16 << 20
"""And so many bytes of keys, as a cursor has them."""
_MOST_BOUND_BYTES = 256 << 10
"""The bounds of ranges stand in each cursor."""
_CANCEL_FIRST_S, _CANCEL_LAST_S = 0.2, 10.0
"""Between two requests to cancel what goes on, in the beginning and later."""
_TURN_S = 1.0
"""While no page comes, so often somebody else has a turn."""


_Read: TypeAlias = "tuple[Sequence[Any], KeyRange | None]"
_Submit: TypeAlias = "Callable[[KeyRange], Future[_Read]]"


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows behind one key, up to another one, and with it."""

    after: tuple[Any, ...] | None = None
    """The last key that was read; None: the beginning of the table."""
    until: tuple[Any, ...] | None = None
    """None: the end of the table."""

    def to_json(self) -> dict[str, Any]:
        """Return it as a cursor has it."""
        return {"after": _kept(self.after), "until": _kept(self.until)}

    @classmethod
    def of(cls, told: Mapping[str, Any], width: int) -> KeyRange:
        """Return what ``to_json`` gave.

        Args:
            told: that.
            width: columns of the key.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        return cls(_restored(told["after"], width), _restored(told["until"], width))


@dataclass(frozen=True, slots=True)
class Backfill:
    """What is left of a table's first reading."""

    mark: Any
    """The cursor's greatest value before it began."""
    of: int
    """Ranges that there were."""
    ranges: tuple[KeyRange, ...]
    """Those that are not read to their end; at least one. The first is the next to be read."""

    def to_json(self) -> dict[str, Any]:
        """Return it as a cursor has it."""
        left = [one.to_json() for one in self.ranges]
        return {"mark": kept(self.mark), "of": self.of, "ranges": left}

    @classmethod
    def from_json(cls, told: Mapping[str, Any], width: int) -> Backfill:
        """Return what ``to_json`` gave.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        ranges = tuple(KeyRange.of(one, width) for one in told["ranges"])
        if not ranges:
            raise ValueError("no range is left")
        return cls(restored(told["mark"]), int(told["of"]), ranges)


@dataclass(frozen=True, slots=True)
class RangePage:
    """Some rows of one range, and what is left to be read behind them."""

    rows: Sequence[Sequence[Any]]
    left: tuple[KeyRange, ...]


@dataclass(frozen=True, slots=True)
class KeyedTable:
    """What is read in ranges."""

    name: str
    table: sa.TableClause
    columns: tuple[str, ...]
    """Those that are read."""
    key: tuple[str, ...]
    """Of these, the ones that name a row, without another one."""
    page_rows: int

    @property
    def _key(self) -> list[sa.ColumnClause[Any]]:
        return [self.table.c[name] for name in self.key]

    def split(
        self, session: sa.Connection, ranges: int
    ) -> Generator[None, None, tuple[KeyRange, ...]]:
        """Return at most so many ranges that together are the table; yield between statements.

        They are fewer where the table is small, or its keys are very long.

        Cost: an index of the key is read once, some thousands of keys a statement; more where the
        table is larger.
        """
        columns, sample, step, size = self._key, [], self.page_rows, 0
        last: tuple[Any, ...] | None = None
        while True:
            query = sa.select(*columns).order_by(*columns).offset(step - 1).limit(1)
            found = fetched(session, _within(query, columns, KeyRange(last)))
            session.rollback()
            if not found:
                break
            last = tuple(found[0])
            sample.append(last)
            size += _size(last)
            if len(sample) == _MOST_SAMPLED or size > _MOST_SAMPLED_BYTES:
                sample, step = sample[1::2], step * 2
                size = sum(map(_size, sample))
            yield None
        parts = len(sample) + 1
        places = sorted({number * parts // ranges for number in range(1, ranges)} - {0})
        bounds = [sample[place - 1] for place in places]
        while sum(map(_size, bounds)) > _MOST_BOUND_BYTES:
            bounds = bounds[1::2]
        return tuple(map(KeyRange, [None, *bounds], [*bounds, None]))

    def page(self, session: sa.Connection, part: KeyRange) -> _Read:
        """Return the first rows of a range, and what is left of it; None: nothing.

        Raises:
            InputError: several rows have the key where the page would end.
        """
        columns = self._key
        query = sa.select(*(self.table.c[name] for name in self.columns))
        query = _within(query, columns, part).order_by(*columns).limit(self.page_rows + 1)
        rows = fetched(session, query)
        rest = None
        if len(rows) > self.page_rows:
            rows = rows[: self.page_rows]
            last = tuple(rows[-1][self.columns.index(name)] for name in self.key)
            self._refuse_tie(session, last)
            rest = replace(part, after=last)
        session.rollback()
        return rows, rest

    def _refuse_tie(self, session: sa.Connection, key: tuple[Any, ...]) -> None:
        same = sa.and_(*(c == sa.literal(v) for c, v in zip(self._key, key, strict=True)))
        query = sa.select(sa.literal(1)).select_from(self.table).where(same).limit(2)
        if len(fetched(session, query)) > 1:
            raise InputError(
                f"source.options.backfill: table {self.name!r} has several rows of one"
                f" {', '.join(self.key)}: ranges need a key that is unique by itself; declare one"
                " in source.options.key, or leave backfill out"
            )


def read_ranges(
    engine: sa.Engine, table: KeyedTable, ranges: Sequence[KeyRange], connections: int
) -> Generator[RangePage | None, None, None]:
    """Yield the pages of ranges, of so many in turn, until all are read; None while none comes.

    A range without a row gives no page, but for one at the very end.

    Args:
        engine: opens connections; all are closed at the end.
        table: what is read.
        ranges: in the order in which they have their turns.
        connections: as many ranges are read at once, and a page of each is held.

    Raises:
        InputError: a key is not unique.
        sqlalchemy.exc.DBAPIError: the database did not answer.

    Closed before its end, it has the database end what it reads at that moment.
    """
    waiting = deque(ranges)
    turns: deque[tuple[KeyRange, Future[_Read]]] = deque()
    with _readers(engine, table, connections) as submit:
        while waiting and len(turns) < connections:
            turns.append((waiting[0], submit(waiting.popleft())))
        while turns:
            _, reading = turns.popleft()
            while not _is_done(reading):
                yield None
            rows, rest = reading.result()
            following = rest if rest is not None else (waiting.popleft() if waiting else None)
            if following is not None:
                turns.append((following, submit(following)))
            if rows or not turns:
                yield RangePage(rows, (*(one for one, _ in turns), *waiting))


@contextmanager
def _readers(engine: sa.Engine, table: KeyedTable, connections: int) -> Iterator[_Submit]:
    """Give a function that has a range's next page read by one of some threads.

    Each has a connection of its own. At the end the statements that are on are cancelled.
    """
    readers = _Readers(engine, table)
    pool = ThreadPoolExecutor(connections, thread_name_prefix="key range")
    try:
        yield lambda part: pool.submit(readers.read, part)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        readers.end()
        pool.shutdown(wait=True)
        readers.close()


class _Readers:
    """Connections that threads read by, one each."""

    def __init__(self, engine: sa.Engine, table: KeyedTable) -> None:
        self._engine, self._table = engine, table
        self._own = threading.local()
        self._opened: list[sa.Connection] = []
        self._reading: dict[int, Any] = {}
        """By thread: the driver's connection, where a page is read by it now."""
        self._changed = threading.Condition()
        self._ended = False

    def read(self, part: KeyRange) -> _Read:
        """Read a page in the calling thread."""
        if not hasattr(self._own, "session"):
            self._own.session = self._engine.connect()
            self._opened.append(self._own.session)
        thread = threading.get_ident()
        with self._changed:
            if self._ended:
                return (), part
            self._reading[thread] = self._own.session.connection.dbapi_connection
        try:
            return self._table.page(self._own.session, part)
        finally:
            with self._changed:
                del self._reading[thread]
                self._changed.notify_all()

    def end(self) -> None:
        """Cancel the pages that are read; return when none is.

        Again and again: a page is more than one statement, and between two there is nothing to
        cancel.
        """
        wait_s = _CANCEL_FIRST_S
        with self._changed:
            self._ended = True
            while reading := list(self._reading.values()):
                for connection in reading:
                    cancel(self._engine, connection)
                self._changed.wait(wait_s)
                wait_s = min(2 * wait_s, _CANCEL_LAST_S)

    def close(self) -> None:
        """Close the connections; no thread reads any more."""
        with ExitStack() as closing:
            for session in self._opened:
                closing.callback(session.close)


def _is_done(reading: Future[Any]) -> bool:
    try:
        reading.exception(timeout=_TURN_S)
    except NotYet:
        return False
    return True


def _within(
    query: sa.Select[Any], columns: Sequence[sa.ColumnElement[Any]], part: KeyRange
) -> sa.Select[Any]:
    """Return a query of what lies in a range."""
    if part.after is not None:
        query = query.where(*_compared(columns, part.after, behind=True))
    if part.until is not None:
        query = query.where(*_compared(columns, part.until, behind=False))
    return query


def _compared(
    columns: Sequence[sa.ColumnElement[Any]], key: Sequence[Any], *, behind: bool
) -> list[sa.ColumnElement[bool]]:
    bound = [sa.literal(value) for value in key]
    if len(columns) == 1:
        return [columns[0] > bound[0] if behind else columns[0] <= bound[0]]
    row, place = sa.tuple_(*columns), sa.tuple_(*bound)
    if behind:  # by the first column MySQL finds the index
        return [columns[0] >= bound[0], row > place]
    return [columns[0] <= bound[0], row <= place]


def _size(key: tuple[Any, ...]) -> int:
    """Return the bytes that a cursor has of a key."""
    return len(dumps(_kept(key)))


def _kept(key: tuple[Any, ...] | None) -> list[Any] | None:
    return None if key is None else [kept(value) for value in key]


def _restored(told: Any, width: int) -> tuple[Any, ...] | None:
    if told is None:
        return None
    key = tuple(restored(value) for value in told)
    if len(key) != width:
        raise ValueError("a key of other columns")
    return key
