"""Waybill's books in a warehouse: commits, tombstones, row counts, and the row that loads lock.

As in ``waybill.destinations.transactional.books``, but nothing is unique here: these engines do not
enforce keys. A load therefore locks first, and looks what is there after.

How many rows a table has, and must have; COUNT(*) costs these engines next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from waybill.destinations.merging import literal, quoted
from waybill.destinations.model import Commit, CountLook, Held, LoadOutcome, RowCount
from waybill.destinations.transactional import books as sql_books
from waybill.destinations.transactional.books import COMMITS, TABLES, TOMBSTONES, batch_text, is_of
from waybill.destinations.transactional.staged.dialect import BOOKS, Dialect
from waybill.destinations.transactional.staged.schema import definition, found_columns
from waybill.destinations.transactional.staged.session import WarehouseSession
from waybill.pipelines import Column, TableSpec

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
LOCKS = f"{quoted(BOOKS)}.{quoted('_waybill_locks')}"
LOCK_ROW = "loads"
__all__ = ["TABLES", "TOMBSTONES", "is_of"]
_TEXT_BYTES = 200_000
"""Of outcomes in one statement: engines limit a statement's length."""


def creations(dialect: Dialect) -> list[str]:
    """Return the statements that make the schema and the tables, in the engine's words."""
    found = [f"CREATE SCHEMA IF NOT EXISTS {dialect.quoted(BOOKS)}"]
    for name, columns in _SHAPES.items():
        listed = [definition(dialect, c, kind, required=must) for c, kind, must in columns]
        found.append(
            f"CREATE TABLE IF NOT EXISTS {dialect.table(BOOKS, name)} ({', '.join(listed)})"
        )
    return found


def create_books(session: WarehouseSession) -> None:
    """Create what is missing; two that do it at once leave one lock row more, which is no harm."""
    for statement in creations(session.dialect):
        session.execute(statement)
    _add_batch(session)
    held = session.ask(f"SELECT COUNT(*) AS found FROM {LOCKS} WHERE name = {literal(LOCK_ROW)}")
    if not held["found"][0].as_py():
        session.perform(f"INSERT INTO {LOCKS} (name, held) VALUES ({literal(LOCK_ROW)}, 0)")


def _add_batch(session: WarehouseSession) -> None:
    """Add the column to books of an older release."""
    name = "_waybill_commits"
    spec = TableSpec(
        schema_name=BOOKS,
        name=name,
        columns=(Column(name="commit_number", type="int64"),),
        key=("commit_number",),
    )
    if "batch" not in found_columns(session, spec):
        dialect = session.dialect
        column = definition(dialect, "batch", "string", required=False)
        session.execute(f"ALTER TABLE {dialect.table(BOOKS, name)} ADD COLUMN {column}")


def take_lock_row(session: WarehouseSession) -> None:
    """Change the lock row: another load's change of it waits, or fails, until this one ends."""
    session.perform(f"UPDATE {LOCKS} SET held = held + 1 WHERE name = {literal(LOCK_ROW)}")


def loaded(session: WarehouseSession, destination: str, numbers: Sequence[int]) -> set[int]:
    """Return which of these commits are loaded."""
    return {int(number) for number in sql_books.loaded(session.defined, destination, numbers)}


def write(
    session: WarehouseSession,
    destination: str,
    outcomes: Sequence[LoadOutcome],
    batches: Mapping[int, str],
) -> None:
    """Write commit numbers with their outcomes, and the batch of each."""
    for values in _portions(destination, outcomes, batches):
        session.perform(
            f"INSERT INTO {COMMITS} "
            "(destination, commit_number, counts, parked, loaded_at, batch) "
            f"VALUES {', '.join(values)}"
        )


def _portions(
    destination: str, outcomes: Sequence[LoadOutcome], batches: Mapping[int, str]
) -> Iterator[list[str]]:
    values: list[str] = []
    for outcome in outcomes:
        parked = _json(outcome.parked[0]) if outcome.parked else "NULL"
        values.append(
            f"({literal(destination)}, {outcome.commit_number}, {_json(_packed(outcome))}, "
            f"{parked}, CURRENT_TIMESTAMP, {batch_text(batches, outcome.commit_number)})"
        )
        if sum(len(value) for value in values) > _TEXT_BYTES:
            yield values
            values = []
    if values:
        yield values


