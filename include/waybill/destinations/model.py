"""What goes into a destination and what comes back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from waybill.errors import RetryError, StopError, WaybillError

if TYPE_CHECKING:
    import pyarrow as pa

    from waybill.pipelines import TableSpec


@dataclass(frozen=True, slots=True)
class Rows:
    """Mapped rows of one event name of one pipeline, in the order their events came."""

    pipeline_id: str
    event_name: str
    table: TableSpec
    data: pa.Table
    """The table's columns, then ``_waybill_id`` and ``_waybill_key`` string,
    ``_waybill_source_version`` and ``_waybill_intake_version`` int64, ``_waybill_intake_minute``
    int32, ``_waybill_op`` string (upsert, delete), ``_waybill_replayed`` bool: entered at stage
    destination by a replay. Other columns are ignored, but for ``_waybill_attempt`` int32 and
    ``_waybill_replay`` string: the replay that an event came with. Of a table with children there
    is a list of structs for each: ``ChildTable.arrow_name``."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One committed micro-batch for this destination."""

    number: int
    """Dense per destination."""
    rows: tuple[Rows, ...]
    batch: str = ""
    """What identifies the micro-batch: its id. A destination that has the number for another batch
    loads this one all the same. Empty: not known; then the counts of what came in are compared."""


@dataclass(frozen=True, slots=True)
class OutcomeCount:
    """What became of the rows of one (pipeline, event name, intake minute) of one commit."""

    pipeline_id: str
    event_name: str
    intake_minute: int
    in_first: int = 0
    in_replayed: int = 0
    delivered: int = 0
    superseded: int = 0
    duplicate: int = 0
    parked: int = 0


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """What became of one commit."""

    commit_number: int
    counts: list[OutcomeCount]
    replays: Mapping[str, Mapping[str, int]]
    """Replay id to outcome ("delivered", …) to rows, of the events that came with a replay."""
    parked: tuple[Mapping[str, Any], ...]
    """The descriptors ``park`` returned, of all commits of a load that had refused rows; where
    books are per table, one for each table that refused some."""
    rows: pa.Table | None
    """One row an event: event_id, pipeline_id, event_name, outcome, intake_minute, replayed,
    replay_id, number: from 0, its place among the commit's rows as they were given, by table.
    None when the commit was loaded before."""


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that the destination does not take, ready to be parked."""

    commit_number: int
    pipeline_id: str
    event_name: str
    intake_minute: int
    event_id: str
    key: str
    source_version: int
    intake_version: int
    op: str
    replayed: bool
    row: dict[str, Any]
    """Column name to value, in a form that JSON can say and the mapping reads back to the same."""
    error_code: str
    """An error type of the catalogue, stage destination."""
    message: str
    table: str
    attempt: int = 0
    replay_id: str | None = None


@dataclass(frozen=True, slots=True)
class CountLook:
    """A look at how many rows a table has."""

    spec: TableSpec
    every_s: float = 0.0
    """It is not counted again when the last look was less long ago."""
    small_rows: int = 5_000_000
    """A table that has more by the server's estimate is not counted at each look,"""
    exact_every_s: float = 86_400.0
    """but so often; or when the estimate is far off."""
    accepted_at: datetime | None = None
    """When somebody said that what is there is right: so it is at the first count after it."""


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows a table has, and should have."""

    spec: TableSpec
    counted: int
    expected: int
    """What loads added less what they took away, and the rows that were there beside them."""
    beside: int
    """Rows that no load put there; negative: loaded ones that were gone when first looked at."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one step of examining a destination found."""

    step: str
    """What was tried, in words: "connect", "create a table", …"""
    ok: bool
    words: str
    """What was found; when it is not as it must be: what to do."""
    may_pass: bool = False
    """It failed, and may be different later: the destination is away, or busy."""


Park = Callable[[Sequence[RefusedRow]], Mapping[str, object] | None]
"""Writes refused rows somewhere safe and returns a JSON descriptor. Called at most once a load, or
where books are per table once for each table, before the destination commits; what it wrote is
garbage when the load fails afterwards."""

