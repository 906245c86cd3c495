"""Which rows may move the cursor of a dlt resource.

dlt takes the greatest of all values that it meets. Among texts that are times, ``not a time`` is
greater than each of them, and so is a time of the next century: the cursor would move there, and
each run behind it would ask for nothing and end well. So a row whose value is of another kind than
the cursor is refused, and one that lies far ahead of this machine's clock goes past dlt's
incremental step: it is a row, and no cursor.

Both come again with each run in which the source returns them. What was refused or taken once is
known by its digest, in the state that is kept.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import blake2b
from math import isfinite
from typing import Any

from waybill.errors import InputError

STATE_KEY = "waybill"
"""Beside dlt's own in its state: the digests of each resource's rows that came once."""
_MOST_DIGESTS = 1_000
_TRIED_ROWS = 20
"""If so many rows of a first reading are of another kind, and none before, the declaration is."""
_AHEAD = timedelta(minutes=10)
"""Of this machine's clock: as far a source's may be. All between now and a cursor ahead is lost."""
_FAR_AHEAD = timedelta(days=2)
"""A cursor that stands so far ahead is an error; what is nearer will pass by itself."""
_TIME_TEXT, _TEXT, _NUMBER, _NAN = "time", "text", "number", "nan"
_NAMES = {
    _TIME_TEXT: "a time such as 2024-05-01T10:00:00Z",
    _TEXT: "text",
    _NUMBER: "a number",
}
_BEGINS_AS_TIME = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_ZONE = re.compile(r" ?(?:UTC|GMT|[Zz])\Z")


@dataclass(slots=True)
class _Cursor:
    """What is known of a resource's cursor in this run."""

    path: str
    kind: str
    is_first_reading: bool
    watches_clock: bool
    tried: int = 0
    """Rows of another kind, before the first of its own."""
    ahead: int = 0


