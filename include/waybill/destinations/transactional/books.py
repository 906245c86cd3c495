"""What the destination keeps of Waybill's books: commits with their outcomes, and tombstones.

``_waybill_commits``     (destination, commit_number), counts, what was parked, when, and the id of
                         the micro-batch (null in rows of older releases)
``_waybill_tombstones``  (table, hash of the key), key, id and versions of the delete
``_waybill_row_counts``  (table), rows that all loads added less those they took away, the rows that
                         were there beside them, what the last count missed, when that was;
                         sums over the keys of both (``key_sums``), but in warehouses

All are in schema ``waybill`` and are made when they are missing; a warehouse has the row that loads
lock, too. A commit's counts are
{"rows": [[pipeline id, event name, intake minute, in_first, in_replayed, delivered, superseded,
duplicate, parked], …], "replays": {replay id: {outcome: rows}}}; in books of older releases just
the list of rows.

An engine says how it spells the tables and a key. ``SqlBooks`` are kept by engines that tell which
commit numbers a load may take, ``WarehouseBooks`` by those that enforce no keys: there a load locks
first, then looks which numbers are there.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import orjson

from waybill.destinations.batch import group_inputs
from waybill.destinations.key_sums import Hashes, KeySums, key_hashes, key_types
from waybill.destinations.merging import MergeStatements, literal, quoted
from waybill.destinations.model import BehindError, Commit, Held, LoadOutcome, OutcomeCount
from waybill.destinations.transactional.dialect import Dialect
from waybill.destinations.transactional.session import Session, WarehouseSession
from waybill.destinations.transactional.warehouse_tables import definition, found_columns
from waybill.pipelines import Column, TableSpec

_LOG = logging.getLogger(__name__)
SCHEMA = "waybill"
COMMITS = f"{quoted(SCHEMA)}.{quoted('_waybill_commits')}"
TOMBSTONES = f"{quoted(SCHEMA)}.{quoted('_waybill_tombstones')}"
TABLES = f"{quoted(SCHEMA)}.{quoted('_waybill_row_counts')}"


class Books(Protocol):
    """What every load asks of the books."""

    def key_text(self, spec: TableSpec) -> str:
        """Return the expression that gives stage row ``s``'s key as text, one text for one key."""
        ...

    def key_hash(self, spec: TableSpec) -> str:
        """Return the expression of its hash: short enough for an index, whatever the key."""
        ...

    def has_tombstones(self, session: Session, spec: TableSpec) -> bool:
        """Say whether a table has any."""
        ...

    def note_change(self, session: Session, spec: TableSpec, change: int, keys: KeySums) -> None:
        """Note, in a load's transaction, by how much it changed a table's number of rows.

        ``keys``: the sums over the keys of these rows; books that keep none leave them out.
        """
        ...


class SqlBooks(ABC):
    """Books of an engine that tells which commit numbers a load may take."""

    @abstractmethod
    def create(self, session: Session) -> None:
        """Create the tables unless they are there; safe when several loaders do it at once."""

    @abstractmethod
    def claim(self, session: Session, destination: str, numbers: Sequence[int]) -> set[int]:
        """Take the commits that nobody loaded; return them. Waits for a loader that is at it."""

    @abstractmethod
    def fill(
        self,
        session: Session,
        destination: str,
        outcomes: Sequence[LoadOutcome],
        batches: Mapping[int, str],
    ) -> None:
        """Write the outcomes of the numbers taken by ``claim``, and the batch of each."""

    @abstractmethod
    def key_text(self, spec: TableSpec) -> str:
        """Return the expression of a key as text; see the protocol."""

    @abstractmethod
    def key_hash(self, spec: TableSpec) -> str:
        """Return the expression of its hash; see the protocol."""

    def has_tombstones(self, session: Session, spec: TableSpec) -> bool:
        """Say whether a table has any."""
        query = f"SELECT EXISTS (SELECT 1 FROM {TOMBSTONES} WHERE {is_of(spec)}) AS found"
        return bool(session.query(query)["found"][0].as_py())

    def buried(self, session: Session, spec: TableSpec) -> Hashes:
        """Return the hashes of a table's keys that have a tombstone."""
        types = key_types(spec)
        parts = [f"{text} AS k{n}" for n, text in enumerate(self._buried_values(types))]
        rows = session.query(f"SELECT {', '.join(parts)} FROM {TOMBSTONES} WHERE {is_of(spec)}")
        return key_hashes(types, rows.columns)

    @abstractmethod
    def _buried_values(self, types: Sequence[str]) -> list[str]:
        """Return the expressions for the values, of these types, of a tombstone's key."""

    def note_change(self, session: Session, spec: TableSpec, change: int, keys: KeySums) -> None:
        """Note by how much a load changed a table's number of rows; see the protocol.

        One load at a time writes a table, so that nobody adds to the sums meanwhile.
        """
        noted = ""
        if keys:
            rows = session.query(f"SELECT keys FROM {TABLES} WHERE {is_of(spec)}")
            known = KeySums.from_text(rows["keys"][0].as_py()) if rows.num_rows else None
            sums = keys if known is None else known + keys
            noted = f", keys = {literal(sums.to_text())}"
        if session.execute(_counted_up(spec, change, noted)) == 0:
            session.execute(_first_count(spec, change))
            if noted:
                session.execute(_counted_up(spec, 0, noted))


