"""Tables of items: their rows are replaced as a whole when the parent's row is.

A child's rows carry the parent's versions. Rows of a parent that are newer than what comes stay:
so a load that is repeated, or that another one overtook, changes nothing of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waybill.destinations.batch import TableBatch
from waybill.destinations.lake.judging import INTAKE, SOURCE
from waybill.destinations.lake.model import (
    DELETE,
    FILE,
    OP,
    UPSERT,
    Bounds,
    Changes,
    LakeTable,
    Stamp,
)
from waybill.destinations.lake.shape import ITEM
from waybill.destinations.merging import KEPT_COLUMNS, quoted
from waybill.pipelines import TableSpec

if TYPE_CHECKING:
    import duckdb

_AT = KEPT_COLUMNS[-1][0]
Numbers = np.ndarray[Any, np.dtype[np.int64]]


def commit(
    table: LakeTable,
    connection: duckdb.DuckDBPyConnection,
    parents: TableBatch,
    spec: TableSpec,
    items_name: str,
    delivered: Numbers,
    bounds: Bounds,
) -> None:
    """Replace the items of parents that were delivered; of deleted ones they go.

    Args:
        table: the child's.
        connection: to DuckDB.
        parents: the parent's batch.
        spec: the child's table as a table.
        items_name: the parent's column with the items.
        delivered: ordinals of parents.
        bounds: of their keys.

    Raises:
        ConflictError: somebody else wrote to the table meanwhile.
    """
    table.refresh()
    if parents.spec.soft_delete:
        kept = np.asarray(pc.not_equal(parents.context["_waybill_op"], "delete"), np.bool_)
        delivered = delivered[kept[delivered]]
    if not len(delivered):
        return
    rows = _exploded(table, parents, spec, items_name, delivered)
    held = table.scan([*spec.key, SOURCE, INTAKE], bounds)
    changes = _changes(held, connection, parents, spec, rows, delivered)
    if changes is None:
        return
    table.commit(changes, Stamp("", 0, None))


def _exploded(
    table: LakeTable, parents: TableBatch, spec: TableSpec, items_name: str, delivered: Numbers
) -> pa.Table:
    """Return the items of the parents as rows of the child's table, with ``n``: the parent."""
    upserts = np.asarray(pc.equal(parents.context["_waybill_op"], "upsert"), np.bool_)
    places = pa.array(delivered[upserts[delivered]])
    lists = parents.columns[items_name].take(places).combine_chunks()
    of = pc.list_parent_indices(lists)
    items = pc.list_flatten(lists)
    n = places.take(of)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0), np.int64)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    context = parents.context.take(n)
    columns: dict[str, Any] = {name: parents.columns[name].take(n) for name in parents.spec.key}
    columns[ITEM] = pa.array(np.arange(len(of)) - starts)
    for column in spec.columns[len(parents.spec.key) + 1 :]:
        columns[column.name] = pc.struct_field(items, column.name)
    for name, _ in KEPT_COLUMNS[:-1]:
        columns[name] = context[name]
    fields = table.fields()
    cast = {name: values.cast(fields.field(name).type) for name, values in columns.items()}
    return pa.table({**cast, "n": n})


def _changes(
    held: pa.RecordBatchReader,
    connection: duckdb.DuckDBPyConnection,
    parents: TableBatch,
    spec: TableSpec,
    rows: pa.Table,
    delivered: Numbers,
) -> Changes | None:
    key = parents.spec.key
    ours = parents.columns.select(list(key)).take(pa.array(delivered))
    context = parents.context.take(pa.array(delivered))
    ours = ours.append_column(SOURCE, context[SOURCE]).append_column(INTAKE, context[INTAKE])
    connection.register("parents", ours.append_column("n", pa.array(delivered)))
    connection.register("held", held)
    connection.register("items", rows)
    on = " AND ".join(f"h.{quoted(name)} = p.{quoted(name)}" for name in key)
    newer = f"(h.{SOURCE} > p.{SOURCE} OR (h.{SOURCE} = p.{SOURCE} AND h.{INTAKE} >= p.{INTAKE}))"
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE met AS SELECT p.n AS n, h.{FILE} AS file, h.{ITEM} AS item, "  # noqa: S608
        f"coalesce({newer}, false) AS newer FROM parents p JOIN held h ON {on}"
    )
    stale = f"n IN (SELECT n FROM met WHERE newer)"  # noqa: F541
    added = connection.execute(
        f"SELECT i.*, m.item IS NOT NULL AS met FROM items i LEFT JOIN met m ON m.n = i.n "  # noqa: S608
        f"AND m.item = i.{ITEM} WHERE i.{stale.replace('n IN', 'n NOT IN', 1)}"
    ).to_arrow_table()
    gone = connection.execute(
        f"SELECT m.n, m.item FROM met m ANTI JOIN items i ON m.n = i.n AND m.item = i.{ITEM} "  # noqa: S608
        f"WHERE m.n NOT IN (SELECT n FROM met WHERE newer)"
    ).to_arrow_table()
    if not added.num_rows and not gone.num_rows:
        return None
    files = connection.execute(
        "SELECT DISTINCT file FROM met WHERE n NOT IN (SELECT n FROM met WHERE newer)"
    ).fetchnumpy()["file"]
    return _joined(parents, spec, rows, added, gone, frozenset(int(f) for f in files))


def _joined(
    parents: TableBatch,
    spec: TableSpec,
    rows: pa.Table,
    added: pa.Table,
    gone: pa.Table,
    files: frozenset[int],
) -> Changes:
    import datetime  # noqa: PLC0415

    names = [name for name in rows.column_names if name != "n"]
    at = pa.scalar(datetime.datetime.now(datetime.UTC), pa.timestamp("us", "UTC"))
    schema = pa.schema([*(rows.schema.field(n) for n in names)])
    puts = added.select(names).cast(schema)
    removed = {
        name: parents.columns[name].take(gone["n"]).cast(schema.field(name).type)
        for name in parents.spec.key
    }
    removed[ITEM] = gone["item"]
    drops = pa.table(
        [removed.get(n, pa.nulls(gone.num_rows, schema.field(n).type)) for n in names],
        schema=schema,
    )
    both = pa.concat_tables([puts, drops])
    both = both.append_column(_AT, pa.repeat(at, both.num_rows))
    ops = [UPSERT] * puts.num_rows + [DELETE] * drops.num_rows
    met = np.flatnonzero(np.asarray(added["met"], np.bool_)).tolist()
    met += range(puts.num_rows, both.num_rows)
    return Changes(both.append_column(OP, pa.array(ops, pa.string())), spec.key, met, files)
