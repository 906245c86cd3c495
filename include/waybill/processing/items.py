"""Items of arrays: a list of structs beside a table's columns, from which its child table is made.

An event without the array, or with null, has an empty list. A fault of an item is one of its row,
and names the child table, the item's number (from 0) and the column.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from waybill.mappings import ITEM, takes_any_item, whole_fields
from waybill.pipelines import ChildTable
from waybill.processing.columns import Columns, Faults, MappingFault
from waybill.processing.reading import Reading

_MOST_FAULTS = 16
"""Of one array's items that are told for one row."""


class Items:
    """Builds the items' column of one child table."""

    __slots__ = (
        "_columns", "_fields", "_reading", "_table", "_takes_all", "_whole", "source"
    )  # fmt: skip

    def __init__(self, child: ChildTable, field: pa.Field, reading: Reading) -> None:
        self._fields = list(field.type.value_type)
        self._columns = Columns(child.columns, self._fields, by_column=reading.by_column)
        self._reading = reading
        self._table = child.name
        self._whole = whole_fields(child.columns)
        self._takes_all = takes_any_item(child.columns)
        self.source = child.arrow_name if reading.by_column else child.source

    def array(self, rows: Sequence[dict[str, Any]], faults: Faults) -> pa.Array:
        """Return each row's items as a list of structs; notes the faults of rows."""
        items: list[dict[str, Any]] = []
        offsets = [0]
        wrong: Faults = {}
        for index, row in enumerate(rows):
            value = row.get(self.source)
            if isinstance(value, list | tuple):
                items += [self._item(item, wrong, n) for n, item in enumerate(value, len(items))]
            elif value is not None:
                faults.setdefault(index, []).append(self._no_array(value))
            offsets.append(len(items))
        arrays, more = self._columns.arrays(items)
        for number, found in more.items():
            wrong.setdefault(number, []).extend(found)
        self._note(wrong, offsets, faults)
        structs = pa.StructArray.from_arrays(arrays, fields=self._fields)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)

    def _item(self, item: Any, wrong: Faults, number: int) -> dict[str, Any]:
        """Return an item's fields; notes what no column takes."""
        if self._reading.by_column and isinstance(item, dict):
            return item
        if not isinstance(item, dict) or self._takes_all:
            if item is not None and ITEM not in self._columns.sources:
                words = f"the item is {type(item).__name__}, not an object"
                wrong.setdefault(number, []).append(MappingFault("type_mismatch", words, ""))
            return {ITEM: item}
        fields = self._reading.fields(item, self._whole)
        if self._reading.policy != "ignore" and not self._columns.sources.issuperset(fields):
            unknown = self._unknown(fields)
            if unknown:
                wrong.setdefault(number, []).extend(unknown)
        return fields

    def _unknown(self, fields: dict[str, Any]) -> list[MappingFault]:
        extra = [
            name
            for name, value in fields.items()
            if name not in self._columns.sources and self._reading.is_something(value)
        ]
        why = self._reading.no_room(len(self._columns.names), len(extra))
        end = f": {why}" if why else ""
        return [
            MappingFault("unknown_column", f"field {name!r} has no column{end}", str(name))
            for name in extra
        ]

    def _no_array(self, value: Any) -> MappingFault:
        words = f"field {self.source!r} is {type(value).__name__}, not an array of items for"
        return MappingFault("type_mismatch", f"{words} {self._table!r}", self.source)

    def _note(self, wrong: Faults, offsets: Sequence[int], faults: Faults) -> None:
        """Make the faults of items those of their rows."""
        left: dict[int, int] = {}
        for number in sorted(wrong):
            row = bisect_right(offsets, number) - 1
            for fault in wrong[number]:
                left[row] = left.get(row, 0) + 1
                if left[row] <= _MOST_FAULTS:
                    faults.setdefault(row, []).append(self._told(fault, number - offsets[row]))
        for row, told in left.items():
            if told > _MOST_FAULTS:
                last = faults[row][-1]
                words = f"{last.message}, and so are {told - _MOST_FAULTS} values more"
                faults[row][-1] = replace(last, message=words)

    def _told(self, fault: MappingFault, item: int) -> MappingFault:
        where = f"{self._table}.{fault.where}" if fault.where else self._table
        return MappingFault(fault.code, f"{self._table!r} item {item}: {fault.message}", where)
