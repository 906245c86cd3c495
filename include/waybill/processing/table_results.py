"""What a transformation that takes tables made: rows that say which event each is of.

In the process of user code its columns become those of few Arrow types, or plain values
(`plain_column`); here they become what became of the events (`results_of`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from waybill.errors import ParkError
from waybill.events import Event, loads
from waybill.processing.conversion import FIRST_US, LAST_US
from waybill.processing.failures import Fault, TooLargeError, describe
from waybill.processing.field_types import EVENT_NAME, OP, REST
from waybill.processing.payload_columns import (
    ArrowColumns,
    KeptPayloads,
    PayloadColumns,
    values_of,
)
from waybill.processing.plan import Plan
from waybill.processing.sandbox.reply_memory import is_json_too_large
from waybill.processing.transformation import Outcome, check_child

Column: TypeAlias = "pa.Array | list[Any]"
"""An Arrow array of one of few types, or values."""
_MICROSECONDS = pa.timestamp("us", tz="UTC")
_EPOCH = date(1970, 1, 1)
_DAYS = (date.min - _EPOCH).days, (date.max - _EPOCH).days
_MOST_BYTES = 64 * 1024**2
_ROW_BYTES, _VALUE_BYTES = 100, 10
"""That a row, and each of its values, count for at least: in the worker they are objects."""


@dataclass(slots=True)
class TableResult:
    """Rows in the order of their events."""

    count: int
    """Of events."""
    rows: Sequence[int]
    """Of each row its event's index, rising."""
    columns: Sequence[tuple[str, Column]] = ()
    """Not all null. Several of one name: the first value that is not null counts."""
    faults: dict[int, Fault] = field(default_factory=dict)
    """By index, of events; they have no rows."""

    @property
    def is_whole(self) -> bool:
        """Tell whether each event has one row."""
        if isinstance(self.rows, range):
            return self.rows == range(self.count)
        return len(self.rows) == self.count and self.rows == list(range(self.count))


def refuse_too_many(rows: int, columns: int) -> None:
    """Refuse a result of more rows than the worker may have, however few bytes they are so far.

    Raises:
        ParkError: ``result_invalid``.
    """
    most = _MOST_BYTES // (_ROW_BYTES + _VALUE_BYTES * columns)
    if rows > most:
        words = f"the result has {rows:,} rows of {columns:,} columns; at most {most:,} may pass"
        raise ParkError("result_invalid", words)


def plain_column(column: pa.ChunkedArray) -> tuple[Column, dict[int, str]]:
    """Return a column as it leaves the process, and by place what is wrong with a value.

    Integers become int64, floats float64, times UTC with microseconds; types that have no such form
    are left as values.
    """
    kind = _plain_type(column.type)
    if kind is None:
        return _values(column)
    try:
        array = _one_array(column if column.type == kind else column.cast(kind))
        if _in_range(array):
            return array, {}
    except pa.ArrowException:
        pass
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _moments(column, kind)
    return _values(column)


def _plain_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type that a column of a type leaves its process with; None: as values."""
    types = pa.types
    if types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    for is_one, plain in _PLAIN:
        if is_one(kind):
            return plain
    if types.is_boolean(kind) or types.is_null(kind) or types.is_decimal128(kind):
        return kind
    return None


_PLAIN = (
    (pa.types.is_integer, pa.int64()),
    (pa.types.is_floating, pa.float64()),
    (pa.types.is_string, pa.string()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_binary, pa.binary()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_timestamp, _MICROSECONDS),
    (pa.types.is_date, pa.date32()),
)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array.

    Raises:
        ArrowException: it is too large for one.
    """
    if column.num_chunks == 1:
        return column.chunk(0)
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        raise pa.ArrowInvalid("more than fits into one array")
    return array


def _in_range(array: pa.Array) -> bool:
    """Tell whether times and dates are some that Python and the destinations have."""
    if array.type == _MICROSECONDS:
        limits, numbers = (FIRST_US, LAST_US), array.cast(pa.int64())
    elif array.type == pa.date32():
        limits, numbers = _DAYS, array.cast(pa.int32())
    else:
        return True
    span = pc.min_max(numbers)
    first, last = span["min"].as_py(), span["max"].as_py()
    return first is None or limits[0] <= first <= last <= limits[1]


def _moments(column: pa.ChunkedArray, kind: pa.DataType) -> tuple[Column, dict[int, str]]:
    pieces, wrong = [], dict[int, str]()
    for place in range(len(column)):
        try:
            piece = _one_array(column.slice(place, 1).cast(kind))
            if not _in_range(piece):
                raise pa.ArrowInvalid("outside the years 1 to 9999")
        except pa.ArrowException as error:
            wrong[place] = str(error)
            piece = pa.nulls(1, kind)
        pieces.append(piece)
    return pa.concat_arrays(pieces), wrong


def _values(column: pa.ChunkedArray) -> tuple[Column, dict[int, str]]:
    values, wrong = list[Any](), dict[int, str]()
    for place, scalar in enumerate(column):
        try:
            values.append(scalar.as_py())
        except (ValueError, OverflowError, ArithmeticError, NotImplementedError) as error:
            wrong[place] = str(error)
            values.append(None)
    return values, wrong


def taken(column: Column, places: Sequence[int]) -> Column:
    """Return some values of a column."""
    if isinstance(column, list):
        return [column[place] for place in places]
    return column.take(pa.array(places, pa.int64()))


def is_plain(array: pa.Array) -> bool:
    """Tell whether an array of somebody else is one that `plain_column` may have made."""
    return _plain_type(array.type) == array.type and _in_range(array)


