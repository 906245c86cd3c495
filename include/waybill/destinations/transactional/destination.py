"""Destinations whose load is one transaction.

``SqlDestination`` does all in it: commit numbers are claimed, rows staged, judged and merged. A
``WarehouseDestination``, without savepoints and enforced keys, stages before:

  1  the books and the tables are brought to what they must be            (their own statements)
  2  rows beyond the engine's limits are set aside; the rest is staged in bulk
  3  one transaction: the lock; which commits are there by now; judge, merge; outcomes; COMMIT
  4  the working tables go

Who dies between 1 and 3 leaves working tables, which end with the session or expire; within 3,
nothing, as the engine rolls back; after 3, working tables again. When another loader took a commit
between 1 and 3, the transaction is given up and 1 begins again with what is left. A row that the
merge refuses is found by trying halves, each in a transaction that is rolled back; then 2 begins
again without it, so that the rows that lost only to it are judged as if it had not come.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pyarrow as pa

from waybill.destinations.batch import Place, TableBatch, batches_of, outcomes_of
from waybill.destinations.drivers import WarehouseError
from waybill.destinations.merging import LOADED_ID, quoted
from waybill.destinations.model import (
    BaseDestination,
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
)
from waybill.destinations.refused import refused_rows
from waybill.destinations.specs import union, with_children
from waybill.destinations.transactional import books, examination, row_counts
from waybill.destinations.transactional.engine import Engine, TableEngine
from waybill.destinations.transactional.session import (
    Refused,
    SqlError,
    WarehouseSession,
)
from waybill.destinations.transactional.table_load import TableLoad
from waybill.destinations.transactional.tables import Table
from waybill.destinations.transactional.warehouse import WarehouseEngine
from waybill.errors import InputError, RetryError
from waybill.pipelines import TableSpec
from waybill.settings import DestinationSettings, S3Settings

_CLAIMS = 3
"""Times that a load takes commits which are there for other batches, before the caller does."""
_ROUNDS = 20
"""Times that a load begins again within one call; then the caller does."""


class TransactionalDestination(BaseDestination):
    """What both kinds have in common.

    Args:
        name: commit numbers are kept under it.
        engine: with its session.
    """

    per_table = False

    def __init__(self, name: str, engine: TableEngine) -> None:
        self.name = name
        self._engine = engine
        self._session = engine.session
        self._has_books = False
        self._ensured: dict[Place, tuple[TableSpec, Table]] = {}

    def ensure_table(self, spec: TableSpec) -> None:
        """Bring the table to its declaration; see the protocol."""
        with self._session.held():
            self._ensure([spec])

    def check(self) -> None:
        """Ask the server for an answer; see the protocol."""
        with self._session.held(), self._reading():
            self._session.query("SELECT 1 AS answer")

    def held(self, after: int, tables: Sequence[Place]) -> Held:  # noqa: ARG002 - books are of all
        """Return what the books say of commits after one; see the protocol."""
        with self._session.held():
            self._make_books()
            with self._reading():
                return books.held(self._session, self.name, after)

    def count_rows(self, looks: Sequence[CountLook]) -> list[RowCount]:
        """Count the rows of tables that are due; see the protocol."""
        counts = []
        with self._session.held():
            self._make_books()
            for look in looks:
                with self._reading():
                    counts.append(self._count(look))
        return [count for count in counts if count is not None]

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    @abstractmethod
    def _create_books(self) -> None:
        """Make Waybill's own tables unless they are there."""

    @abstractmethod
    def _reading(self) -> AbstractContextManager[None]:
        """Return what statements outside of a load run in."""

    @abstractmethod
    def _count(self, look: CountLook) -> RowCount | None:
        """Count the rows of a table; None: no load has written to it."""

    @abstractmethod
    def _load(
        self, commits: Sequence[Commit], park: Park, note: Note | None, newest: int | None
    ) -> dict[int, LoadOutcome]:
        """Load what is missing; return the outcome of each commit by its number."""

    def _take(
        self, commits: Sequence[Commit], park: Park, note: Note | None, expected: Expected
    ) -> list[LoadOutcome]:
        with self._session.held():
            self._prepare(commits)
            outcomes = self._load(commits, park, note, expected.newest)
        return [outcomes[commit.number] for commit in commits]

    def _prepare(self, commits: Sequence[Commit]) -> None:
        """Make books and tables before the load, so that it holds no lock on their definitions."""
        self._make_books()
        with self._reading():
            known = books.stored(self._session, self.name, commits)
        self._ensure(_declared([commit for commit in commits if commit.number not in known]))

    def _make_books(self) -> None:
        if not self._has_books:
            self._create_books()
            self._has_books = True

    def _ensure(self, specs: Sequence[TableSpec]) -> None:
        new = {}
        for spec in specs:
            known = self._ensured.get((spec.schema_name, spec.name))
            if known is None or known[0] != spec:
                new[spec.schema_name, spec.name] = spec
        if new:
            tables = self._engine.ensure(list(new.values()))
            self._ensured.update({place: (spec, tables[place]) for place, spec in new.items()})

    def _batches(self, commits: Sequence[Commit]) -> list[TableBatch]:
        tables = {place: table.spec for place, (_, table) in self._ensured.items()}
        return batches_of(commits, tables)

    def _table_load(self, batch: TableBatch, label: str, refused: Refused) -> TableLoad:
        _, table = self._ensured[batch.spec.schema_name, batch.spec.name]
        return TableLoad(self._engine, batch, table, label, dict(refused))

    def _note_change(self, load: TableLoad) -> None:
        self._engine.books.note_change(self._session, load.batch.spec, load.change, load.keys)

    def _forget(self) -> None:
        """Look at the catalogue again next time."""
        self._has_books = False
        self._ensured.clear()