def loaded(session: Session, destination: str, numbers: Sequence[int]) -> set[int]:
    """Return which of these commits are loaded, as of now."""
    rows = session.query(f"SELECT commit_number FROM {COMMITS} WHERE {of(destination, numbers)}")
    return set(rows["commit_number"].to_pylist())


def stored(session: Session, destination: str, commits: Sequence[Commit]) -> dict[int, LoadOutcome]:
    """Return number to outcome of the commits that were loaded before, as the batches they are.

    A number that was loaded for another batch is left out: after the tracker was put back to an
    older point its numbers are given again.
    """
    if not commits:
        return {}
    rows = session.query(
        "SELECT commit_number, batch, CAST(counts AS text) AS counts, "
        "CAST(parked AS text) AS parked, CAST(loaded_at AS text) AS loaded_at "
        f"FROM {COMMITS} WHERE {of(destination, [commit.number for commit in commits])}"
    )
    loaded_rows = {row["commit_number"]: row for row in rows.to_pylist()}
    outcomes = {}
    for commit in commits:
        row = loaded_rows.get(commit.number)
        if row is None:
            continue
        outcome = _outcome(row)
        if is_same(commit, row["batch"], outcome.counts):
            outcomes[commit.number] = outcome
        else:
            warn_other(destination, commit, row["loaded_at"])
    return outcomes


def forget(destination: str, numbers: Sequence[int]) -> str:
    """Return the statement that forgets commits which were loaded for other batches."""
    return f"DELETE FROM {COMMITS} WHERE {of(destination, numbers)}"


def is_same(commit: Commit, batch: str | None, counts: Sequence[OutcomeCount]) -> bool:
    """Tell whether what was loaded under a number is this commit.

    Args:
        commit: that comes now.
        batch: that was loaded; None, or empty: it was not kept.
        counts: of what was loaded, for when one of the batches is not known.
    """
    if commit.batch and batch:
        return commit.batch == batch
    then = {
        (c.pipeline_id, c.event_name, c.intake_minute): (c.in_first, c.in_replayed) for c in counts
    }
    return then == group_inputs(commit)


def warn_other(destination: str, commit: Commit, at: str, table: str = "") -> None:
    """Log that a number comes back with another batch."""
    _LOG.warning(
        "destination %r: commit %d was loaded at %s%s with other events than it has now: the "
        "tracker was restored to an older point, or a second Waybill loads under this name. The "
        "newer versions win",
        destination, commit.number, at, f" (table {table})" if table else "",
    )  # fmt: skip


def held(session: Session, destination: str, after: int) -> Held:
    """Return the newest commit, and all after one."""
    own = f"destination = {literal(destination)}"
    rows = session.query(
        f"SELECT commit_number FROM {COMMITS} WHERE {own} "
        f"AND (commit_number > {int(after)} OR commit_number = "
        f"(SELECT max(commit_number) FROM {COMMITS} WHERE {own}))"
    )
    numbers = frozenset(map(int, rows["commit_number"].to_pylist()))
    return Held(max(numbers, default=0), numbers)


def check_expected(session: Session, destination: str, newest: int | None) -> None:
    """Refuse to go on without a commit that the destination took.

    Raises:
        BehindError: it is not there.
    """
    if newest and not loaded(session, destination, [newest]):
        raise BehindError(
            f"destination {destination!r} took commit {newest} and does not have it any more: it "
            "was restored to an older point, or another server answers in its place. What is "
            "missing is found and loaded again"
        )


