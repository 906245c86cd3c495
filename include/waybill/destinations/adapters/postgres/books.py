"""The books as PostgreSQL keeps them: commit numbers are taken by a unique index.

What a MERGE did to a table's number of rows, and what the server estimates.

From PostgreSQL 17 on MERGE tells what it did. Before, and where rows are refused, the rows whose
keys are in the stage are counted before and after: an index look-up a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from waybill.destinations.merging import MergeStatements, literal, quoted
from waybill.destinations.model import LoadOutcome
from waybill.destinations.transactional import key_sums
from waybill.destinations.transactional.books import (
    COMMITS,
    NO_KEYS,
    SCHEMA,
    TABLES,
    TOMBSTONES,
    SqlBooks,
    is_of,
    listed,
    values_of,
)
from waybill.destinations.transactional.key_sums import KeySums
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
    "ADD COLUMN IF NOT EXISTS keys_baseline text, ADD COLUMN IF NOT EXISTS clean_at timestamptz",
)
_ALL_EXIST = (
    "SELECT count(*) = 3 AND bool_or(c.relname = '_waybill_commits' AND EXISTS (SELECT 1 "
    "FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'batch' "
    "AND NOT a.attisdropped)) AND bool_or(c.relname = '_waybill_row_counts' AND EXISTS (SELECT 1 "
    "FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'clean_at' "
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

    def note_change(
        self, session: Session, spec: TableSpec, change: int, keys: KeySums = NO_KEYS
    ) -> None:
        """Note by how much a load changed a table's rows, and their keys; see the protocol."""
        super().note_change(session, spec, change)
        if keys:
            query = f"SELECT keys FROM {TABLES} WHERE {is_of(spec)} FOR UPDATE"
            known = key_sums.loaded(session.query(query)["keys"][0].as_py())
            text = literal(key_sums.dumped(key_sums.total(known, keys)))
            session.execute(f"UPDATE {TABLES} SET keys = {text} WHERE {is_of(spec)}")

    def forget_rows(self, session: Session, spec: TableSpec, *, anew: bool) -> int:
        """Take rows out of a table's books that seem missing and are not; see the base.

        Cost: a look at the books; at the first count, and while rows are missing, one to three
        reads of the table's keys, and one of its tombstones'.
        """
        columns = "gap, keys_baseline"
        [row] = session.query(f"SELECT {columns} FROM {TABLES} WHERE {is_of(spec)}").to_pylist()
        is_first = row["keys_baseline"] is None
        if row["gap"] == 0 and not anew and not is_first:
            session.execute(f"UPDATE {TABLES} SET clean_at = now() WHERE {is_of(spec)}")
            return 0
        if not anew and (row["gap"] < 0 or (is_first and row["gap"])):
            return 0
        put, there, gap = _key_books(session, spec)
        if anew or is_first:
            if not gap:
                baseline = literal(key_sums.dumped(key_sums.total(there, put, -1)))
                session.execute(
                    f"UPDATE {TABLES} SET keys_baseline = {baseline}, clean_at = now() "
                    f"WHERE {is_of(spec)}"
                )
            return 0
        baseline_sums = key_sums.loaded(row["keys_baseline"])
        lacks = key_sums.total(key_sums.total(put, baseline_sums), there, -1)
        if key_sums.rows_of(lacks) != gap:
            return 0  # an older release loaded beside this one, and noted no keys
        known = _known_keys(session, spec, key_sums.wanted_keys(lacks))
        found = key_sums.not_missing(lacks, known, _loaded_since(session, spec))
        number = key_sums.rows_of(found)
        if number:
            left = literal(key_sums.dumped(key_sums.total(baseline_sums, found, -1)))
            session.execute(
                f"UPDATE {TABLES} SET baseline = baseline - {number}, gap = gap - {number}, "
                f"keys_baseline = {left} WHERE {is_of(spec)}"
            )
        return number

    def key_text(self, spec: TableSpec) -> str:
        """Return the expression that gives stage row ``s``'s key as text, one text for one key."""
        return _text([f"s.{quoted(name)}" for name in spec.key])

    def key_hash(self, spec: TableSpec) -> str:
        """Return the expression of its hash: short enough for an index, whatever the key."""
        return _hash(self.key_text(spec))


def rekeyed(spec: TableSpec, types: Sequence[str]) -> list[str]:
    """Return statements that spell the keys in tombstones anew, after a key column was widened.

    Args:
        spec: the table.
        types: of its key columns, as they are now.
    """
    parts = [f"(key::jsonb->>{place})::{kind}" for place, kind in enumerate(types)]
    text = _text(parts)
    return [
        f"UPDATE {TOMBSTONES} SET key = {text}, key_hash = {_hash(text)} WHERE {is_of(spec)}",
        f"UPDATE {TABLES} SET keys = NULL, keys_baseline = NULL WHERE {is_of(spec)}",
    ]


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