class SqlDestination(TransactionalDestination):
    """One database, as ``waybill.destinations.Destination`` says.

    Args:
        name: commit numbers are kept under it.
        engine: with its session.
    """

    _engine: Engine

    def __init__(self, name: str, engine: Engine) -> None:
        super().__init__(name, engine)

    def examine(self, schema_name: str) -> list[Finding]:
        """Try all that loads need; see the protocol."""
        self._forget()
        with self._session.held():
            return examination.examine(self._engine, self.check, self._make_books, schema_name)

    def dry_run(self, specs: Sequence[TableSpec]) -> list[Finding]:
        """Try all that loads need, and undo it; see ``RevertingDestination``."""
        self._forget()
        places: dict[Place, list[TableSpec]] = {}
        for spec in specs:
            places.setdefault((spec.schema_name, spec.name), []).append(spec)
        declared = [union(places[place]) for place in sorted(places)]
        with self._session.held():
            return examination.dry_run(self._engine, self.check, declared)

    def refuse_unloaded(self, specs: Sequence[TableSpec]) -> None:
        """Refuse tables that are there, and that no load wrote to; see ``RevertingDestination``."""
        with self._session.held(), self._session.transaction():
            self._refuse_unloaded(specs)

    def _refuse_unloaded(self, specs: Sequence[TableSpec]) -> None:
        found = self._engine.found(specs) if specs else {}
        foreign = sorted(place for place, table in found.items() if LOADED_ID not in table.columns)
        if foreign:
            tables = ", ".join(f"{schema}.{name}" for schema, name in foreign)
            raise InputError(
                f"destination {self.name!r}: {tables} was never loaded by Waybill (there is no "
                f"column {LOADED_ID}), and is not dropped; keep it with --keep-tables, which keeps "
                "all tables of the pipeline"
            )

    def drop_tables(self, specs: Sequence[TableSpec], confirm: Callable[[], object]) -> None:
        """Drop tables with what the books have of them; see ``RevertingDestination``."""
        self._forget()
        with self._session.held():
            self._make_books()
            with self._session.transaction():
                self._refuse_unloaded(specs)
                for spec in (table for one in specs for table in with_children(one)):
                    name = f"{quoted(spec.schema_name)}.{quoted(spec.name)}"
                    self._session.execute(f"DROP TABLE IF EXISTS {name}")
                    for kept in (books.TOMBSTONES, books.TABLES):
                        self._session.execute(f"DELETE FROM {kept} WHERE {books.is_of(spec)}")
                confirm()

    def _create_books(self) -> None:
        self._engine.books.create(self._session)

    def _reading(self) -> AbstractContextManager[None]:
        return self._session.transaction()

    def _count(self, look: CountLook) -> RowCount | None:
        return row_counts.count_rows(self._engine, look)

    def _ensure(self, specs: Sequence[TableSpec]) -> None:
        self._make_books()
        super()._ensure(specs)

    def _load(
        self, commits: Sequence[Commit], park: Park, note: Note | None, newest: int | None
    ) -> dict[int, LoadOutcome]:
        session = self._session
        with session.transaction():
            known = self._claim(commits)
            books.check_expected(session, self.name, newest)
            fresh = [commit for commit in commits if commit.number not in known]
            outcomes = self._load_fresh(fresh, park) if fresh else []
            if outcomes:
                batches = {commit.number: commit.batch for commit in fresh}
                self._engine.books.fill(session, self.name, outcomes, batches)
            if note is not None and outcomes:
                note(outcomes)
        return known | {outcome.commit_number: outcome for outcome in outcomes}

    def _claim(self, commits: Sequence[Commit]) -> dict[int, LoadOutcome]:
        """Take the commits that are not loaded; return the outcomes of those that are.

        A number that was loaded for another batch is taken from that one.
        """
        session, outcomes = self._session, dict[int, LoadOutcome]()
        waiting = list(commits)
        for _ in range(_CLAIMS):
            numbers = [commit.number for commit in waiting]
            taken = self._engine.books.claim(session, self.name, numbers)
            waiting = [commit for commit in waiting if commit.number not in taken]
            outcomes |= books.stored(session, self.name, waiting)
            waiting = [commit for commit in waiting if commit.number not in outcomes]
            if not waiting:
                return outcomes
            session.execute(books.forget(self.name, [commit.number for commit in waiting]))
        raise RetryError(f"destination {self.name!r}: another loader is writing the same commits")

    def _load_fresh(self, commits: Sequence[Commit], park: Park) -> list[LoadOutcome]:
        batches = self._batches(commits)
        self._engine.take_tables(batches)
        if batches:
            self._check_unchanged(batches)
        return _parked_outcomes(commits, batches, self._merge_all(batches), park)

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
                f"destination {self.name!r}: somebody else changed table {shown} (at least one of "
                "them) during the load; they are compared with their declarations again"
            )

    def _merge_all(self, batches: Sequence[TableBatch]) -> list[Refused]:
        """Merge the batches; return what is refused of each."""
        return [self._merge_one(index, batch, {}) for index, batch in enumerate(batches)]

    def _merge_one(self, index: int, batch: TableBatch, known: Refused) -> Refused:
        load = self._table_load(batch, str(index), known)
        load.stage()
        load.run()
        self._note_change(load)
        return load.refused


