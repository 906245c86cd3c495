"""Results of tables between a process and its process of user code: Arrow's buffers in MessagePack.

Not Arrow's IPC format: its reader decompresses whatever a message says, and knows dictionaries,
extensions and metadata. Here a column is one of few types, and its bytes; each is validated in
full before anything looks at a value, since offsets that somebody else wrote may point anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from waybill.processing.failures import Fault
from waybill.processing.sandbox.frames import (
    LARGEST_RESULT_BYTES,
    fault_body,
    pack,
    read_fault,
    written,
)
from waybill.processing.table_results import (
    Column,
    TableResult,
    is_plain,
    refuse_too_many,
    taken,
)

TABLE = "table"
_DECIMAL = re.compile(r"decimal128\((\d{1,2}), (-?\d{1,2})\)", re.ASCII)
_TYPES = {
    str(kind): kind
    for kind in (
        pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.binary(), pa.date32(),
        pa.timestamp("us", tz="UTC"),
    )
}  # fmt: skip
_SPARE = 1024
"""Bytes that an array may bring along unused."""


def pack_table(result: TableResult, printed: str) -> bytes:
    """Write a result; events whose rows cannot be written, or are too large, are faults.

    Cost: 0.02 µs a value of Arrow's, as `frames.pack` of others.
    """
    try:
        content = _packed(result, printed)
    except Exception:  # noqa: BLE001 - user data may refuse in any way
        content = b""
    if content and len(content) <= LARGEST_RESULT_BYTES:
        return content
    return _packed(_writable(result), printed)


def _packed(result: TableResult, printed: str) -> bytes:
    rows = None if result.is_whole else list(result.rows)
    columns = [[name, *_column_body(column)] for name, column in result.columns]
    faults = [[index, fault_body(fault)] for index, fault in result.faults.items()]
    return pack([TABLE, [rows, columns, faults], printed])


def _column_body(column: Column) -> tuple[str, list[Any]]:
    if isinstance(column, list):
        return "", column
    if column.offset or column.get_total_buffer_size() > column.nbytes + _SPARE:
        column = pa.concat_arrays([column.slice(0, 0), column])
    buffers = [None if one is None else one.to_pybytes() for one in column.buffers()]
    return str(column.type), buffers


def _writable(result: TableResult) -> TableResult:
    """Return a result without the events whose own rows cannot be written."""
    places: dict[int, list[int]] = {}
    for place, row in enumerate(result.rows):
        places.setdefault(row, []).append(place)
    faults = dict(result.faults)
    columns: list[tuple[str, Column]] = [
        (name, list(column) if isinstance(column, list) else column)
        for name, column in result.columns
    ]
    for row, mine in places.items():
        fault = _row_fault(columns, mine)
        if fault is not None:
            faults[row] = fault
    kept = [place for place, row in enumerate(result.rows) if row not in faults]
    rows = [result.rows[place] for place in kept]
    return TableResult(result.count, rows, [(n, taken(c, kept)) for n, c in columns], faults)


def _row_fault(columns: Sequence[tuple[str, Column]], places: Sequence[int]) -> Fault | None:
    """Return why the rows of one event cannot be written; puts values into a form that can."""
    size = 0
    for name, column in columns:
        if isinstance(column, list):
            for place in places:
                column[place], fault = written(column[place])
                if fault is not None:
                    return fault
        try:
            size += len(pack([name, *_column_body(taken(column, places))]))
        except Exception:  # noqa: BLE001 - a column's name may be one that cannot be written
            return Fault("result_invalid", "a column of the result cannot leave its process")
    if size > LARGEST_RESULT_BYTES:
        words = f"the result has {size:,} bytes; at most {LARGEST_RESULT_BYTES:,} may pass"
        return Fault("result_invalid", words)
    return None


def unpack_table(body: Any, count: int) -> TableResult:
    """Return what ``pack_table`` gave of so many events.

    Raises:
        Exception: it is not that.
    """
    rows, columns, faults = body
    refuse_too_many(count if rows is None else len(rows), len(columns))
    known = {_index(index, count): read_fault(fault) for index, fault in faults}
    if rows is None:
        rows = range(count)
    elif any(type(row) is not int or not 0 <= row < count for row in rows) or rows != sorted(rows):
        raise ValueError("rows are those of events, in their order")
    if not known.keys().isdisjoint(rows):
        raise ValueError("what failed has no rows")
    read = [(_text(name), _column(kind, values, len(rows))) for name, kind, values in columns]
    return TableResult(count, rows, read, known)


def _index(index: Any, count: int) -> int:
    if type(index) is not int or not 0 <= index < count:
        raise ValueError("a fault is one of the events")
    return index


def _text(name: Any) -> str:
    if type(name) is not str:
        raise TypeError("names of fields are texts")
    return name


def _column(kind: str, values: list[Any], length: int) -> Column:
    if type(values) is not list:
        raise TypeError("a column is a list of buffers, or of values")
    if kind == "":
        if len(values) != length:
            raise ValueError("a field has as many values as there are rows")
        return values
    if length == 0:
        return pa.nulls(0)
    if any(one is not None and type(one) is not bytes for one in values):
        raise TypeError("buffers are bytes")
    arrow_type = _type(kind)
    buffers = [None if one is None else pa.py_buffer(one) for one in values]
    if len(buffers) != arrow_type.num_buffers or any(one is None for one in buffers[1:]):
        raise ValueError("a column lacks a buffer")
    array = pa.Array.from_buffers(arrow_type, length, buffers)
    array.validate(full=True)
    if not is_plain(array):
        raise ValueError("a time or date that no process of ours would answer")
    return array


def _type(name: Any) -> pa.DataType:
    found = _TYPES.get(name)
    if found is not None:
        return found
    match = _DECIMAL.fullmatch(name)
    if match is None:
        raise ValueError(f"no type {name!r}")
    return pa.decimal128(int(match[1]), int(match[2]))
