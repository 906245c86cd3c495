"""Waybill's books in a warehouse: commits, tombstones, row counts, and the row that loads lock.

As in PostgreSQL's books (waybill.destinations.postgres.books), but nothing is unique here: these
engines do not enforce keys. A load therefore locks first, and looks what is there after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from waybill.destinations.batch import group_inputs
from waybill.destinations.merging import literal, quoted
from waybill.destinations.model import Commit, LoadOutcome, OutcomeCount
from waybill.destinations.warehouses.dialect import BOOKS, Dialect
from waybill.destinations.warehouses.schema import definition
from waybill.destinations.warehouses.session import Session
from waybill.errors import StopError
from waybill.pipelines import TableSpec

TABLES: Mapping[str, Sequence[tuple[str, str, bool]]] = {
    "_waybill_locks": (("name", "string", True), ("held", "int64", True)),
    "_waybill_commits": (
        ("destination", "string", True),
        ("commit_number", "int64", True),
        ("counts", "json", False),
        ("parked", "json", False),
        ("loaded_at", "timestamp", True),
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
LOCKS, COMMITS, TOMBSTONES, COUNTS = (f"{quoted(BOOKS)}.{quoted(name)}" for name in TABLES)
LOCK_ROW = "loads"
_TEXT_BYTES = 200_000
"""Of outcomes in one statement: engines limit a statement's length."""


def creations(dialect: Dialect) -> list[str]:
    """Return the statements that make the schema and the tables, in the engine's words."""
    found = [f"CREATE SCHEMA IF NOT EXISTS {dialect.quoted(BOOKS)}"]
    for name, columns in TABLES.items():
        listed = [definition(dialect, c, kind, required=must) for c, kind, must in columns]
        found.append(
            f"CREATE TABLE IF NOT EXISTS {dialect.table(BOOKS, name)} ({', '.join(listed)})"
        )
    return found


def create_books(session: Session) -> None:
    """Create what is missing; two that do it at once leave one lock row more, which is no harm."""
    for statement in creations(session.dialect):
        session.execute(statement)
    held = session.ask(f"SELECT COUNT(*) AS found FROM {LOCKS} WHERE name = {literal(LOCK_ROW)}")  # noqa: S608
    if not held["found"][0].as_py():
        session.perform(f"INSERT INTO {LOCKS} (name, held) VALUES ({literal(LOCK_ROW)}, 0)")  # noqa: S608


def take_lock_row(session: Session) -> None:
    """Change the lock row: another load's change of it waits, or fails, until this one ends."""
    session.perform(f"UPDATE {LOCKS} SET held = held + 1 WHERE name = {literal(LOCK_ROW)}")  # noqa: S608


def loaded(session: Session, destination: str, numbers: Sequence[int]) -> set[int]:
    """Return which of these commits are loaded."""
    rows = session.ask(f"SELECT commit_number FROM {COMMITS} WHERE {_of(destination, numbers)}")  # noqa: S608
    return {int(number) for number in rows["commit_number"].to_pylist()}


def write(session: Session, destination: str, outcomes: Sequence[LoadOutcome]) -> None:
    """Write commit numbers with their outcomes."""
    for values in _portions(destination, outcomes):
        session.perform(
            f"INSERT INTO {COMMITS} (destination, commit_number, counts, parked, loaded_at) "  # noqa: S608
            f"VALUES {', '.join(values)}"
        )


def _portions(destination: str, outcomes: Sequence[LoadOutcome]) -> Iterator[list[str]]:
    values: list[str] = []
    for outcome in outcomes:
        parked = _json(outcome.parked[0]) if outcome.parked else "NULL"
        values.append(
            f"({literal(destination)}, {outcome.commit_number}, {_json(packed(outcome))}, "
            f"{parked}, CURRENT_TIMESTAMP)"
        )
        if sum(len(value) for value in values) > _TEXT_BYTES:
            yield values
            values = []
    if values:
        yield values


def stored(session: Session, destination: str, commits: Sequence[Commit]) -> list[LoadOutcome]:
    """Return the outcomes of commits that were loaded before.

    Raises:
        StopError: a commit had other contents when it was loaded, or is there twice.
    """
    if not commits:
        return []
    numbers = [commit.number for commit in commits]
    rows = session.ask(
        "SELECT commit_number, counts, parked, loaded_at "  # noqa: S608
        f"FROM {COMMITS} WHERE {_of(destination, numbers)}"
    ).to_pylist()
    found = {int(row["commit_number"]): row for row in rows}
    if len(found) != len(rows):
        raise StopError(
            f"destination {destination!r}: a commit is in its books twice, of {numbers}; rows were "
            "written to waybill._waybill_commits by others, or a backup was restored over it"
        )
    return [outcome_of(destination, commit, found[commit.number]) for commit in commits]


def outcome_of(destination: str, commit: Commit, row: Mapping[str, Any]) -> LoadOutcome:
    """Return a stored outcome.

    Raises:
        StopError: the commit had other contents when it was loaded.
    """
    known = orjson.loads(row["counts"])
    counts = [OutcomeCount(*item) for item in known["rows"]]
    then = {
        (c.pipeline_id, c.event_name, c.intake_minute): (c.in_first, c.in_replayed) for c in counts
    }
    if then != group_inputs(commit):
        raise StopError(
            f"destination {destination!r}: commit {commit.number} was loaded at "
            f"{row['loaded_at']} with other events than it has now. The tracker was replaced, or a "
            "second Waybill loads under this name: give this destination another name, or restore "
            "the tracker"
        )
    parked = () if row["parked"] is None else (orjson.loads(row["parked"]),)
    return LoadOutcome(commit.number, counts, known["replays"], parked, None)


def has_tombstones(session: Session, spec: TableSpec) -> bool:
    """Say whether a table has any."""
    rows = session.ask(f"SELECT COUNT(*) AS found FROM {TOMBSTONES} WHERE {place(spec)}")  # noqa: S608
    return bool(rows["found"][0].as_py())


def note_change(session: Session, spec: TableSpec, change: int) -> None:
    """Note, in a load's transaction, by how much it changed a table's number of rows."""
    there = session.ask(f"SELECT COUNT(*) AS found FROM {COUNTS} WHERE {place(spec)}")  # noqa: S608
    if there["found"][0].as_py():
        session.perform(f"UPDATE {COUNTS} SET rows = rows + {int(change)} WHERE {place(spec)}")  # noqa: S608
        return
    session.perform(
        f"INSERT INTO {COUNTS} (table_schema, table_name, rows, gap) VALUES "  # noqa: S608
        f"({literal(spec.schema_name)}, {literal(spec.name)}, {int(change)}, 0)"
    )


def packed(outcome: LoadOutcome) -> dict[str, Any]:
    """Return a commit's counts as the books keep them."""
    rows = [
        [
            c.pipeline_id, c.event_name, c.intake_minute, c.in_first, c.in_replayed,
            c.delivered, c.superseded, c.duplicate, c.parked,
        ]
        for c in outcome.counts
    ]  # fmt: skip
    return {"rows": rows, "replays": outcome.replays}


def place(spec: TableSpec) -> str:
    """Return the condition for a table's rows in the books."""
    return f"table_schema = {literal(spec.schema_name)} AND table_name = {literal(spec.name)}"


def _json(value: object) -> str:
    return literal(orjson.dumps(value).decode())


def _of(destination: str, numbers: Sequence[int]) -> str:
    listed = ", ".join(str(int(number)) for number in sorted(numbers))
    return f"destination = {literal(destination)} AND commit_number IN ({listed})"
