"""Verdicts over a batch, outside of any engine: DuckDB joins keys, Arrow compares contents.

The verdicts are those of ``waybill.destinations``. Of the target only keys and versions are read;
contents only of rows whose source version is that of the row that comes, and whose intake version
is not. Where a key has a row in the table and a tombstone, only the newer one counts.

Whether rows hold the same: null equals null, and a float that is no number equals itself.

The formats check a commit as a whole; so NOT NULL and CHECK constraints are evaluated here, row by
row, before anything is written, and rows at fault park alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot.errors import SqlglotError

from waybill.destinations.batch import DELETE, DELIVERED, DUPLICATE, PARKED, SUPERSEDED, TableBatch
from waybill.destinations.merging import DELETED_AT, quoted
from waybill.destinations.model import RefusedRow
from waybill.destinations.per_table.table import FILE, Bounds, LakeTable
from waybill.destinations.refused import refused_rows
from waybill.errors import InputError

if TYPE_CHECKING:
    import duckdb

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def same(left: pa.Table, right: pa.Table) -> Mask:
    """Say, row by row, whether two tables of equal length and columns hold the same."""
    mask = np.ones(left.num_rows, np.bool_)
    for name in left.column_names:
        one = left.column(name).combine_chunks()
        other = right.column(name).combine_chunks()
        mask &= _equal(one, other.cast(one.type) if other.type != one.type else other)
    return mask


def _equal(one: pa.Array, other: pa.Array) -> Mask:
    if pa.types.is_nested(one.type):
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return np.fromiter((a == b for a, b in pairs), np.bool_, len(one))
    equal = pc.fill_null(pc.equal(one, other), fill_value=False)
    if pa.types.is_floating(one.type):
        nans = pc.and_(pc.is_nan(one), pc.is_nan(other))
        equal = pc.or_(equal, pc.fill_null(nans, fill_value=False))
    both = pc.and_(one.is_null(), other.is_null())
    return np.asarray(pc.or_(equal, both).to_numpy(zero_copy_only=False), np.bool_)


Numbers = np.ndarray[Any, np.dtype[np.int64]]

SOURCE, INTAKE = "_waybill_source_version", "_waybill_intake_version"
_BOUNDED = (pa.types.is_integer, pa.types.is_string, pa.types.is_date)
_CHUNK_ROWS = 65_536
_NONE_HELD = np.iinfo(np.int64).min


@dataclass(slots=True)
class Verdicts:
    """What became of each row of a batch."""

    outcomes: np.ndarray[Any, np.dtype[np.int8]]
    touch: Mask
    """Duplicates of what the table has, with a later intake version."""
    met: Mask
    """The row's key is in the table."""
    files: dict[int, set[int]]
    """Of rows that are met, the files."""

    @property
    def effective(self) -> Mask:
        """Return which rows change something."""
        mask: Mask = (self.outcomes == DELIVERED) | self.touch
        return mask


@dataclass(frozen=True, slots=True)
class _Met:
    """Rows of the batch beside the rows of the table that have their keys."""

    n: Numbers
    source: Numbers
    intake: Numbers
    known: Mask
    """The table's row has versions: Waybill wrote it."""
    deleted: Mask


