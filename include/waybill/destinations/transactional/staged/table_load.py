"""One table's batch: staged before the transaction, judged and merged within it.

Which rows a merge refuses, where there are no savepoints: halves, each rolled back.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from waybill.destinations.batch import DELIVERED, PARKED, TableBatch
from waybill.destinations.drivers import WarehouseError
from waybill.destinations.limits import Reasons
from waybill.destinations.merging import MergeStatements, quoted
from waybill.destinations.transactional.staged import books, staging
from waybill.destinations.transactional.staged.dialect import WORKING_PREFIX
from waybill.destinations.transactional.staged.session import Columns, WarehouseSession


class RowRefusedError(Exception):
    """The merge failed for a row that is at fault; which one is not known yet."""

    def __init__(self, load: StagedTableLoad, error: WarehouseError) -> None:
        super().__init__(error.message)
        self.load = load
        self.error = error


@dataclass(slots=True)
class StagedTableLoad:
    """The load of one batch.

    Args:
        session: connected.
        batch: the rows; their outcomes are filled in.
        label: makes the names of working tables unique among all loads.
        refused: rows that are left out, with the reason.
        marked: the table has ``_waybill_deleted_at``.
    """

    session: WarehouseSession
    batch: TableBatch
    label: str
    refused: Reasons
    marked: bool = False
    change: int = field(default=0, init=False)
    """Rows that the table has more for this load."""
    _statements: MergeStatements = field(init=False)
    _items: dict[str, str] = field(default_factory=dict, init=False)
    """Child's name to the working table of its items."""

    def stage(self) -> None:
        """Make and fill the working tables."""
        spec = self.batch.spec
        rows = staging.staged_rows(self.batch, self.refused)
        stage = self.session.stage(self._name("stage"), staging.stage_columns(spec), rows)
        self._statements = MergeStatements(spec, stage, self._name("verdict"), marked=self.marked)
        for index, child in enumerate(spec.children):
            self._items[child.name] = self.session.stage(
                self._name(f"items_{index}"),
                staging.item_columns(child),
                staging.staged_items(self.batch, child, self.refused),
            )
        working: dict[str, Columns] = {
            "verdict": staging.VERDICT, "losers": staging.LOSERS, "met": staging.MET
        }  # fmt: skip
        for name, columns in working.items():
            self.session.execute(working_table(self.session, self._name(name), columns))

    def run(self) -> None:
        """Judge and merge, in the session's transaction.

        Raises:
            RowRefusedError: a row is at fault.
            WarehouseError: no row is.
        """
        try:
            self._merge()
        except WarehouseError as error:
            if self.session.dialect.errors.refused_code(error) is None:
                raise
            raise RowRefusedError(self, error) from error
        self._read_verdicts()

    def drop(self) -> None:
        """Drop the working tables."""
        for name in (
            self._statements.stage,
            *(self._name(n) for n in ("verdict", "losers", "met")),
        ):
            self.session.execute(f"DROP TABLE IF EXISTS {self.session.dialect.working(name)}")

    def _merge(self) -> None:
        session, made, spec = self.session, self._statements, self.batch.spec
        session.perform(made.find_losers(self._name("losers")))
        session.perform(made.judge_losers(self._name("losers")))
        session.perform(made.find_met(self._name("met")))
        session.perform(made.judge_met(self._name("met")))
        text = key_hash = f"s.{quoted(staging.KEY_TEXT)}"
        buried = books.has_tombstones(session, spec)
        if buried:
            session.perform(made.judge_tombstones(books.TOMBSTONES, key_hash))
        before = self._count()
        session.perform(made.merge(judged=True))
        self.change = self._count() - before
        for child in spec.children:
            session.perform(made.clear_items(child))
            session.perform(made.write_items(child, self._items[child.name]))
        if buried:
            session.perform(made.clear_tombstones(books.TOMBSTONES, key_hash))
        if self.batch.has_deletes:
            session.perform(made.drop_tombstones(books.TOMBSTONES, key_hash))
            session.perform(made.write_tombstones(books.TOMBSTONES, text, key_hash))

    def _count(self) -> int:
        return int(self.session.ask(self._statements.count_met())["rows"][0].as_py())

    def _read_verdicts(self) -> None:
        rows = self.session.ask(f"SELECT n, outcome FROM {quoted(self._name('verdict'))}")
        self.batch.outcomes[:] = DELIVERED
        places = np.array(rows["n"].to_pylist(), np.int64)
        self.batch.outcomes[places] = np.array(rows["outcome"].to_pylist(), np.int8)
        self.batch.outcomes[list(self.refused)] = PARKED

    def _name(self, what: str) -> str:
        return f"{WORKING_PREFIX}{self.label}_{what}"


def working_table(session: WarehouseSession, name: str, columns: Columns) -> str:
    """Return the statement that makes a working table."""
    dialect = session.dialect
    listed = ", ".join(f"{dialect.quoted(c)} {dialect.sql_type(kind)}" for c, kind in columns)
    temporary = "TEMPORARY " if dialect.temporary else ""
    return f"CREATE {temporary}TABLE {dialect.working(name)} ({listed}){dialect.working_suffix}"


def find_refused(session: WarehouseSession, failed: StagedTableLoad) -> Reasons:
    """Return the rows that fail by themselves. Cost: about 2 log2(n) trial merges for one row.

    Args:
        session: connected; no transaction is open.
        failed: the load that failed as a whole.
    """
    found: Reasons = {}
    everything = [n for n in range(failed.batch.columns.num_rows) if n not in failed.refused]
    waiting = [everything]
    while waiting:
        ordinals = waiting.pop()
        error = _try(session, failed, ordinals)
        if error is None:
            continue
        if len(ordinals) == 1:
            code = session.dialect.errors.refused_code(error.error)
            found[ordinals[0]] = (str(code), error.error.words)
            continue
        middle = len(ordinals) // 2
        waiting += [ordinals[middle:], ordinals[:middle]]
    return found


def _try(
    session: WarehouseSession, failed: StagedTableLoad, ordinals: list[int]
) -> RowRefusedError | None:
    batch = failed.batch
    places = pa.array(ordinals, pa.int64())
    part = TableBatch(batch.spec, [], batch.columns.take(places), batch.context.take(places))
    load = StagedTableLoad(session, part, uuid.uuid4().hex[:12], {}, failed.marked)
    load.stage()
    try:
        session.execute(session.begin)
        try:
            load.run()
        finally:
            session.abandon()
    except RowRefusedError as error:
        return error
    else:
        return None
    finally:
        load.drop()