Note = Callable[[Sequence[LoadOutcome]], None]
"""Told of what this load will have done, once, before the destination commits; where books are per
table, of the rows of each table by themselves. If the load fails afterwards it was told of what is
not, and is told again when it is tried again."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a destination must have before it takes a load: what the tracker knows that it took."""

    newest: int | None = None
    """The newest commit; None: not known. Looked at where books are kept for all tables."""
    tables: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(schema, table) to the newest commit with its rows. Looked at where books are per table."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a destination's own books say that it has."""

    newest: int = 0
    """The newest commit; 0: none. Where books are per table: of all tables asked for."""
    numbers: frozenset[int] | None = None
    """All commits after the one asked for; None: books are per table."""
    tables: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Where books are per table: the newest commit of each table asked for; 0: it has none, or is
    not there."""


class BehindError(RetryError):
    """The destination does not have a commit that it took: it was put back to an older point.

    Nothing of the load is there. Compare its books (``held``), load what is missing, then again.
    """


class Destination(Protocol):
    """One warehouse. Not for several threads at once; several processes are safe."""

    name: str
    per_table: bool
    """It keeps books for each table by itself."""

    def ensure_table(self, spec: TableSpec) -> None:
        """Bring the table to its declaration: create it, add columns, let columns take null.

        Raises:
            InputError: a conflict that is the user's to resolve; names table, column, found and
                expected.
            RetryError: the destination is away.
        """
        ...

    def check(self) -> None:
        """Ask the destination whether it answers; changes nothing.

        Raises:
            RetryError: it is away.
            InputError: it is not configured as it must be.
        """
        ...

    def examine(self, schema_name: str) -> list[Finding]:
        """Try all that loads need, in words: connect, rights, a table made, merged and dropped.

        Leaves nothing behind but the schema and Waybill's own books. The first step that fails ends
        it; it does not raise for what the destination refuses.
        """
        ...

    def held(self, after: int, tables: Sequence[tuple[str, str]]) -> Held:
        """Return what its books say of the commits after one, and of some tables.

        Cost: one query of all those numbers; where books are per table, the metadata of each.

        Raises:
            RetryError: the destination is away.
            InputError: it is not configured as it must be.
        """
        ...

    def load(
        self,
        commits: Sequence[Commit],
        park: Park,
        note: Note | None = None,
        *,
        expected: Expected | None = None,
    ) -> list[LoadOutcome]:
        """Load those of the commits that are not there yet; report all, in the order given.

        The first of the commits is behind all that was acknowledged: nobody asks again for what
        became of one before it, and books may leave those out.
        A number that is there for another batch is loaded, and its books are written anew.
        ``note`` is told of those that were not there; what it raises fails the load.

        Raises:
            BehindError: it lacks what is ``expected``, as of the load's own transaction.
            RetryError: the destination is away or busy; nothing of this call is visible, or (when
                the answer to its commit was lost) all of it; where books are per table, that is so
                of each table by itself: call again.
            InputError: it is not configured as it must be, or a table conflicts.
            StopError: an error without a class.
        """
        ...

    def count_rows(self, looks: Sequence[CountLook]) -> list[RowCount]:
        """Count the rows of tables that are due, each in one snapshot with what loads put there.

        One that is not due is as at its last count, but for what loads did since. Tables that no
        load has written to are left out.

        Raises:
            RetryError: the destination is away, or a count takes more than 5 minutes.
            InputError: it is not configured as it must be.
        """
        ...

    def close(self) -> None:
        """Close the connection."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class RevertingDestination(Protocol):
    """A destination whose definitions of tables can be rolled back."""

    def dry_run(self, specs: Sequence[TableSpec]) -> list[Finding]:
        """Try all that loads into these tables need, and undo it: nothing at all is left.

        Made and undone in one transaction: Waybill's own tables; a table of its own in each schema,
        with rows that are merged; the tables themselves, brought to their declarations and written
        to. The first step that fails ends it.

        Raises:
            RetryError: the destination is away or busy.
            InputError: it is not configured as it must be.
        """
        ...

    def refuse_unloaded(self, specs: Sequence[TableSpec]) -> None:
        """Refuse tables, or their children's, that are there and that no load has written to.

        Raises:
            RetryError: the destination is away or busy.
            InputError: there is one, by name; or it is not configured as it must be.
        """
        ...

    def drop_tables(self, specs: Sequence[TableSpec], confirm: Callable[[], object]) -> None:
        """Drop tables and their children's, with what the books have of them, in one transaction.

        What is not there is passed over.

        Args:
            specs: the tables.
            confirm: called when all is done but the commit; what it raises undoes it.

        Raises:
            RetryError: the destination is away, or a table is in use.
            InputError: it refuses: something else needs a table, the rights are missing, or no load
                has written to a table: see ``refuse_unloaded``.
        """
        ...


class BaseDestination(ABC):
    """A destination that loads a list of different commits, see ``Destination``."""

    name: str

    def load(
        self,
        commits: Sequence[Commit],
        park: Park,
        note: Note | None = None,
        *,
        expected: Expected | None = None,
    ) -> list[LoadOutcome]:
        """Load what is missing of the commits, report all; see the protocol."""
        if not commits:
            return []
        numbers = [commit.number for commit in commits]
        if len(set(numbers)) != len(numbers):
            raise StopError(
                f"destination {self.name!r}: the load has a commit number twice: {numbers}"
            )
        try:
            return self._take(commits, park, note, expected or Expected())
        except WaybillError:
            self._forget()
            raise

    @abstractmethod
    def _take(
        self, commits: Sequence[Commit], park: Park, note: Note | None, expected: Expected
    ) -> list[LoadOutcome]:
        """Load these commits; there is one at least, and no number twice."""

    @abstractmethod
    def _forget(self) -> None:
        """Forget how tables were: the next load looks."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
