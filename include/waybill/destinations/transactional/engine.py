"""What an engine supplies beside its session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from waybill.destinations.batch import Place, TableBatch
from waybill.destinations.merging import MergeStatements
from waybill.destinations.transactional.books import Books
from waybill.destinations.transactional.session import Refused, Session, SqlError
from waybill.errors import WaybillError
from waybill.pipelines import TableSpec


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it is, once it was brought to its declaration."""

    spec: TableSpec
    """Types as the table has them: where they differ from the declaration, they are wider."""
    marked: bool = False
    """It has ``_waybill_deleted_at``."""


@dataclass(slots=True)
class Merged:
    """What one merge did."""

    change: int = 0
    """Rows that the table has more."""
    refused: Refused = field(default_factory=dict)
    parked: bool = False
    """These have their verdict already."""


class Engine(Protocol):
    """One engine; all calls but ``ensure`` are made within the session's transaction."""

    dialect: str
    """A sqlglot dialect."""

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

    def look(self, specs: Sequence[TableSpec]) -> Mapping[Place, Table] | None:
        """Return what ``ensure`` returned, if tables still are so; None: they are to be changed.

        Nobody changes them until the transaction ends.

        Raises:
            InputError: a conflict, as of ``ensure``.
        """
        ...

    def take_tables(self, batches: Sequence[TableBatch]) -> None:
        """See to it that one load at a time writes these tables."""
        ...

    def stage(self, statements: MergeStatements, batch: TableBatch, refused: Refused) -> Refused:
        """Make a batch's stage and verdict tables and its items' tables, filled.

        Args:
            statements: of the batch.
            batch: its rows.
            refused: rows that are known to be refused; they are left out.

        Returns:
            Further rows that are left out, because their values cannot be held.
        """
        ...

    def create_working(self, name: str, columns: str) -> None:
        """Make a working table of columns of whole numbers; it ends with the transaction."""
        ...

    def create_like(self, name: str, like: str) -> None:
        """Make an empty working table with the columns of another."""
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
        """Merge what has no verdict, and its items; leave out rows that are refused."""
        ...

    def count(self, spec: TableSpec) -> int | None:
        """Return about how many rows a table has, at no cost; None: there is no such table."""
        ...

    def drop(self, spec: TableSpec) -> None:
        """Drop a table."""
        ...

    def sorted_error(self, error: SqlError) -> WaybillError:
        """Return the error to raise for one of the engine's, in words."""
        ...


def items_of(stage: str, index: int) -> str:
    """Return the name of the working table with the items of a stage's child."""
    return f"{stage.rstrip('_')}_items_{index}"
