"""The load of a warehouse with transactions, but without savepoints and enforced keys.

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
from collections.abc import Mapping, Sequence
from dataclasses import replace

from waybill.destinations.base import BaseDestination
from waybill.destinations.batch import Place, TableBatch, batches_of, outcomes_of
from waybill.destinations.limits import Reasons, beyond
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
)
from waybill.destinations.refused import refused_rows
from waybill.destinations.specs import union
from waybill.destinations.transactional.staged import books, examination
from waybill.destinations.transactional.staged.schema import WarehouseTable, ensure_table
from waybill.destinations.transactional.staged.session import WarehouseSession
from waybill.destinations.transactional.staged.table_load import (
    RowRefusedError,
    StagedTableLoad,
    find_refused,
)
from waybill.errors import RetryError
from waybill.pipelines import TableSpec

_ROUNDS = 20
"""Times that a load begins again within one call; then the caller does."""


class _OvertakenError(Exception):
    """Another loader took one of the commits."""


class WarehouseDestination(BaseDestination):
    """A warehouse with transactions, as ``waybill.destinations.Destination`` says.

    Experimental: the statements and the order of calls are tested, no server of the kind was.

    Args:
        name: commit numbers are kept under it.
        session: with the engine.
    """

    per_table = False

    def __init__(self, name: str, session: WarehouseSession) -> None:
        self.name = name
        self.kind = session.dialect.kind
        self._session = session
        self._has_books = False
        self._ensured: dict[Place, TableSpec] = {}
        self._tables: dict[Place, WarehouseTable] = {}

    def ensure_table(self, spec: TableSpec) -> None:
        """Bring the table to its declaration; see the protocol."""
        with self._session.speaking():
            self._session.refresh()
            self._ensure([spec])

    def check(self) -> None:
        """Ask the warehouse for an answer; see the protocol."""
        with self._session.speaking():
            self._session.refresh()
            self._session.query("SELECT 1 AS answer")

    def examine(self, schema_name: str) -> list[Finding]:
        """Try all that loads need; see the protocol."""
        return examination.examine(self._session, schema_name)

    def held(self, after: int, tables: Sequence[Place]) -> Held:  # noqa: ARG002 - books are of all
        """Return what the books say of commits after one; see the protocol."""
        with self._session.speaking():
            self._session.refresh()
            self._make_books()
            return books.held(self._session, self.name, after)

    def _take(
        self, commits: Sequence[Commit], park: Park, note: Note | None, expected: Expected
    ) -> list[LoadOutcome]:
        with self._session.speaking():
            self._session.refresh()
            self._prepare(commits)
            found = self._load(commits, park, note, expected.newest)
        return [found[commit.number] for commit in commits]

    def count_rows(self, looks: Sequence[CountLook]) -> list[RowCount]:
        """Count the rows of tables that are due; see the protocol."""
        with self._session.speaking():
            self._session.refresh()
            self._make_books()
            found = [books.count_rows(self._session, look) for look in looks]
        return [one for one in found if one is not None]

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _prepare(self, commits: Sequence[Commit]) -> None:
        self._make_books()
        known = books.stored(self._session, self.name, commits)
        fresh = [commit for commit in commits if commit.number not in known]
        self._ensure(declared(fresh))

    def _load(
        self, commits: Sequence[Commit], park: Park, note: Note | None, newest: int | None
    ) -> dict[int, LoadOutcome]:
        refused: dict[Place, Reasons] = {}
        for _ in range(_ROUNDS):
            known = books.stored(self._session, self.name, commits)
            fresh = [commit for commit in commits if commit.number not in known]
            try:
                outcomes = self._load_fresh(fresh, refused, park, note, newest) if fresh else []
            except _OvertakenError:
                refused.clear()  # ordinals are of the commits that were fresh
                continue
            except RowRefusedError as error:
                spec = error.load.batch.spec
                found = find_refused(self._session, error.load)
                refused.setdefault((spec.schema_name, spec.name), {}).update(found)
                continue
            return known | {outcome.commit_number: outcome for outcome in outcomes}
        raise RetryError(
            f"destination {self.name!r}: other loads were faster {_ROUNDS} times, or rows were "
            "refused one by one as often"
        )

    def _load_fresh(
        self,
        fresh: Sequence[Commit],
        refused: Mapping[Place, Reasons],
        park: Park,
        note: Note | None,
        newest: int | None,
    ) -> list[LoadOutcome]:
        numbers = [commit.number for commit in fresh]
        batches = batches_of(fresh, {place: table.spec for place, table in self._tables.items()})
        loads = [self._staged(batch, refused) for batch in batches]
        with self._session.transaction():
            self._session.lock()
            books.check_expected(self._session, self.name, newest)
            if books.stored(self._session, self.name, fresh):
                raise _OvertakenError
            if books.loaded(self._session, self.name, numbers):
                books.forget(self._session, self.name, numbers)
            outcomes = self._merged(fresh, loads, park)
            books.write(self._session, self.name, outcomes, {c.number: c.batch for c in fresh})
            if note is not None:
                note(outcomes)
        for load in loads:
            load.drop()
        return outcomes

    def _staged(self, batch: TableBatch, refused: Mapping[Place, Reasons]) -> StagedTableLoad:
        place = (batch.spec.schema_name, batch.spec.name)
        reasons = beyond(batch, self._session.dialect.limits) | refused.get(place, {})
        marked = self._tables[place].marked
        load = StagedTableLoad(self._session, batch, uuid.uuid4().hex[:12], reasons, marked)
        load.stage()
        return load

    def _merged(
        self, fresh: Sequence[Commit], loads: Sequence[StagedTableLoad], park: Park
    ) -> list[LoadOutcome]:
        rows: list[RefusedRow] = []
        for load in loads:
            load.run()
            books.note_change(self._session, load.batch.spec, load.change)
            rows += refused_rows(load.batch, load.refused)
        descriptor = park(rows) if rows else None
        parked = () if descriptor is None else (descriptor,)
        touched = {row.commit_number for row in rows}
        return [
            replace(outcome, parked=parked if outcome.commit_number in touched else ())
            for outcome in outcomes_of(fresh, [load.batch for load in loads])
        ]

    def _make_books(self) -> None:
        if not self._has_books:
            books.create_books(self._session)
            self._has_books = True

    def _ensure(self, specs: Sequence[TableSpec]) -> None:
        for spec in specs:
            place = (spec.schema_name, spec.name)
            if self._ensured.get(place) != spec:
                self._tables[place] = ensure_table(self._session, spec)
                self._ensured[place] = spec

    def _forget(self) -> None:
        """Look at the catalogue again next time."""
        self._has_books = False
        self._ensured.clear()
        self._tables.clear()


def declared(commits: Sequence[Commit]) -> list[TableSpec]:
    """Return the declarations that the rows of commits need, one a table."""
    found: dict[Place, list[TableSpec]] = {}
    for commit in commits:
        for rows in commit.rows:
            if rows.data.num_rows:
                spec = rows.table
                found.setdefault((spec.schema_name, spec.name), []).append(spec)
    return [union(found[place]) for place in sorted(found)]
