"""Columns whose values in a sample are of several kinds: a type for nearly all, or JSON for all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from waybill.mappings import MixedValues, mixed_values, row_of, whole_fields, with_table
from waybill.pipelines import Column, EventDeclaration, arrow_type
from waybill.processing import convert

_MOST_OTHERS_PERCENT = 5
_MOST_OTHERS = 50
"""Values of other kinds that a column may have in a sample, and still get the type of the most."""


@dataclass(frozen=True, slots=True)
class MixedColumn:
    """A proposed column whose values are of several kinds."""

    name: str
    source: str
    type: str
    """As proposed."""
    counts: Mapping[str, int]
    """Kind to values in the sample, the most first."""
    parks: int
    """Values of the sample that the type does not take."""
    example: Any
    """A value of another kind than the most are, one that parks where there is any."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, without the example."""
        return {
            "column": self.name,
            "type": self.type,
            "counts": dict(self.counts),
            "parks": self.parks,
        }


def holds(kind: str, values: list[Any]) -> bool:
    """Tell whether a column of a type takes each of the values as it is."""
    try:
        convert(kind, values, arrow_type(kind))
    except (TypeError, ValueError, ArithmeticError, pa.ArrowException):
        return False
    return True


def settle_mixed(
    learned: EventDeclaration,
    payloads: Sequence[Any],
    declared: Collection[str] = (),
    schema_types: Mapping[str, str] | None = None,
) -> tuple[EventDeclaration, tuple[MixedColumn, ...]]:
    """Return a declaration whose columns have the type of nearly all their values.

    That is a column of which at most 5 % of the values, and at most 50, are of another kind. Others
    keep the type that takes all.

    Args:
        learned: with types that take every value.
        payloads: of the sample, as the mapping gets them.
        declared: names of columns that stay as they are.
        schema_types: of columns, by source: the type that the source's schema says, which not all
            values fit.
    """
    schema_types = schema_types or {}
    doubtful = {
        one.source: one
        for one in learned.table.columns
        if one.type in {"json", "string"}
        and one.name not in declared
        and one.name not in learned.table.key
    }
    values: dict[str, list[Any]] = {source: [] for source in doubtful}
    whole = whole_fields(learned.table.columns)
    for payload in payloads if doubtful else ():
        row = row_of(learned, payload, whole)
        for source, some in values.items():
            some.append(row.get(source))
    settled: dict[str, str] = {}
    mixed = []
    for source, column in doubtful.items():
        found = _unlike_schema(schema_types.get(source), values[source])
        found = found or mixed_values(values[source])
        if found is not None and (note := _settled(column, found)) is not None:
            mixed.append(note)
            settled[column.name] = note.type
    columns = [
        one.model_copy(update={"type": settled.get(one.name, one.type)})
        for one in learned.table.columns
    ]
    return with_table(learned, columns, learned.table.children), tuple(mixed)


_SCHEMA_KINDS = {"timestamp": "time", "date": "time", "bool": "boolean", "bytes": "bytes"}
_SCHEMA_KINDS |= {"decimal": "number", "float64": "number", "int64": "number", "string": "text"}
_OTHER = "other value"


def _unlike_schema(kind: str | None, values: Sequence[Any]) -> MixedValues | None:
    """Return values of which most, not all, fit the type that the schema says; else None.

    SQLite keeps values of any type in a column: '0000-00-00' in one for times.
    """
    present = [value for value in values if value is not None]
    if kind is None or not present:
        return None
    others = tuple(value for value in present if not holds(kind, [value]))
    fitting = len(present) - len(others)
    if not others or fitting <= len(others):
        return None
    name = _SCHEMA_KINDS.get(kind.partition("(")[0], kind)
    return MixedValues({name: fitting, _OTHER: len(others)}, kind, others)


def _settled(column: Column, found: MixedValues) -> MixedColumn | None:
    """Return what is to be said of a column; None: its type is that of all its values."""
    total = sum(found.counts.values())
    few = min(_MOST_OTHERS, total * _MOST_OTHERS_PERCENT // 100)
    kind = found.majority if len(found.others) <= few else column.type
    if kind == "string" == column.type and next(iter(found.counts)) == "text":
        return None  # times among texts are text as well
    parking = [one for one in found.others if not holds(kind, [one])]
    example = (parking or found.others)[0]
    return MixedColumn(column.name, column.source, kind, found.counts, len(parking), example)
