"""Rows that are gone from a table, found by comparing its keys with those that it had.

The cursor has ``"top"``, the greatest version that was read; ``"compared"``, when the last
comparison began, seconds since 1970; ``"comparison"``, its id; and while its deletes are sent,
``"gone"``: how far they are. A delete has version ``top``: not before what was sent of its row,
and, as it is taken in later, behind it; before a row that is inserted again, whose cursor has
risen. The known keys have it, too: a cursor that is moved back, or lost, knows a lower one.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from waybill.errors import InputError, ParkError
from waybill.events import dumps, loads, source_version
from waybill.ingestion.connectors.base import Cursor, Page, Record
from waybill.ingestion.connectors.known_keys import KEYS_PREFIX, Gone, KnownKeys
from waybill.ingestion.connectors.opening import Opening
from waybill.ingestion.connectors.sql_values import json_value
from waybill.settings import Settings
from waybill.storage import open_owned_objects

_LOG = logging.getLogger(__name__)
_CARRIED = ("top", "compared", "comparison")
_SCAN_ROWS = 50_000
_ALWAYS = 10
"""Rows that a comparison may delete whatever the limit, of a table that has some left."""
Deleting = Generator[Page, None, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """What is compared, and how often."""

    name: str
    schema: str | None
    key: Sequence[str]
    """The columns that name a row: the event's key."""
    cursor: str
    """The column that is the event's version."""
    every_s: int
    """Between two comparisons."""
    limit: float
    """Per cent of the rows that one may delete."""


