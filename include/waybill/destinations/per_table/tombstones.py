"""What is left of deleted keys: a lake table of its own, for all tables of a warehouse.

A tombstone is a fact, "this key was deleted with these versions", so that the table is only ever
appended to: a key's effective version is the greater of its row's and its tombstones'. Tombstones
are written before the delete itself. Until the data table has the commit that they are of, they do
not count: a load that died in between judges again as if there were none.

When there are many of a table, they are cleaned up: the greatest of each key stays, and none of
those whose key has a newer row.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from waybill.destinations.batch import TableBatch
from waybill.destinations.merging import quoted
from waybill.destinations.per_table.table import ConflictError, Lake, LakeTable
from waybill.destinations.per_table.verdicts import INTAKE, SOURCE
from waybill.pipelines import TableSpec

if TYPE_CHECKING:
    import duckdb

SCHEMA, NAME = "waybill", "_waybill_tombstones"
_TABLE = "target"
_SHAPE = pa.schema(
    [
        pa.field(_TABLE, pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("_waybill_id", pa.string()),
        pa.field(SOURCE, pa.int64(), nullable=False),
        pa.field(INTAKE, pa.int64(), nullable=False),
        pa.field("destination", pa.string(), nullable=False),
        pa.field("commit_number", pa.int64(), nullable=False),
        pa.field("deleted_at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
_TRIES = 5
CLEAN_UP_ROWS = 100_000
"""Tombstones of a table, beside those that the last clean-up left, at which they are cleaned up."""


def target_of(spec: TableSpec) -> str:
    """Return the text that stands for a table; no two tables have the same."""
    return f"{quoted(spec.schema_name)}.{quoted(spec.name)}"


class Tombstones:
    """The tombstones of one warehouse."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._opened: LakeTable | None = None
        self._seen: dict[str, int] = {}
        self._left: dict[str, int] = {}

    @property
    def _table(self) -> LakeTable:
        if self._opened is None:
            self._opened = self._lake.table(SCHEMA, NAME)
        return self._opened

    def make(self) -> None:
        """Create the table unless it is there; others may create it at the same time."""
        if not self._table.refresh():
            self._table.create(_SHAPE)
            self._table.refresh()

    def refresh(self) -> None:
        """Read what others wrote."""
        self._table.refresh()

    def of(
        self,
        connection: duckdb.DuckDBPyConnection,
        data: LakeTable,
        spec: TableSpec,
        own: tuple[str, Collection[int]],
    ) -> pa.Table | None:
        """Return the tombstones of a table that count: key and versions, the greatest of each key.

        Args:
            connection: to DuckDB.
            data: the table, as of the snapshot that is judged against.
            spec: its declaration.
            own: whose commits are being loaded, and which.

        Returns:
            None when there are none. Cost: of all tombstones of the table.
        """
        found = self._all(spec)
        self._seen[target_of(spec)] = found.num_rows
        if not found.num_rows:
            return None
        connection.register("all_tombstones", found)
        connection.register("had", _had(data, found, *own))
        return connection.execute(
            f"SELECT key, v.s AS {SOURCE}, v.i AS {INTAKE} FROM (SELECT key, "
            f"max({{'s': {SOURCE}, 'i': {INTAKE}}}) AS v FROM all_tombstones "
            "JOIN had USING (destination, commit_number) GROUP BY key)"
        ).to_arrow_table()

    def _all(self, spec: TableSpec) -> pa.Table:
        target = target_of(spec)
        names = ["key", SOURCE, INTAKE, "destination", "commit_number", _TABLE]
        found = self._table.scan(names, {_TABLE: (target, target)}).read_all()
        return found.filter(pa.compute.equal(found[_TABLE], target))

    def write(
        self,
        batch: TableBatch,
        places: pa.Array,
        keys: pa.Array,
        destination: str,
        commits: pa.Array,
    ) -> None:
        """Write tombstones of rows.

        Args:
            batch: the rows' batch.
            places: their ordinals.
            keys: the text of each one's key.
            destination: whose commits they are of.
            commits: the commit number of each.
        """
        context = batch.context.take(places)
        now = pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC"))
        columns = {
            _TABLE: pa.repeat(target_of(batch.spec), len(places)),
            "key": keys,
            "_waybill_id": context["_waybill_id"],
            SOURCE: context[SOURCE],
            INTAKE: context[INTAKE],
            "destination": pa.repeat(destination, len(places)),
            "commit_number": commits,
            "deleted_at": pa.repeat(now, len(places)),
        }
        self._table.append(pa.table(list(columns.values()), schema=_SHAPE))

    def clean_up(
        self,
        connection: duckdb.DuckDBPyConnection,
        data: LakeTable,
        spec: TableSpec,
        *,
        most: int = CLEAN_UP_ROWS,
    ) -> bool:
        """Leave out what has no use any more, when there are many; returns whether it did.

        Cost: when it is due, a pass over the table's keys and versions; again when other tables'
        tombstones come meanwhile, five times at most. Then it is due again next time.
        """
        target = target_of(spec)
        if self._seen.get(target, 0) - self._left.get(target, 0) < most:
            return False
        return any(self._cleaned_up(connection, data, spec) for _ in range(_TRIES))

    def _cleaned_up(
        self, connection: duckdb.DuckDBPyConnection, data: LakeTable, spec: TableSpec
    ) -> bool:
        target = target_of(spec)
        data.refresh()
        self.refresh()
        names = [*_SHAPE.names]
        found = self._table.scan(names, {_TABLE: (target, target)}).read_all()
        found = found.filter(pa.compute.equal(found[_TABLE], target))
        kept = _useful(connection, data, spec, found)
        try:
            self._table.replace(_TABLE, target, kept)
        except ConflictError:
            return False
        self._left[target] = kept.num_rows
        return True