class _OvertakenError(Exception):
    """Another loader took one of the commits."""


class _RowRefusedError(Exception):
    """The merge failed for a row that is at fault; which one is not known yet."""

    def __init__(self, load: TableLoad, error: WarehouseError, code: str) -> None:
        super().__init__(error.message)
        self.load = load
        self.reason = SqlError(error.words, code)


class WarehouseDestination(TransactionalDestination):
    """A warehouse with transactions, as ``waybill.destinations.Destination`` says.

    Experimental: the statements and the order of calls are tested, no server of the kind was. It
    connects on first use.

    Args:
        name: commit numbers are kept under it.
        session: with the engine.
    """

    _engine: WarehouseEngine
    _session: WarehouseSession

    def __init__(self, name: str, session: WarehouseSession) -> None:
        super().__init__(name, WarehouseEngine(session))
        self.kind = session.dialect.kind

    def examine(self, schema_name: str) -> list[Finding]:
        """Try all that loads need; see the protocol."""
        return examination.examine_warehouse(self._session, self._engine.books, schema_name)

    def _create_books(self) -> None:
        self._engine.books.create(self._session)

    def _reading(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _count(self, look: CountLook) -> RowCount | None:
        return row_counts.count_warehouse_rows(self._session, look)

    def _load(
        self, commits: Sequence[Commit], park: Park, note: Note | None, newest: int | None
    ) -> dict[int, LoadOutcome]:
        refused: dict[Place, Refused] = {}
        for _ in range(_ROUNDS):
            known = books.stored(self._session, self.name, commits)
            fresh = [commit for commit in commits if commit.number not in known]
            try:
                outcomes = self._load_fresh(fresh, refused, park, note, newest) if fresh else []
            except _OvertakenError:
                refused.clear()  # ordinals are of the commits that were fresh
                continue
            except _RowRefusedError as error:
                spec = error.load.batch.spec
                found = self._find_refused(error.load)
                refused.setdefault((spec.schema_name, spec.name), {}).update(found)
                continue
            return known | {outcome.commit_number: outcome for outcome in outcomes}
        raise RetryError(
            f"destination {self.name!r}: the load began again {_ROUNDS} times, because other loads "
            "committed first or rows were refused one by one"
        )

    def _load_fresh(
        self,
        fresh: Sequence[Commit],
        refused: Mapping[Place, Refused],
        park: Park,
        note: Note | None,
        newest: int | None,
    ) -> list[LoadOutcome]:
        session, numbers = self._session, [commit.number for commit in fresh]
        batches = self._batches(fresh)
        loads = [
            self._staged(batch, refused.get((batch.spec.schema_name, batch.spec.name), {}))
            for batch in batches
        ]
        with session.transaction():
            session.lock()
            books.check_expected(session, self.name, newest)
            if books.stored(session, self.name, fresh):
                raise _OvertakenError
            if books.loaded(session, self.name, numbers):
                session.execute(books.forget(self.name, numbers))
            for load in loads:
                self._merge(load)
                self._note_change(load)
            outcomes = _parked_outcomes(fresh, batches, [load.refused for load in loads], park)
            named = {commit.number: commit.batch for commit in fresh}
            self._engine.books.fill(session, self.name, outcomes, named)
            if note is not None:
                note(outcomes)
        for load in loads:
            self._engine.drop(load.statements)
        return outcomes

    def _staged(self, batch: TableBatch, refused: Refused) -> TableLoad:
        load = self._table_load(batch, uuid.uuid4().hex[:12], refused)
        load.stage()
        return load

    def _merge(self, load: TableLoad) -> None:
        """Merge a batch in the session's transaction.

        Raises:
            _RowRefusedError: a row is at fault.
            WarehouseError: no row is.
        """
        try:
            load.run()
        except WarehouseError as error:
            code = self._session.dialect.errors.refused_code(error)
            if code is None:
                raise
            raise _RowRefusedError(load, error, code) from error

    def _find_refused(self, failed: TableLoad) -> Refused:
        """Return the rows that fail by themselves. Cost: 2 log2(n) trial merges for one row."""
        refused: Refused = {}
        waiting = [[n for n in range(failed.batch.columns.num_rows) if n not in failed.refused]]
        while waiting:
            ordinals = waiting.pop()
            reason = self._try(failed.batch, ordinals)
            if reason is None:
                continue
            if len(ordinals) == 1:
                refused[ordinals[0]] = reason
                continue
            middle = len(ordinals) // 2
            waiting += [ordinals[middle:], ordinals[:middle]]
        return refused

    def _try(self, batch: TableBatch, ordinals: list[int]) -> SqlError | None:
        """Merge rows and roll back; return why they are refused."""
        indices = pa.array(ordinals, pa.int64())
        part = TableBatch(batch.spec, [], batch.columns.take(indices), batch.context.take(indices))
        load = self._staged(part, {})
        try:
            self._session.execute_native(self._session.begin)
            try:
                self._merge(load)
            finally:
                self._session.abandon()
        except _RowRefusedError as error:
            return error.reason
        else:
            return None
        finally:
            self._engine.drop(load.statements)


def warehouse_opener(
    session: type[WarehouseSession],
) -> Callable[[str, DestinationSettings, S3Settings | None], WarehouseDestination]:
    """Return what opens a kind: ``Opener`` of ``destinations.registry``.

    It raises InputError where the dsn is not of the kind's form.
    """

    def open_warehouse(
        name: str, settings: DestinationSettings, _s3: S3Settings | None = None
    ) -> WarehouseDestination:
        return WarehouseDestination(name, session(name, settings))

    return open_warehouse


def _declared(commits: Sequence[Commit]) -> list[TableSpec]:
    """Return the union of each table's declarations."""
    specs: dict[Place, list[TableSpec]] = {}
    for commit in commits:
        for rows in commit.rows:
            if rows.data.num_rows:
                spec = rows.table
                specs.setdefault((spec.schema_name, spec.name), []).append(spec)
    return [union(specs[place]) for place in sorted(specs)]


def _parked_outcomes(
    commits: Sequence[Commit],
    batches: Sequence[TableBatch],
    refused: Sequence[Refused],
    park: Park,
) -> list[LoadOutcome]:
    """Park what is refused of each batch; return what became of each commit."""
    rows: list[RefusedRow] = []
    for batch, errors in zip(batches, refused, strict=True):
        reasons = {
            ordinal: (error.refused_code or "unexpected_error", error.words)
            for ordinal, error in errors.items()
        }
        rows += refused_rows(batch, reasons)
    descriptor = park(rows) if rows else None
    parked = () if descriptor is None else (descriptor,)
    touched = {row.commit_number for row in rows}
    return [
        replace(outcome, parked=parked if outcome.commit_number in touched else ())
        for outcome in outcomes_of(commits, batches)
    ]