def stored(
    session: WarehouseSession, destination: str, commits: Sequence[Commit]
) -> dict[int, LoadOutcome]:
    """Return the outcomes of commits that were loaded before, as the batches they are."""
    return sql_books.stored(session.defined, destination, commits)


def held(session: WarehouseSession, destination: str, after: int) -> Held:
    """Return the newest commit, and all after one."""
    return sql_books.held(session.defined, destination, after)


def check_expected(session: WarehouseSession, destination: str, newest: int | None) -> None:
    """Refuse to go on without a commit that the destination took.

    Raises:
        BehindError: it is not there.
    """
    sql_books.check_expected(session.defined, destination, newest)


def forget(session: WarehouseSession, destination: str, numbers: Sequence[int]) -> None:
    """Forget commits, so that they can be written anew."""
    session.perform(sql_books.forget(destination, numbers))


def has_tombstones(session: WarehouseSession, spec: TableSpec) -> bool:
    """Say whether a table has any."""
    rows = session.ask(f"SELECT COUNT(*) AS found FROM {TOMBSTONES} WHERE {is_of(spec)}")
    return bool(rows["found"][0].as_py())


def note_change(session: WarehouseSession, spec: TableSpec, change: int) -> None:
    """Note, in a load's transaction, by how much it changed a table's number of rows."""
    there = session.ask(f"SELECT COUNT(*) AS found FROM {TABLES} WHERE {is_of(spec)}")
    if there["found"][0].as_py():
        session.perform(f"UPDATE {TABLES} SET rows = rows + {int(change)} WHERE {is_of(spec)}")
        return
    session.perform(
        f"INSERT INTO {TABLES} (table_schema, table_name, rows, gap) VALUES "
        f"({literal(spec.schema_name)}, {literal(spec.name)}, {int(change)}, 0)"
    )


def _packed(outcome: LoadOutcome) -> dict[str, Any]:
    """Return a commit's counts as the books keep them."""
    rows = [
        [
            c.pipeline_id, c.event_name, c.intake_minute, c.in_first, c.in_replayed,
            c.delivered, c.superseded, c.duplicate, c.parked,
        ]
        for c in outcome.counts
    ]  # fmt: skip
    return {"rows": rows, "replays": outcome.replays}


def _json(value: object) -> str:
    return literal(orjson.dumps(value).decode())


def count_rows(session: WarehouseSession, look: CountLook) -> RowCount | None:
    """Look at one table; None: no load has written to it.

    Both numbers are read by one statement. One that is not due is as it was counted last, but for
    what loads did since.
    """
    spec = look.spec
    rows = session.ask(
        f"SELECT rows, baseline, gap, looked_at FROM {TABLES} WHERE {is_of(spec)}"
    ).to_pylist()
    if not rows:
        return None
    [state] = rows
    looked = state["looked_at"]
    accepted = look.accepted_at is not None and (looked is None or looked < look.accepted_at)
    if looked is not None and not accepted:
        since_s = (datetime.now(UTC) - looked).total_seconds()
        if since_s < look.every_s:
            expected = state["rows"] + state["baseline"]
            return RowCount(spec, expected - state["gap"], expected, state["baseline"])
    anew = state["baseline"] is None or accepted
    return _counted(session, look, anew=anew)


def _counted(session: WarehouseSession, look: CountLook, *, anew: bool) -> RowCount:
    spec = look.spec
    table = f"{quoted(spec.schema_name)}.{quoted(spec.name)}"
    [row] = session.ask(
        f"SELECT (SELECT COUNT(*) FROM {table}) AS counted, rows, baseline "
        f"FROM {TABLES} WHERE {is_of(spec)}"
    ).to_pylist()
    counted, put = int(row["counted"]), int(row["rows"])
    baseline = counted - put if anew else int(row["baseline"])
    expected = put + baseline
    session.perform(
        f"UPDATE {TABLES} SET baseline = {baseline}, gap = {expected - counted}, "
        f"looked_at = CURRENT_TIMESTAMP WHERE {is_of(spec)}"
    )
    return RowCount(spec, counted, expected, baseline)
