"""Refused rows in a form that JSON can say, and that the mapping reads back to the same values.

Times become RFC 3339 text, bytes base64, JSON columns the value they hold, floats that JSON cannot
say (NaN, infinities) their names. Decimals stay decimals: the envelope writes every digit.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from waybill.destinations.batch import RowFrame, TableBatch
from waybill.destinations.model import RefusedRow
from waybill.events import loads
from waybill.pipelines import ChildTable, Column, TableSpec


def refused_rows(batch: TableBatch, reasons: Mapping[int, tuple[str, str]]) -> list[RefusedRow]:
    """Return the rows at these ordinals, in order, as their own declarations have them.

    Args:
        batch: the table's batch.
        reasons: ordinal to (error code, message).
    """
    refused: list[RefusedRow] = []
    for frame in batch.frames:
        ordinals = sorted(n for n in reasons if frame.start <= n < frame.end)
        if ordinals:
            refused += _of_frame(batch, frame, ordinals, reasons)
    return refused


def _of_frame(
    batch: TableBatch,
    frame: RowFrame,
    ordinals: Sequence[int],
    reasons: Mapping[int, tuple[str, str]],
) -> list[RefusedRow]:
    spec, indices = frame.rows.table, pa.array(ordinals, pa.int64())
    own = frame.rows.data.select(spec.arrow_schema().names)
    payloads = _payloads(spec, own.take(pa.compute.subtract(indices, frame.start)))
    context = batch.context.take(indices).to_pylist()
    return [
        _row(batch, frame, system, payload, reasons[ordinal])
        for ordinal, system, payload in zip(ordinals, context, payloads, strict=True)
    ]


def _row(
    batch: TableBatch,
    frame: RowFrame,
    system: Mapping[str, Any],
    payload: dict[str, Any],
    reason: tuple[str, str],
) -> RefusedRow:
    return RefusedRow(
        commit_number=frame.commit_number,
        pipeline_id=frame.rows.pipeline_id,
        event_name=frame.rows.event_name,
        intake_minute=system["_waybill_intake_minute"],
        event_id=system["_waybill_id"],
        key=system["_waybill_key"],
        source_version=system["_waybill_source_version"],
        intake_version=system["_waybill_intake_version"],
        op=system["_waybill_op"],
        replayed=system["_waybill_replayed"],
        row=payload,
        error_code=reason[0],
        message=reason[1],
        table=f"{batch.spec.schema_name}.{batch.spec.name}",
        attempt=system["_waybill_attempt"],
        replay_id=system["_waybill_replay"],
    )


def _payloads(spec: TableSpec, rows: pa.Table) -> list[dict[str, Any]]:
    arrays = {column.name: _values(column, rows.column(column.name)) for column in spec.columns}
    for child in spec.children:
        arrays[child.arrow_name] = _items(child, rows.column(child.arrow_name))
    return [dict(zip(arrays, row, strict=True)) for row in zip(*arrays.values(), strict=True)]


def _items(child: ChildTable, lists: pa.ChunkedArray) -> list[list[dict[str, Any]] | None]:
    """Return each row's items; null where it has no array."""
    items: list[list[dict[str, Any]] | None] = []
    for array in lists:
        if not array.is_valid:
            items.append(None)
            continue
        fields = [
            _values(column, pa.chunked_array([array.values.field(column.name)]))
            for column in child.columns
        ]
        names = [column.name for column in child.columns]
        items.append([dict(zip(names, row, strict=True)) for row in zip(*fields, strict=True)])
    return items


def _values(column: Column, values: pa.ChunkedArray) -> list[Any]:
    if column.type in ("timestamp", "date"):
        values = values.cast(pa.string())  # Python knows no year after 9999
    convert = _CONVERTERS.get(column.type)
    items: list[Any] = values.to_pylist()
    return items if convert is None else [None if i is None else convert(i) for i in items]


def _float(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "timestamp": lambda text: text.replace(" ", "T"),
    "bytes": lambda value: base64.b64encode(value).decode(),
    "json": lambda text: loads(text.encode()),
    "float64": _float,
}
