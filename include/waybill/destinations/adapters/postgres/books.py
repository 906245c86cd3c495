"""The books as PostgreSQL keeps them: commit numbers are taken by a unique index.

What a MERGE did to a table's number of rows, and what the server estimates.

From PostgreSQL 17 on MERGE tells what it did. Before, and where rows are refused, the rows whose
keys are in the stage are counted before and after: an index look-up a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from waybill.destinations.batch import TableBatch
from waybill.destinations.key_sums import KeySums, change_of
from waybill.destinations.merging import literal, quoted
from waybill.destinations.model import LoadOutcome
from waybill.destinations.transactional.books import (
    COMMITS,
    SCHEMA,
    TABLES,
    TOMBSTONES,
    SqlBooks,
    is_of,
    listed,
    values_of,
)
from waybill.destinations.transactional.session import Session
from waybill.pipelines import TableSpec
from waybill.storage import AdvisoryLock

_CREATE = (
    f"CREATE SCHEMA IF NOT EXISTS {quoted(SCHEMA)}",
    f"CREATE TABLE IF NOT EXISTS {COMMITS} (destination text NOT NULL, "
    "commit_number bigint NOT NULL, counts jsonb, parked jsonb, "
    "loaded_at timestamptz NOT NULL DEFAULT now(), batch text, "
    "PRIMARY KEY (destination, commit_number))",
    f"ALTER TABLE {COMMITS} ADD COLUMN IF NOT EXISTS batch text",
    f"CREATE TABLE IF NOT EXISTS {TOMBSTONES} (table_schema text NOT NULL, "
    "table_name text NOT NULL, key_hash bytea NOT NULL, key text NOT NULL, "
    "_waybill_id text NOT NULL, _waybill_source_version bigint NOT NULL, "
    "_waybill_intake_version bigint NOT NULL, "
    "deleted_at timestamptz NOT NULL, PRIMARY KEY (table_schema, table_name, key_hash))",
    f"CREATE TABLE IF NOT EXISTS {TABLES} (table_schema text NOT NULL, table_name text NOT NULL, "
    "rows bigint NOT NULL, baseline bigint, gap bigint NOT NULL DEFAULT 0, "
    "looked_at timestamptz, counted_at timestamptz, PRIMARY KEY (table_schema, table_name))",
    f"ALTER TABLE {TABLES} ADD COLUMN IF NOT EXISTS keys text, "
    "ADD COLUMN IF NOT EXISTS keys_beside text",
)
_ALL_EXIST = (
    "SELECT count(*) = 3 AND bool_or(c.relname = '_waybill_commits' AND EXISTS (SELECT 1 "
    "FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'batch' "
    "AND NOT a.attisdropped)) AND bool_or(c.relname = '_waybill_row_counts' AND EXISTS (SELECT 1 "
    "FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'keys_beside' "
    "AND NOT a.attisdropped)) AS found FROM pg_catalog.pg_class c "
    "JOIN pg_catalog.pg_namespace n "
    f"ON n.oid = c.relnamespace WHERE n.nspname = '{SCHEMA}' "
    "AND c.relname IN ('_waybill_commits', '_waybill_tombstones', '_waybill_row_counts')"
)


class PostgresBooks(SqlBooks):
    """The books of one database."""

    def create(self, session: Session) -> None:
        """Create the tables unless they are there; see the protocol."""
        with session.transaction():
            if session.query(_ALL_EXIST)["found"][0].as_py():
                return
            session.query(AdvisoryLock.DESTINATION_BOOKS.sql())
            for statement in _CREATE:
                session.execute(statement)

    def claim(self, session: Session, destination: str, numbers: Sequence[int]) -> set[int]:
        """Take the commits that nobody loaded; return them. Waits for a loader that is at it.

        Numbers are inserted in order, so that two loaders never wait for each other.
        """
        rows = session.query(
            f"INSERT INTO {COMMITS} (destination, commit_number) "
            f"SELECT {literal(destination)}, number "
            f"FROM unnest(ARRAY[{listed(numbers)}]::bigint[]) AS given (number) ORDER BY number "
            "ON CONFLICT DO NOTHING RETURNING commit_number"
        )
        return set(rows["commit_number"].to_pylist())

    def fill(
        self,
        session: Session,
        destination: str,
        outcomes: Sequence[LoadOutcome],
        batches: Mapping[int, str],
    ) -> None:
        """Write the outcomes beside the numbers taken by ``claim``."""
        values = values_of(outcomes, batches)
        session.execute(
            f"UPDATE {COMMITS} AS c SET counts = v.counts::jsonb, parked = v.parked::jsonb, "
            f"batch = v.batch::text FROM (VALUES {values}) AS v (number, counts, parked, batch) "
            f"WHERE c.destination = {literal(destination)} AND c.commit_number = v.number"
        )

    def key_text(self, spec: TableSpec) -> str:
        """Return the expression that gives stage row ``s``'s key as text, one text for one key."""
        return _text([f"s.{quoted(name)}" for name in spec.key])

    def key_hash(self, spec: TableSpec) -> str:
        """Return the expression of its hash: short enough for an index, whatever the key."""
        return _hash(self.key_text(spec))

    def _buried_values(self, types: Sequence[str]) -> list[str]:
        return [_read(place, kind) for place, kind in enumerate(types)]


