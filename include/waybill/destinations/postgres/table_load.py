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
from waybill.destinations.postgres import books, counting
from waybill.destinations.postgres.connection import Session
from waybill.destinations.postgres.refusing import Refused, halve, merge_by_halves
from waybill.destinations.postgres.staging import (
    create_notes,
    create_stage,
    create_stage_like,
    ordinals_with_nul,
    staged_rows,
    without,
)


@dataclass(slots=True)
class TableLoad:
    """The load of one batch within the session's transaction.

    Args:
        session: with an open transaction.
        batch: the rows; their outcomes are filled in.
        label: makes the names of working tables unique in the transaction.
    """

    session: Session
    batch: TableBatch
    label: str
    change: int = field(default=0, init=False)
    """Rows that the table has more for this load."""

    def run(self) -> Refused:
        """Load; return what was refused.

        Raises:
            SqlError: an error that no row is to blame for.
        """
        statements = MergeStatements(
            self.batch.spec, f"waybill_stage_{self.label}", f"waybill_verdict_{self.label}"
        )
        create_stage(self.session, statements)
        refused = self._stage(statements)
        found = self._pass(statements)
        while found:
            refused |= found
            following = replace(statements, stage=f"{statements.stage}_")
            if self._reopen(statements, following) == 0:
                break
            statements = following
            found = self._pass(statements)
        self._read_verdicts(statements)
        return refused

    def _stage(self, statements: MergeStatements) -> Refused:
        rows = staged_rows(self.batch)
        error = self.session.attempt(lambda: self.session.append(statements.stage, rows))
        if error is None:
            return {}
        refused = dict.fromkeys(ordinals_with_nul(self.batch), error)
        rows = without(rows, refused)
        ordinals = rows["_waybill_n"].to_pylist()

        def copy(low: int, high: int) -> None:
            self.session.append(statements.stage, rows.slice(low, high - low))

        found = halve(self.session, copy, (0, rows.num_rows)) if ordinals else {}
        refused |= {ordinals[place]: cause for place, cause in found.items()}
        self._park(statements, refused)
        return refused

    def _pass(self, statements: MergeStatements) -> Refused:
        session = self.session
        buried = books.has_tombstones(session, self.batch.spec)
        key_hash = books.key_hash(self.batch.spec)
        judged = self._judge(statements)
        if buried:
            judged += session.execute(statements.judge_tombstones(books.TOMBSTONES, key_hash))
        if judged:
            session.execute(f"ANALYZE {quoted(statements.verdict)}")
        refused = self._merge(statements, judged=judged > 0)
        self._park(statements, refused)
        if buried:
            session.execute(statements.clear_tombstones(books.TOMBSTONES, key_hash))
        if self.batch.has_deletes:
            text = books.key_text(self.batch.spec)
            session.execute(statements.write_tombstones(books.TOMBSTONES, text, key_hash))
        return refused

    def _judge(self, statements: MergeStatements) -> int:
        session = self.session
        losers, met = f"{statements.stage}losers", f"{statements.stage}met"
        create_notes(session, losers, met)
        judged = 0
        if session.execute(statements.find_losers(losers)):
            judged += session.execute(statements.judge_losers(losers))
        if session.execute(statements.find_met(met)):
            session.execute(f"ANALYZE {quoted(met)}")
            judged += session.execute(statements.judge_met(met))
        return judged

    def _merge(self, statements: MergeStatements, *, judged: bool) -> Refused:
        whole = statements.merge(judged=judged)
        tells = counting.merge_tells(self.session)
        before = 0 if tells else counting.rows_of_stage(self.session, statements)
        if self.session.attempt(lambda: self._merge_whole(whole, tells=tells)) is None:
            if not tells:
                self.change += counting.rows_of_stage(self.session, statements) - before
            return {}
        before = counting.rows_of_stage(self.session, statements)
        refused = merge_by_halves(self.session, statements, self.batch.columns.num_rows)
        self.change += counting.rows_of_stage(self.session, statements) - before
        return refused

    def _merge_whole(self, merge: str, *, tells: bool) -> None:
        if tells:
            self.change += counting.merge_counted(self.session, merge)
        else:
            self.session.execute(merge)

    def _park(self, statements: MergeStatements, refused: Iterable[int]) -> None:
        """Give the verdict "parked"."""
        ordinals = pa.array(sorted(refused), pa.int64())
        count = len(ordinals)
        if count:
            verdicts = {
                "n": ordinals,
                "outcome": pa.repeat(pa.scalar(PARKED, pa.int16()), count),
                "winner": pa.nulls(count, pa.int64()),
                "touch": pa.repeat(pa.scalar(value=False), count),
            }
            self.session.append(statements.verdict, pa.table(verdicts))

    def _reopen(self, statements: MergeStatements, following: MergeStatements) -> int:
        create_stage_like(self.session, following.stage, statements.stage)
        found = self.session.execute(statements.reopen(following.stage))
        if found:
            self.session.execute(following.forget_verdicts())
        return found

    def _read_verdicts(self, statements: MergeStatements) -> None:
        rows = self.session.query(
            f"SELECT n, outcome FROM {quoted(statements.verdict)}"  # noqa: S608
        )
        self.batch.outcomes[rows["n"].to_numpy()] = rows["outcome"].to_numpy().astype(np.int8)