class CursorGuard:
    """Keeps rows from dlt's incremental step whose values must not move the cursor."""

    def __init__(
        self,
        state: dict[str, Any],
        refuse: Callable[[str, Any, str], None],
        text_of: Callable[[Any], bytes],
    ) -> None:
        """Keep what is known in a state.

        Args:
            state: dlt's, in which digests are kept.
            refuse: takes a table, a row that is refused, and why.
            text_of: returns what a row is known by.
        """
        self._state, self._refuse, self._text_of = state, refuse, text_of
        self._cursors: dict[str, _Cursor] = {}
        self._seen: dict[str, set[str]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Guard all incremental steps of dlt meanwhile."""
        from dlt.extract.incremental import Incremental

        kind: Any = Incremental
        filtered = kind.__call__

        def guarded(step: Any, rows: Any, meta: Any = None) -> Any:
            return self._guarded(step, rows, meta, filtered)

        kind.__call__ = guarded
        try:
            yield
        finally:
            kind.__call__ = filtered

    def begin(self, incremental: Any) -> None:
        """Look where a cursor stands, before any row of its resource comes.

        Raises:
            InputError: it stands where no row can follow.
        """
        if incremental is None or incremental.last_value_func not in (max, min):
            return
        name, initial = incremental.resource_name, incremental.initial_value
        last = (incremental._cached_state or {}).get("last_value")
        reference = last if initial is None else initial
        if name in self._cursors or reference is None:
            return
        is_first = last is None or last == initial
        cursor = _new_cursor(incremental, reference, is_first=is_first)
        goes_up = incremental.last_value_func is max and incremental.end_value is None
        is_ahead = goes_up and cursor.watches_clock and _is_ahead(last, _FAR_AHEAD)
        if not is_first and (_is_stuck(cursor.kind, last) or is_ahead):
            raise InputError(
                f"resource {name!r}: its cursor {cursor.path} stands at {str(last)[:100]!r}, behind"
                " which no row can follow: a row had this value, and a run took it for the cursor."
                " Read the source from its beginning: waybill ingest <pipeline> --full --why …"
            )
        self._cursors[name] = cursor

    def end(self, names: Sequence[str]) -> None:
        """Forget rows of resources that were read to their end, and that came no longer."""
        kept = self._state.get(STATE_KEY, {})
        for name in dict.fromkeys([*names, *self._seen]):
            seen = self._seen.pop(name, set())
            kept[name] = [digest for digest in kept.get(name, ()) if digest in seen]
            cursor = self._cursors.pop(name, None)
            if cursor is not None and cursor.ahead:
                sys.stderr.write(
                    f"resource {name}: {cursor.ahead} rows have {cursor.path} ahead"
                    " of this machine's clock; they are taken, and the cursor stays behind them\n"
                )
        left = {name: digests for name, digests in kept.items() if digests}
        if left:
            self._state[STATE_KEY] = left
        else:
            self._state.pop(STATE_KEY, None)

    def _guarded(self, step: Any, rows: Any, meta: Any, filtered: Callable[..., Any]) -> Any:
        if rows is None or step._advanced or (isinstance(rows, list) and not rows):
            return filtered(step, rows, meta)
        self.begin(step)
        finder = step._get_transform(rows)
        if not hasattr(finder, "find_cursor_value"):
            return self._guarded_table(step, rows, meta, filtered)
        items = rows if isinstance(rows, list) else [rows]
        values = [None if row is None else finder.find_cursor_value(row) for row in items]
        cursor = self._cursor(step, values)
        verdicts = None if cursor is None else _verdicts(cursor, values)
        if cursor is None or verdicts is None:
            _note_good(cursor, values)
            return filtered(step, rows, meta)
        keeps = self._set_aside(step, cursor, items, verdicts, meta)
        ahead = [row for row, keep in zip(items, keeps, strict=True) if keep is None]
        good = [row for row, keep in zip(items, keeps, strict=True) if keep]
        moved = (filtered(step, good, meta) if good else None) or []
        taken = [*moved, *ahead] or None
        return taken if taken is None or isinstance(rows, list) else taken[0]

    def _guarded_table(self, step: Any, table: Any, meta: Any, filtered: Callable[..., Any]) -> Any:
        """Guard a table of Arrow; a list of them, or a data frame, is dlt's alone."""
        import pyarrow

        cursor, path = self._cursors.get(step.resource_name), step.get_cursor_column_name()
        is_arrow = isinstance(table, pyarrow.Table | pyarrow.RecordBatch)
        if not is_arrow or cursor is None or path not in table.schema.names:
            return filtered(step, table, meta)
        values = _table_values(cursor, table[path])
        verdicts = None if values is None else _verdicts(cursor, values)
        if verdicts is None:
            _note_good(cursor, [True] * table.num_rows)
            return filtered(step, table, meta)
        keeps = self._set_aside(step, cursor, table.to_pylist(), verdicts, meta)
        good = table.filter(pyarrow.array([keep is True for keep in keeps]))
        ahead = table.filter(pyarrow.array([keep is None for keep in keeps]))
        moved = filtered(step, good, meta) if good.num_rows else None
        parts = [
            part if isinstance(part, pyarrow.Table) else pyarrow.Table.from_batches([part])
            for part in (moved, ahead)
            if part is not None and part.num_rows
        ]
        return pyarrow.concat_tables(parts) if parts else None

    def _cursor(self, step: Any, values: Sequence[Any]) -> _Cursor | None:
        """Return what is known of a cursor; where nothing is declared, it is as most values are."""
        cursor = self._cursors.get(step.resource_name)
        some = [value for value in values if value is not None and _kind(value) != _NAN]
        if cursor is None and some and step.last_value_func in (max, min):
            some.sort(key=lambda value: _kind(value) == _TEXT)  # of as many, the first one counts
            [(kind, _)] = Counter(map(_kind, some)).most_common(1)
            typical = next(value for value in some if _kind(value) == kind)
            cursor = _new_cursor(step, typical, is_first=False)
            self._cursors[step.resource_name] = cursor
        return cursor

    def _set_aside(
        self,
        step: Any,
        cursor: _Cursor,
        rows: Sequence[Any],
        verdicts: Sequence[bool | None],
        meta: Any,
    ) -> list[bool | None]:
        """Refuse rows that came not before; return what is left: verdicts, and False of others."""
        table = str(getattr(meta, "table_name", None) or step.resource_name)
        keeps: list[bool | None] = []
        for row, verdict in zip(rows, verdicts, strict=True):
            keeps.append(verdict)
            if verdict:
                cursor.is_first_reading = False
                continue
            if verdict is None:
                cursor.ahead += 1
            else:
                self._tried(step, cursor)
            if not self._is_new(step.resource_name, row):
                keeps[-1] = False
            elif verdict is False:
                self._refuse(table, row, _why(cursor))
        return keeps

    def _tried(self, step: Any, cursor: _Cursor) -> None:
        cursor.tried += 1
        if cursor.is_first_reading and cursor.tried >= _TRIED_ROWS:
            raise InputError(
                f"resource {step.resource_name!r}: in none of the first {_TRIED_ROWS} rows"
                f" {cursor.path} is {_named(cursor.kind)}, as the cursor's initial_value is;"
                " declare an initial_value as the rows have them"
            )

    def _is_new(self, name: str, row: Any) -> bool:
        """Tell whether a row did not come before, as it is; it is known from now on."""
        digest = blake2b(self._text_of(row), digest_size=16).hexdigest()
        self._seen.setdefault(name, set()).add(digest)
        kept = self._state.setdefault(STATE_KEY, {}).setdefault(name, [])
        if digest in kept:
            return False
        kept.append(digest)
        del kept[:-_MOST_DIGESTS]
        return True


def make_canonical(state: Any) -> None:
    """Bring the digests in a state of dlt into an order of their own."""
    for digests in state.get(STATE_KEY, {}).values() if isinstance(state, dict) else ():
        digests.sort()


def _why(cursor: _Cursor) -> str:
    return (
        f"{cursor.path}: expected {_named(cursor.kind)}, as the cursor of this resource is; correct"
        " the record at its source, and a run reads it again"
    )


def _new_cursor(incremental: Any, reference: Any, *, is_first: bool) -> _Cursor:
    kind = _kind(reference)
    goes_up = incremental.last_value_func is max and incremental.end_value is None
    watches = goes_up and kind not in {_TEXT, _NUMBER} and not _is_ahead(reference)
    return _Cursor(str(incremental.cursor_path), kind, is_first, watches)


def _verdicts(cursor: _Cursor, values: Sequence[Any]) -> list[bool | None] | None:
    """Return of each value if it may move a cursor: no, or, if it lies ahead, None.

    Return None if all may.
    """
    limit = datetime.now(UTC) + _AHEAD
    verdicts = [_verdict(cursor, value, limit) for value in values]
    return None if all(verdicts) else verdicts


def _verdict(cursor: _Cursor, value: Any, limit: datetime) -> bool | None:
    if value is None:
        return True  # dlt has an option for these
    moment = _moment(value)
    if isinstance(value, str):
        is_of = cursor.kind == _TEXT or (cursor.kind == _TIME_TEXT and moment is not None)
    else:
        is_of = _kind(value) == cursor.kind
    is_ahead = is_of and cursor.watches_clock and moment is not None and moment > limit
    return None if is_ahead else is_of


def _table_values(cursor: _Cursor, column: Any) -> list[Any] | None:
    """Return a column's values if one of them must not move a cursor; dlt tells other kinds."""
    import pyarrow

    kind = column.type
    if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
        return list(column.to_pylist()) if cursor.kind == _TIME_TEXT else None
    if not pyarrow.types.is_temporal(kind) or not cursor.watches_clock:
        return None
    if not _is_ahead(pyarrow.compute.max(column).as_py()):
        return None
    values = column.to_pylist()
    cursor.kind = _kind(next(value for value in values if value is not None))
    return list(values)


def _is_stuck(kind: str, last: Any) -> bool:
    return (kind == _TIME_TEXT and _kind(last) == _TEXT) or _kind(last) == _NAN


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return _TEXT if _moment(value) is None else _TIME_TEXT
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return _NUMBER if isfinite(value) else _NAN
    bases = (kind for kind in (datetime, date) if isinstance(value, kind))
    return next(bases, type(value)).__name__


def _named(kind: str) -> str:
    return _NAMES.get(kind, f"a {kind}")


def _is_ahead(value: Any, most: timedelta = _AHEAD) -> bool:
    moment = _moment(value)
    return moment is not None and moment > datetime.now(UTC) + most


def _note_good(cursor: _Cursor | None, values: Sequence[Any]) -> None:
    if cursor is not None and any(value is not None for value in values):
        cursor.is_first_reading = False


def _moment(value: Any) -> datetime | None:
    """Return the time that a value is, without a zone taken for UTC; None: it is none."""
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value


def _parsed(text: str) -> datetime | None:
    """Return an RFC 3339 or ISO 8601 time with dashes, or what databases write; None: none."""
    if not _BEGINS_AS_TIME.match(text):
        return None
    try:
        return datetime.fromisoformat(_ZONE.sub("Z", text).replace(" +", "+").replace(" -", "-"))
    except ValueError:
        return None
