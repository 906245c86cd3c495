"""A batch into a temporary table whose columns have the target's types but none of its constraints.

So a value that the type cannot hold fails here, at the COPY, and what fails later is a constraint.
jsonb's binary form is a version byte and the text: the byte is put before it in Arrow.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from waybill.destinations.batch import TableBatch
from waybill.destinations.merging import MergeStatements, quoted
from waybill.destinations.postgres.connection import Session
from waybill.destinations.postgres.schema import sql_type
from waybill.pipelines import TableSpec

_JSONB_VERSION = "\x01"
_STAGED = {
    "_waybill_id": "text",
    "_waybill_source_version": "bigint",
    "_waybill_intake_version": "bigint",
    "_waybill_op": "text",
}
_VERDICTS = "(n bigint NOT NULL, outcome smallint NOT NULL, winner bigint, touch boolean NOT NULL)"


def create_stage(session: Session, statements: MergeStatements) -> None:
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


def create_stage_like(session: Session, stage: str, like: str) -> None:
    """Create a further stage table for the same target."""
    session.execute(f"CREATE TEMPORARY TABLE {quoted(stage)} (LIKE {quoted(like)}) ON COMMIT DROP")


def create_notes(session: Session, losers: str, met: str) -> None:
    """Create the tables that ``find_losers`` and ``find_met`` fill."""
    session.execute(
        f"CREATE TEMPORARY TABLE {quoted(losers)} (n bigint, winner bigint, prev bigint) "
        "ON COMMIT DROP"
    )
    session.execute(f"CREATE TEMPORARY TABLE {quoted(met)} (n bigint) ON COMMIT DROP")


def staged_rows(batch: TableBatch) -> pa.Table:
    """Return a batch as the stage table takes it. Cost: no copy but for JSON columns."""
    columns = _as_sent(batch.spec, batch.columns)
    ordinals = pa.array(np.arange(columns.num_rows, dtype=np.int64))
    arrays = [ordinals, *columns.columns, *(batch.context[name] for name in _STAGED)]
    return pa.table(arrays, names=["_waybill_n", *columns.column_names, *_STAGED])


def ordinals_with_nul(batch: TableBatch) -> list[int]:
    """Return the rows with a NUL in a text: what PostgreSQL most often cannot hold."""
    found = np.zeros(batch.columns.num_rows, np.bool_)
    for column in batch.columns.columns:
        if pa.types.is_string(column.type):
            hits = pa.compute.match_substring(column, "\0")
            found |= pa.compute.fill_null(hits, fill_value=False).to_numpy()
    return [int(place) for place in np.flatnonzero(found)]


def without(rows: pa.Table, ordinals: Collection[int]) -> pa.Table:
    """Return staged rows but for some."""
    gone = pa.compute.is_in(rows["_waybill_n"], pa.array(list(ordinals), pa.int64()))
    return rows.filter(pa.compute.invert(gone))


def _as_sent(spec: TableSpec, columns: pa.Table) -> pa.Table:
    for index, column in enumerate(spec.columns):
        if column.type == "json":
            sent = pa.compute.binary_join_element_wise(_JSONB_VERSION, columns[column.name], "")
            columns = columns.set_column(index, column.name, sent)
    return columns
