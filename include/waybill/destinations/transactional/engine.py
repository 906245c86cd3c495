"""The protocol of an engine: what it supplies beside its session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from waybill.destinations.batch import Place, TableBatch
from waybill.destinations.key_sums import KeySums, key_hashes, key_types
from waybill.destinations.merging import MergeStatements
from waybill.destinations.transactional.books import Books, SqlBooks
from waybill.destinations.transactional.session import Refused, RevertingSession, Session
from waybill.destinations.transactional.tables import FoundTable, Table
from waybill.pipelines import TableSpec


@dataclass(slots=True)
class Merged:
    """What one merge did."""

    change: int = 0
    """Rows that the table has more."""
    refused: Refused = field(default_factory=dict)
    keys: KeySums = field(default_factory=KeySums.none)
    """Of the keys of these rows, where the books keep such sums."""


class TableEngine(Protocol):
    """What every load asks of an engine."""

    judges_all: bool
    """All steps of judging are run: no count of changed rows is relied on to leave one out."""

    @property
    def session(self) -> Session:
        """Return the connection."""
        ...

    @property
    def books(self) -> Books:
        """Return how the books are kept."""
        ...

    def ensure(self, specs: Sequence[TableSpec]) -> Mapping[Place, Table]:
        """Bring tables, and those of their children, to their declarations.

        Raises:
            InputError: a conflict; names table, column, found, expected.
        """
        ...

    def stage(
        self, label: str, batch: TableBatch, table: Table, refused: Mapping[int, object]
    ) -> tuple[MergeStatements, Refused]:
        """Make a batch's stage and verdict tables and its items' tables, filled.

        Args:
            label: makes the names of working tables unique.
            batch: its rows.
            table: as it is.
            refused: rows that are known to be refused; they are left out.

        Returns:
            The statements of the batch, and further rows that are left out, because their values
            cannot be held.
        """
        ...

    def working_table(self, statements: MergeStatements, what: str, columns: str) -> str:
        """Make a working table of whole numbers, unless it was made with the stage; its name."""
        ...

    def analyze(self, name: str) -> None:
        """Tell the planner how large a working table became."""
        ...

    def merge_news(self, statements: MergeStatements, batch: TableBatch, /) -> Merged | None:
        """Merge all rows, and their items, if each has a key that is new or an older row's.

        Keys are there once, and there are no deletes. None: it was not so, or cannot be told at
        little cost; nothing was done then.
        """
        ...

    def merge(self, statements: MergeStatements, batch: TableBatch, *, judged: bool) -> Merged:
        """Merge what has no verdict, and its items; rows that are refused get theirs: parked."""
        ...

    def reopen(self, statements: MergeStatements) -> MergeStatements | None:
        """Stage the rows that lost only to rows which the merge refused; None: there are none."""
        ...


class Engine(TableEngine, Protocol):
    """An engine that loads in one transaction from the start.

    All calls but ``ensure`` are made within the session's transaction.
    """

    @property
    def session(self) -> RevertingSession:
        """Return the connection."""
        ...

    @property
    def books(self) -> SqlBooks:
        """Return how the books are kept."""
        ...

    def look(self, specs: Sequence[TableSpec]) -> Mapping[Place, Table] | None:
        """Return what ``ensure`` returned, if tables still are so; None: they are to be changed.

        Nobody changes them until the transaction ends.

        Raises:
            InputError: a conflict, as of ``ensure``.
        """
        ...

    def found(self, specs: Sequence[TableSpec]) -> Mapping[Place, FoundTable]:
        """Return what the catalogue has of tables and their children's, of those that are there."""
        ...

    def take_tables(self, batches: Sequence[TableBatch]) -> None:
        """See to it that one load at a time writes these tables."""
        ...

    def count(self, spec: TableSpec) -> int | None:
        """Return about how many rows a table has, at no cost; None: there is no such table."""
        ...

    def drop(self, spec: TableSpec) -> None:
        """Drop a table."""
        ...


def statements_of(label: str, table: Table, spec: TableSpec, dialect: str) -> MergeStatements:
    """Return the statements of a batch whose working tables are the session's own."""
    stage = f"waybill_stage_{label}"
    items = tuple(f"{stage}_items_{index}" for index in range(len(spec.children)))
    return MergeStatements(spec, stage, f"waybill_verdict_{label}", dialect, table.marked, items)


def keys_of_stage(session: Session, statements: MergeStatements) -> KeySums:
    """Return the keys of the target's rows whose key is in the stage."""
    rows = session.query(statements.keys_met())
    return KeySums.of(key_hashes(key_types(statements.spec), rows.columns))


def merge_items(session: Session, statements: MergeStatements) -> None:
    """Put the items of rows that were merged into the place of those that were there."""
    for child, items in zip(statements.spec.children, statements.items, strict=True):
        session.execute(statements.clear_items(child))
        session.execute(statements.write_items(child, items))


def reopened(
    session: Session, statements: MergeStatements, create_like: Callable[[str, str], None]
) -> MergeStatements | None:
    """Stage the rows that lost only to rows refused since; None: there are none.

    Args:
        session: with an open transaction.
        statements: of the stage that was merged.
        create_like: makes an empty working table with the columns of another.
    """
    following = replace(statements, stage=f"{statements.stage}_")
    create_like(following.stage, statements.stage)
    if session.execute(statements.reopen(following.stage)) == 0:
        return None
    session.execute(following.forget_verdicts())
    return following
