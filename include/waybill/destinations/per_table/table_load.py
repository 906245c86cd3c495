"""One table's part of a load: judged against a snapshot, then committed on top of it.

The order of the commits is what makes a repeat right, whoever dies between two of them:
tombstones first (they do not count until the table has their commit), then the children's tables,
last the table itself with the books. Until that last commit a repeat judges the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from waybill.destinations.batch import DELIVERED, TableBatch, batches_of, outcomes_of
from waybill.destinations.key_sums import KeySums, change_of
from waybill.destinations.merging import DELETED_AT, KEPT_COLUMNS
from waybill.destinations.model import Commit, LoadOutcome, RefusedRow
from waybill.destinations.per_table.books import LoadRecord
from waybill.destinations.per_table.children import ChildItems
from waybill.destinations.per_table.table import (
    DELETE,
    OP,
    SOFT_DELETE,
    TOUCH,
    UPSERT,
    Changes,
    Lake,
    LakeTable,
    RowStamp,
    check_unchanged,
)
from waybill.destinations.per_table.tombstones import Tombstones, key_text
from waybill.destinations.per_table.verdicts import Judge, Refusals, Verdicts, refusals_of

if TYPE_CHECKING:
    import duckdb

    from waybill.pipelines import TableSpec

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Hook = Callable[[str], None]
"""Told before each commit what it is of: tombstones, child, table."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """What the loads of all tables of a destination share."""

    destination: str
    """Its name."""
    lake: Lake
    tombstones: Tombstones
    connection: duckdb.DuckDBPyConnection
    hook: Hook
    """For tests."""
    first: int
    """The load's first commit, with rows or without: all before it are acknowledged."""


