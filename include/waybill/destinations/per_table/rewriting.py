"""Rows of files that hold changed keys, with the changes: what copy-on-write writes anew.

Cost: of the files read, a batch at a time; rows that nothing changes pass through as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waybill.destinations.merging import DELETED_AT, KEPT_COLUMNS
from waybill.destinations.per_table.model import DELETE, OP, SOFT_DELETE, TOUCH, UPSERT, Changes

_AT, _N = "_waybill_place", "_waybill_n"
_VERSIONS = [name for name, _ in KEPT_COLUMNS[:-1]]
_SET_BY = {TOUCH: frozenset(_VERSIONS), SOFT_DELETE: frozenset([*_VERSIONS, DELETED_AT])}


def rewritten(
    old: Iterable[pa.RecordBatch], changes: Changes, schema: pa.Schema
) -> Iterator[pa.Table]:
    """Yield the rows of files without those that are changed, and those that change in part.

    Rows that are put there whole, and are the table's whole width, are in ``added``.

    Args:
        old: their rows, with all columns of the table.
        changes: of which only rows that are met count.
        schema: of the table.
    """
    rows = changes.rows.select(list(changes.key)).take(pa.array(changes.met))
    numbered = _numbered(rows, changes.key, _N)
    partial = None if _is_whole(changes, schema) else changes.rows.take(pa.array(changes.met))
    for batch in old:
        found = pa.Table.from_batches([batch])
        places = _numbered(found, changes.key, _AT)
        names = places.column_names[:-1]
        pairs = places.join(numbered, keys=names, join_type="inner")
        if not pairs.num_rows:
            yield found
            continue
        kept = np.ones(found.num_rows, np.bool_)
        kept[pairs[_AT].to_numpy()] = False
        yield found.filter(pa.array(kept))
        if partial is not None:
            yield _changed(found.take(pairs[_AT]), partial.take(pairs[_N]), schema)


def added(changes: Changes, schema: pa.Schema) -> pa.Table:
    """Return the rows that are put there whole: new ones, and where they are whole the others."""
    new = np.asarray(pc.equal(changes.rows[OP], UPSERT), np.bool_)
    if not _is_whole(changes, schema):
        new[changes.met] = False
    rows = changes.rows if new.all() else changes.rows.filter(pa.array(new))
    return complete(rows, schema)


def _is_whole(changes: Changes, schema: pa.Schema) -> bool:
    """Say whether changed rows need nothing of the old ones."""
    partly = pc.is_in(changes.rows[OP], pa.array([TOUCH, SOFT_DELETE]))
    return set(schema.names) <= set(changes.rows.column_names) and not pc.any(partly).as_py()


def _numbered(rows: pa.Table, key: Sequence[str], name: str) -> pa.Table:
    """Return the key's columns, under names that Arrow does not read as paths, and the places."""
    columns = [rows[part] for part in key]
    places = pa.array(np.arange(rows.num_rows))
    return pa.table([*columns, places], names=[*(f"k{i}" for i in range(len(key))), name])


def _changed(old: pa.Table, new: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return old rows with what the new ones set; deleted ones are left out."""
    stays = pc.not_equal(new[OP], DELETE)
    old, new = old.filter(stays), new.filter(stays)
    ops = new[OP]
    columns = []
    for item in schema:
        column = old[item.name]
        if item.name in new.column_names:
            sets = pc.equal(ops, UPSERT)
            for op, names in _SET_BY.items():
                if item.name in names:
                    sets = pc.or_(sets, pc.equal(ops, op))
            column = pc.if_else(sets, new[item.name].cast(item.type), column.cast(item.type))
        columns.append(column)
    return pa.table(columns, schema=plainly(schema))


def packed(tables: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """Yield rows in tables of about ``size`` bytes; none without rows."""
    waiting: list[pa.Table] = []
    found = 0
    for table in tables:
        step = max(1, table.num_rows * size // max(1, table.nbytes))
        for at in range(0, table.num_rows, step):
            part = table.slice(at, step)
            waiting.append(part)
            found += part.nbytes
            if found >= size:
                yield pa.concat_tables(waiting)
                waiting, found = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def complete(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with all columns of the schema, in its order, with its types."""
    arrays = []
    for item in schema:
        if item.name in rows.column_names:
            column = rows[item.name]
            arrays.append(column if column.type == item.type else column.cast(item.type))
        else:
            arrays.append(pa.nulls(rows.num_rows, item.type))
    return pa.table(arrays, schema=plainly(schema))


def plainly(schema: pa.Schema) -> pa.Schema:
    """Return names and types alone: whether nulls are allowed is looked at elsewhere."""
    return pa.schema([pa.field(item.name, item.type) for item in schema])
