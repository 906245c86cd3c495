"""Engines that stage before their transaction: Snowflake, BigQuery, Redshift. Experimental.

They have transactions, but no savepoints, and enforce no keys. What stands for a live test: every
statement is compared with a golden file, read again in its own dialect, and run with the same
meaning on an engine that is here; the order of calls to the drivers is compared with recordings, of
good days and bad ones.

A key's text does not hang on its columns' types as long as those only widen: 1 is "1" as int32,
int64 and decimal(22,2), and a day is its midnight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from waybill.destinations.batch import Place, TableBatch
from waybill.destinations.limits import beyond, rows_without
from waybill.destinations.merging import MergeStatements
from waybill.destinations.specs import ITEM
from waybill.destinations.transactional.books import KEY_TEXT, WarehouseBooks
from waybill.destinations.transactional.dialect import WORKING_PREFIX
from waybill.destinations.transactional.engine import Merged, merge_items
from waybill.destinations.transactional.session import (
    Columns,
    Refused,
    SqlError,
    WarehouseSession,
)
from waybill.destinations.transactional.tables import Table
from waybill.destinations.transactional.warehouse_tables import ensure_table
from waybill.pipelines import ChildTable, Column, TableSpec

_SYSTEM: Columns = (
    ("_waybill_id", "string"),
    ("_waybill_source_version", "int64"),
    ("_waybill_intake_version", "int64"),
    ("_waybill_op", "string"),
)
_VERDICT: Columns = (("n", "int64"), ("outcome", "int32"), ("winner", "int64"), ("touch", "bool"))
_LOSERS: Columns = (("n", "int64"), ("winner", "int64"), ("prev", "int64"))
_MET: Columns = (("n", "int64"),)


class WarehouseEngine:
    """One warehouse, see ``TableEngine``: no count that its driver gives is relied on.

    Args:
        session: with the warehouse.
    """

    judges_all = True

    def __init__(self, session: WarehouseSession) -> None:
        self.session = session
        self.books = WarehouseBooks()

    def ensure(self, specs: Sequence[TableSpec]) -> Mapping[Place, Table]:
        """Bring tables to their declarations; see the protocol."""
        return {(spec.schema_name, spec.name): ensure_table(self.session, spec) for spec in specs}

    def stage(
        self, label: str, batch: TableBatch, table: Table, refused: Mapping[int, object]
    ) -> tuple[MergeStatements, Refused]:
        """Make and fill all working tables, before the transaction; see the protocol."""
        session, spec = self.session, batch.spec
        reasons = beyond(batch, session.dialect.limits)
        unfit = {n: SqlError(message, code) for n, (code, message) in reasons.items()}
        left_out = {**refused, **unfit}
        rows = _staged_rows(batch, left_out)
        stage = session.stage(f"{WORKING_PREFIX}{label}_stage", _stage_columns(spec), rows)
        items = tuple(
            session.stage(
                f"{WORKING_PREFIX}{label}_items_{index}",
                _item_columns(child),
                rows_without(batch.items(child), left_out),
            )
            for index, child in enumerate(spec.children)
        )
        verdict = f"{WORKING_PREFIX}{label}_verdict"
        statements = MergeStatements(spec, stage, verdict, marked=table.marked, items=items)
        for what, columns in (("verdict", _VERDICT), ("losers", _LOSERS), ("met", _MET)):
            session.execute_native(working_table(session, _beside(statements, what), columns))
        return statements, unfit

    def working_table(self, statements: MergeStatements, what: str, _columns: str) -> str:
        """Return the name of one that was made with the stage: DDL would end the transaction."""
        return _beside(statements, what)

    def analyze(self, name: str) -> None:
        """Do nothing: warehouses have their own ways."""

    def merge_news(self, _statements: MergeStatements, _batch: TableBatch) -> Merged | None:
        """Leave it to be judged."""
        return None

    def merge(self, statements: MergeStatements, _batch: TableBatch, *, judged: bool) -> Merged:
        """Merge in one statement; an error of a row is raised, for there are no savepoints."""
        del judged
        session = self.session
        before = self._count(statements)
        session.execute(statements.merge(judged=True))
        change = self._count(statements) - before
        merge_items(session, statements)
        return Merged(change)

    def reopen(self, _statements: MergeStatements) -> MergeStatements | None:
        """Do nothing: a load whose merge refuses rows begins again without them."""
        return None

    def drop(self, statements: MergeStatements) -> None:
        """Drop a batch's working tables."""
        beside = (_beside(statements, what) for what in ("verdict", "losers", "met"))
        for name in (statements.stage, *beside):
            self.session.execute_native(
                f"DROP TABLE IF EXISTS {self.session.dialect.working(name)}"
            )

    def _count(self, statements: MergeStatements) -> int:
        return int(self.session.query(statements.count_met())["rows"][0].as_py())


def _beside(statements: MergeStatements, what: str) -> str:
    """Return the name of a working table of the same batch."""
    return statements.verdict.removesuffix("verdict") + what


def working_table(session: WarehouseSession, name: str, columns: Columns) -> str:
    """Return the statement that makes a working table."""
    dialect = session.dialect
    listed = ", ".join(f"{dialect.quoted(c)} {dialect.sql_type(kind)}" for c, kind in columns)
    temporary = "TEMPORARY " if dialect.temporary else ""
    return f"CREATE {temporary}TABLE {dialect.working(name)} ({listed}){dialect.working_suffix}"


def _stage_columns(spec: TableSpec) -> Columns:
    """Return the columns of a table's stage."""
    own = [(column.name, column.type) for column in spec.columns]
    return [("_waybill_n", "int64"), *own, *_SYSTEM, (KEY_TEXT, "string")]


def _staged_rows(batch: TableBatch, refused: Mapping[int, object]) -> pa.Table:
    """Return a batch as its stage takes it, without what is refused."""
    ordinals = pa.array(np.arange(batch.columns.num_rows, dtype=np.int64))
    arrays = [
        ordinals,
        *(batch.columns[column.name] for column in batch.spec.columns),
        *(batch.context[name] for name, _ in _SYSTEM),
        key_texts(batch.spec, batch.columns),
    ]
    names = [name for name, _ in _stage_columns(batch.spec)]
    return rows_without(pa.table(arrays, names=names), refused)


def _item_columns(child: ChildTable) -> Columns:
    """Return the columns of the working table of a child's items."""
    own = [(column.name, column.type) for column in child.columns]
    return [("_waybill_n", "int64"), (ITEM, "int64"), *own]


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