class Judge:
    """Judges one batch against one table.

    Args:
        connection: to DuckDB; tables of no other judge are in it.
        batch: its columns have the table's types.
        table: the target, as of its snapshot.
        tombstones: key text and versions, the greatest of each key; see ``tombstones``.
        key_text: of each row; asked for only when there are tombstones.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        batch: TableBatch,
        table: LakeTable,
        tombstones: pa.Table | None,
        key_text: Callable[[], pa.Array],
    ) -> None:
        self._connection = connection
        self._batch = batch
        self._table = table
        self._tombstones = tombstones
        self._key_text = key_text
        self._key = batch.spec.key
        self._free = [c.name for c in batch.spec.columns if c.name not in self._key]
        context = batch.context
        self._source = context[SOURCE].to_numpy()
        self._intake = context[INTAKE].to_numpy()
        self._is_delete = np.asarray(pc.equal(context["_waybill_op"], "delete"), np.bool_)
        rows = len(self._source)
        nothing = np.zeros(rows, np.bool_)
        self._distinct: bool | None = None
        self._held = np.full(rows, _NONE_HELD)
        self._verdicts = Verdicts(np.zeros(rows, np.int8), nothing, nothing.copy(), {})
        self._keys = pa.table(
            [*(batch.columns[name] for name in self._key), pa.array(np.arange(rows))],
            names=[*self._key_names, "n"],
        )

    def run(self, refused: Mask | None) -> Verdicts:
        """Return the verdicts.

        Args:
            refused: rows that the table does not take; those that would be applied are parked, and
                what lost only to them is judged again.
        """
        verdicts = self._verdicts
        rows = self._keys
        while True:
            self._judge(rows)
            if refused is None:
                return verdicts
            parks = refused & (verdicts.outcomes == DELIVERED) & ~self._is_delete
            if not parks.any():
                return verdicts
            verdicts.outcomes[parks] = PARKED
            rows = self._rivals(parks)

    def _rivals(self, parked: Mask) -> pa.Table:
        """Return the rows with the keys of parked ones that are open again."""
        self._connection.register("parked", self._keys.filter(pa.array(parked)))
        open_rows = self._keys.filter(pa.array(self._verdicts.outcomes != PARKED))
        self._connection.register("rivals", open_rows)
        found = self._arrow(f"SELECT r.* FROM rivals r SEMI JOIN parked p ON {self._on('r', 'p')}")
        self._verdicts.outcomes[found["n"].to_numpy()] = DELIVERED
        return found

    def _judge(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        self._verdicts.touch[rows["n"].to_numpy()] = False
        self._connection.register("stage", rows)
        rows = self._among_themselves(rows)
        self._connection.register("winners", rows)
        self._against_table(rows)
        if self._tombstones is not None and self._tombstones.num_rows:
            self._against_tombstones(rows)

    def _among_themselves(self, rows: pa.Table) -> pa.Table:
        """Judge rows that lost to another of their key; return the others."""
        if self._distinct is None:
            self._distinct = not self._repeats_keys()
        if self._distinct:
            return rows
        names = self._names()
        versions = pa.table({"m": self._keys["n"], "source": self._source, "intake": self._intake})
        self._connection.register("versions", versions)
        losers = self._arrow(
            f"SELECT n, prev FROM (SELECT n, lag(n) OVER (PARTITION BY {names} "
            "ORDER BY source DESC, intake DESC, n) AS prev FROM stage JOIN versions ON m = n) "
            "WHERE prev IS NOT NULL"
        )
        lost, to = losers["n"].to_numpy(), losers["prev"].to_numpy()
        alike = self._source[lost] == self._source[to]
        copies = alike & (self._intake[lost] == self._intake[to])
        kinds = self._is_delete[lost] == self._is_delete[to]
        asked = np.flatnonzero(alike & ~copies & kinds)
        copies[asked] = self._is_delete[lost[asked]] | self._same(lost[asked], to[asked])
        self._verdicts.outcomes[lost] = np.where(copies, DUPLICATE, SUPERSEDED)
        won = np.ones(len(self._source), np.bool_)
        won[lost] = False
        return rows.filter(pa.array(won[rows["n"].to_numpy()]))

    def _repeats_keys(self) -> bool:
        """Say whether two rows may have one key; False is sure. Cost: one hash pass over keys."""
        names = self._key_names
        keys = self._keys.select(names)
        groups = keys.group_by(names, use_threads=False).aggregate([])
        return bool(groups.num_rows < keys.num_rows)

    def _same(self, ones: Numbers, others: Numbers) -> Mask:
        columns = self._batch.columns.select(self._free)
        return same(columns.take(pa.array(ones)), columns.take(pa.array(others)))

    def _against_table(self, rows: pa.Table) -> None:
        soft = DELETED_AT in self._table.fields().names
        columns = [*self._key, SOURCE, INTAKE, *([DELETED_AT] if soft else [])]
        self._connection.register("target", self._keyed(columns, self.bounds(rows)))
        gone = f"t.{quoted(DELETED_AT)} IS NOT NULL" if soft else "false"
        found = self._arrow(
            f"SELECT s.n AS n, coalesce(t.{SOURCE}, 0) AS source, "
            f"coalesce(t.{INTAKE}, 0) AS intake, t.{SOURCE} IS NOT NULL AS known, "
            f"{gone} AS deleted, t.{FILE} AS file "
            f"FROM winners s JOIN target t ON {self._on_equal}"
        )
        numbers = found["n"].to_numpy()
        self._verdicts.met[numbers] = True
        files = np.asarray(found["file"])
        for file in np.unique(files):
            self._verdicts.files.setdefault(int(file), set()).update(
                numbers[files == file].tolist()
            )
        met = _met(found)
        self._held[met.n[met.known]] = met.source[met.known]
        self._weigh(met, self._contents)

    def _against_tombstones(self, rows: pa.Table) -> None:
        open_rows = rows.filter(
            pa.array(self._verdicts.outcomes[rows["n"].to_numpy()] == DELIVERED)
        )
        places = open_rows["n"]
        texts = self._key_text().take(places)
        self._connection.register("open_keys", pa.table([places, texts], names=["n", "key"]))
        self._connection.register("tombstones", self._tombstones)
        found = self._arrow(
            f"SELECT s.n AS n, t.{SOURCE} AS source, t.{INTAKE} AS intake, true AS known, "
            "true AS deleted, 0 AS file FROM open_keys s JOIN tombstones t ON s.key = t.key"
        )
        # A delete takes the row away with its commit: beside an older row, the commit never came,
        # as when its loader died after the tombstones and the commit was parked.
        absent = self._held[found["n"].to_numpy()] == _NONE_HELD
        self._weigh(_met(found.filter(pa.array(absent))), self._contents)

    def _keyed(self, columns: Sequence[str], bounds: Bounds) -> pa.RecordBatchReader:
        """Return a scan of the table; ``columns`` begin with the key's, which get our names."""
        reader = self._table.scan(columns, bounds)
        names = [*self._key_names, *reader.schema.names[len(self._key) :]]
        schema = pa.schema(zip(names, reader.schema.types, strict=True))
        renamed = (pa.record_batch(batch.columns, schema=schema) for batch in reader)
        return pa.RecordBatchReader.from_batches(schema, renamed)

    def _weigh(self, met: _Met, contents: Callable[[Numbers], set[int]]) -> None:
        """Judge rows against what the table has of their keys."""
        source, intake = self._source[met.n], self._intake[met.n]
        equal = met.known & (source == met.source)
        deletes = self._is_delete[met.n]
        alike = equal & (deletes & met.deleted)
        asked = equal & ~deletes & ~met.deleted & (intake != met.intake)
        if asked.any():
            held = contents(met.n[asked])
            alike |= asked & np.fromiter((int(n) in held for n in met.n), np.bool_, len(met.n))
        duplicate = equal & ((intake == met.intake) | alike)
        lost = met.known & ((source < met.source) | (equal & (intake <= met.intake)) | duplicate)
        verdicts = np.where(duplicate, DUPLICATE, SUPERSEDED)
        self._verdicts.outcomes[met.n[lost]] = verdicts[lost]
        self._verdicts.touch[met.n[duplicate & (intake > met.intake)]] = True

    def _contents(self, places: Numbers) -> set[int]:
        """Return those of the rows whose contents the table's row of their key has."""
        free = self._free
        if not free:
            return set(places.tolist())
        asked = self._keys.take(pa.array(places))
        self._connection.register("asked", asked)
        ordinals: set[int] = set()
        for chunk in _chunks(self._table.scan([*self._key, *free], self.bounds(asked))):
            keys = chunk.select(list(self._key)).rename_columns(self._key_names)
            places = pa.array(np.arange(chunk.num_rows))
            self._connection.register("chunk", keys.append_column("place", places))
            pairs = self._arrow(
                f"SELECT s.n AS n, t.place AS place FROM asked s JOIN chunk t ON {self._on_equal}"
            )
            if pairs.num_rows:
                ours = self._batch.columns.select(free).take(pairs["n"])
                alike = same(ours, chunk.select(free).take(pairs["place"]))
                ordinals.update(pairs["n"].to_numpy()[alike].tolist())
        return ordinals

    def bounds(self, rows: pa.Table) -> Bounds:
        """Return least and greatest of the rows' keys, of types that files know them of."""
        found = {}
        for index, name in enumerate(self._key):
            column = rows[f"k{index}"]
            if any(holds(column.type) for holds in _BOUNDED):
                ends = pc.min_max(column).as_py()
                if ends["min"] is not None:
                    found[name] = (ends["min"], ends["max"])
        return found

    def bounds_of(self, places: Numbers) -> Bounds:
        """Return the bounds of the keys of these rows."""
        return self.bounds(self._keys.take(pa.array(places)))

    def _names(self) -> str:
        return ", ".join(self._key_names)

    def _on(self, one: str, other: str) -> str:
        return " AND ".join(
            f"{one}.{name} IS NOT DISTINCT FROM {other}.{name}" for name in self._key_names
        )

    @property
    def _on_equal(self) -> str:
        return " AND ".join(f"s.{name} = t.{name}" for name in self._key_names)

    @property
    def _key_names(self) -> list[str]:
        """Return what the key's columns are called in DuckDB: their own names may be any."""
        return [f"k{i}" for i in range(len(self._key))]

    def _arrow(self, query: str) -> pa.Table:
        return self._connection.execute(query).to_arrow_table()


