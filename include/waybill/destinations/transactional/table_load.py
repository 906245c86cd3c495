"""One table's batch: stage it, judge it, merge it, until no row is open.

A pass judges its stage's rows and merges those that win. Rows that lost within the batch to a row
which was then refused make the stage of the next pass; there are as many passes as refused versions
of a key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from waybill.destinations.batch import DELIVERED, PARKED, TableBatch
from waybill.destinations.key_sums import KeySums
from waybill.destinations.merging import MergeStatements, quoted
from waybill.destinations.transactional import books
from waybill.destinations.transactional.engine import Merged, TableEngine
from waybill.destinations.transactional.session import Refused
from waybill.destinations.transactional.tables import Table


def parked_verdicts(refused: Iterable[int]) -> pa.Table:
    """Return rows for the verdict table: these are parked."""
    ordinals = pa.array(sorted(refused), pa.int64())
    count = len(ordinals)
    return pa.table(
        {
            "n": ordinals,
            "outcome": pa.repeat(pa.scalar(PARKED, pa.int16()), count),
            "winner": pa.nulls(count, pa.int64()),
            "touch": pa.repeat(pa.scalar(value=False), count),
        }
    )


@dataclass(slots=True)
class TableLoad:
    """The load of one batch: ``stage``, then ``run`` within the session's transaction.

    Args:
        engine: connected.
        batch: the rows; their outcomes are filled in.
        table: as it is.
        label: makes the names of working tables unique in the transaction.
        refused: rows that are known to be refused; those that are found come to them.
    """

    engine: TableEngine
    batch: TableBatch
    table: Table
    label: str
    refused: Refused = field(default_factory=dict)
    change: int = field(default=0, init=False)
    """Rows that the table has more for this load."""
    keys: KeySums = field(default_factory=KeySums.none, init=False)
    """Of their keys, where the books keep such sums."""
    statements: MergeStatements = field(init=False)
    _repeats: bool = field(init=False)

    def __post_init__(self) -> None:
        self._repeats = self.engine.judges_all or self.batch.repeats_keys

    def stage(self) -> None:
        """Make and fill the working tables; some engines do so within the transaction.

        Raises:
            SqlError: an error that no row is to blame for.
        """
        self.statements, refused = self.engine.stage(
            self.label, self.batch, self.table, self.refused
        )
        self.refused |= refused

    def run(self) -> None:
        """Judge and merge what is staged.

        Raises:
            SqlError: an error that no row is to blame for, or of a row that cannot be told yet.
        """
        statements: MergeStatements | None = self.statements
        any_judged = bool(self.refused)
        while statements is not None:
            refused = self._pass(statements, any_judged=any_judged)
            self.refused |= refused
            statements = self.engine.reopen(statements) if refused else None
            any_judged = True
        self._read_verdicts()

    def _pass(self, statements: MergeStatements, *, any_judged: bool) -> Refused:
        session, kept, spec = self.engine.session, self.engine.books, self.batch.spec
        buried: bool | None = None
        if not (any_judged or self.batch.has_deletes or self._repeats):
            buried = kept.has_tombstones(session, spec)
            news = None if buried else self.engine.merge_news(statements, self.batch)
            if news is not None:
                self._note(news)
                return {}
        judged = self._judge(statements)
        if buried is None:
            buried = kept.has_tombstones(session, spec)
        key_hash = kept.key_hash(spec)
        if buried:
            judged += session.execute(statements.judge_tombstones(books.TOMBSTONES, key_hash))
        if judged:
            self.engine.analyze(statements.verdict)
        merged = self.engine.merge(statements, self.batch, judged=judged > 0 or any_judged)
        self._note(merged)
        if buried:
            session.execute(statements.clear_tombstones(books.TOMBSTONES, key_hash))
        if self.batch.has_deletes:
            books.bury(session, kept, statements)
        return merged.refused

    def _note(self, merged: Merged) -> None:
        self.change += merged.change
        self.keys += merged.keys

    def _judge(self, statements: MergeStatements) -> int:
        """Give verdicts within the batch and against the table; return how many."""
        session, all_steps = self.engine.session, self.engine.judges_all
        judged = 0
        if self._repeats:
            columns = "n bigint, winner bigint, prev bigint"
            losers = self.engine.working_table(statements, "losers", columns)
            if session.execute(statements.find_losers(losers)) or all_steps:
                judged += session.execute(statements.judge_losers(losers))
        met = self.engine.working_table(statements, "met", "n bigint")
        if session.execute(statements.find_met(met)) or all_steps:
            self.engine.analyze(met)
            judged += session.execute(statements.judge_met(met))
        return judged

    def _read_verdicts(self) -> None:
        verdict = quoted(self.statements.verdict)
        rows = self.engine.session.query(f"SELECT n, outcome FROM {verdict}")
        ordinals, outcomes = (rows[name].cast(pa.int64()).to_numpy() for name in ("n", "outcome"))
        self.batch.outcomes[:] = DELIVERED
        self.batch.outcomes[ordinals] = outcomes.astype(np.int8)
        self.batch.outcomes[list(self.refused)] = PARKED
