"""The batch form of a transformation: ``transform_batch(table)`` takes an Arrow table of events.

Many events are run in one go, a table of at most `MOST_ROWS` after the other.

What comes back is tied to the events by its column ``_row``: a row that is missing is filtered on
purpose, one that comes several times is children, ``_error`` parks its event.

A table that the code fails for is cut in halves, down to tables of one row: who is at fault parks
alone, under the error that its own table of one row met. Where a table takes too long, its rows go
one by one at once. So nothing of a row may depend on which rows stand beside it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, pairwise
from operator import le
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from waybill.errors import ParkError
from waybill.events import REFUSED_ROW, UPSERT, error_type
from waybill.pipelines import BATCH_FUNCTION
from waybill.processing.event_tables import EventBatch, EventTable, TableOrder, tables_of
from waybill.processing.failures import EventTimeoutError, Fault, describe
from waybill.processing.field_types import ERROR, ERROR_TYPE, EVENT_NAME, OP, RESERVED, REST, ROW
from waybill.processing.table_results import (
    Column,
    TableResult,
    plain_column,
    refuse_too_many,
    taken,
)
from waybill.processing.transformation import Retries, Watch

TransformBatch = Callable[[pa.Table], Any]
_TABLES = 1 << 41
_STEP = 1 << 20
"""A marker is ``_TABLES``, more by ``_STEP`` for each table before, and by the row where a table
has one: from 1."""
_TEXTS = (ERROR, ERROR_TYPE, EVENT_NAME, OP, REST)
"""Columns of a result that hold text."""
_NOT_READ = RESERVED - {EVENT_NAME, OP, REST}
"""Columns of a result of which no field is made, nor what an event is."""


def row_of(marker: int) -> int:
    """Return which event a table of one row was of; -1: it had several, or there was none."""
    return marker % _STEP - 1 if marker >= _TABLES else -1


def table_markers(events: int, attempts: int) -> range:
    """Return the markers of so many events, each run at most so often by itself: a step a table."""
    return range(_TABLES, _TABLES + 2 * events * (attempts + 1) * _STEP, _STEP)


def is_intact() -> bool:
    """Tell whether user code left Arrow's modules in their places: all tables need them."""
    return sys.modules.get("pyarrow") is pa and sys.modules.get("pyarrow.compute") is pc


_Key: TypeAlias = "tuple[str, pa.DataType | None]"
"""A column's name and type; None: it is a list of values."""


@dataclass(slots=True)
class _Part:
    """What came of one table, or of several."""

    rows: Sequence[int]
    columns: dict[_Key, Column]
    faults: dict[int, Fault]

    def moved(self, first: int) -> _Part:
        """Return the same, of events behind so many others."""
        if not first:
            return self
        rows = self.rows
        if isinstance(rows, range):
            rows = range(rows.start + first, rows.stop + first)
        else:
            rows = [row + first for row in rows]
        return _Part(rows, self.columns, {row + first: f for row, f in self.faults.items()})


