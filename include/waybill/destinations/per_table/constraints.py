"""Rows that a table does not take, found before anything is written.

The formats check a commit as a whole; so NOT NULL and CHECK constraints are evaluated here, row by
row, and those at fault park alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import sqlglot
from sqlglot.errors import SqlglotError

from waybill.destinations.batch import PARKED, TableBatch
from waybill.destinations.model import RefusedRow
from waybill.destinations.per_table.model import LakeTable
from waybill.destinations.refused import refused_rows
from waybill.errors import InputError

if TYPE_CHECKING:
    import duckdb

Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(slots=True)
class Refusals:
    """Rows of a batch that a table does not take, with the first reason."""

    rows: Mask
    reasons: list[tuple[Mask, str, str]] = field(default_factory=list)
    """Rows, error code, message."""

    def add(self, rows: Mask, code: str, message: str) -> None:
        """Refuse rows."""
        if rows.any():
            self.rows |= rows
            self.reasons.append((rows, code, message))

    def described(self, batch: TableBatch) -> list[RefusedRow]:
        """Return the rows of the batch that are parked, as they are to be parked."""
        reasons: dict[int, tuple[str, str]] = {}
        for rows, code, message in self.reasons:
            for n in np.flatnonzero(rows & (batch.outcomes == PARKED)).tolist():
                reasons.setdefault(n, (code, message))
        return refused_rows(batch, reasons)


def refusals_of(
    connection: duckdb.DuckDBPyConnection, batch: TableBatch, table: LakeTable
) -> Refusals:
    """Return the rows that the table does not take. Cost: nothing where it takes all.

    Raises:
        InputError: a constraint that cannot be evaluated here.
    """
    found = Refusals(np.zeros(batch.columns.num_rows, np.bool_))
    for item in table.fields():
        if item.name in batch.columns.column_names and (
            not item.nullable or item.name in batch.spec.key
        ):
            nulls = np.asarray(batch.columns[item.name].is_null(), np.bool_)
            words = f"column {item.name!r} takes no null"
            found.add(nulls, "destination_not_null_violation", words)
    for name, expression in table.checks().items():
        words = f"check constraint {name!r} is not met: {expression}"
        bad = _violations(connection, batch, table, name, expression)
        found.add(bad, "destination_check_violation", words)
    return found


def _violations(
    connection: duckdb.DuckDBPyConnection,
    batch: TableBatch,
    table: LakeTable,
    name: str,
    expression: str,
) -> Mask:
    """Return the rows of which the expression is not true: null is not, as Delta has it."""
    rows = batch.columns.num_rows
    columns = batch.columns.append_column("_waybill_n", pa.array(np.arange(rows)))
    for item in table.fields():
        if item.name not in columns.column_names:
            columns = columns.append_column(item.name, pa.nulls(rows, item.type))
    import duckdb

    connection.register("checked", columns)
    try:
        condition = sqlglot.parse_one(expression, read="spark").sql("duckdb")
        found = connection.execute(
            f"SELECT _waybill_n AS n FROM checked WHERE NOT coalesce(({condition}), false)"
        ).fetchnumpy()
    except (SqlglotError, duckdb.Error) as error:
        raise InputError(
            f"table {table.schema_name}.{table.name}: constraint {name!r} ({expression}) cannot be "
            f"evaluated for the rows of a load: {error}; write it in plainer SQL"
        ) from error
    bad = np.zeros(rows, np.bool_)
    bad[np.asarray(found["n"], np.int64)] = True
    return bad
