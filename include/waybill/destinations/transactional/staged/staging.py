"""A batch as its stage table takes it, and the text of a key: one text for one key.

A key's text does not hang on its columns' types as long as those only widen: 1 is "1" as int32,
int64 and decimal(22,2), and a day is its midnight.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from waybill.destinations.batch import TableBatch
from waybill.destinations.limits import rows_without
from waybill.destinations.specs import ITEM
from waybill.destinations.transactional.staged.session import Columns
from waybill.pipelines import ChildTable, Column, TableSpec

KEY_TEXT = "_waybill_key_text"
_SYSTEM: Columns = (
    ("_waybill_id", "string"),
    ("_waybill_source_version", "int64"),
    ("_waybill_intake_version", "int64"),
    ("_waybill_op", "string"),
)
VERDICT: Columns = (("n", "int64"), ("outcome", "int32"), ("winner", "int64"), ("touch", "bool"))
LOSERS: Columns = (("n", "int64"), ("winner", "int64"), ("prev", "int64"))
MET: Columns = (("n", "int64"),)


def stage_columns(spec: TableSpec) -> Columns:
    """Return the columns of a table's stage."""
    own = [(column.name, column.type) for column in spec.columns]
    return [("_waybill_n", "int64"), *own, *_SYSTEM, (KEY_TEXT, "string")]


def staged_rows(batch: TableBatch, refused: dict[int, tuple[str, str]]) -> pa.Table:
    """Return a batch as its stage takes it, without what is refused."""
    ordinals = pa.array(np.arange(batch.columns.num_rows, dtype=np.int64))
    arrays = [
        ordinals,
        *(batch.columns[column.name] for column in batch.spec.columns),
        *(batch.context[name] for name, _ in _SYSTEM),
        key_texts(batch.spec, batch.columns),
    ]
    names = [name for name, _ in stage_columns(batch.spec)]
    return rows_without(pa.table(arrays, names=names), refused)


def item_columns(child: ChildTable) -> Columns:
    """Return the columns of the working table of a child's items."""
    own = [(column.name, column.type) for column in child.columns]
    return [("_waybill_n", "int64"), (ITEM, "int64"), *own]


def staged_items(batch: TableBatch, child: ChildTable, refused: Mapping[int, object]) -> pa.Table:
    """Return a child's items as their working table takes them, without those of refused rows."""
    return rows_without(batch.items(child), refused)


def key_texts(spec: TableSpec, columns: pa.Table) -> pa.ChunkedArray:
    """Return each row's key as text: its values, each with its length before it."""
    declared = {column.name: column for column in spec.columns}
    parts = []
    for name in spec.key:
        text = _text(declared[name], columns[name])
        parts += [pa.compute.binary_length(text).cast(pa.string()), text]
    return pa.compute.binary_join_element_wise(*parts, ":")


def _text(column: Column, values: pa.ChunkedArray) -> pa.ChunkedArray:
    if column.type == "date":
        values = values.cast(pa.timestamp("us"))
    if column.type in ("date", "timestamp"):
        return values.cast(pa.int64()).cast(pa.string())
    if column.type == "bytes":
        hexed = [None if value is None else value.hex() for value in values.to_pylist()]
        return pa.chunked_array([pa.array(hexed, pa.string())])
    text = values.cast(pa.string())
    if column.type.startswith("decimal("):
        return _shortened(text)
    return text


def _shortened(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Leave the zeros at the end of decimals out, that a wider column would have more of."""
    has_point = pa.compute.match_substring(text, ".")
    bare = pa.compute.utf8_rtrim(pa.compute.utf8_rtrim(text, "0"), ".")
    return pa.compute.if_else(has_point, bare, text)