def results_of(
    plan: Plan, events: Sequence[Event], result: TableResult
) -> PayloadColumns | KeptPayloads | list[Outcome]:
    """Return what became of events, as columns where those that go on do so as themselves.

    Args:
        plan: whose events they are.
        events: of one name.
        result: of them all.

    Raises:
        TooLargeError: its JSON texts would be more than a worker holds.
    """
    said = {name for name, _ in result.columns if name in (EVENT_NAME, OP)}
    if said or (not result.is_whole and len(set(result.rows)) < len(result.rows)):
        return _outcomes(plan, events, result)
    name, rows = events[0].name, result.rows
    types = plan.types(name)
    payloads, wrong = _payloads(result.columns, len(rows), types)
    if wrong:
        kept = [place for place in range(len(rows)) if place not in wrong]
        payloads = payloads.pick(kept)
        result.faults |= {rows[place]: _invalid(words) for place, words in wrong.items()}
        rows = [rows[place] for place in kept]
    as_columns = not payloads.rest or (plan.ignores_rest(name) and not payloads.has_rest(types))
    if as_columns and len(rows) == result.count:
        return payloads
    made = payloads if as_columns else list(payloads)
    return KeptPayloads(result.count, rows, made, result.faults)


def _invalid(words: str) -> Fault:
    return Fault("result_invalid", words)


def _payloads(
    columns: Sequence[tuple[str, Column]], size: int, types: Mapping[str, str]
) -> tuple[ArrowColumns, dict[int, str]]:
    """Return rows as payloads, and by place what is wrong with one."""
    by_name: dict[str, list[Column]] = {}
    for name, column in columns:
        by_name.setdefault(name, []).append(column)
    wrong: dict[int, str] = {}
    arrays: dict[str, pa.Array] = {}
    fields: dict[str, list[Any]] = {}
    rest = by_name.pop(REST, [])
    for name, found in by_name.items():
        is_json = types.get(name) == "json"
        if len(found) > 1 or isinstance(found[0], list) or (is_json and _is_text(found[0])):
            fields[name] = _merged(name, found, wrong, is_json=is_json)
        else:
            arrays[name] = found[0]
    others = _merged(REST, rest, wrong, is_json=True)
    for place, more in enumerate(others):
        if more is not None and not isinstance(more, dict):
            words = f"{REST} takes a JSON object, or null; found {type(more).__name__}"
            wrong.setdefault(place, words)
            others[place] = None
    return ArrowColumns(fields, arrays, size, others), wrong


def _is_text(column: Column) -> bool:
    return isinstance(column, pa.Array) and bool(pa.types.is_string(column.type))


def _merged(
    name: str, columns: Sequence[Column], wrong: dict[int, str], *, is_json: bool
) -> list[Any]:
    """Return the first value that is not null of each row; notes what is no JSON."""
    merged: list[Any] = []
    for column in columns:
        values = column if isinstance(column, list) else values_of(column)
        if is_json and _is_text(column):
            if is_json_too_large(values):
                raise TooLargeError("the JSON texts of the result take too much memory once read")
            values = [_read(name, text, wrong, place) for place, text in enumerate(values)]
        merged = values if not merged else [
            new if old is None else old for old, new in zip(merged, values, strict=True)
        ]  # fmt: skip
    return merged


def _read(name: str, text: str | None, wrong: dict[int, str], place: int) -> Any:
    if text is None:
        return None
    try:
        return loads(text.encode())
    except (ValueError, RecursionError) as error:
        wrong.setdefault(place, f"column {name!r} takes JSON text: {error}")
        return None


def _outcomes(plan: Plan, events: Sequence[Event], result: TableResult) -> list[Outcome]:
    """Return what became of each event, where some are renamed, deleted, or have children."""
    rows = result.rows
    named = _said(result, EVENT_NAME, [events[row].name for row in rows])
    ops = _said(result, OP, [events[row].op for row in rows])
    columns = [(name, c) for name, c in result.columns if name not in (EVENT_NAME, OP)]
    types = plan.types(events[0].name)  # that the texts of tables were written with
    payloads, wrong = _payloads(columns, len(rows), types)
    faults = dict(result.faults)
    for place, words in wrong.items():
        faults.setdefault(rows[place], _invalid(words))
    children: list[list[tuple[str, str, Any]]] = [[] for _ in events]
    for row, name, op, payload in zip(rows, named, ops, payloads, strict=True):
        children[row].append((name, op, payload))
    return [
        faults[index] if index in faults else _outcome(event, children[index])
        for index, event in enumerate(events)
    ]


def _said(result: TableResult, name: str, usual: list[str]) -> list[str]:
    """Return what a column of texts says of each row, null: as usual."""
    said = [column for one, column in result.columns if one == name]
    values = _merged(name, said, {}, is_json=False) or usual
    return [old if new is None else new for old, new in zip(usual, values, strict=True)]


def _outcome(event: Event, children: Sequence[tuple[str, str, Any]]) -> Outcome:
    if not children:
        return None
    try:
        if len(children) > 1:
            return [
                _renamed(event.child(index, None), child) for index, child in enumerate(children)
            ]
        if children[0][:2] == (event.name, event.op):
            event.data = children[0][2]
            return event
        return [_renamed(event, children[0])]
    except ParkError as error:
        return describe(error)


def _renamed(event: Event, child: tuple[str, str, Any]) -> Event:
    name, op, data = child
    changed = msgspec.structs.replace(event, name=name, op=op, data=data)
    check_child(changed)
    return changed