_READ_AS = {
    "bool": "boolean",
    "float64": "double precision",
    "string": "text",
    "timestamp": "timestamptz",
    "date": "timestamptz",
    "bytes": "bytea",
}
"""Types that values of tombstones' keys are read as; whole numbers may be wider than declared."""


def _read(place: int, kind: str) -> str:
    """Return the expression for a value of a tombstone's key."""
    if kind == "json":
        return f"(key::jsonb->{place})::text"
    return f"(key::jsonb->>{place})::{_READ_AS.get(kind, 'numeric')}"


def rekeyed(spec: TableSpec, types: Sequence[str]) -> list[str]:
    """Return statements that spell the keys in tombstones anew, after a key column was widened.

    Args:
        spec: the table.
        types: of its key columns, as they are now.
    """
    parts = [f"(key::jsonb->>{place})::{kind}" for place, kind in enumerate(types)]
    text = _text(parts)
    return [f"UPDATE {TOMBSTONES} SET key = {text}, key_hash = {_hash(text)} WHERE {is_of(spec)}"]


def _text(parts: Sequence[str]) -> str:
    return f"jsonb_build_array({', '.join(parts)})::text"


def _hash(text: str) -> str:
    return f"sha256(convert_to({text}, 'UTF8'))"


_MERGE_TELLS = 170_000
_LONGEST_COUNT = "5min"


def merge_tells(session: Session) -> bool:
    """Tell whether the server's MERGE says what it did."""
    rows = session.query("SELECT current_setting('server_version_num')::int AS version")
    return bool(rows["version"][0].as_py() >= _MERGE_TELLS)


@dataclass(frozen=True, slots=True)
class MergeCount:
    """What a MERGE did."""

    changed: int
    """Rows that it added, changed or took away."""
    change: int
    """Rows added less those taken away."""
    keys: KeySums
    """Of the keys of these."""


def merge_counted(session: Session, merge: str, batch: TableBatch) -> MergeCount:
    """Run a MERGE of a batch.

    Ordinals are asked for where some rows were added and some not; keys are hashed here, which
    costs a tenth of what the server takes for it.
    """
    rows = session.query(
        f"WITH done AS ({merge} RETURNING CASE merge_action() WHEN 'INSERT' THEN s._waybill_n "
        "WHEN 'DELETE' THEN -1 - s._waybill_n END AS n) "
        "SELECT count(*) AS changed, count(*) FILTER (WHERE n >= 0) AS added, "
        "count(*) FILTER (WHERE n < 0) AS gone, "
        f"CASE WHEN count(*) FILTER (WHERE n >= 0) < {batch.columns.num_rows} "
        "THEN array_agg(n) FILTER (WHERE n IS NOT NULL) END AS moved FROM done"
    )
    changed, added, gone = (int(rows[name][0].as_py()) for name in ("changed", "added", "gone"))
    if added == batch.columns.num_rows:
        return MergeCount(changed, added, change_of(batch, None))
    if not added and not gone:
        return MergeCount(changed, 0, KeySums.none())
    moved = np.asarray(rows["moved"].combine_chunks().flatten(), np.int64)
    keys = change_of(batch, moved[moved >= 0], -1 - moved[moved < 0])
    return MergeCount(changed, added - gone, keys)


def estimate(session: Session, spec: TableSpec) -> int | None:
    """Return about how many rows a table has; None: there is none. A count after it is limited."""
    rows = session.query(
        "SELECT c.reltuples::bigint AS rows FROM pg_catalog.pg_class c "
        "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        f"WHERE n.nspname = {literal(spec.schema_name)} AND c.relname = {literal(spec.name)}"
    )
    session.execute(f"SET LOCAL statement_timeout = '{_LONGEST_COUNT}'")
    return int(rows["rows"][0].as_py()) if rows.num_rows else None
