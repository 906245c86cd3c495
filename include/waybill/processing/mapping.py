"""Mapping: payloads to typed columns, exactly or not at all.

Columns are built whole (one Arrow conversion a column); only when a column refuses is it looked at
value by value, to name the rows at fault. Decimals and integers never pass through a float; a float
that is the shortest text of its decimal is that decimal. A fraction is no integer, a time has at
most microseconds, and text is no number (but may be a decimal). Only into float64 are decimals
rounded, to the nearest double: that is what such a column is.

How payloads are read: fields as they are named, or objects flattened; what counts as a field.

The columns of one table, built from rows; and what is wrong with a row.

Items of arrays: a list of structs beside a table's columns, from which its child table is made.

An event without the array, or with null, has an empty list. A fault of an item is one of its row,
and names the child table, the item's number (from 0) and the column.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from waybill.mappings import ITEM, fields_of, takes_any_item, whole_fields
from waybill.pipelines import ChildTable, Column, EventDeclaration, TableSpec
from waybill.processing.conversion import adopt, convert, error_code, shown
from waybill.processing.payload_columns import ArrowColumns, PayloadColumns


@dataclass(frozen=True, slots=True)
class Reading:
    """How a payload becomes fields, and what is done with those that no column takes."""

    policy: str = "strict"
    """"strict" and "evolve" make them faults, "ignore" leaves them out."""
    by_column: bool = False
    """Rows hold column names (a replay into the destination stage), not source fields."""
    depth: int | None = None
    """Levels that are flattened; None: nothing is."""
    children: bool = False
    """Arrays that no column takes are, or get, tables of their items."""
    most_columns: int | None = None
    """Columns that the destination's tables may have, where that is what ends learning."""

    @staticmethod
    def of(
        declared: EventDeclaration, *, by_column: bool = False, most_columns: int | None = None
    ) -> Reading:
        """Return how a declaration has payloads read."""
        return Reading(
            policy=declared.policy,
            by_column=by_column,
            depth=declared.depth if declared.nested == "flatten" and not by_column else None,
            children=declared.arrays == "child",
            most_columns=most_columns if declared.policy == "evolve" else None,
        )

    def fields(self, payload: dict[str, Any], whole: frozenset[str]) -> dict[str, Any]:
        """Return a payload's fields; ``whole``: those that are not looked into.

        Of a flattened one an empty object is no field.
        """
        if self.depth is None:
            return payload
        return fields_of(payload, self.depth, whole)

    def no_room(self, columns: int, new: int) -> str:
        """Return why a table with so many columns gets none for new fields; "": it is not full."""
        if self.most_columns is None or columns + new <= self.most_columns:
            return ""
        if columns >= self.most_columns:
            return f"there are {columns}, and the destination takes no more"
        return f"there are {columns} of at most {self.most_columns}, no room for {new} new ones"

    def is_something(self, value: Any) -> bool:
        """Tell whether a field that no column takes is one: there is nothing to learn of null."""
        if value is None or self.policy != "evolve" or self.by_column:
            return value is not None or self.policy == "strict"
        if self.children and isinstance(value, list | tuple):
            return not all(item is None or (isinstance(item, dict) and not item) for item in value)
        return True


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

    def arrays(
        self, rows: Sequence[dict[str, Any]], deletes: frozenset[int] = frozenset()
    ) -> tuple[list[pa.Array], Faults]:
        """Return the columns, null where a value does not fit, and the faults of those rows.

        Rows that delete (``deletes``: their indexes) need a key, and no other value.
        """
        arrays: list[pa.Array] = []
        faults: Faults = {}
        for name, (column, field) in zip(self.names, self._columns, strict=True):
            array = _adopted(rows, name, column, field.type)
            if array is None:
                values = _values(rows, name)
                try:
                    array = convert(column.type, values, field.type)
                except Exception:  # noqa: BLE001 - it is met again, with fewer values
                    array = _piece_by_piece(column, values, field.type, faults)
            if array.null_count and (not column.nullable or column.name in self._keys):
                self._refuse_nulls(column, _values(rows, name), faults, deletes)
            arrays.append(array)
        return arrays, faults

    def _refuse_nulls(
        self, column: Column, values: Sequence[Any], faults: Faults, deletes: frozenset[int]
    ) -> None:
        key = column.name in self._keys
        code = "mapped_key_missing" if key else "not_null_violation"
        words = f"column {column.name!r} is {column.type} and takes no null"
        fault = MappingFault(code, words, column.name)
        for index, value in enumerate(values):
            if value is None and (key or index not in deletes):
                faults.setdefault(index, []).append(fault)


