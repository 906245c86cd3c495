"""One table's batch: stage it, judge it, merge it, until no row is open.

A pass judges its stage's rows and merges those that win. Rows that lost within the batch to a row
which was then refused make the stage of the next pass; there are as many passes as refused versions
of a key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from waybill.destinations.batch import PARKED, TableBatch
from waybill.destinations.merging import MergeStatements, quoted
from waybill.destinations.transactional import books
from waybill.destinations.transactional.engine import Engine, Table
from waybill.destinations.transactional.session import Refused


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
    """The load of one batch within the session's transaction.

    Args:
        engine: with an open transaction.
        batch: the rows; their outcomes are filled in.
        table: as it is.
        label: makes the names of working tables unique in the transaction.
    """

    engine: Engine
    batch: TableBatch
    table: Table
    label: str
    change: int = field(default=0, init=False)
    """Rows that the table has more for this load."""
    _repeats: bool = field(init=False)

    def __post_init__(self) -> None:
        self._repeats = self.batch.repeats_keys

    def run(self, known: Refused | None = None) -> Refused:
        """Load; return what was refused, with what was known to be.

        Raises:
            SqlError: an error that no row is to blame for, or of a row that cannot be told yet.
        """
        statements = MergeStatements(
            self.batch.spec,
            f"waybill_stage_{self.label}",
            f"waybill_verdict_{self.label}",
            self.engine.dialect,
            self.table.marked,
        )
        refused = dict(known or {})
        refused |= self.engine.stage(statements, self.batch, refused)
        self._park(statements, refused)
        found = self._pass(statements, any_judged=bool(refused))
        while found:
            refused |= found
            following = replace(statements, stage=f"{statements.stage}_")
            if self._reopen(statements, following) == 0:
                break
            statements = following
            found = self._pass(statements, any_judged=True)
        self._read_verdicts(statements)
        return refused

    def _pass(self, statements: MergeStatements, *, any_judged: bool) -> Refused:
        session, marks = self.engine.session, self.engine.books
        buried = books.has_tombstones(session, self.batch.spec)
        if not (buried or any_judged or self.batch.has_deletes or self._repeats):
            news = self.engine.merge_news(statements, self.batch)
            if news is not None:
                self.change += news.change
                return {}
        key_hash = marks.key_hash(self.batch.spec)
        judged = self._judge(statements)
        if buried:
            judged += session.execute(statements.judge_tombstones(books.TOMBSTONES, key_hash))
        if judged:
            self.engine.analyze(statements.verdict)
        merged = self.engine.merge(statements, self.batch, judged=judged > 0 or any_judged)
        self.change += merged.change
        if not merged.parked:
            self._park(statements, merged.refused)
        if buried:
            session.execute(statements.clear_tombstones(books.TOMBSTONES, key_hash))
        if self.batch.has_deletes:
            books.bury(session, marks, statements)
        return merged.refused

    def _judge(self, statements: MergeStatements) -> int:
        session = self.engine.session
        losers, met = f"{statements.stage}losers", f"{statements.stage}met"
        judged = 0
        if self._repeats:
            self.engine.create_working(losers, "n bigint, winner bigint, prev bigint")
            if session.execute(statements.find_losers(losers)):
                judged += session.execute(statements.judge_losers(losers))
        self.engine.create_working(met, "n bigint")
        if session.execute(statements.find_met(met)):
            self.engine.analyze(met)
            judged += session.execute(statements.judge_met(met))
        return judged

    def _park(self, statements: MergeStatements, refused: Iterable[int]) -> None:
        """Give the verdict "parked"."""
        verdicts = parked_verdicts(refused)
        if verdicts.num_rows:
            self.engine.session.append(statements.verdict, verdicts)

    def _reopen(self, statements: MergeStatements, following: MergeStatements) -> int:
        self.engine.create_like(following.stage, statements.stage)
        found = self.engine.session.execute(statements.reopen(following.stage))
        if found:
            self.engine.session.execute(following.forget_verdicts())
        return found

    def _read_verdicts(self, statements: MergeStatements) -> None:
        rows = self.engine.session.query(f"SELECT n, outcome FROM {quoted(statements.verdict)}")
        self.batch.outcomes[rows["n"].to_numpy()] = rows["outcome"].to_numpy().astype(np.int8)
