"""A warehouse of lake tables, as ``waybill.destinations.Destination`` says.

All tables are judged first, then what each refused is parked, then each table is committed by
itself. Exactly once is per table and commit: see docs/adr.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

import numpy as np

from waybill.destinations.key_sums import no_keys, not_missing
from waybill.destinations.model import (
    BaseDestination,
    BehindError,
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
from waybill.destinations.per_table import examination
from waybill.destinations.per_table.books import LoadRecord, joined_outcome, stored_outcome
from waybill.destinations.per_table.table import (
    ConflictError,
    Lake,
    LakeTable,
    RowStamp,
    ShapePlan,
    TableKeys,
    check_names,
    plan,
    shape_of,
)
from waybill.destinations.per_table.table_load import Hook, TableCommit, Workplace
from waybill.destinations.per_table.tombstones import Tombstones
from waybill.destinations.per_table.verdicts import open_duckdb
from waybill.destinations.specs import union, with_children
from waybill.errors import RetryError, WaybillError
from waybill.pipelines import TableSpec

_LOG = logging.getLogger(__name__)
_TRIES = 5
Place = tuple[str, str]


def _nothing(_step: str) -> None:
    pass


class LakeDestination(BaseDestination):
    """One folder, or bucket, of tables.

    Args:
        name: commit numbers are kept under it.
        lake: the tables' format and place.
        sort_error: gives the error to raise for one of the format's.
        hook: for tests: told before each commit what it is of.
    """

    def __init__(
        self,
        name: str,
        lake: Lake,
        sort_error: Callable[[Exception], WaybillError | None],
        *,
        hook: Hook = _nothing,
    ) -> None:
        self.name = name
        self.per_table = True
        self._lake = lake
        self._sort_error = sort_error
        self.hook = hook
        self._tombstones = Tombstones(lake)
        self._ensured: dict[Place, TableSpec] = {}
        self._tables: dict[Place, LakeTable] = {}

    def ensure_table(self, spec: TableSpec) -> None:
        """Bring the table to its declaration; see the protocol."""
        with self._speaking():
            self._ensure(spec)

    def check(self) -> None:
        """Ask the place for an answer; see the protocol."""
        with self._speaking():
            self._lake.check()

    def examine(self, schema_name: str) -> list[Finding]:
        """Try all that loads need; see the protocol."""
        return examination.examine(self, self._lake, schema_name, self._speaking)

    def held(self, after: int, tables: Sequence[Place]) -> Held:  # noqa: ARG002 - books are per table
        """Return the newest commit of each table; see the protocol."""
        with self._speaking():
            newest = {place: self._last(self._lake.table(*place)) for place in tables}
        return Held(max(newest.values(), default=0), tables=newest)

    def _take(
        self, commits: Sequence[Commit], park: Park, note: Note | None, expected: Expected
    ) -> list[LoadOutcome]:
        with closing(open_duckdb()) as connection:  # what it is given, it keeps until its end
            first = min(commit.number for commit in commits)
            workplace = Workplace(
                self.name, self._lake, self._tombstones, connection, self.hook, first
            )
            return self._load(workplace, commits, park, note, expected)

    def count_rows(self, looks: Sequence[CountLook]) -> list[RowCount]:
        """Count the rows of tables: cheap, for the tables' metadata know them; see the protocol."""
        with self._speaking():
            counts = [self._count(look) for look in looks]
        return [count for count in counts if count is not None]

    def close(self) -> None:
        """Let go of connections."""
        self._lake.close()

    def _load(
        self,
        workplace: Workplace,
        commits: Sequence[Commit],
        park: Park,
        note: Note | None,
        expected: Expected,
    ) -> list[LoadOutcome]:
        pieces: dict[int, list[LoadOutcome]] = {commit.number: [] for commit in commits}
        with self._speaking():
            loads = self._opened(workplace, commits, pieces, expected)
            for load in loads:
                load.judge()
        judged = [(load, load.outcomes(_parked(load.refused, park))) for load in loads]
        for _, outcomes in judged:
            _add(pieces, outcomes)
        fresh = [outcome for _, outcomes in judged for outcome in outcomes]
        if note is not None and fresh:
            note(fresh)
        with self._speaking():
            for load, outcomes in judged:
                self._commit(load, outcomes)
        return [joined_outcome(commit.number, pieces[commit.number]) for commit in commits]

    def _opened(
        self,
        workplace: Workplace,
        commits: Sequence[Commit],
        pieces: dict[int, list[LoadOutcome]],
        expected: Expected,
    ) -> list[TableCommit]:
        """Return a load for each table that lacks some of the commits; add what others have.

        Raises:
            BehindError: a table lacks a commit that it took.
        """
        by_table = _by_table(commits)
        loads = []
        before = Counter[int]()
        if by_table:
            self._tombstones.make()
        for place in sorted(by_table):
            parts = by_table[place]
            spec = union([rows.table for part in parts for rows in part.rows])
            self._ensure(spec)
            table = self._opened_table(place)
            self._check_expected(table, expected.tables.get(place, 0))
            fresh, others = self._fresh(table, parts, pieces)
            if fresh:
                loads.append(
                    TableCommit(workplace, table, fresh, spec, others=others, before=before.copy())
                )
            for part in parts:
                before[part.number] += sum(rows.data.num_rows for rows in part.rows)
        return loads

    def _last(self, table: LakeTable) -> int:
        return (table.last_number(self.name) or 0) if table.refresh() else 0

    def _check_expected(self, table: LakeTable, expected: int) -> None:
        last = table.last_number(self.name) or 0
        if last < expected:
            raise BehindError(
                f"destination {self.name!r}: table {table.schema_name}.{table.name} took commit "
                f"{expected} and has {last or 'none'}: it was restored to an older point, or "
                "dropped. What is missing is found and loaded again"
            )

    def _fresh(
        self, table: LakeTable, parts: Sequence[Commit], pieces: dict[int, list[LoadOutcome]]
    ) -> tuple[list[Commit], list[int]]:
        """Return the commits that a table does not have, and which it has for other batches."""
        last = table.last_number(self.name)
        record = table.record() if last is not None else None
        shown = f"{table.schema_name}.{table.name}"
        fresh: list[Commit] = []
        others: list[int] = []
        for part in parts:
            if last is None or part.number > last:
                fresh.append(part)
                continue
            found = None if record is None else record.stored(self.name, part.number)
            if found is not None:
                piece = stored_outcome(self.name, part, shown, found)
                if piece is not None:
                    pieces[part.number].append(piece)
                else:
                    fresh.append(part)
                    others.append(part.number)
                continue
            if record is None or record.cut:
                _LOG.warning(
                    "destination %r: table %s has commit %d or a later one, and its history no "
                    "longer tells what became of it: its rows are judged again",
                    self.name, shown, part.number,
                )  # fmt: skip
            fresh.append(part)
        return fresh, others

    def _commit(self, load: TableCommit, outcomes: Sequence[LoadOutcome]) -> None:
        """Commit a table; when somebody else wrote meanwhile, judge again.

        Raises:
            RetryError: the verdicts are others now, or somebody has the commits.
        """
        for _ in range(_TRIES):
            try:
                load.commit(outcomes)
            except ConflictError:
                if not self._same_again(load):
                    break
            else:
                load.clean_up()
                return
        raise RetryError(
            f"destination {self.name!r}: another loader wrote to "
            f"{load.batch.spec.schema_name}.{load.batch.spec.name} meanwhile"
        )

    def _same_again(self, load: TableCommit) -> bool:
        """Judge again on the newest snapshot; returns whether the outcomes are what they were."""
        before = load.batch.outcomes.copy()
        last = load.table.last_number(self.name)
        load.table.refresh()
        self._tombstones.refresh()
        if load.table.last_number(self.name) != last:
            return False
        load.judge()
        return bool(np.array_equal(before, load.batch.outcomes))

    def _opened_table(self, place: Place) -> LakeTable:
        if place not in self._tables:
            self._tables[place] = self._lake.table(*place)
        table = self._tables[place]
        if not table.refresh():
            self._forget()
            raise RetryError(f"table {place[0]}.{place[1]} is gone; it is looked for again")
        return table

    def _ensure(self, spec: TableSpec) -> None:
        place = (spec.schema_name, spec.name)
        if self._ensured.get(place) == spec:
            return
        for table_spec in with_children(spec):
            check_names(table_spec)
        for table_spec in with_children(spec):
            self._bring(table_spec)
        self._ensured[place] = spec

    def _bring(self, spec: TableSpec) -> None:
        table = self._lake.table(spec.schema_name, spec.name)
        for _ in range(_TRIES):
            if not table.refresh():
                table.create(shape_of(spec))
                continue
            changes: ShapePlan = plan(spec, table.fields(), empty=table.count() == 0)
            if not changes:
                return
            _LOG.info("%s.%s: %s", spec.schema_name, spec.name, changes)
            try:
                table.alter(changes)
            except ConflictError:
                continue
        raise RetryError(f"table {spec.schema_name}.{spec.name} is being changed by others")

    def _count(self, look: CountLook) -> RowCount | None:
        table = self._lake.table(look.spec.schema_name, look.spec.name)
        record = table.record() if table.refresh() else None
        if record is None:
            return None
        counted = table.count()
        if look.accepted_at is not None and record.counted < look.accepted_at.isoformat():
            readable = TableKeys.can_read(table, look.spec, counted)
            keys = TableKeys.read(table, look.spec).sums if readable else None
            record = record.accepted(counted, keys)
            table.commit(None, RowStamp("", 0, record))
        elif TableKeys.can_read(table, look.spec, counted):
            record = self._settled(table, look.spec, record, counted)
        return RowCount(look.spec, counted, record.rows + record.beside, record.beside)

    def _settled(
        self, table: LakeTable, spec: TableSpec, record: LoadRecord, counted: int
    ) -> LoadRecord:
        """Return the books without rows that seem missing and are not; see ``key_sums``.

        What a source deleted that somebody had deleted before stays: tombstones here are of keys
        that may have been rows since. Cost: nothing while the number of rows is as it must be,
        but the first time; then a pass over the table's keys.
        """
        expected, known = record.rows + record.beside, record.sums
        if (known is None) == (counted != expected):
            return record
        there = TableKeys.read(table, spec)
        if len(there.hashes) != counted:  # somebody wrote since, and it is no snapshot: next time
            return record
        if known is None:
            settled = record.expecting(there.sums)
        else:
            found = not_missing(known - there.sums, there.hashes, there.loaded_at, no_keys)
            if not found:
                return record
            settled = record.expecting(known - found)
        with suppress(ConflictError):  # somebody wrote meanwhile: next time
            table.commit(None, RowStamp("", 0, settled))
        return settled

    def _forget(self) -> None:
        self._ensured.clear()
        self._tables.clear()

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """Give the format's errors their words."""
        try:
            yield
        except (WaybillError, AssertionError):
            raise
        except Exception as error:
            ours = self._sort_error(error)
            if ours is None:
                raise
            raise ours from error


def _by_table(commits: Sequence[Commit]) -> Mapping[Place, list[Commit]]:
    """Return each table's commits, with the rows for it alone."""
    by_table: dict[Place, list[Commit]] = {}
    for commit in commits:
        rows: dict[Place, list[Any]] = {}
        for one in commit.rows:
            if one.data.num_rows:
                rows.setdefault((one.table.schema_name, one.table.name), []).append(one)
        for place, own in rows.items():
            by_table.setdefault(place, []).append(Commit(commit.number, tuple(own), commit.batch))
    return by_table


def _parked(refused: Sequence[RefusedRow], park: Park) -> Mapping[str, object] | None:
    """Park the rows that one table refuses, in an object of their own, which its commit names.

    A repeat asks again only tables without a commit: what these parked before is named by none.
    """
    return park(refused) if refused else None


def _add(pieces: Mapping[int, list[LoadOutcome]], outcomes: Sequence[LoadOutcome]) -> None:
    for outcome in outcomes:
        pieces[outcome.commit_number].append(outcome)
