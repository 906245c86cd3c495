"""What the destination keeps of Waybill's books: commits with their outcomes, and tombstones.

``_waybill_commits``     (destination, commit_number), counts, what was parked, when
``_waybill_tombstones``  (table, hash of the key), key, id and versions of the delete
``_waybill_row_counts``  (table), rows that all loads added less those they took away, the rows that
                         were there beside them, what the last count missed, when that was

All are in schema ``waybill`` and are made when they are missing. A commit's counts are
{"rows": [[pipeline id, event name, intake minute, in_first, in_replayed, delivered, superseded,
duplicate, parked], …], "replays": {replay id: {outcome: rows}}}; in books of older releases just
the list of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from waybill.destinations.batch import group_inputs
from waybill.destinations.merging import literal, quoted
from waybill.destinations.model import Commit, LoadOutcome, OutcomeCount
from waybill.destinations.postgres.connection import Session
from waybill.errors import StopError
from waybill.pipelines import TableSpec

SCHEMA = "waybill"
COMMITS = f"{quoted(SCHEMA)}.{quoted('_waybill_commits')}"
TOMBSTONES = f"{quoted(SCHEMA)}.{quoted('_waybill_tombstones')}"
TABLES = f"{quoted(SCHEMA)}.{quoted('_waybill_row_counts')}"
_LOCK = "pg_advisory_xact_lock(hashtextextended('waybill books', 0))"
_CREATE = (
    f"CREATE SCHEMA IF NOT EXISTS {quoted(SCHEMA)}",
    f"CREATE TABLE IF NOT EXISTS {COMMITS} (destination text NOT NULL, "
    "commit_number bigint NOT NULL, counts jsonb, parked jsonb, "
    "loaded_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (destination, commit_number))",
    f"CREATE TABLE IF NOT EXISTS {TOMBSTONES} (table_schema text NOT NULL, "
    "table_name text NOT NULL, key_hash bytea NOT NULL, key text NOT NULL, "
    "_waybill_id text NOT NULL, _waybill_source_version bigint NOT NULL, "
    "_waybill_intake_version bigint NOT NULL, "
    "deleted_at timestamptz NOT NULL, PRIMARY KEY (table_schema, table_name, key_hash))",
    f"CREATE TABLE IF NOT EXISTS {TABLES} (table_schema text NOT NULL, table_name text NOT NULL, "
    "rows bigint NOT NULL, baseline bigint, gap bigint NOT NULL DEFAULT 0, "
    "looked_at timestamptz, counted_at timestamptz, PRIMARY KEY (table_schema, table_name))",
)
_ALL_EXIST = (
    "SELECT count(*) = 3 AS found FROM pg_catalog.pg_class c "  # noqa: S608
    "JOIN pg_catalog.pg_namespace n "
    f"ON n.oid = c.relnamespace WHERE n.nspname = '{SCHEMA}' "
    "AND c.relname IN ('_waybill_commits', '_waybill_tombstones', '_waybill_row_counts')"
)


def create_books(session: Session) -> None:
    """Create the tables unless they are there; safe when several loaders do it at once."""
    with session.transaction():
        if session.query(_ALL_EXIST)["found"][0].as_py():
            return
        session.query(f"SELECT {_LOCK}::text")
        for statement in _CREATE:
            session.execute(statement)


def loaded(session: Session, destination: str, numbers: Sequence[int]) -> set[int]:
    """Return which of these commits are loaded, as of now."""
    rows = session.query(
        f"SELECT commit_number FROM {COMMITS} WHERE {_of(destination, numbers)}"  # noqa: S608
    )
    return set(rows["commit_number"].to_pylist())


def claim(session: Session, destination: str, numbers: Sequence[int]) -> set[int]:
    """Take the commits that nobody loaded; return them. Waits for a loader that is at it.

    Numbers are inserted in order, so that two loaders never wait for each other.
    """
    rows = session.query(
        f"INSERT INTO {COMMITS} (destination, commit_number) "  # noqa: S608
        f"SELECT {literal(destination)}, number FROM unnest(ARRAY[{_listed(numbers)}]::bigint[]) "
        "AS given (number) ORDER BY number ON CONFLICT DO NOTHING RETURNING commit_number"
    )
    return set(rows["commit_number"].to_pylist())


def fill(session: Session, destination: str, outcomes: Sequence[LoadOutcome]) -> None:
    """Write the outcomes beside the numbers taken by ``claim``."""
    if not outcomes:
        return
    values = ", ".join(
        f"({outcome.commit_number}, {_json(_packed(outcome))}, "
        f"{_json(outcome.parked[0]) if outcome.parked else 'NULL'})"
        for outcome in outcomes
    )
    session.execute(
        f"UPDATE {COMMITS} AS c SET counts = v.counts::jsonb, parked = v.parked::jsonb "  # noqa: S608
        f"FROM (VALUES {values}) AS v (number, counts, parked) "
        f"WHERE c.destination = {literal(destination)} AND c.commit_number = v.number"
    )


def stored(session: Session, destination: str, commits: Sequence[Commit]) -> list[LoadOutcome]:
    """Return the outcomes of commits that were loaded before.

    Raises:
        StopError: a commit had other contents when it was loaded.
    """
    if not commits:
        return []
    numbers = [commit.number for commit in commits]
    rows = session.query(
        "SELECT commit_number, counts::text AS counts, parked::text AS parked, "  # noqa: S608
        f"loaded_at::text AS loaded_at FROM {COMMITS} WHERE {_of(destination, numbers)}"
    )
    found = {row["commit_number"]: row for row in rows.to_pylist()}
    return [_outcome(destination, commit, found[commit.number]) for commit in commits]


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


def has_tombstones(session: Session, spec: TableSpec) -> bool:
    """Say whether a table has any."""
    rows = session.query(
        f"SELECT EXISTS (SELECT 1 FROM {TOMBSTONES} WHERE "  # noqa: S608
        f"table_schema = {literal(spec.schema_name)} "
        f"AND table_name = {literal(spec.name)}) AS found"
    )
    return bool(rows["found"][0].as_py())


def key_text(spec: TableSpec) -> str:
    """Return the expression that gives stage row ``s``'s key as text, one text for one key."""
    names = ", ".join(f"s.{quoted(name)}" for name in spec.key)
    return f"jsonb_build_array({names})::text"


def key_hash(spec: TableSpec) -> str:
    """Return the expression of its hash: short enough for an index, whatever the key."""
    return f"sha256(convert_to({key_text(spec)}, 'UTF8'))"


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


def _of(destination: str, numbers: Sequence[int]) -> str:
    return (
        f"destination = {literal(destination)} AND "
        f"commit_number = ANY (ARRAY[{_listed(numbers)}]::bigint[])"
    )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(str(int(number)) for number in sorted(numbers))
