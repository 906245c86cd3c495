"""The columns of one table, built from rows; and what is wrong with a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from waybill.pipelines import Column
from waybill.processing.conversion import convert, error_code, shown


@dataclass(frozen=True, slots=True)
class MappingFault:
    """Why one row does not fit its table."""

    code: str
    message: str
    where: str
    others: tuple[MappingFault, ...] = ()
    """What else is wrong with the row: columns in their order, after fields that have none."""


Faults = dict[int, list[MappingFault]]
"""All that is wrong with each row, by its index."""


def joined(faults: list[MappingFault]) -> MappingFault:
    """Return the first fault, which decides where the event parks, with the others."""
    return faults[0] if len(faults) == 1 else replace(faults[0], others=tuple(faults[1:]))


class Columns:
    """Builds one table's columns.

    Args:
        columns: of the table.
        fields: of their Arrow schema.
        by_column: True when rows hold column names, not source fields.
        keys: names of those that make the key.
    """

    __slots__ = ("_columns", "_keys", "names", "sources")

    def __init__(
        self,
        columns: Sequence[Column],
        fields: Iterable[pa.Field],
        *,
        by_column: bool,
        keys: Iterable[str] = (),
    ) -> None:
        self._columns = tuple(zip(columns, fields, strict=True))
        self.names = tuple(c.name if by_column else c.source for c in columns)
        self.sources = frozenset(self.names)
        self._keys = frozenset(keys)

    def arrays(self, rows: Sequence[dict[str, Any]]) -> tuple[list[pa.Array], Faults]:
        """Return the columns, null where a value does not fit, and the faults of those rows."""
        arrays: list[pa.Array] = []
        faults: Faults = {}
        for name, (column, field) in zip(self.names, self._columns, strict=True):
            values = [row.get(name) for row in rows]
            try:
                array = convert(column.type, values, field.type)
            except Exception:  # noqa: BLE001 - it is met again, value by value
                array = _one_by_one(column, values, field.type, faults)
            if array.null_count and (not column.nullable or column.name in self._keys):
                self._refuse_nulls(column, values, faults)
            arrays.append(array)
        return arrays, faults

    def _refuse_nulls(self, column: Column, values: Sequence[Any], faults: Faults) -> None:
        code = "mapped_key_missing" if column.name in self._keys else "not_null_violation"
        words = f"column {column.name!r} is {column.type} and takes no null"
        fault = MappingFault(code, words, column.name)
        for index, value in enumerate(values):
            if value is None:
                faults.setdefault(index, []).append(fault)


def _one_by_one(
    column: Column, values: Sequence[Any], kind: pa.DataType, faults: Faults
) -> pa.Array:
    """Return the column with null where a value does not fit, and note the faults of those."""
    pieces = []
    for index, value in enumerate(values):
        try:
            piece = convert(column.type, [value], kind)
        except Exception as error:  # noqa: BLE001 - a user's value may refuse in any way
            words = f"column {column.name!r} is {column.type}; got {type(value).__name__} "
            fault = MappingFault(error_code(column.type, error), words + shown(value), column.name)
            faults.setdefault(index, []).append(fault)
            piece = pa.nulls(1, kind)
        pieces.append(piece)
    return pa.concat_arrays(pieces)