def _adopted(
    rows: Sequence[dict[str, Any]], name: str, column: Column, kind: pa.DataType
) -> pa.Array | None:
    """Return a field of each row, where it is an Arrow array that will do as the column."""
    array = rows.array(name) if isinstance(rows, ArrowColumns) else None
    return None if array is None else adopt(column.type, array, kind)


def _values(rows: Sequence[dict[str, Any]], name: str) -> Sequence[Any]:
    """Return a field of each row; None where it has none."""
    return rows.column(name) if isinstance(rows, PayloadColumns) else [r.get(name) for r in rows]


def _piece_by_piece(
    column: Column, values: Sequence[Any], kind: pa.DataType, faults: Faults
) -> pa.Array:
    """Return the column with null where a value does not fit, and note the faults of those.

    Some of the values are converted together, fewer where they refuse. Cost: for each that does not
    fit some 3 µs each time that the number of values grows by four, about 5 µs where none fits.
    """
    pieces: list[pa.Array] = []
    spans = [(0, len(values))]
    while spans:
        start, end = spans.pop()
        try:
            pieces.append(convert(column.type, values[start:end], kind))
        except Exception as error:  # noqa: BLE001 - a user's value may refuse in any way
            if end - start > 1:
                step = max(1, (end - start) // _PARTS)
                spans += [(at, min(end, at + step)) for at in range(start, end, step)][::-1]
                continue
            value = values[start]
            words = f"column {column.name!r} is {column.type}; got {type(value).__name__} "
            fault = MappingFault(error_code(column.type, error), words + shown(value), column.name)
            faults.setdefault(start, []).append(fault)
            pieces.append(pa.nulls(1, kind))
    return pa.concat_arrays(pieces)


_PARTS = 4
"""Of values that do not fit together, which are tried next."""
_MOST_FAULTS = 16
"""Of one array's items that are told for one row."""


class ItemsColumn:
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
        for index, value in enumerate(_values(rows, self.source)):
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


_MOST_UNKNOWN = 16
"""Fields without a column that are named for one row."""


def map_rows(
    spec: TableSpec, rows: Sequence[Any], *, policy: str, by_column: bool = False
) -> tuple[pa.RecordBatch, dict[int, MappingFault]]:
    """Map rows once, nothing flattened; see `Mapper`."""
    return Mapper(spec, Reading(policy=policy, by_column=by_column)).map(rows)


class Mapper:
    """Maps payloads to one table's typed rows; made once, used for many.

    Args:
        spec: the destination table.
        reading: how payloads are read.
    """

    __slots__ = (
        "_children", "_columns", "_fields", "_flat", "_reading", "_strict", "_table",
        "_whole", "schema",
    )  # fmt: skip

    def __init__(self, spec: TableSpec, reading: Reading) -> None:
        self.schema = spec.arrow_schema()
        self._table = spec.name
        self._reading = reading
        self._strict = reading.policy != "ignore"
        self._flat = reading.depth is not None
        fields = [self.schema.field(number) for number in range(len(spec.columns))]
        self._columns = Columns(spec.columns, fields, by_column=reading.by_column, keys=spec.key)
        self._children = tuple(
            ItemsColumn(child, self.schema.field(child.arrow_name), reading)
            for child in spec.children
        )
        self._whole = whole_fields(spec.columns)
        self._fields = self._columns.sources.union(child.source for child in self._children)

    def map(
        self, rows: Sequence[Any], deletes: frozenset[int] = frozenset()
    ) -> tuple[pa.RecordBatch, dict[int, MappingFault]]:
        """Return the rows that fit as a typed batch, in order, and {index: fault} of the others.

        ``rows`` are payloads; anything that is no dict is a fault. ``deletes``: indexes of rows
        that delete, which need a key alone. Cost: about 0.1 µs a value when every row fits, 0.2 to
        0.4 µs more a field where they are flattened.
        """
        try:
            return self._together(rows, deletes)
        except Exception:  # noqa: BLE001 - it is met again, row by row
            return self._apart(rows, deletes)

    def _apart(
        self, rows: Sequence[Any], deletes: frozenset[int]
    ) -> tuple[pa.RecordBatch, dict[int, MappingFault]]:
        """Map rows of which one is such that looking at it raises: user code makes anything."""
        raising: dict[int, MappingFault] = {}
        for index, row in enumerate(rows):
            try:
                self._together([row], frozenset())
            except Exception as error:  # noqa: BLE001 - whatever it is, it parks
                words = f"the payload cannot be read: {type(error).__name__}"
                raising[index] = MappingFault("type_mismatch", words, "")
        places = [index for index in range(len(rows)) if index not in raising]
        batch, faults = self._together([rows[n] for n in places], _among(places, deletes))
        return batch, raising | {places[index]: fault for index, fault in faults.items()}

    def _together(
        self, rows: Sequence[Any], deletes: frozenset[int]
    ) -> tuple[pa.RecordBatch, dict[int, MappingFault]]:
        if self._flat:
            rows = [self._flattened(row) for row in rows]
        elif isinstance(rows, PayloadColumns) and not self._takes(rows.names):
            rows = list(rows)
        faults = self._shape_faults(rows)
        good = rows
        if faults:
            left = [i for i in range(len(rows)) if i not in faults]
            good, deletes = [rows[i] for i in left], _among(left, deletes)
        arrays, column_faults = self._arrays(good, deletes)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if faults:
            self._look_further(rows, faults)
        if column_faults:
            batch = batch.filter(pa.array([i not in column_faults for i in range(len(good))]))
            places = [i for i in range(len(rows)) if i not in faults]
            faults.update({places[i]: found for i, found in column_faults.items()})
        return batch, {index: joined(found) for index, found in faults.items()}

    def _takes(self, names: Iterable[str]) -> bool:
        """Tell whether there is a column for each of these fields."""
        return not self._strict or self._fields.issuperset(names)

    def _flattened(self, row: Any) -> Any:
        return self._reading.fields(row, self._whole) if isinstance(row, dict) else row

    def _arrays(
        self, rows: Sequence[dict[str, Any]], deletes: frozenset[int] = frozenset()
    ) -> tuple[list[pa.Array], Faults]:
        arrays, faults = self._columns.arrays(rows, deletes)
        for child in self._children:
            arrays.append(child.array(rows, faults))
        return arrays, faults

    def _look_further(self, rows: Sequence[Any], faults: Faults) -> None:
        """Add the faults of columns to those of rows with fields that no column takes."""
        places = [index for index in faults if isinstance(rows[index], dict)]
        _, more = self._arrays([rows[index] for index in places])
        for index, found in more.items():
            faults[places[index]].extend(found)

    def _shape_faults(self, rows: Sequence[Any]) -> Faults:
        if isinstance(rows, PayloadColumns):
            return {}
        objects = set(map(type, rows)) <= {dict}
        if objects and self._takes(chain.from_iterable(rows)):
            return {}
        faults: Faults = {}
        for index, row in enumerate(rows):
            if not isinstance(row, dict):
                words = f"payload is {type(row).__name__}, not an object"
                faults[index] = [MappingFault("not_an_object", words, "")]
            elif (
                self._strict and not self._fields.issuperset(row) and (found := self._unknown(row))
            ):
                faults[index] = found
        return faults

    def _unknown(self, row: dict[str, Any]) -> list[MappingFault]:
        is_something = self._reading.is_something
        extra = [name for name, v in row.items() if name not in self._fields and is_something(v)]
        left = len(extra) - _MOST_UNKNOWN
        why = self._reading.no_room(len(self._columns.names), len(extra))
        faults = []
        for number, name in enumerate(extra[:_MOST_UNKNOWN], 1):
            words = f"field {name!r} has no column in {self._table!r}"
            if why:
                words += f": {why}"
            if number == _MOST_UNKNOWN and left > 0:
                words += f", nor have {left} fields more"
            faults.append(MappingFault("unknown_column", words, str(name)))
        return faults


def _among(places: Sequence[int], deletes: frozenset[int]) -> frozenset[int]:
    """Return the indexes in ``places`` of those that delete."""
    if not deletes:
        return deletes
    return frozenset(index for index, place in enumerate(places) if place in deletes)