def merge_counted(session: Session, merge: str, spec: TableSpec) -> tuple[int, KeySums]:
    """Run a MERGE; return the rows that it changed, and the keys of those added less those gone."""
    rows = session.query(
        f"WITH done AS ({merge} RETURNING merge_action() AS did, "
        f"CASE WHEN merge_action() <> 'UPDATE' THEN {_key_hash(spec)} END AS x), signed AS "
        "(SELECT x, CASE did WHEN 'INSERT' THEN 1 WHEN 'DELETE' THEN -1 ELSE 0 END AS sign "
        f"FROM done) SELECT count(*) AS changed, {_sums('sign')} FROM signed GROUP BY x & {_CELL}"
    ).to_pylist()
    return sum(int(row["changed"]) for row in rows), _key_sums(rows)


def rows_of_stage(session: Session, statements: MergeStatements) -> KeySums:
    """Return the keys of the target's rows whose key is in the stage."""
    rows = session.query(
        f"SELECT {_sums()} FROM (SELECT {_key_hash(statements.spec)} AS x "
        f"{statements.met_rows()}) AS met GROUP BY x & {_CELL}"
    )
    return _key_sums(rows.to_pylist())


_CELL = key_sums.CELLS - 1
_H = f"(x & {(1 << key_sums.H_BITS) - 1})"
_CHECK = f"((x >> {key_sums.H_BITS}) & {(1 << 64 - key_sums.H_BITS) - 1})"


def _key_hash(spec: TableSpec) -> str:
    """Return the expression of a hash of row ``t``'s key: 64 bits, one for equal values."""
    return f"hash_record_extended(ROW({', '.join(f't.{quoted(n)}' for n in spec.key)}), 0)"


def _sums(sign: str = "1") -> str:
    """Return the columns of one cell's sums, over hashes ``x``."""
    return (
        f"min(x & {_CELL}) AS cell, sum({sign})::text AS rows, sum({sign} * {_H})::text AS h, "
        f"sum({sign} * {_H} * {_H})::text AS squares, sum({sign} * {_CHECK})::text AS checks"
    )


def _key_sums(rows: Sequence[Mapping[str, Any]]) -> KeySums:
    names = ("rows", "h", "squares", "checks")
    return {
        int(row["cell"]): key_sums.CellSums(*(int(row[name]) for name in names))
        for row in rows
        if row["cell"] is not None
    }


def _table(spec: TableSpec) -> str:
    return f"{quoted(spec.schema_name)}.{quoted(spec.name)}"


def _key_books(session: Session, spec: TableSpec) -> tuple[KeySums, KeySums, int]:
    """Return the keys that loads put, those that are there, and the rows that are missing.

    All by one statement, in one snapshot.
    """
    cells = (
        f"SELECT {_sums()} FROM (SELECT {_key_hash(spec)} AS x FROM {_table(spec)} AS t) AS keys "
        f"GROUP BY x & {_CELL}"
    )
    [row] = session.query(
        f"SELECT keys, rows + coalesce(baseline, 0) AS expected, (SELECT json_object_agg(cell, "
        f"json_build_array(rows, h, squares, checks)) FROM ({cells}) AS cells)::text AS there "
        f"FROM {TABLES} WHERE {is_of(spec)}"
    ).to_pylist()
    there = key_sums.loaded(row["there"])
    return key_sums.loaded(row["keys"]), there, int(row["expected"]) - key_sums.rows_of(there)


def _known_keys(session: Session, spec: TableSpec, wanted: set[int]) -> dict[int, list[int]]:
    """Return the hashes of keys that are there, or that the source deleted, by their ``h``."""
    if not wanted:
        return {}
    parts = [f"{literal(name)}, b.key::jsonb -> {place}" for place, name in enumerate(spec.key)]
    buried = (
        f"SELECT {_key_hash(spec)} AS x FROM (SELECT key FROM {TOMBSTONES} WHERE {is_of(spec)}) "
        f"AS b, jsonb_populate_record(NULL::{_table(spec)}, "
        f"jsonb_build_object({', '.join(parts)})) AS t"
    )
    rows = session.query(
        f"SELECT x FROM (SELECT {_key_hash(spec)} AS x FROM {_table(spec)} AS t UNION {buried}) "
        f"AS keys WHERE {_H} IN ({listed(sorted(wanted))})"
    )
    found: dict[int, list[int]] = {}
    for hashed in rows["x"].to_pylist():
        found.setdefault(hashed & (1 << key_sums.H_BITS) - 1, []).append(hashed)
    return found


def _loaded_since(session: Session, spec: TableSpec) -> KeySums:
    """Return the keys of rows that were loaded since a count found none missing."""
    rows = session.query(
        f"SELECT {_sums()} FROM (SELECT {_key_hash(spec)} AS x FROM {_table(spec)} AS t "
        f"WHERE t._waybill_loaded_at >= (SELECT clean_at FROM {TABLES} WHERE {is_of(spec)})) "
        f"AS keys GROUP BY x & {_CELL}"
    )
    return _key_sums(rows.to_pylist())


def estimate(session: Session, spec: TableSpec) -> int | None:
    """Return about how many rows a table has; None: there is none. A count after it is limited."""
    rows = session.query(
        "SELECT c.reltuples::bigint AS rows FROM pg_catalog.pg_class c "
        "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        f"WHERE n.nspname = {literal(spec.schema_name)} AND c.relname = {literal(spec.name)}"
    )
    session.execute(f"SET LOCAL statement_timeout = '{_LONGEST_COUNT}'")
    return int(rows["rows"][0].as_py()) if rows.num_rows else None