class TableDeletes:
    """The comparisons of one table; nothing is opened yet."""

    def __init__(self, opening: Opening, table: ComparedTable) -> None:
        self._opening, self._table = opening, table
        self._opened: KnownKeys | None = None
        self._to_forget: tuple[str, list[str]] | None = None

    def note(
        self, rows: Sequence[Any], start: dict[str, Any] | None, *, in_order: bool = True
    ) -> dict[str, Any]:
        """Take note of rows that are about to be sent; return what the cursor carries on.

        Args:
            rows: dicts.
            start: the cursor before them.
            in_order: they are in the order of the cursor.

        Raises:
            InputError: the cursor is no version.
        """
        carried = {name: start[name] for name in _CARRIED if start and name in start}
        if rows:
            last = rows[-1:] if in_order else rows
            version = max(self._version(row[self._table.cursor]) for row in last)
            carried["top"] = max(int(carried.get("top", version)), version)
            self._known.add([self._line(row) for row in rows], carried["top"])
        return carried

    def is_due(self, cursor: Cursor) -> bool:
        """Tell whether it is time for a comparison."""
        compared, now = cursor.get("compared"), time.time()
        return compared is None or not compared <= now < compared + self._table.every_s

    def compare(
        self,
        session: sa.Connection,
        table: sa.TableClause,
        start: dict[str, Any],
        read_to: Sequence[Any],
    ) -> Deleting:
        """Compare, and yield the deletes; return the cursor behind them.

        Args:
            session: at the database.
            table: with the key's columns.
            start: the cursor.
            read_to: values of the cursor's column up to which all was read.

        Raises:
            InputError: more are gone than one comparison may delete.
        """
        began = int(time.time())
        versions = [self._version(json_value(value)) for value in read_to if value is not None]
        comparison, to_forget = self._known.begin()
        with comparison:
            for rows in self._scan(session, table):
                comparison.add(map(self._line, rows))
            comparison.count()
            self._refuse_many(comparison.had, comparison.has, comparison.missing)
            versions += [*comparison.versions, *([int(start["top"])] if "top" in start else [])]
            top = max(versions, default=0)
            gone = comparison.write(top)
        self._to_forget = gone.comparison, to_forget + self._known.objects_of(gone)
        return (yield from self._send(gone, began, {**start, "top": top}, start=start))

    def go_on(self, start: dict[str, Any]) -> Deleting:
        """Yield the deletes that a run which died had not sent; return the cursor behind them.

        Where their objects are gone, a later comparison sent them, or the next one finds them:
        known keys go after a comparison's deletes were committed, and not before.
        """
        try:
            told = start["gone"]
            gone = Gone(str(told["comparison"]), int(told["objects"]))
            place, began = (int(told["object"]), int(told["row"])), int(told["began"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"cursor {str(start)[:1000]} is not one of this connector; reset it"
            ) from error
        if missing := self._known.missing(gone, place[0]):
            _LOG.warning(
                "table %r: object %r with keys that are to be deleted is not there, as where a"
                " cursor was put back that a later comparison is ahead of; this run compares again,"
                " and finds them",
                self._table.name,
                missing,
            )
            left_out = ("gone", "compared", "comparison")
            return {name: value for name, value in start.items() if name not in left_out}
        return (yield from self._send(gone, began, start, place, start=start))

    def confirm(self, cursor: Cursor) -> None:
        """Delete what the comparison began with, once its deletes are committed."""
        if self._to_forget is None or "gone" in cursor:
            return
        comparison, names = self._to_forget
        if cursor.get("comparison") == comparison:
            self._to_forget = None
            self._known.forget(names)

    def _send(
        self,
        gone: Gone,
        began: int,
        cursor: dict[str, Any],
        place: tuple[int, int] = (0, 0),
        *,
        start: dict[str, Any],
    ) -> Deleting:
        size, (first, row) = self._opening.source.page_rows, place
        behind = {name: value for name, value in cursor.items() if name != "gone"}
        ended = {**behind, "compared": began, "comparison": gone.comparison}
        for number in range(first, gone.objects):
            keys = self._known.gone(gone.comparison, number)
            while row < len(keys):
                some = keys[row : row + size]
                row += len(some)
                at = (number, row) if row < len(keys) else (number + 1, 0)
                after = (
                    ended if at[0] == gone.objects else behind | {"gone": _told(gone, began, at)}
                )
                yield self._page(some, after, start)
                start = after
            row = 0
        if start is not ended:
            yield Page([], [], cursor=ended, start=start)
        return ended

    def _page(self, keys: Sequence[bytes], after: dict[str, Any], start: dict[str, Any]) -> Page:
        version = int(after["top"])
        rows: list[dict[str, Any] | Record] = [
            Record(
                dict(zip(self._table.key, loads(key), strict=True)), op="delete", version=version
            )
            for key in keys
        ]
        return Page(rows, [], cursor=after, start=start, place=partial(self._place, keys))

    def _place(self, keys: Sequence[bytes], index: int) -> str:
        return f"table {self._table.name}, key {keys[index].decode()}, which is gone"[:500]

    def _scan(
        self, session: sa.Connection, table: sa.TableClause
    ) -> Generator[list[dict[str, Any]], None, None]:
        columns = [table.c[name] for name in self._table.key]
        query = sa.select(*columns).order_by(*columns).limit(_SCAN_ROWS)
        found: Sequence[Any] = session.execute(query).all()
        while found:
            session.rollback()
            yield [dict(zip(self._table.key, map(json_value, row), strict=True)) for row in found]
            bound = [sa.literal(value) for value in found[-1]]
            behind = query.where(columns[0] >= bound[0], sa.tuple_(*columns) > sa.tuple_(*bound))
            found = session.execute(behind).all()
        session.rollback()

    def _line(self, row: Mapping[str, Any]) -> bytes:
        try:
            return dumps([row[name] for name in self._table.key])
        except (ValueError, TypeError, RecursionError) as error:
            key = {name: row[name] for name in self._table.key}
            raise InputError(
                f"source.options.deletes: table {self._table.name!r} has a key without a form in"
                f" JSON, {str(key)[:500]}: mend the row, or read a view without it"
            ) from error

    def _version(self, value: Any) -> int:
        try:
            return source_version({self._table.cursor: value}, self._table.cursor) or 0
        except ParkError as error:
            raise InputError(
                f"source.options.deletes: column {self._table.cursor!r} must hold integers or"
                f" times, as the version of deletes is made of it: {error.message}"
            ) from error

    def _refuse_many(self, had: int, has: int, missing: int) -> None:
        most = max(_ALWAYS, had * self._table.limit / 100)
        if not missing or self._table.limit == 100 or (has and missing <= most):  # noqa: PLR2004
            return
        what = f"{missing} of {had} rows are gone" if has else f"all {had} rows are gone"
        raise InputError(
            f"table {self._table.name!r}: {what}, more than one comparison may delete"
            f" (source.options.compare_limit: {self._table.limit:g} per cent); nothing was deleted."
            " If they are meant to be deleted, declare compare_limit: 100, deploy, run ingestion,"
            " and take it out again"
        )

    @property
    def _known(self) -> KnownKeys:
        if self._opened is None:
            objects = open_owned_objects(self._opening.settings or Settings())
            self._opened = KnownKeys(objects, self._folder)
        return self._opened

    @property
    def prefix(self) -> str:
        """Return what the names of the objects with the known keys begin with."""
        return f"{KEYS_PREFIX}{self._folder}/"

    @property
    def _folder(self) -> str:
        source, table = self._opening.source, self._table
        of = dumps([source.event, table.schema, table.name, *table.key])
        digest = hashlib.blake2b(of, digest_size=8).hexdigest()
        return f"{quote(self._opening.folder.name, safe='')}/{digest}"


def _told(gone: Gone, began: int, at: tuple[int, int]) -> dict[str, Any]:
    return {
        "comparison": gone.comparison,
        "objects": gone.objects,
        "object": at[0],
        "row": at[1],
        "began": began,
    }