class BatchRun:
    """One run of a function over events.

    Args:
        function: the pipeline's ``transform_batch``.
        batches: the events, of one name; asked for one after the other.
        order: how tables are made of them.
        watch: where it is noted what is worked on.
        retries: of transient errors, each event by itself; None: they fail at once.
    """

    _batch: EventBatch
    """Those that are worked on."""

    def __init__(
        self,
        function: TransformBatch,
        batches: Iterable[EventBatch],
        order: TableOrder,
        watch: Watch,
        retries: Retries | None = None,
    ) -> None:
        self._function = function
        self._batches = batches
        self._order = order
        self._watch = watch
        self._retries = retries
        self._markers = count(_TABLES, _STEP)
        self._first = 0
        """Events that were worked on before."""

    def result(self) -> TableResult:
        """Return what came of all events.

        Cost: about 1 µs an event of seven fields, beside the function's own. A function that raises
        for one row of n runs 2 log n times more, one that takes too long n times.
        """
        parts: list[_Part] = []
        faults: dict[int, Fault] = {}
        for batch in self._batches:
            self._batch = batch
            part = self._part_of(batch).moved(self._first)
            self._first += batch.facts.num_rows
            faults |= part.faults
            if part.rows:
                parts.append(part)
        if not parts:
            return TableResult(self._first, [], [], faults)
        whole = _joined(parts, _merged_keys(parts) if len(parts) > 1 else ())
        columns = [(name, column) for (name, _), column in whole.columns.items()]
        return TableResult(self._first, whole.rows, columns, faults)

    def _part_of(self, batch: EventBatch) -> _Part:
        """Return what came of some events, in their order."""
        tables, faults = tables_of(batch, self._order)
        parts = [part for given in tables for part in self._parts(given)]
        for part in parts:
            faults |= part.faults
        parts = [part for part in parts if part.rows]
        if not parts:
            return _Part([], {}, faults)
        keys = dict.fromkeys(chain.from_iterable(part.columns for part in parts))
        return replace(_in_order_of_events(_joined(parts, keys)), faults=faults)

    def _parts(self, given: EventTable) -> Iterator[_Part]:
        size = given.table.num_rows
        if size == 1:
            yield self._settled(given, given.rows[0])
            return
        outcome = self._watched(given)
        if isinstance(outcome, _Part):
            yield from self._run_again(given, outcome)
            yield outcome
            return
        steps = [0, size // 2, size]
        if outcome.code == "transformation_timeout":
            steps = list(range(size + 1))
        for start, end in pairwise(steps):
            yield from self._parts(given.part(start, end))

    def _run_again(self, given: EventTable, part: _Part) -> Iterator[_Part]:
        """Take the rows with a transient ``_error_type`` out of a part, and run each alone."""
        if self._retries is None:
            return
        transient = [row for row, fault in part.faults.items() if error_type(fault.code).transient]
        for row in transient:
            place = given.rows.index(row)
            yield self._settled(given.part(place, place + 1), row, part.faults.pop(row))

    def _settled(self, given: EventTable, row: int, fault: Fault | None = None) -> _Part:
        """Run a table of one row, again where its error is transient.

        Args:
            given: the table.
            row: its ``_row``.
            fault: that it met already.
        """
        outcome = self._one(given, row) if fault is None else fault
        if isinstance(outcome, Fault) and self._retries is not None:
            outcome = self._retries.settle(outcome, partial(self._one, given, row))
        return outcome if isinstance(outcome, _Part) else _Part([], {}, {row: outcome})

    def _one(self, given: EventTable, row: int) -> _Part | Fault:
        outcome = self._watched(given, row)
        return outcome.faults.get(row, outcome) if isinstance(outcome, _Part) else outcome

    def _watched(self, given: EventTable, row: int | None = None) -> _Part | Fault:
        place = 0 if row is None else self._first + row + 1
        self._watch.begin()
        self._watch.marker.value = next(self._markers) + place
        try:
            outcome = self._outcome(given)
        except EventTimeoutError as error:  # while its exception was asked for its words
            outcome = describe(error)
        self._watch.marker.value = -1
        return outcome

    def _outcome(self, given: EventTable) -> _Part | Fault:
        try:
            return self._part(self._function(given.table), given)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - user code may raise anything
            return describe(error)

    def _part(self, result: Any, given: EventTable) -> _Part:
        """Return the rows and columns of what the function returned.

        Raises:
            ParkError: ``result_invalid``.
        """
        if not isinstance(result, pa.Table):
            raise _invalid(f"returned {type(result).__name__}; it must return a pyarrow.Table")
        _refuse_wrong_columns(result)
        refuse_too_many(result.num_rows, result.num_columns)
        try:
            result.validate(full=True)
        except pa.ArrowException as error:
            raise _invalid(f"returned a table that is not valid: {error}") from error
        result, rows = _in_order(result, given)
        faults = _faults_of(result, rows)
        columns: dict[_Key, Column] = {}
        for name in self._said(result, rows, given):
            column, wrong = plain_column(result.column(name))
            if isinstance(column, list) or column.null_count < len(column):  # a dictionary of nulls
                column = _restored(column, rows, given.shown.get(name))
                columns[name, None if isinstance(column, list) else column.type] = column
            for place, words in wrong.items():
                fault = Fault("result_invalid", f"column {name!r} of the result: {words}")
                faults.setdefault(rows[place], fault)
        return _without_faults(_Part(rows, columns, faults))

    def _said(self, result: pa.Table, rows: Sequence[int], given: EventTable) -> Iterator[str]:
        """Yield the columns that say something: fields, and what is not as it was given."""
        for name in result.column_names:
            if name in _NOT_READ or (column := result.column(name)).null_count == len(column):
                continue
            as_given = name in (EVENT_NAME, OP) and (
                (rows is given.rows and column.equals(given.table.column(name)))
                or not self._is_said(name, column, rows)
            )
            if not as_given:
                yield name

    def _is_said(self, name: str, column: pa.ChunkedArray, rows: Sequence[int]) -> bool:
        """Tell whether names or ops of a result are not those of its rows anyway."""
        if name == EVENT_NAME:
            return bool(set(column.unique().to_pylist()) - {self._batch.name, None})
        if self._batch.ops is None:
            return bool(set(column.unique().to_pylist()) - {UPSERT, None})
        return self._changes(self._batch.ops, column.to_pylist(), rows)

    @staticmethod
    def _changes(given: Sequence[str], ops: Sequence[str | None], rows: Sequence[int]) -> bool:
        pairs = zip(ops, rows, strict=True)
        return any(op is not None and op != given[row] for op, row in pairs)


def _invalid(words: str) -> ParkError:
    return ParkError("result_invalid", f"{BATCH_FUNCTION} {words}")


def _refuse_wrong_columns(result: pa.Table) -> None:
    names = result.column_names
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise _invalid(f"returned two columns {twice[0]!r}: replace one with set_column")
    if ROW not in names:
        raise _invalid(f"returned a table without the column {ROW!r}, which ties rows to events")
    if not pa.types.is_integer(result.schema.field(ROW).type) or result.column(ROW).null_count:
        raise _invalid(f"changed the column {ROW!r}; it must hold the numbers it was given")
    for name in _TEXTS:
        kind = result.schema.field(name).type if name in names else pa.null()
        if not (_is_text(kind) or pa.types.is_null(kind)):
            raise _invalid(f"returned a column {name!r} of {kind}; it holds text, or null")


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(kind in (pa.string(), pa.large_string(), pa.string_view()))


def _in_order(result: pa.Table, given: EventTable) -> tuple[pa.Table, Sequence[int]]:
    """Return the result's rows in the order of their events, and which event each is of."""
    if result.column(ROW).equals(given.table.column(ROW)):
        return result, given.rows
    rows: list[int] = result.column(ROW).to_pylist()
    strange = set(rows).difference(given.rows)
    if strange:
        raise _invalid(f"returned {ROW} {min(strange)}, which is of none of its events")
    places = sorted(range(len(rows)), key=rows.__getitem__)
    if places != list(range(len(rows))):
        result, rows = result.take(pa.array(places, pa.int64())), [rows[place] for place in places]
    return result, rows


def _faults_of(result: pa.Table, rows: Sequence[int]) -> dict[int, Fault]:
    """Return by event what the columns ``_error`` and ``_error_type`` say."""
    size = len(rows)
    said = [
        result.column(name).to_pylist()
        for name in (ERROR, ERROR_TYPE)
        if name in result.column_names and result.column(name).null_count < size
    ]
    if not said:
        return {}
    words, codes = (
        result.column(name).to_pylist() if name in result.column_names else [None] * size
        for name in (ERROR, ERROR_TYPE)
    )
    faults: dict[int, Fault] = {}
    for row, text, code in zip(rows, words, codes, strict=True):
        if text is not None or code is not None:
            faults.setdefault(row, describe(ParkError(code or REFUSED_ROW, text or "")))
    return faults


def _restored(
    column: Column, rows: Sequence[int], shown: Mapping[int, tuple[str, Any]] | None
) -> Column:
    """Return a column in which texts that were given as the JSON of a value are that value."""
    if shown is None or not isinstance(column, pa.Array) or not _is_text(column.type):
        return column
    pairs = zip(column.to_pylist(), (shown[row] for row in rows), strict=True)
    return [value if text == given else text for text, (given, value) in pairs]


def _without_faults(part: _Part) -> _Part:
    """Take the rows of events at fault out of a part."""
    if not part.faults:
        return part
    kept = [place for place, row in enumerate(part.rows) if row not in part.faults]
    columns = {key: taken(column, kept) for key, column in part.columns.items()}
    return _Part([part.rows[place] for place in kept], columns, part.faults)


def _joined(parts: Sequence[_Part], keys: Iterable[_Key]) -> _Part:
    """Return parts as one, in their order; faults are left out.

    Args:
        parts: at least one.
        keys: of their columns.
    """
    if len(parts) == 1:
        return parts[0]
    return _Part(_rows_of(parts), {key: _stacked(key, parts) for key in keys}, {})


def _rows_of(parts: Sequence[_Part]) -> Sequence[int]:
    """Return the rows of parts one after the other, as a range where they are one."""
    if all(isinstance(part.rows, range) for part in parts) and all(
        one.rows[-1] + 1 == other.rows[0] for one, other in pairwise(parts)
    ):
        return range(parts[0].rows[0], parts[-1].rows[-1] + 1)
    return list(chain.from_iterable(part.rows for part in parts))


def _stacked(key: _Key, parts: Sequence[_Part]) -> Column:
    """Return a column of all parts: null where a part has none of that name and type."""
    found = [part.columns.get(key) for part in parts]
    _, kind = key
    if kind is None:
        values: list[Any] = []
        for part, column in zip(parts, found, strict=True):
            values += [None] * len(part.rows) if column is None else column
        return values
    return pa.concat_arrays(
        pa.nulls(len(part.rows), kind) if column is None else column
        for part, column in zip(parts, found, strict=True)
    )


def _in_order_of_events(part: _Part) -> _Part:
    rows = part.rows
    if isinstance(rows, range) or all(map(le, rows, rows[1:])):
        return part
    places = sorted(range(len(rows)), key=rows.__getitem__)
    columns = {key: taken(column, places) for key, column in part.columns.items()}
    return _Part([rows[place] for place in places], columns, part.faults)


def _merged_keys(parts: Sequence[_Part]) -> list[_Key]:
    """Return the columns of parts in one order, which is that of each if there is such a one.

    So the fields of a payload come in an order that others beside it do not change.
    """
    merged: list[_Key] = []
    for part in parts:
        place = 0
        for key in part.columns:
            if key in merged:
                place = merged.index(key)
            else:
                merged.insert(place, key)
            place += 1
    return merged
