"""The books as DuckDB keeps them: no unique index, for who holds the file is alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waybill.destinations.merging import literal, quoted
from waybill.destinations.model import LoadOutcome
from waybill.destinations.transactional.books import (
    COMMITS,
    SCHEMA,
    TABLES,
    TOMBSTONES,
    SqlBooks,
    forget,
    is_of,
    loaded,
    values_of,
)
from waybill.destinations.transactional.session import Session
from waybill.pipelines import Column, TableSpec

_CREATE = (
    f"CREATE SCHEMA IF NOT EXISTS {quoted(SCHEMA)}",
    f"CREATE TABLE IF NOT EXISTS {COMMITS} (destination varchar NOT NULL, "
    "commit_number bigint NOT NULL, counts varchar NOT NULL, parked varchar, "
    "loaded_at timestamptz NOT NULL, batch varchar)",
    f"ALTER TABLE {COMMITS} ADD COLUMN IF NOT EXISTS batch varchar",
    f"CREATE TABLE IF NOT EXISTS {TOMBSTONES} (table_schema varchar NOT NULL, "
    "table_name varchar NOT NULL, key_hash varchar NOT NULL, key varchar NOT NULL, "
    "_waybill_id varchar NOT NULL, _waybill_source_version bigint NOT NULL, "
    "_waybill_intake_version bigint NOT NULL, deleted_at timestamptz NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS {TABLES} (table_schema varchar NOT NULL, "
    "table_name varchar NOT NULL, rows bigint NOT NULL, baseline bigint, gap bigint NOT NULL, "
    "looked_at timestamptz, counted_at timestamptz)",
    f"ALTER TABLE {TABLES} ADD COLUMN IF NOT EXISTS keys varchar",
    f"ALTER TABLE {TABLES} ADD COLUMN IF NOT EXISTS keys_beside varchar",
)
_BARE = ("bool", "int32", "int64")
"""Column types whose text needs no quotes."""


class DuckBooks(SqlBooks):
    """The books of one file."""

    def create(self, session: Session) -> None:
        """Create the tables unless they are there."""
        with session.transaction():
            for statement in _CREATE:
                session.execute(statement)

    def claim(self, session: Session, destination: str, numbers: Sequence[int]) -> set[int]:
        """Return the commits that nobody loaded."""
        return set(numbers) - loaded(session, destination, numbers)

    def fill(
        self,
        session: Session,
        destination: str,
        outcomes: Sequence[LoadOutcome],
        batches: Mapping[int, str],
    ) -> None:
        """Write the outcomes, in the place of those of other batches with these numbers.

        They were deleted when the numbers were taken; but a row that a key refuses begins the
        transaction anew.
        """
        session.execute(forget(destination, [outcome.commit_number for outcome in outcomes]))
        values = values_of(outcomes, batches)
        session.execute(
            f"INSERT INTO {COMMITS} (destination, commit_number, counts, parked, loaded_at, batch) "
            f"SELECT {literal(destination)}, v.number, v.counts, v.parked, now(), v.batch "
            f"FROM (VALUES {values}) AS v (number, counts, parked, batch)"
        )

    def key_text(self, spec: TableSpec) -> str:
        """Return the expression that gives stage row ``s``'s key as text, one text for one key."""
        kinds = {column.name: column for column in spec.columns}
        return _text([(f"s.{quoted(name)}", kinds[name]) for name in spec.key])

    def key_hash(self, spec: TableSpec) -> str:
        """Return the text itself: there is no index that it could be too long for."""
        return self.key_text(spec)

    def _buried_values(self, types: Sequence[str]) -> list[str]:
        return [
            _read(f"json_extract_string(key, '$[{place}]')", kind)
            for place, kind in enumerate(types)
        ]


_READ_AS = {
    "bool": "boolean",
    "float64": "double",
    "timestamp": "timestamptz",
    "date": "timestamptz",
}


def _read(text: str, kind: str) -> str:
    if kind == "bytes":
        return f"unhex({text})"
    return f"CAST({text} AS {_READ_AS[kind]})" if kind in _READ_AS else text


def rekeyed(spec: TableSpec, types: Sequence[str]) -> list[str]:
    """Return statements that spell the keys in tombstones anew, after a key column was widened.

    Args:
        spec: the table.
        types: of its key columns, as they are now.
    """
    kinds = {column.name: column for column in spec.columns}
    parts = [
        (f"CAST(json_extract_string(key, '$[{place}]') AS {kind})", kinds[name])
        for place, (name, kind) in enumerate(zip(spec.key, types, strict=True))
    ]
    text = _text(parts)
    return [f"UPDATE {TOMBSTONES} SET key = {text}, key_hash = {text} WHERE {is_of(spec)}"]


def _text(parts: Sequence[tuple[str, Column]]) -> str:
    return "'[' || " + " || ', ' || ".join(_part(*part) for part in parts) + " || ']'"


def _part(value: str, column: Column) -> str:
    text = f"hex({value})" if column.type == "bytes" else f"CAST({value} AS varchar)"
    return text if column.type in _BARE else f"CAST(to_json({text}) AS varchar)"