def bury(session: Session, books: Books, statements: MergeStatements) -> None:
    """Keep tombstones of a stage's deletes."""
    text, key_hash = books.key_text(statements.spec), books.key_hash(statements.spec)
    session.execute(statements.drop_tombstones(TOMBSTONES, key_hash))
    session.execute(statements.write_tombstones(TOMBSTONES, text, key_hash))


def _counted_up(spec: TableSpec, change: int, noted: str = "") -> str:
    return f"UPDATE {TABLES} SET rows = rows + {int(change)}{noted} WHERE {is_of(spec)}"


def _first_count(spec: TableSpec, change: int) -> str:
    return (
        f"INSERT INTO {TABLES} (table_schema, table_name, rows, gap) "
        f"VALUES ({literal(spec.schema_name)}, {literal(spec.name)}, {int(change)}, 0)"
    )


def values_of(outcomes: Sequence[LoadOutcome], batches: Mapping[int, str]) -> str:
    """Return rows of (commit number, counts, what was parked, batch) for a VALUES list."""
    return ", ".join(
        f"({outcome.commit_number}, {_counts(outcome)}, {_parked(outcome)}, "
        f"{_batch(batches, outcome.commit_number)})"
        for outcome in outcomes
    )


def _batch(batches: Mapping[int, str], number: int) -> str:
    """Return a commit's batch for a statement; NULL: not known."""
    batch = batches.get(number, "")
    return literal(batch) if batch else "NULL"


def of(destination: str, numbers: Sequence[int]) -> str:
    """Return the condition that keeps to some commits of a destination."""
    return f"destination = {literal(destination)} AND commit_number IN ({listed(numbers)})"


def is_of(spec: TableSpec) -> str:
    """Return the condition that keeps to a table's rows of the books."""
    return f"table_schema = {literal(spec.schema_name)} AND table_name = {literal(spec.name)}"


def listed(numbers: Sequence[int]) -> str:
    """Return numbers for a statement, in order."""
    return ", ".join(str(int(number)) for number in sorted(numbers))


def _outcome(row: Mapping[str, Any]) -> LoadOutcome:
    packed = orjson.loads(row["counts"])
    if isinstance(packed, list):
        packed = {"rows": packed, "replays": {}}
    counts = [OutcomeCount(*item) for item in packed["rows"]]
    parked = () if row["parked"] is None else (orjson.loads(row["parked"]),)
    return LoadOutcome(int(row["commit_number"]), counts, packed["replays"], parked, None)


def _counts(outcome: LoadOutcome) -> str:
    rows = [
        [
            c.pipeline_id, c.event_name, c.intake_minute, c.in_first, c.in_replayed,
            c.delivered, c.superseded, c.duplicate, c.parked,
        ]
        for c in outcome.counts
    ]  # fmt: skip
    return _json({"rows": rows, "replays": outcome.replays})


def _parked(outcome: LoadOutcome) -> str:
    return _json(outcome.parked[0]) if outcome.parked else "NULL"


def _json(value: object) -> str:
    return literal(orjson.dumps(value).decode())


_SHAPES: Mapping[str, Sequence[tuple[str, str, bool]]] = {
    "_waybill_locks": (("name", "string", True), ("held", "int64", True)),
    "_waybill_commits": (
        ("destination", "string", True),
        ("commit_number", "int64", True),
        ("counts", "json", False),
        ("parked", "json", False),
        ("loaded_at", "timestamp", True),
        ("batch", "string", False),
    ),
    "_waybill_tombstones": (
        ("table_schema", "string", True),
        ("table_name", "string", True),
        ("key_hash", "string", True),
        ("key", "string", True),
        ("_waybill_id", "string", True),
        ("_waybill_source_version", "int64", True),
        ("_waybill_intake_version", "int64", True),
        ("deleted_at", "timestamp", True),
    ),
    "_waybill_row_counts": (
        ("table_schema", "string", True),
        ("table_name", "string", True),
        ("rows", "int64", True),
        ("baseline", "int64", False),
        ("gap", "int64", True),
        ("looked_at", "timestamp", False),
    ),
}
"""Columns of each table: name, column type, whether it is required."""
_LOCKS = f"{quoted(SCHEMA)}.{quoted('_waybill_locks')}"
_LOCK_ROW = "loads"
_TEXT_BYTES = 200_000
"""Of outcomes in one statement: engines limit a statement's length."""
KEY_TEXT = "_waybill_key_text"
"""Column of a warehouse's stage: the key as text."""


