"""The load's one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from waybill.destinations.batch import TableBatch, batches_of, outcomes_of
from waybill.destinations.merging import literal
from waybill.destinations.model import (
    Commit,
    CountLook,
    LoadOutcome,
    Note,
    Park,
    RefusedRow,
    RowCount,
)
from waybill.destinations.postgres import books, counting
from waybill.destinations.postgres.connection import Session
from waybill.destinations.postgres.refusing import Refused
from waybill.destinations.postgres.schema import ensure_tables
from waybill.destinations.postgres.table_load import TableLoad
from waybill.destinations.refused import refused_rows
from waybill.errors import StopError, WaybillError
from waybill.pipelines import TableSpec


class PostgresDestination:
    """One PostgreSQL database, as ``waybill.destinations.Destination`` says.

    Args:
        name: commit numbers are kept under it.
        dsn: libpq URL or key=value text.
    """

    def __init__(self, name: str, dsn: str) -> None:
        self.name = name
        self._session = Session(dsn, name)
        self._has_books = False
        self._ensured: dict[tuple[str, str], TableSpec] = {}

    def ensure_table(self, spec: TableSpec) -> None:
        """Bring the table to its declaration; see the protocol."""
        self._ensure([spec])

    def check(self) -> None:
        """Ask the server for an answer; see the protocol."""
        with self._session.transaction():
            self._session.query("SELECT 1 AS answer")

    def load(
        self, commits: Sequence[Commit], park: Park, note: Note | None = None
    ) -> list[LoadOutcome]:
        """Load what is missing of the commits, report all; see the protocol."""
        if not commits:
            return []
        numbers = [commit.number for commit in commits]
        if len(set(numbers)) != len(numbers):
            raise StopError(f"destination {self.name!r}: a commit number is there twice: {numbers}")
        try:
            return self._load(commits, numbers, park, note)
        except WaybillError:
            self._forget()
            raise

    def count_rows(self, looks: Sequence[CountLook]) -> list[RowCount]:
        """Count the rows of tables that are due; see the protocol."""
        self._make_books()
        found = []
        for look in looks:
            with self._session.transaction():
                found.append(counting.count_rows(self._session, look))
        return [one for one in found if one is not None]

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _load(
        self, commits: Sequence[Commit], numbers: Sequence[int], park: Park, note: Note | None
    ) -> list[LoadOutcome]:
        self._prepare(commits, numbers)
        session = self._session
        with session.transaction():
            taken = books.claim(session, self.name, numbers)
            fresh = [commit for commit in commits if commit.number in taken]
            outcomes = self._load_fresh(fresh, park) if fresh else []
            books.fill(session, self.name, outcomes)
            if note is not None and outcomes:
                note(outcomes)
            known = [commit for commit in commits if commit.number not in taken]
            outcomes += books.stored(session, self.name, known)
        found = {outcome.commit_number: outcome for outcome in outcomes}
        return [found[number] for number in numbers]

    def _prepare(self, commits: Sequence[Commit], numbers: Sequence[int]) -> None:
        """Make books and tables before the load, so that it holds no lock on their definitions."""
        self._make_books()
        with self._session.transaction():
            known = books.loaded(self._session, self.name, numbers)
        fresh = [commit for commit in commits if commit.number not in known]
        self._ensure([batch.spec for batch in batches_of(fresh)])

    def _make_books(self) -> None:
        if not self._has_books:
            books.create_books(self._session)
            self._has_books = True

    def _ensure(self, specs: Sequence[TableSpec]) -> None:
        new = [s for s in specs if self._ensured.get((s.schema_name, s.name)) != s]
        if new:
            ensure_tables(self._session, new)
            self._ensured.update({(spec.schema_name, spec.name): spec for spec in new})

    def _load_fresh(self, commits: Sequence[Commit], park: Park) -> list[LoadOutcome]:
        batches = batches_of(commits)
        self._take_tables(batches)
        refused: list[RefusedRow] = []
        for index, batch in enumerate(batches):
            load = TableLoad(self._session, batch, str(index))
            refused += _described(batch, load.run())
            counting.note_change(self._session, batch.spec, load.change)
        descriptor = park(refused) if refused else None
        return _with_parked(outcomes_of(commits, batches), refused, descriptor)

    def _take_tables(self, batches: Sequence[TableBatch]) -> None:
        """Let one load at a time write a table, whatever destination name it comes under.

        All in one order, and after the commit numbers: no two loads wait for each other.
        Constraints that would wait for the commit are checked at once, while the row at fault can
        still be told.
        """
        self._session.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for batch in batches:
            place = literal(f"waybill table {batch.spec.schema_name}.{batch.spec.name}")
            self._session.query(f"SELECT pg_advisory_xact_lock(hashtextextended({place}, 0))::text")

    def _forget(self) -> None:
        """Look at the catalogue again next time."""
        self._has_books = False
        self._ensured.clear()


def _described(batch: TableBatch, errors: Refused) -> list[RefusedRow]:
    reasons = {
        ordinal: (error.refused_code or "unexpected_error", error.words)
        for ordinal, error in errors.items()
    }
    return refused_rows(batch, reasons)


def _with_parked(
    outcomes: Sequence[LoadOutcome],
    refused: Sequence[RefusedRow],
    descriptor: Mapping[str, object] | None,
) -> list[LoadOutcome]:
    touched = {row.commit_number for row in refused}
    parked = () if descriptor is None else (descriptor,)
    return [
        replace(outcome, parked=parked if outcome.commit_number in touched else ())
        for outcome in outcomes
    ]
