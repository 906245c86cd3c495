"""The load's one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from waybill.destinations.base import BaseDestination
from waybill.destinations.batch import Place, TableBatch, batches_of, outcomes_of
from waybill.destinations.model import (
    Commit,
    CountLook,
    Expected,
    Finding,
    Held,
    LoadOutcome,
    Note,
    Park,
    RefusedRow,
    RowCount,
    Rows,
)
from waybill.destinations.refused import refused_rows
from waybill.destinations.specs import union
from waybill.destinations.transactional import books, row_counts
from waybill.destinations.transactional.engine import Engine, Table
from waybill.destinations.transactional.examination import examine
from waybill.destinations.transactional.session import Refused
from waybill.destinations.transactional.table_load import TableLoad
from waybill.errors import InputError, RetryError
from waybill.pipelines import TableSpec

_CLAIMS = 3
"""Times that a load takes commits which are there for other batches, before the caller does."""


class SqlDestination(BaseDestination):
    """One database, as ``waybill.destinations.Destination`` says.

    Args:
        name: commit numbers are kept under it.
        engine: with its session.
    """

    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        self.per_table = False
        self._engine = engine
        self._session = engine.session
        self._has_books = False
        self._ensured: dict[Place, tuple[TableSpec, Table]] = {}

    def ensure_table(self, spec: TableSpec) -> None:
        """Bring the table to its declaration; see the protocol."""
        with self._session.held():
            self._make_books()
            self._ensure([spec])

    def check(self) -> None:
        """Ask the server for an answer; see the protocol."""
        with self._session.held(), self._session.transaction():
            self._session.query("SELECT 1 AS answer")

    def examine(self, schema_name: str) -> list[Finding]:
        """Try all that loads need; see the protocol."""
        self._forget()
        with self._session.held():
            return examine(self._engine, self.check, self._make_books, schema_name)

    def held(self, after: int, tables: Sequence[Place]) -> Held:  # noqa: ARG002 - books are of all
        """Return what the books say of commits after one; see the protocol."""
        with self._session.held():
            self._make_books()
            with self._session.transaction():
                return books.held(self._session, self.name, after)

    def _take(
        self, commits: Sequence[Commit], park: Park, note: Note | None, expected: Expected
    ) -> list[LoadOutcome]:
        with self._session.held():
            return self._load(commits, park, note, expected.newest)

    def count_rows(self, looks: Sequence[CountLook]) -> list[RowCount]:
        """Count the rows of tables that are due; see the protocol."""
        found = []
        with self._session.held():
            self._make_books()
            for look in looks:
                with self._session.transaction():
                    found.append(row_counts.count_rows(self._engine, look))
        return [one for one in found if one is not None]

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _load(
        self, commits: Sequence[Commit], park: Park, note: Note | None, newest: int | None
    ) -> list[LoadOutcome]:
        self._prepare(commits)
        session, marks = self._session, self._engine.books
        with session.transaction():
            found = self._claim(commits)
            books.check_expected(session, self.name, newest)
            fresh = [commit for commit in commits if commit.number not in found]
            outcomes = self._load_fresh(fresh, park) if fresh else []
            if outcomes:
                batches = {commit.number: commit.batch for commit in fresh}
                marks.fill(session, self.name, outcomes, batches)
            if note is not None and outcomes:
                note(outcomes)
        found |= {outcome.commit_number: outcome for outcome in outcomes}
        return [found[commit.number] for commit in commits]

    def _claim(self, commits: Sequence[Commit]) -> dict[int, LoadOutcome]:
        """Take the commits that are not loaded; return the outcomes of those that are.

        A number that was loaded for another batch is taken from that one.
        """
        session, marks = self._session, self._engine.books
        found: dict[int, LoadOutcome] = {}
        left = list(commits)
        for _ in range(_CLAIMS):
            taken = marks.claim(session, self.name, [commit.number for commit in left])
            left = [commit for commit in left if commit.number not in taken]
            found |= books.stored(session, self.name, left)
            left = [commit for commit in left if commit.number not in found]
            if not left:
                return found
            session.execute(books.forget(self.name, [commit.number for commit in left]))
        raise RetryError(f"destination {self.name!r}: another loader writes the same commits")

    def _prepare(self, commits: Sequence[Commit]) -> None:
        """Make books and tables before the load, so that it holds no lock on their definitions."""
        self._make_books()
        with self._session.transaction():
            known = books.stored(self._session, self.name, commits)
        self._ensure(_declared([commit for commit in commits if commit.number not in known]))

    def _make_books(self) -> None:
        if not self._has_books:
            self._engine.books.create(self._session)
            self._has_books = True

    def _ensure(self, specs: Sequence[TableSpec]) -> None:
        new = {}
        for spec in specs:
            known = self._ensured.get((spec.schema_name, spec.name))
            if known is None or known[0] != spec:
                new[spec.schema_name, spec.name] = spec
        if new:
            found = self._engine.ensure(list(new.values()))
            self._ensured.update({place: (spec, found[place]) for place, spec in new.items()})

    def _load_fresh(self, commits: Sequence[Commit], park: Park) -> list[LoadOutcome]:
        tables = {place: table for place, (_, table) in self._ensured.items()}
        batches = batches_of(commits, {place: table.spec for place, table in tables.items()})
        self._engine.take_tables(batches)
        if batches:
            self._check_unchanged(batches)
        refused: list[RefusedRow] = []
        for batch, errors in zip(batches, self._merge_all(batches, tables), strict=True):
            refused += _described(batch, errors)
        descriptor = park(refused) if refused else None
        return _with_parked(outcomes_of(commits, batches), refused, descriptor)

    def _check_unchanged(self, batches: Sequence[TableBatch]) -> None:
        """Refuse tables that are no longer what they were brought to: they would cut values.

        Raises:
            RetryError: somebody changed one since; it must be brought to its declaration again.
        """
        places = [(batch.spec.schema_name, batch.spec.name) for batch in batches]
        known = {place: self._ensured[place] for place in places}
        try:
            found = self._engine.look([spec for spec, _ in known.values()]) or {}
        except InputError:
            found = {}
        if any(found.get(place) != table for place, (_, table) in known.items()):
            shown = ", ".join(f"{schema}.{name}" for schema, name in places)
            raise RetryError(
                f"destination {self.name!r}: somebody else changed table {shown} (one of them, if "
                "several); all are compared with their declarations again"
            )

    def _merge_all(
        self, batches: Sequence[TableBatch], tables: Mapping[Place, Table]
    ) -> list[Refused]:
        """Merge the batches; return what is refused of each."""
        return [self._merge_one(i, batch, tables) for i, batch in enumerate(batches)]

    def _merge_one(
        self,
        index: int,
        batch: TableBatch,
        tables: Mapping[Place, Table],
        known: Refused | None = None,
    ) -> Refused:
        table = tables[batch.spec.schema_name, batch.spec.name]
        load = TableLoad(self._engine, batch, table, str(index))
        refused = load.run(known)
        row_counts.note_change(self._session, batch.spec, load.change)
        return refused

    def _forget(self) -> None:
        """Look at the catalogue again next time."""
        self._has_books = False
        self._ensured.clear()


def _declared(commits: Sequence[Commit]) -> list[TableSpec]:
    """Return the union of each table's declarations."""
    found: dict[Place, list[Rows]] = {}
    for commit in commits:
        for rows in commit.rows:
            if rows.data.num_rows:
                found.setdefault((rows.table.schema_name, rows.table.name), []).append(rows)
    return [union([rows.table for rows in found[place]]) for place in sorted(found)]


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
