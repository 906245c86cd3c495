"""DuckDB as the load that is one transaction needs it.

A stage is the batch itself, read from Arrow, not copied. Rows that a table's NOT NULL and CHECK do
not take are found by asking: the catalogue for the constraints, then the stage for rows that do not
meet them, so that such a row costs no failed transaction. Checks over columns that the stage does
not have, and unique and foreign keys, are left to the merge itself.

Rows are put in the place of older ones where that comes to the same as a MERGE: older ones are
deleted by their place in the table, all are inserted. DuckDB's MERGE joins the batch with whole
rows of the target, and updates each column on its own; to delete and insert takes a fraction of its
time and memory. It comes to the same where the table has no columns but the declared ones and
Waybill's, which it would empty, and no keys or indexes, which would be asked before the old row is
gone. Nobody else writes while the file is held.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from waybill.destinations.adapters.duckdb.books import DuckBooks
from waybill.destinations.adapters.duckdb.schema import ensure_tables, find_tables, look_at_tables
from waybill.destinations.adapters.duckdb.session import DuckError, DuckSession
from waybill.destinations.batch import Place, TableBatch
from waybill.destinations.key_sums import change_of
from waybill.destinations.merging import DELETED_AT, KEPT_COLUMNS, MergeStatements, literal, quoted
from waybill.destinations.transactional.engine import (
    Merged,
    keys_of_stage,
    merge_items,
    reopened,
    statements_of,
)
from waybill.destinations.transactional.session import Refused, SqlError
from waybill.destinations.transactional.table_load import parked_verdicts
from waybill.destinations.transactional.tables import FoundTable, Table
from waybill.pipelines import Column, TableSpec


def screen(session: DuckSession, statements: MergeStatements, batch: TableBatch) -> Refused:
    """Return the rows of a stage, of those without a verdict, that the table does not take.

    Cost: a pass over the stage for each CHECK, and each NOT NULL of a column with a null.
    """
    refused: Refused = {}
    filled = {
        column.name.lower()
        for column in batch.spec.columns
        if batch.columns.column(column.name).null_count == 0
    }
    for condition, error in _conditions(session, statements.spec, filled):
        rows = session.query(
            f"SELECT s._waybill_n AS n FROM {quoted(statements.stage)} AS s "
            f"WHERE s._waybill_op = 'upsert' AND {statements.unjudged} AND {condition}"
        )
        refused |= dict.fromkeys(rows["n"].to_pylist(), error)
    return refused


def _conditions(
    session: DuckSession, spec: TableSpec, filled: Collection[str]
) -> list[tuple[str, SqlError]]:
    """Return what must not be true of a row, with what is said of one of which it is."""
    declared = {column.name.lower() for column in spec.columns}
    rows = session.query(
        "SELECT constraint_type AS kind, expression, constraint_column_names AS columns, "
        "constraint_text AS said FROM duckdb_constraints() "
        "WHERE database_name = current_database() AND constraint_type IN ('CHECK', 'NOT NULL') "
        f"AND lower(schema_name) = lower({literal(spec.schema_name)}) "
        f"AND lower(table_name) = lower({literal(spec.name)})"
    )
    conditions: list[tuple[str, SqlError]] = []
    for row in rows.to_pylist():
        if not {name.lower() for name in row["columns"]} <= declared:
            continue
        if row["kind"] == "CHECK":
            error = f"CHECK constraint failed on table {spec.name}: {row['said']}"
            condition = f"NOT ({row['expression']})"
        elif (name := row["columns"][0]).lower() in filled:
            continue
        else:
            error = f"NOT NULL constraint failed: {spec.name}.{name}"
            condition = f"s.{quoted(name)} IS NULL"
        conditions.append((condition, DuckError(error, "ConstraintException")))
    return conditions


NOW = "get_current_timestamp()"
"""DuckDB reads CURRENT_TIMESTAMP as a column, if there is one of that name."""
_VERSIONS = tuple(name for name, _ in KEPT_COLUMNS if name != "_waybill_loaded_at")


def can_replace(session: DuckSession, spec: TableSpec) -> bool:
    """Tell whether rows of a table may be replaced. Cost: one look at the catalogue."""
    known = {column.name.lower() for column in spec.columns}
    known |= {name for name, _ in KEPT_COLUMNS} | {DELETED_AT}
    of_table = (
        "database_name = current_database() "
        f"AND lower(schema_name) = lower({literal(spec.schema_name)}) "
        f"AND lower(table_name) = lower({literal(spec.name)})"
    )
    rows = session.query(
        f"SELECT lower(column_name) AS found FROM duckdb_columns() WHERE {of_table} "
        f"UNION ALL SELECT ' key' FROM duckdb_constraints() WHERE {of_table} "
        "AND constraint_type NOT IN ('CHECK', 'NOT NULL') "
        f"UNION ALL SELECT ' index' FROM duckdb_indexes() WHERE {of_table}"
    )
    return set(rows["found"].to_pylist()) <= known


def replace_rows(
    session: DuckSession, statements: MergeStatements, batch: TableBatch, *, judged: bool
) -> Merged:
    """Apply what has no verdict, and the versions of touched rows."""
    spec = statements.spec
    table = f"{quoted(spec.schema_name)}.{quoted(spec.name)}"
    met = quoted(f"{statements.stage}places")
    stage = quoted(statements.stage)
    touch, verdicts, taken = "FALSE", "", ""
    if judged:
        touch = "COALESCE(v.touch, FALSE)"
        verdicts = f"LEFT JOIN {quoted(statements.verdict)} AS v ON v.n = s._waybill_n"
        taken = "WHERE v.n IS NULL OR v.touch"
    on_key = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in spec.key)
    session.execute(
        f"CREATE OR REPLACE TEMPORARY TABLE {met} AS SELECT s._waybill_n AS n, t.rowid AS place, "
        f"s._waybill_op = 'delete' AS gone, {touch} AS touch "
        f"FROM {table} AS t JOIN {stage} AS s ON {on_key} {verdicts} {taken}"
    )
    _update(session, table, met, stage, where="m.touch", also="")
    if spec.soft_delete:
        marked = f", {DELETED_AT} = {NOW}"
        _update(session, table, met, stage, where="m.gone AND NOT m.touch", also=marked)
    kept = " AND NOT gone" if spec.soft_delete else ""
    replaced = f"FROM {met} WHERE NOT touch{kept}"
    deleted = session.execute(f"DELETE FROM {table} WHERE rowid IN (SELECT place {replaced})")
    names = [*(column.name for column in spec.columns), *_VERSIONS]
    columns = ", ".join(quoted(name) for name in names)
    news = (
        f"FROM {stage} AS s WHERE s._waybill_op = 'upsert'"
        f"{f' AND {statements.unjudged}' if judged else ''}"
    )
    inserted = session.execute(
        f"INSERT INTO {table} ({columns}, _waybill_loaded_at) SELECT {columns}, {NOW} {news}"
    )
    if inserted == batch.columns.num_rows and not deleted:
        return Merged(inserted, keys=change_of(batch, None))
    came = session.query(f"SELECT s._waybill_n AS n {news}")["n"].to_numpy()
    went = session.query(f"SELECT n {replaced}")["n"].to_numpy()
    size = batch.columns.num_rows
    more = np.bincount(came, minlength=size) - np.bincount(went, minlength=size)
    gone = np.repeat(np.arange(size), np.maximum(-more, 0))
    return Merged(inserted - deleted, keys=change_of(batch, np.flatnonzero(more > 0), gone))


def _update(
    session: DuckSession, table: str, met: str, stage: str, *, where: str, also: str
) -> None:
    versions = ", ".join(f"{name} = s.{name}" for name in _VERSIONS)
    session.execute(
        f"UPDATE {table} AS t SET {versions}{also} FROM {met} AS m "
        f"JOIN {stage} AS s ON s._waybill_n = m.n WHERE t.rowid = m.place AND {where}"
    )


_STAGED = ("_waybill_id", "_waybill_source_version", "_waybill_intake_version", "_waybill_op")
_VERDICTS = "n bigint, outcome smallint, winner bigint, touch boolean"


class DuckEngine:
    """One file.

    Args:
        name: the destination's name.
        path: the file.
        options: as ``DuckSession`` takes them.

    Raises:
        InputError: an option that there is not, or a path that is none.
    """

    dialect = "duckdb"
    judges_all = False

    def __init__(self, name: str, path: str, options: Mapping[str, str]) -> None:
        self.session = DuckSession(path, name, options)
        self.books = DuckBooks()

    def ensure(self, specs: Sequence[TableSpec]) -> Mapping[Place, Table]:
        """Bring tables to their declarations; see the protocol."""
        return ensure_tables(self.session, specs)

    def look(self, specs: Sequence[TableSpec]) -> Mapping[Place, Table] | None:
        """Say what tables are; see the protocol."""
        return look_at_tables(self.session, specs)

    def found(self, specs: Sequence[TableSpec]) -> Mapping[Place, FoundTable]:
        """Return what the catalogue has of tables; see the protocol."""
        return find_tables(self.session, specs)

    def take_tables(self, batches: Sequence[TableBatch]) -> None:
        """Do nothing: who holds the file is alone."""

    def stage(
        self, label: str, batch: TableBatch, table: Table, refused: Mapping[int, object]
    ) -> tuple[MergeStatements, Refused]:
        """Let the batch be read as the stage, but for rows without a key and those refused."""
        statements = replace(statements_of(label, table, batch.spec, self.dialect), now=NOW)
        self._create(statements.verdict, _VERDICTS)
        unfit = _without_key(batch) | self._no_json(batch)
        self.session.register(statements.stage, _staged(batch, {**refused, **unfit}))
        for child, items in zip(batch.spec.children, statements.items, strict=True):
            self.session.register(items, batch.items(child))
        return statements, {n: error for n, error in unfit.items() if n not in refused}

    def working_table(self, statements: MergeStatements, what: str, columns: str) -> str:
        """Make a working table; see the protocol."""
        name = f"{statements.stage}{what}"
        self._create(name, columns)
        return name

    def _create(self, name: str, columns: str) -> None:
        self.session.execute(f"CREATE OR REPLACE TEMPORARY TABLE {quoted(name)} ({columns})")

    def analyze(self, name: str) -> None:
        """Do nothing: DuckDB counts as it goes."""

    def merge_news(self, _statements: MergeStatements, _batch: TableBatch) -> Merged | None:
        """Leave it to be judged: what was merged cannot be undone without the whole load."""
        return None

    def merge(self, statements: MergeStatements, batch: TableBatch, *, judged: bool) -> Merged:
        """Leave out what the table's constraints do not take, merge the rest.

        Raises:
            SqlError: a unique or foreign key refuses a row; the transaction is lost.
        """
        session = self.session
        refused = screen(session, statements, batch)
        if refused:
            session.append(statements.verdict, parked_verdicts(refused))
        judged = judged or bool(refused)
        if can_replace(session, statements.spec):
            merged = replace_rows(session, statements, batch, judged=judged)
        else:
            before = keys_of_stage(session, statements)
            session.execute(statements.merge(judged=judged))
            keys = keys_of_stage(session, statements) - before
            merged = Merged(keys.rows, keys=keys)
        merge_items(session, statements)
        merged.refused = refused
        return merged

    def reopen(self, statements: MergeStatements) -> MergeStatements | None:
        """Stage the rows that lost only to refused ones; see the protocol."""

        def create_like(name: str, like: str) -> None:
            self.session.execute(
                f"CREATE OR REPLACE TEMPORARY TABLE {quoted(name)} AS SELECT * FROM "
                f"{quoted(like)} LIMIT 0"
            )

        return reopened(self.session, statements, create_like)

    def count(self, spec: TableSpec) -> int | None:
        """Return about how many rows a table has; None: there is no such table."""
        rows = self.session.query(
            "SELECT estimated_size AS rows FROM duckdb_tables() "
            "WHERE database_name = current_database() "
            f"AND lower(schema_name) = lower({literal(spec.schema_name)}) "
            f"AND lower(table_name) = lower({literal(spec.name)})"
        )
        return int(rows["rows"][0].as_py()) if rows.num_rows else None

    def drop(self, spec: TableSpec) -> None:
        """Drop a table."""
        self.session.execute(f"DROP TABLE {quoted(spec.schema_name)}.{quoted(spec.name)}")

    def _no_json(self, batch: TableBatch) -> Refused:
        """Return the rows of which a JSON column, or an item's, holds no JSON."""
        refused = self._no_json_in(batch.spec.columns, _numbered(batch.columns))
        for child in batch.spec.children:
            refused |= self._no_json_in(child.columns, batch.items(child))
        return refused

    def _no_json_in(self, columns: Sequence[Column], rows: pa.Table) -> Refused:
        refused: Refused = {}
        for column in columns:
            if column.type != "json":
                continue
            self.session.register("waybill_documents", rows.select(["_waybill_n", column.name]))
            bad = self.session.query(
                "SELECT _waybill_n AS n FROM waybill_documents "
                f"WHERE NOT json_valid({quoted(column.name)})"
            )
            error = DuckError(f"column {column.name!r}: no JSON", "ConversionException")
            refused |= dict.fromkeys(bad["n"].to_pylist(), error)
        return refused


def _without_key(batch: TableBatch) -> Refused:
    refused: Refused = {}
    for name in batch.spec.key:
        column = batch.columns.column(name)
        if column.null_count:
            message = f"NOT NULL constraint failed: {batch.spec.name}.{name}"
            ordinals = np.flatnonzero(column.is_null().to_numpy())
            error = DuckError(message, "ConstraintException")
            refused |= dict.fromkeys(map(int, ordinals), error)
    return refused


def _staged(batch: TableBatch, refused: Mapping[int, object]) -> pa.Table:
    """Return a batch as a stage. Cost: no copy, but where rows are left out."""
    names = [column.name for column in batch.spec.columns]
    rows = _numbered(batch.columns.select(names))
    for name in _STAGED:
        rows = rows.append_column(name, batch.context[name])
    if refused:
        kept = np.ones(rows.num_rows, np.bool_)
        kept[list(refused)] = False
        rows = rows.filter(pa.array(kept))
    return rows


def _numbered(rows: pa.Table) -> pa.Table:
    return rows.add_column(0, "_waybill_n", pa.array(np.arange(rows.num_rows, dtype=np.int64)))
