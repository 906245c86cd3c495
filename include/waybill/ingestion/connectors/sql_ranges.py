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
from waybill.ingestion.connectors.sql_values import kept, restored

MOST_RANGES = 64
_MOST_SAMPLED = 1024
"""Keys that a walk remembers; even. Each time there are as many, every second one is let go."""
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

        Cost: an index of the key is read once, some thousands of keys a statement; more where the
        table is larger.
        """
        columns, sample, step = self._key, [], self.page_rows
        last: tuple[Any, ...] | None = None
        while True:
            query = sa.select(*columns).order_by(*columns).offset(step - 1).limit(1)
            found = fetched(session, _within(query, columns, KeyRange(last)))
            session.rollback()
            if not found:
                break
            last = tuple(found[0])
            sample.append(last)
            if len(sample) == _MOST_SAMPLED:
                sample, step = sample[1::2], step * 2
            yield None
        parts = len(sample) + 1
        places = sorted({number * parts // ranges for number in range(1, ranges)} - {0})
        bounds = [sample[place - 1] for place in places]
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

    Each has a connection of its own. At the end the statements that are on are waited for.
    """
    own, opened = threading.local(), list[sa.Connection]()

    def read(part: KeyRange) -> _Read:
        if not hasattr(own, "session"):
            own.session = engine.connect()
            opened.append(own.session)
        return table.page(own.session, part)

    pool = ThreadPoolExecutor(connections, thread_name_prefix="key range")
    try:
        yield lambda part: pool.submit(read, part)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        with ExitStack() as closing:
            for session in opened:
                closing.callback(session.close)


def _is_done(reading: Future[Any]) -> bool:
    try:
        reading.exception(timeout=_TURN_S)
    except NotYet:
        return False
    return True


def fetched(session: sa.Connection, statement: sa.Select[Any]) -> Sequence[Any]:
    """Return a statement's rows as the driver gives them: no column has a type of SQLAlchemy's."""
    with session.execute(statement) as result:
        cursor = result.cursor
        return [] if cursor is None else list(cursor.fetchall())


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


def _kept(key: tuple[Any, ...] | None) -> list[Any] | None:
    return None if key is None else [kept(value) for value in key]


def _restored(told: Any, width: int) -> tuple[Any, ...] | None:
    if told is None:
        return None
    key = tuple(restored(value) for value in told)
    if len(key) != width:
        raise ValueError("a key of other columns")
    return key