def _useful(
    connection: duckdb.DuckDBPyConnection, data: LakeTable, spec: TableSpec, found: pa.Table
) -> pa.Table:
    """Return tombstones without those that a greater one or a newer row of their key has."""
    connection.register("all_tombstones", found.select(_SHAPE.names))
    connection.register("had", _had(data, found, "", ()))
    connection.register("held", data.scan([*spec.key, SOURCE, INTAKE], {}))
    pairs = f"{{'s': t.{SOURCE}, 'i': t.{INTAKE}}}"
    kept = connection.execute(
        "WITH counted AS (SELECT t.*, h.commit_number IS NOT NULL AS counts, row_number() OVER "
        f"(PARTITION BY t.key, h.commit_number IS NOT NULL ORDER BY {pairs} DESC) AS place "
        "FROM all_tombstones t LEFT JOIN had h USING (destination, commit_number)), "
        f"rows AS (SELECT {key_text(spec)} AS key, {SOURCE}, {INTAKE} FROM held s) "
        f"SELECT {', '.join(f't.{quoted(n)}' for n in _SHAPE.names)} FROM counted t "
        f"LEFT JOIN rows r ON r.key = t.key AND t.counts WHERE NOT t.counts OR (t.place = 1 "
        f"AND (r.{SOURCE} IS NULL OR r.{SOURCE} < t.{SOURCE} OR "
        f"(r.{SOURCE} = t.{SOURCE} AND r.{INTAKE} < t.{INTAKE})))"
    ).to_arrow_table()
    return kept.cast(_SHAPE)


def _had(data: LakeTable, found: pa.Table, destination: str, numbers: Collection[int]) -> pa.Table:
    """Return the (destination, commit number) of tombstones whose commits the data table has."""
    pairs = found.select(["destination", "commit_number"]).group_by(
        ["destination", "commit_number"]
    )
    kept = []
    for pair in pairs.aggregate([]).to_pylist():
        last = data.last_number(pair["destination"])
        own = pair["destination"] == destination and pair["commit_number"] in numbers
        if last is not None and pair["commit_number"] <= last and not own:
            kept.append(pair)
    types = {"destination": pa.string(), "commit_number": pa.int64()}
    return pa.Table.from_pylist(kept, pa.schema(list(types.items())))


def key_text(spec: TableSpec) -> str:
    """Return DuckDB's expression of a row ``s``'s key as JSON: one text for one key.

    A value has the same text when its column has been widened: numbers have no zeros at their end,
    dates and times are microseconds since 1970. Bytes are in hex.
    """
    kinds = {column.name: column.type for column in spec.columns}
    parts = [f"coalesce({_part(f's.{quoted(name)}', kinds[name])}, 'null')" for name in spec.key]
    return "'[' || " + " || ',' || ".join(parts) + " || ']'"


def _part(name: str, kind: str) -> str:
    if kind == "bytes":
        return f"'\"' || hex({name}) || '\"'"
    if kind in ("date", "timestamp"):
        return f"epoch_us({name}::TIMESTAMPTZ)::VARCHAR"
    if kind.startswith("decimal") or kind == "float64":
        return f"regexp_replace({name}::VARCHAR, '(\\.0*|(\\.[0-9]*[1-9])0+)$', '\\2')"
    if kind in ("string", "json"):
        return f"to_json({name})::VARCHAR"
    return f"{name}::VARCHAR"
