"""A batch into temporary tables whose columns have the target's types but none of its constraints.

So a value that the type cannot hold fails here, at the COPY, and what fails later is a constraint.
jsonb's binary form is a version byte and the text: the byte is put before it in Arrow.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from waybill.destinations.adapters.postgres.connection import PostgresSession
from waybill.destinations.adapters.postgres.schema import sql_type
from waybill.destinations.batch import TableBatch
from waybill.destinations.merging import MergeStatements, quoted
from waybill.destinations.specs import ITEM
from waybill.pipelines import ChildTable, Column

_JSONB_VERSION = "\x01"
_STAGED = {
    "_waybill_id": "text",
    "_waybill_source_version": "bigint",
    "_waybill_intake_version": "bigint",
    "_waybill_op": "text",
}
_VERDICTS = "(n bigint NOT NULL, outcome smallint NOT NULL, winner bigint, touch boolean NOT NULL)"


def create_stage(session: PostgresSession, statements: MergeStatements) -> None:
    """Create a batch's stage and verdict tables; they end with the transaction."""
    spec = statements.spec
    columns = [
        f"{quoted(c.name)} {sql_type(c.type)}{' NOT NULL' if c.name in spec.key else ''}"
        for c in spec.columns
    ]
    columns += [f"{quoted(name)} {kind}" for name, kind in _STAGED.items()]
    session.execute(
        f"CREATE TEMPORARY TABLE {quoted(statements.stage)} "
        f"(_waybill_n bigint NOT NULL, {', '.join(columns)}) ON COMMIT DROP"
    )
    session.execute(
        f"CREATE TEMPORARY TABLE {quoted(statements.verdict)} {_VERDICTS} ON COMMIT DROP"
    )


def create_items(session: PostgresSession, statements: MergeStatements, index: int) -> str:
    """Create the table of a child's items; return its name."""
    child, name = statements.spec.children[index], statements.items[index]
    columns = ", ".join(f"{quoted(c.name)} {sql_type(c.type)}" for c in child.columns)
    session.execute(
        f"CREATE TEMPORARY TABLE {quoted(name)} (_waybill_n bigint NOT NULL, {ITEM} bigint, "
        f"{columns}) ON COMMIT DROP"
    )
    return name


def staged_rows(batch: TableBatch) -> pa.Table:
    """Return a batch as the stage table takes it. Cost: no copy but for JSON columns."""
    columns = _as_sent(batch.spec.columns, batch.columns)
    ordinals = pa.array(np.arange(columns.num_rows, dtype=np.int64))
    arrays = [ordinals, *columns.columns, *(batch.context[name] for name in _STAGED)]
    return pa.table(arrays, names=["_waybill_n", *columns.column_names, *_STAGED])


def ordinals_with_nul(batch: TableBatch) -> list[int]:
    """Return the rows with a NUL in a text: what PostgreSQL most often cannot hold."""
    return _with_nul(batch.columns)


def _with_nul(rows: pa.Table) -> list[int]:
    found = np.zeros(rows.num_rows, np.bool_)
    for column in rows.columns:
        if pa.types.is_string(column.type):
            hits = pa.compute.match_substring(column, "\0")
            found |= pa.compute.fill_null(hits, fill_value=False).to_numpy()
    return [int(place) for place in np.flatnonzero(found)]


def without(rows: pa.Table, ordinals: Collection[int]) -> pa.Table:
    """Return staged rows but for some."""
    gone = pa.compute.is_in(rows["_waybill_n"], pa.array(list(ordinals), pa.int64()))
    return rows.filter(pa.compute.invert(gone))


def items_rows(batch: TableBatch, child: ChildTable, refused: Collection[int]) -> pa.Table:
    """Return a child's items as their table takes them, but for those of refused rows."""
    items = batch.items(child)
    if refused:
        gone = pa.compute.is_in(items["_waybill_n"], pa.array(list(refused), pa.int64()))
        items = items.filter(pa.compute.invert(gone))
    sent = _as_sent(child.columns, items)
    return pa.table([items["_waybill_n"], items[ITEM], *sent.columns], names=items.column_names)


def items_with_nul(batch: TableBatch, child: ChildTable) -> set[int]:
    """Return the rows of which an item has a NUL in a text."""
    items = batch.items(child)
    return {items["_waybill_n"][place].as_py() for place in _with_nul(items)}


def _as_sent(columns: Sequence[Column], rows: pa.Table) -> pa.Table:
    arrays = [
        pa.compute.binary_join_element_wise(_JSONB_VERSION, rows[column.name], "")
        if column.type == "json"
        else rows[column.name]
        for column in columns
    ]
    return pa.table(arrays, names=[column.name for column in columns])