class TableCommit:
    """The rows of some commits for one table.

    Args:
        workplace: what all tables of a destination share.
        table: the target, refreshed.
        commits: those that the table does not have, with the rows for this table alone.
        spec: what the table was brought to.
        others: numbers that the table has for other batches, whose tombstones count.
        before: commit number to the rows of tables before this one, that it has them or not.

    Raises:
        RetryError: somebody changed the table's columns.
    """

    def __init__(
        self,
        workplace: Workplace,
        table: LakeTable,
        commits: Sequence[Commit],
        spec: TableSpec,
        *,
        others: Collection[int] = (),
        before: Mapping[int, int] | None = None,
    ) -> None:
        check_unchanged(spec, table.fields())
        self._spec = spec
        self._lake = workplace.lake
        self.table = table
        self._tombstones = workplace.tombstones
        self._connection = workplace.connection
        self._destination = workplace.destination
        self._commits = commits
        self._numbers = [commit.number for commit in commits]
        self._own = set(self._numbers) - set(others)
        """Numbers whose tombstones are of loads that died before the table had them."""
        self._hook = workplace.hook
        self._first = workplace.first
        self._before = before
        [batch] = batches_of(commits)
        self.batch = _fitted(batch, table)
        self._key_texts = _KeyTexts(self._connection, self.batch)

    def judge(self) -> None:
        """Find what becomes of each row, against the snapshot of the table.

        Raises:
            RetryError: somebody changed the table's columns.
        """
        check_unchanged(self._spec, self.table.fields())
        batch = self.batch
        refusals = refusals_of(self._connection, batch, self.table)
        tombstones = self._tombstones.of(
            self._connection, self.table, batch.spec, (self._destination, self._own)
        )
        self._judge = Judge(self._connection, batch, self.table, tombstones, self._key_texts)
        self._verdicts: Verdicts = self._judge.run(refusals.rows if refusals.reasons else None)
        self._refusals: Refusals = refusals
        batch.outcomes = self._verdicts.outcomes

    @property
    def refused(self) -> list[RefusedRow]:
        """Return the rows that are to be parked."""
        return self._refusals.described(self.batch)

    def outcomes(self, parked: Mapping[str, Any] | None) -> list[LoadOutcome]:
        """Return what becomes of each commit's rows for this table."""
        outcomes = outcomes_of(self._commits, [self.batch], before=self._before)
        if parked is None:
            return outcomes
        return [
            replace(outcome, parked=(parked,) if any(c.parked for c in outcome.counts) else ())
            for outcome in outcomes
        ]

    def commit(self, outcomes: Sequence[LoadOutcome]) -> None:
        """Make the commits, the table's own last.

        Raises:
            ConflictError: the table changed since it was judged; judge again.
        """
        self._write_tombstones()
        delivered = np.flatnonzero(self._verdicts.outcomes == DELIVERED)
        for child in self.batch.spec.children:
            self._hook("child")
            table = self._lake.table(self.batch.spec.schema_name, child.name)
            items = ChildItems(table, self.batch, child, self._connection)
            items.commit(delivered, self._judge.bounds_of(delivered))
        places = np.flatnonzero(self._effective)
        changes = self._changes(places)
        batches = {commit.number: commit.batch for commit in self._commits}
        record = self._record().with_load(
            self._destination, outcomes, self._change(places), batches, first=self._first
        )
        self._hook("table")
        last = self.table.last_number(self._destination)
        number = max(*self._numbers, self._numbers[0] if last is None else last)
        self.table.commit(changes, RowStamp(self._destination, number, record))

    def clean_up(self) -> None:
        """Clean up tombstones when there are many."""
        if self.batch.has_deletes:
            self._tombstones.clean_up(self._connection, self.table, self.batch.spec)

    @property
    def _deletes(self) -> Mask:
        return np.asarray(pa.compute.equal(self.batch.context["_waybill_op"], "delete"), np.bool_)

    @property
    def _effective(self) -> Mask:
        """Rows that change the table: a delete of a key without a row changes nothing there."""
        verdicts = self._verdicts
        return verdicts.effective & (verdicts.met | ~self._deletes)

    def _write_tombstones(self) -> None:
        written = self._verdicts.effective & self._deletes
        if self.batch.spec.soft_delete:
            written &= ~self._verdicts.met
        ordinals = pa.array(np.flatnonzero(written))
        if not len(ordinals):
            return
        self._hook("tombstones")
        numbers = np.zeros(len(written), np.int64)
        for frame in self.batch.frames:
            numbers[frame.start : frame.end] = frame.commit_number
        self._tombstones.write(
            self.batch,
            ordinals,
            self._key_texts().take(ordinals),
            self._destination,
            pa.array(numbers).take(ordinals),
        )

    def _changes(self, places: np.ndarray[Any, np.dtype[np.int64]]) -> Changes | None:
        if not len(places):
            return None
        names = self.table.fields().names
        spec = self.batch.spec
        rows = self.batch.columns.select([c.name for c in spec.columns])
        context = self.batch.context
        everything = len(places) == rows.num_rows
        chosen = pa.array(places)
        if not everything:
            rows, context = rows.take(chosen), context.take(chosen)
        for name, _ in KEPT_COLUMNS[:-1]:
            rows = rows.append_column(name, context[name])
        now = pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC"))
        rows = rows.append_column(KEPT_COLUMNS[-1][0], pa.repeat(now, rows.num_rows))
        ops = self._ops(places)
        if DELETED_AT in names:
            rows = rows.append_column(DELETED_AT, _deleted_at(ops, now))
        met = np.flatnonzero(self._verdicts.met[places])
        return Changes(rows.append_column(OP, ops), spec.key, met, self._files(places))

    def _ops(self, places: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
        deletes = self._deletes[places]
        kinds = np.zeros(len(places), np.int8)
        kinds[deletes] = 2 if self.batch.spec.soft_delete else 1
        kinds[self._verdicts.touch[places]] = 3
        names = pa.array([UPSERT, DELETE, SOFT_DELETE, TOUCH])
        return pa.DictionaryArray.from_arrays(kinds, names).dictionary_decode()

    def _files(self, places: np.ndarray[Any, np.dtype[np.int64]]) -> frozenset[int]:
        changed = set(places.tolist()) if len(self._verdicts.files) > 0 else set()
        return frozenset(f for f, rows in self._verdicts.files.items() if rows & changed)

    def _change(self, places: np.ndarray[Any, np.dtype[np.int64]]) -> KeySums:
        """Return the keys by which the table grows."""
        removed = self._deletes[places] & (not self.batch.spec.soft_delete)
        removed &= ~self._verdicts.touch[places]
        return change_of(self.batch, places[~self._verdicts.met[places]], places[removed])

    def _record(self) -> LoadRecord:
        record = self.table.record()
        if record is not None:
            return record
        lost = self.table.last_number(self._destination) is not None
        return LoadRecord.new(self.table.count(), cut=lost)


class _KeyTexts:
    """The text of each row's key, made when it is first asked for."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, batch: TableBatch) -> None:
        self._connection = connection
        self._batch = batch
        self._found: pa.Array | None = None

    def __call__(self) -> pa.Array:
        if self._found is None:
            columns = self._batch.columns.select(list(self._batch.spec.key))
            n = pa.array(np.arange(columns.num_rows))
            self._connection.register("keyed", columns.append_column("_waybill_n", n))
            texts = self._connection.execute(
                f"SELECT {key_text(self._batch.spec)} AS key FROM keyed s ORDER BY _waybill_n"
            )
            self._found = texts.to_arrow_table()["key"].combine_chunks()
        return self._found


def _deleted_at(ops: pa.Array, now: pa.Scalar) -> pa.Array:
    soft = pa.compute.equal(ops, SOFT_DELETE)
    return pa.compute.if_else(soft, now, pa.scalar(None, now.type))


def _fitted(batch: TableBatch, table: LakeTable) -> TableBatch:
    """Return the batch with the table's types, where those are wider."""
    fields = table.fields()
    columns = batch.columns
    for index, item in enumerate(columns.schema):
        if item.name in fields.names and item.type != fields.field(item.name).type:
            kind = fields.field(item.name).type
            columns = columns.set_column(index, item.name, columns[item.name].cast(kind))
    return TableBatch(batch.spec, batch.frames, columns, batch.context)