def _met(found: pa.Table) -> _Met:
    """Return the greatest versions for each row: a user's table may have a key twice."""
    if len(pc.unique(found["n"])) < found.num_rows:
        order = [("n", "ascending"), ("source", "descending"), ("intake", "descending")]
        found = found.sort_by(order)
        _, first = np.unique(found["n"].to_numpy(), return_index=True)
        found = found.take(pa.array(first))
    return _Met(
        found["n"].to_numpy(),
        found["source"].to_numpy(),
        found["intake"].to_numpy(),
        np.asarray(found["known"], np.bool_),
        np.asarray(found["deleted"], np.bool_),
    )


def _chunks(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Yield a scan in tables of a size that is worth a join."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in reader:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _CHUNK_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def open_duckdb() -> duckdb.DuckDBPyConnection:
    """Return a database in memory that keeps its numbers of bytes and its time zone to itself."""
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET memory_limit = '512MB'")
    return connection


@dataclass(slots=True)
class Refusals:
    """Rows of a batch that a table does not take, with the first reason."""

    rows: Mask
    reasons: list[tuple[Mask, str, str]] = field(default_factory=list)
    """Rows, error code, message."""

    def add(self, rows: Mask, code: str, message: str) -> None:
        """Refuse rows."""
        if rows.any():
            self.rows |= rows
            self.reasons.append((rows, code, message))

    def described(self, batch: TableBatch) -> list[RefusedRow]:
        """Return the rows of the batch that are parked, as they are to be parked."""
        reasons: dict[int, tuple[str, str]] = {}
        for rows, code, message in self.reasons:
            for n in np.flatnonzero(rows & (batch.outcomes == PARKED)).tolist():
                reasons.setdefault(n, (code, message))
        return refused_rows(batch, reasons)


def refusals_of(
    connection: duckdb.DuckDBPyConnection, batch: TableBatch, table: LakeTable
) -> Refusals:
    """Return the rows that the table does not take. Cost: nothing where it takes all.

    Raises:
        InputError: a constraint that cannot be evaluated here.
    """
    refusals = Refusals(np.zeros(batch.columns.num_rows, np.bool_))
    for item in table.fields():
        if item.name in batch.columns.column_names and (
            not item.nullable or item.name in batch.spec.key
        ):
            nulls = np.asarray(batch.columns[item.name].is_null(), np.bool_)
            if item.name not in batch.spec.key:  # which is all that a delete needs
                nulls = nulls & ~np.asarray(pc.equal(batch.context["_waybill_op"], DELETE))
            message = f"column {item.name!r} takes no null"
            refusals.add(nulls, "destination_not_null_violation", message)
    for name, expression in table.checks().items():
        message = f"check constraint {name!r} is not met: {expression}"
        bad = _violations(connection, batch, table, name, expression)
        refusals.add(bad, "destination_check_violation", message)
    return refusals


def _violations(
    connection: duckdb.DuckDBPyConnection,
    batch: TableBatch,
    table: LakeTable,
    name: str,
    expression: str,
) -> Mask:
    """Return the rows of which the expression is not true: null is not, as Delta has it."""
    rows = batch.columns.num_rows
    columns = batch.columns.append_column("_waybill_n", pa.array(np.arange(rows)))
    for item in table.fields():
        if item.name not in columns.column_names:
            columns = columns.append_column(item.name, pa.nulls(rows, item.type))
    import duckdb

    connection.register("checked", columns)
    try:
        condition = sqlglot.parse_one(expression, read="spark").sql("duckdb")
        found = connection.execute(
            f"SELECT _waybill_n AS n FROM checked WHERE NOT coalesce(({condition}), false)"
        ).fetchnumpy()
    except (SqlglotError, duckdb.Error) as error:
        raise InputError(
            f"table {table.schema_name}.{table.name}: constraint {name!r} ({expression}) cannot be "
            f"evaluated for the rows of a load: {error}; write it in plainer SQL"
        ) from error
    bad = np.zeros(rows, np.bool_)
    bad[np.asarray(found["n"], np.int64)] = True
    return bad