class WarehouseBooks:
    """Books in a warehouse; they go by no count of changed rows."""

    def create(self, session: WarehouseSession) -> None:
        """Create what is missing; two that do it at once leave one lock row more: no harm."""
        for statement in creations(session.dialect):
            session.execute_native(statement)
        self._add_batch(session)
        own = f"name = {literal(_LOCK_ROW)}"
        held = session.query(f"SELECT COUNT(*) AS found FROM {_LOCKS} WHERE {own}")
        if not held["found"][0].as_py():
            session.execute(f"INSERT INTO {_LOCKS} (name, held) VALUES ({literal(_LOCK_ROW)}, 0)")

    def _add_batch(self, session: WarehouseSession) -> None:
        """Add the column to books of an older release."""
        name = "_waybill_commits"
        spec = TableSpec(
            schema_name=SCHEMA,
            name=name,
            columns=(Column(name="commit_number", type="int64"),),
            key=("commit_number",),
        )
        if "batch" not in found_columns(session, spec):
            dialect = session.dialect
            column = definition(dialect, "batch", "string", required=False)
            session.execute_native(f"ALTER TABLE {dialect.table(SCHEMA, name)} ADD COLUMN {column}")

    def fill(
        self,
        session: Session,
        destination: str,
        outcomes: Sequence[LoadOutcome],
        batches: Mapping[int, str],
    ) -> None:
        """Write commit numbers with their outcomes, and the batch of each."""
        for values in _portions(destination, outcomes, batches):
            session.execute(
                f"INSERT INTO {COMMITS} "
                "(destination, commit_number, counts, parked, loaded_at, batch) "
                f"VALUES {', '.join(values)}"
            )

    def key_text(self, _spec: TableSpec) -> str:
        """Return the key's text, which the stage has: see ``key_texts`` of ``warehouse``."""
        return f"s.{quoted(KEY_TEXT)}"

    def key_hash(self, spec: TableSpec) -> str:
        """Return the text itself: there is no index that it could be too long for."""
        return self.key_text(spec)

    def has_tombstones(self, session: Session, spec: TableSpec) -> bool:
        """Say whether a table has any."""
        rows = session.query(f"SELECT COUNT(*) AS found FROM {TOMBSTONES} WHERE {is_of(spec)}")
        return bool(rows["found"][0].as_py())

    def note_change(self, session: Session, spec: TableSpec, change: int, keys: KeySums) -> None:
        """Note by how much a load changed a table's number of rows; see the protocol."""
        del keys
        rows = session.query(f"SELECT COUNT(*) AS found FROM {TABLES} WHERE {is_of(spec)}")
        noted = rows["found"][0].as_py()
        session.execute(_counted_up(spec, change) if noted else _first_count(spec, change))


def creations(dialect: Dialect) -> list[str]:
    """Return the statements that make a warehouse's schema and tables, in the engine's words."""
    statements = [f"CREATE SCHEMA IF NOT EXISTS {dialect.quoted(SCHEMA)}"]
    for name, columns in _SHAPES.items():
        listed = [definition(dialect, c, kind, required=must) for c, kind, must in columns]
        statements.append(
            f"CREATE TABLE IF NOT EXISTS {dialect.table(SCHEMA, name)} ({', '.join(listed)})"
        )
    return statements


def take_lock_row(session: Session) -> None:
    """Change the lock row: another load's change of it waits, or fails, until this one ends."""
    session.execute(f"UPDATE {_LOCKS} SET held = held + 1 WHERE name = {literal(_LOCK_ROW)}")


def _portions(
    destination: str, outcomes: Sequence[LoadOutcome], batches: Mapping[int, str]
) -> Iterator[list[str]]:
    values: list[str] = []
    for outcome in outcomes:
        values.append(
            f"({literal(destination)}, {outcome.commit_number}, {_counts(outcome)}, "
            f"{_parked(outcome)}, CURRENT_TIMESTAMP, {_batch(batches, outcome.commit_number)})"
        )
        if sum(len(value) for value in values) > _TEXT_BYTES:
            yield values
            values = []
    if values:
        yield values
