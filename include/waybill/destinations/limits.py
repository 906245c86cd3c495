"""Values that an engine's types cannot hold: found in Arrow, before anything is sent.

An engine without savepoints would fail the whole load for one such value, and some do not even
fail: they clamp it. Cost: a pass over the texts, bytes, dates and times of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date

import numpy as np
import pyarrow as pa

from waybill.destinations.batch import TableBatch
from waybill.pipelines import Column

VALUE_REFUSED = "destination_value_refused"
_EPOCH = date(1970, 1, 1).toordinal()
_US_A_DAY = 86_400_000_000

Reasons = dict[int, tuple[str, str]]
"""Ordinal of a row to (error code, message)."""


@dataclass(frozen=True, slots=True)
class ValueLimits:
    """What the values of an engine's columns may be."""

    text_bytes: int | None = None
    binary_bytes: int | None = None
    first_day: date = date(1, 1, 1)
    last_day: date = date(9999, 12, 31)
    takes_nul: bool = True
    """Texts may hold U+0000."""


def beyond(batch: TableBatch, limits: ValueLimits) -> Reasons:
    """Return the rows with a value, or an item's value, that the engine cannot hold."""
    reasons: Reasons = {}
    for column in batch.spec.columns:
        for place, problem in _places(column, batch.columns[column.name], limits):
            reasons.setdefault(place, (VALUE_REFUSED, f"column {column.name!r}: {problem}"))
    for child in batch.spec.children:
        items = batch.items(child)
        for column in child.columns:
            for place, problem in _places(column, items[column.name], limits):
                reason = f"table {child.name!r}, column {column.name!r}: {problem}"
                reasons.setdefault(items["_waybill_n"][place].as_py(), (VALUE_REFUSED, reason))
    return reasons


def _places(
    column: Column, values: pa.ChunkedArray, limits: ValueLimits
) -> Iterator[tuple[int, str]]:
    for wrong, problem in _breaches(column, values, limits):
        hits = np.flatnonzero(pa.compute.fill_null(wrong, fill_value=False).to_numpy())
        yield from ((int(place), problem) for place in hits)


def _breaches(
    column: Column, values: pa.ChunkedArray, limits: ValueLimits
) -> Iterator[tuple[pa.ChunkedArray, str]]:
    compute = pa.compute
    kind = column.type
    longest = {
        "string": limits.text_bytes, "json": limits.text_bytes, "bytes": limits.binary_bytes
    }.get(kind)  # fmt: skip
    if longest is not None:
        yield (
            compute.greater(compute.binary_length(values), longest),
            f"it is longer than {longest} bytes, the most that the destination's column holds",
        )
    if kind == "string" and not limits.takes_nul:
        yield (
            compute.match_substring(values, "\0"),
            "it holds the character U+0000, which the destination's texts cannot hold",
        )
    if kind in ("date", "timestamp"):
        low, high = _bounds(kind, limits)
        numbers = values.cast(pa.int32() if kind == "date" else pa.int64())
        yield (
            compute.or_(compute.less(numbers, low), compute.greater_equal(numbers, high)),
            f"it is not between {limits.first_day} and {limits.last_day}, all that the "
            "destination's column holds",
        )


def _bounds(kind: str, limits: ValueLimits) -> tuple[int, int]:
    """Return the first number that is in, and the first that is beyond: days, or microseconds."""
    low = limits.first_day.toordinal() - _EPOCH
    high = limits.last_day.toordinal() - _EPOCH + 1
    return (low, high) if kind == "date" else (low * _US_A_DAY, high * _US_A_DAY)


def rows_without(rows: pa.Table, refused: Mapping[int, object]) -> pa.Table:
    """Return staged rows (their ordinals in ``_waybill_n``) but for those refused."""
    if not refused:
        return rows
    gone = pa.compute.is_in(rows["_waybill_n"], pa.array(list(refused), pa.int64()))
    return rows.filter(pa.compute.invert(gone))
