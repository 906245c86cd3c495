"""Refused rows in a form that JSON can say, and that the mapping reads back to the same values.

Times become RFC 3339 text, bytes base64, JSON columns the value they hold, floats that JSON cannot
say (NaN, infinities) their names. Decimals stay decimals: the envelope writes every digit.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from waybill.destinations.batch import Frame, TableBatch
from waybill.destinations.model import RefusedRow
from waybill.events import loads
from waybill.pipelines import TableSpec


def refused_rows(batch: TableBatch, reasons: Mapping[int, tuple[str, str]]) -> list[RefusedRow]:
    """Return the rows at these ordinals, in order.

    Args:
        batch: the table's batch.
        reasons: ordinal to (error code, message).
    """
    ordinals = sorted(reasons)
    if not ordinals:
        return []
    places = pa.array(ordinals, pa.int64())
    payloads = _payloads(batch.spec, batch.columns.take(places))
    context = batch.context.take(places).to_pylist()
    return [
        _row(batch, batch.frame_of(ordinal), system, payload, reasons[ordinal])
        for ordinal, system, payload in zip(ordinals, context, payloads, strict=True)
    ]


def _row(
    batch: TableBatch,
    frame: Frame,
    system: Mapping[str, Any],
    payload: dict[str, Any],
    reason: tuple[str, str],
) -> RefusedRow:
    known = {column.name for column in frame.rows.table.columns}
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
        row={name: value for name, value in payload.items() if name in known},
        error_code=reason[0],
        message=reason[1],
        table=f"{batch.spec.schema_name}.{batch.spec.name}",
        attempt=system["_waybill_attempt"],
        replay_id=system["_waybill_replay"],
    )


def _payloads(spec: TableSpec, columns: pa.Table) -> list[dict[str, Any]]:
    arrays = []
    for column in spec.columns:
        values = columns.column(column.name)
        if column.type in ("timestamp", "date"):
            values = values.cast(pa.string())  # Python knows no year after 9999
        convert = _CONVERTERS.get(column.type)
        items = values.to_pylist()
        if convert is not None:
            items = [None if item is None else convert(item) for item in items]
        arrays.append(items)
    names = [column.name for column in spec.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*arrays, strict=True)]


def _float(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "timestamp": lambda text: text.replace(" ", "T"),
    "bytes": lambda value: base64.b64encode(value).decode(),
    "json": lambda text: loads(text.encode()),
    "float64": _float,
}
