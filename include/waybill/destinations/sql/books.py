"""What the destination keeps of Waybill's books: commits with their outcomes, and tombstones.

``_waybill_commits``     (destination, commit_number), counts, what was parked, when
``_waybill_tombstones``  (table, hash of the key), key, id and versions of the delete
``_waybill_row_counts``  (table), rows that all loads added less those they took away, the rows that
                         were there beside them, what the last count missed, when that was

All are in schema ``waybill`` and are made when they are missing. A commit's counts are
{"rows": [[pipeline id, event name, intake minute, in_first, in_replayed, delivered, superseded,
duplicate, parked], …], "replays": {replay id: {outcome: rows}}}; in books of older releases just
the list of rows.

An engine says how it spells the tables and a key, and how a load takes commit numbers for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import orjson

from waybill.destinations.batch import group_inputs
from waybill.destinations.merging import MergeStatements, literal, quoted
from waybill.destinations.model import Commit, LoadOutcome, OutcomeCount
from waybill.destinations.sql.session import Session
from waybill.errors import StopError
from waybill.pipelines import TableSpec

SCHEMA = "waybill"
COMMITS = f"{quoted(SCHEMA)}.{quoted('_waybill_commits')}"
TOMBSTONES = f"{quoted(SCHEMA)}.{quoted('_waybill_tombstones')}"
TABLES = f"{quoted(SCHEMA)}.{quoted('_waybill_row_counts')}"


class Books(Protocol):
    """How an engine keeps them."""

    def create(self, session: Session) -> None:
        """Create the tables unless they are there; safe when several loaders do it at once."""
        ...

    def claim(self, session: Session, destination: str, numbers: Sequence[int]) -> set[int]:
        """Take the commits that nobody loaded; return them. Waits for a loader that is at it."""
        ...

    def fill(self, session: Session, destination: str, outcomes: Sequence[LoadOutcome]) -> None:
        """Write the outcomes of the numbers taken by ``claim``."""
        ...

    def key_text(self, spec: TableSpec) -> str:
        """Return the expression that gives stage row ``s``'s key as text, one text for one key."""
        ...

    def key_hash(self, spec: TableSpec) -> str:
        """Return the expression of its hash: short enough for an index, whatever the key."""
        ...


def loaded(session: Session, destination: str, numbers: Sequence[int]) -> set[int]:
    """Return which of these commits are loaded, as of now."""
    rows = session.query(
        f"SELECT commit_number FROM {COMMITS} WHERE {of(destination, numbers)}"  # noqa: S608
    )
    return set(rows["commit_number"].to_pylist())


def stored(session: Session, destination: str, commits: Sequence[Commit]) -> list[LoadOutcome]:
    """Return the outcomes of commits that were loaded before.

    Raises:
        StopError: a commit had other contents when it was loaded.
    """
    if not commits:
        return []
    numbers = [commit.number for commit in commits]
    rows = session.query(
        "SELECT commit_number, CAST(counts AS text) AS counts, "  # noqa: S608
        "CAST(parked AS text) AS parked, CAST(loaded_at AS text) AS loaded_at "
        f"FROM {COMMITS} WHERE {of(destination, numbers)}"
    )
    found = {row["commit_number"]: row for row in rows.to_pylist()}
    return [_outcome(destination, commit, found[commit.number]) for commit in commits]


def has_tombstones(session: Session, spec: TableSpec) -> bool:
    """Say whether a table has any."""
    rows = session.query(
        f"SELECT EXISTS (SELECT 1 FROM {TOMBSTONES} WHERE {is_of(spec)}) AS found"  # noqa: S608
    )
    return bool(rows["found"][0].as_py())


def bury(session: Session, books: Books, statements: MergeStatements) -> None:
    """Keep tombstones of a stage's deletes."""
    text, key_hash = books.key_text(statements.spec), books.key_hash(statements.spec)
    session.execute(statements.drop_tombstones(TOMBSTONES, key_hash))
    session.execute(statements.write_tombstones(TOMBSTONES, text, key_hash))


def values_of(outcomes: Sequence[LoadOutcome]) -> str:
    """Return rows of (commit number, counts, what was parked) for a VALUES list."""
    return ", ".join(
        f"({outcome.commit_number}, {_json(_packed(outcome))}, "
        f"{_json(outcome.parked[0]) if outcome.parked else 'NULL'})"
        for outcome in outcomes
    )


def of(destination: str, numbers: Sequence[int]) -> str:
    """Return the condition that keeps to some commits of a destination."""
    return f"destination = {literal(destination)} AND commit_number IN ({listed(numbers)})"


def is_of(spec: TableSpec) -> str:
    """Return the condition that keeps to a table's rows of the books."""
    return f"table_schema = {literal(spec.schema_name)} AND table_name = {literal(spec.name)}"


def listed(numbers: Sequence[int]) -> str:
    """Return numbers for a statement, in order."""
    return ", ".join(str(int(number)) for number in sorted(numbers))


def _outcome(destination: str, commit: Commit, row: Mapping[str, Any]) -> LoadOutcome:
    packed = orjson.loads(row["counts"])
    if isinstance(packed, list):
        packed = {"rows": packed, "replays": {}}
    counts = [OutcomeCount(*item) for item in packed["rows"]]
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
    return LoadOutcome(commit.number, counts, packed["replays"], parked, None)


def _packed(outcome: LoadOutcome) -> dict[str, Any]:
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
