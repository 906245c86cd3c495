"""The staged object: mapped rows on their way to the destination.

Layout
  frame*     Arrow IPC stream (zstd or lz4) of one table's rows; metadata ``waybill`` names it
  directory  JSON: a list of {position, length, rows, sha256, table: [schema, name]}; an older
             release wrote no tables
  length     u32 little-endian, bytes of the directory
  magic      b"WBS1"

Columns of a frame: the table's own, then the system columns (``system_columns``).
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from waybill.errors import StopError
from waybill.events import DELETE, UPSERT, Event, Heads
from waybill.pipelines import TableSpec

MAGIC = b"WBS1"
_LENGTH = struct.Struct("<I")
_METADATA = b"waybill"
_ENTRY = ("position", "length", "rows", "sha256")
Place = tuple[str, str]
"""(schema, table)."""
TAIL_BYTES = 64 * 1024
"""What is read of an object to learn its tables: some 300 of them."""
_ROWS_A_BATCH = 65_536
_SMALL_ROWS = 256
"""Batches of fewer are kept serialised: as objects each takes some 6 KB beside its rows."""
_SMALL_FRAME_BYTES = 256 * 1024
"""Frames of fewer are compressed by lz4: a fifth of the time, and twice the size."""
_MOST_SMALL = 16
"""Small batches of one table before they are joined."""

SYSTEM_FIELDS = (
    pa.field("_waybill_id", pa.string(), nullable=False),
    pa.field("_waybill_key", pa.string(), nullable=False),
    pa.field("_waybill_source_version", pa.int64(), nullable=False),
    pa.field("_waybill_intake_version", pa.int64(), nullable=False),
    pa.field("_waybill_intake_minute", pa.int32(), nullable=False),
    pa.field("_waybill_op", pa.string(), nullable=False),
    pa.field("_waybill_replayed", pa.bool_(), nullable=False),
    pa.field("_waybill_replay", pa.string()),
    pa.field("_waybill_attempt", pa.int32(), nullable=False),
)


class StagedObjectError(StopError):
    """A staged object is damaged; nothing of it is loaded."""


@dataclass(frozen=True, slots=True)
class StagedFrame:
    """One table's rows of one staged object."""

    pipeline_id: str
    team: str
    event_name: str
    pipeline_version: str
    table: TableSpec
    data: pa.Table


@dataclass(frozen=True, slots=True, eq=False)
class EventColumns:
    """Events of one slice that ended alike, column by column; for staged rows and traces."""

    ids: pa.Array
    """Texts."""
    attempts: pa.Array
    """32 bits, as all but offsets."""
    offsets: pa.Array
    """64 bits."""
    partitions: pa.Array
    minutes: pa.Array
    """Of intake."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.ids)


def system_columns(
    events: Sequence[Event], known: EventColumns, *, replayed: bool
) -> list[pa.Array]:
    """Return the system columns of events that become rows, in ``SYSTEM_FIELDS`` order.

    Args:
        events: the events.
        known: their columns that are made already.
        replayed: whether the rows enter at the destination.
    """
    is_replayed = pa.repeat(pa.scalar(replayed), len(events))
    if isinstance(events, Heads):
        return [
            known.ids,
            head_array(events, "keys"),
            head_array(events, "source_versions"),
            head_array(events, "intake_versions"),
            known.minutes,
            _ops(events),
            is_replayed,
            pa.nulls(len(events), pa.string()),
            known.attempts,
        ]
    return [
        known.ids,
        pa.array([e.key for e in events], pa.string()),
        pa.array([e.source_version for e in events], pa.int64()),
        pa.array([e.intake_version for e in events], pa.int64()),
        known.minutes,
        pa.array([e.op for e in events], pa.string()),
        is_replayed,
        pa.array([e.replay_id for e in events], pa.string()),
        known.attempts,
    ]


def _ops(heads: Heads) -> pa.Array:
    deletes = frozenset(heads.deletes)
    if not deletes:
        return pa.repeat(pa.scalar(UPSERT), len(heads))
    return pa.array([DELETE if n in deletes else UPSERT for n in range(len(heads))], pa.string())


def head_array(heads: Heads, name: str) -> pa.Array:
    """Return a column of `Heads` (ids, keys, source_versions, intake_versions); made once."""
    array = heads.arrays.get(name)
    if array is None:
        kind = pa.string() if name in ("ids", "keys") else pa.int64()
        array = heads.arrays[name] = pa.array(getattr(heads, name), kind)
    return array


@lru_cache(maxsize=1024)
def staged_schema(table: pa.Schema) -> pa.Schema:
    """Return the schema of a table's staged rows; equal tables share one."""
    return pa.schema([*table, *SYSTEM_FIELDS])


def staged_batch(
    columns: pa.RecordBatch, system: list[pa.Array], schema: pa.Schema
) -> pa.RecordBatch:
    """Join mapped columns and system columns of the same rows under their `staged_schema`."""
    return pa.RecordBatch.from_arrays([*columns.columns, *system], schema=schema)


class StagedHead(NamedTuple):
    """What the rows of one table are called in the object."""

    pipeline_id: str
    team: str
    event_name: str
    pipeline_version: str
    table: TableSpec

    def to_json(self) -> dict[str, Any]:
        """Return the head as JSON."""
        return {**self._asdict(), "table": self.table.to_json()}


class StagedPacker:
    """Collects one task's rows and packs them into one object.

    Memory: the rows, and about 1 KB a batch of less than 256 rows.
    """

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str], list[_Table]] = {}
        """Of a table whose mapping changed meanwhile: one for each version, in order."""
        self.rows = 0
        self.row_bytes = 0
        """Of all rows that were added, in memory: they compress to any size."""

    def add(self, *, head: StagedHead, batch: pa.RecordBatch) -> None:
        """Add rows of one table."""
        if batch.num_rows == 0:
            return
        versions = self._tables.setdefault((head.pipeline_id, head.event_name), [])
        if not versions or not _same_table(versions[-1].head.table, head.table):
            versions.append(_Table(head, batch.schema))
        versions[-1].add(batch)
        self.rows += batch.num_rows
        self.row_bytes += batch.nbytes

    def tables(self) -> Iterator[tuple[StagedHead, pa.Table]]:
        """Yield each table's head and its rows in the order they came; packs nothing.

        A table whose mapping changed meanwhile comes once for each version, in their order.
        """
        for versions in self._tables.values():
            for table in versions:
                yield table.head, table.rows()

    def finish(self) -> bytes:
        """Return the object's bytes; it is empty then. Cost: one zstd pass over the rows."""
        body = io.BytesIO()
        directory = []
        tables = [table for versions in self._tables.values() for table in versions]
        self._tables.clear()
        tables.reverse()
        while tables:  # each is freed once it is written
            table = tables.pop()
            rows = table.rows()
            frame = _frame(table.head, rows)
            directory.append(
                {
                    "position": body.tell(),
                    "length": len(frame),
                    "rows": rows.num_rows,
                    "sha256": hashlib.sha256(frame).hexdigest(),
                    "table": [table.head.table.schema_name, table.head.table.name],
                }
            )
            body.write(frame)
        listing = orjson.dumps(directory)
        body.write(listing + _LENGTH.pack(len(listing)) + MAGIC)
        return body.getvalue()


def _same_table(one: TableSpec, other: TableSpec) -> bool:
    return one is other or one == other


class _Table:
    """The rows of one table, in the order they came."""

    __slots__ = ("_batches", "_schema", "_small", "_small_rows", "head")

    def __init__(self, head: StagedHead, schema: pa.Schema) -> None:
        self.head = head
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._small: list[bytes] = []
        """Serialised batches; they come behind the others."""
        self._small_rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows < _SMALL_ROWS:
            self._small.append(batch.serialize().to_pybytes())
            self._small_rows += batch.num_rows
        else:
            self._settle()
            self._batches.append(batch)
        if self._small_rows >= _SMALL_ROWS:
            self._settle()
        elif len(self._small) == _MOST_SMALL:
            self._small = [batch.serialize().to_pybytes() for batch in self._joined()]

    def rows(self) -> pa.Table:
        batches = [*self._batches, *map(self._read, self._small)]
        return pa.Table.from_batches(batches, self._schema).combine_chunks()

    def _settle(self) -> None:
        """Join the small batches and put them behind the others."""
        if self._small:
            self._batches += self._joined()
            self._small.clear()
            self._small_rows = 0

    def _joined(self) -> list[pa.RecordBatch]:
        """Return the small batches as one; as several where a column has more than 2 GiB."""
        joined = pa.Table.from_batches(map(self._read, self._small)).combine_chunks()
        return list(joined.to_batches())

    def _read(self, serialised: bytes) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(serialised, self._schema)


def _codec(size: int) -> pa.Codec:
    """Return what compresses a frame of so many bytes: zstd takes 0.5 ms to begin with one."""
    if size < _SMALL_FRAME_BYTES:
        return pa.Codec("lz4")
    return pa.Codec("zstd", compression_level=1)


def _frame(head: StagedHead, rows: pa.Table) -> memoryview:
    schema = rows.schema.with_metadata({_METADATA: orjson.dumps(head.to_json())})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=_codec(rows.nbytes))
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_table(
            rows.replace_schema_metadata(schema.metadata), max_chunksize=_ROWS_A_BATCH
        )
    return memoryview(sink.getvalue())


def staged_tables(tail: bytes) -> dict[Place, int] | None:
    """Return how many rows of which tables an object has, by its last bytes; reads no rows.

    Args:
        tail: the object's last ``TAIL_BYTES``, or all of it.

    Returns:
        None: the tail does not tell: an older release wrote it, it is damaged, or names too many.
    """
    end = len(tail) - len(MAGIC) - _LENGTH.size
    if end < 0 or tail[-len(MAGIC) :] != MAGIC:
        return None
    (length,) = _LENGTH.unpack_from(tail, end)
    try:
        found = orjson.loads(tail[end - length : end]) if length <= end else ()
        rows: dict[Place, int] = {}
        for row in found:
            place = (str(row["table"][0]), str(row["table"][1]))
            rows[place] = rows.get(place, 0) + int(row["rows"])
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return rows or None


def read_staged(
    body: bytes, *, key: str = "staged object", table: Place | None = None
) -> list[StagedFrame]:
    """Read a staged object; all of it is checked.

    Args:
        body: the whole object.
        key: for words.
        table: whose rows are read; None: those of all.

    Raises:
        StagedObjectError: it is damaged, in whichever of its tables; names the object and the
            frame.
    """
    directory, end = _directory(body, key)
    at = 0
    frames = []
    for row in directory:
        if row["position"] != at:
            raise StagedObjectError(f"{key}: its directory leaves out bytes from {at} on")
        frame = _read_frame(body, row, key, table)
        if frame is not None:
            frames.append(frame)
        at += row["length"]
    if at != end:
        raise StagedObjectError(f"{key}: its directory leaves out bytes from {at} on")
    return frames


def _directory(body: bytes, key: str) -> tuple[list[dict[str, Any]], int]:
    """Return an object's directory and where it begins."""
    tail = len(MAGIC) + _LENGTH.size
    if len(body) < tail or body[-len(MAGIC) :] != MAGIC:
        raise StagedObjectError(f"{key} does not end as a staged object does")
    (length,) = _LENGTH.unpack_from(body, len(body) - tail)
    start = len(body) - tail - length
    try:
        found = orjson.loads(body[start : start + length] if start >= 0 else b"")
        rows = [{name: row[name] for name in _ENTRY} | {"table": row.get("table")} for row in found]
    except (ValueError, KeyError, TypeError) as error:
        raise StagedObjectError(f"{key}: its directory is damaged: {error}") from error
    if any(type(row[name]) is not int for row in rows for name in _ENTRY[:-1]):
        raise StagedObjectError(f"{key}: its directory is damaged")
    return rows, start


def _read_frame(
    body: bytes, row: dict[str, Any], key: str, table: Place | None
) -> StagedFrame | None:
    """Return a frame; None: it is of another table than is asked for."""
    frame = memoryview(body)[row["position"] : row["position"] + row["length"]]
    if len(frame) != row["length"] or hashlib.sha256(frame).hexdigest() != row["sha256"]:
        raise StagedObjectError(f"{key}: frame at byte {row['position']} is damaged")
    with pa.ipc.open_stream(pa.py_buffer(frame)) as reader:
        head = orjson.loads(reader.schema.metadata[_METADATA])
        spec = TableSpec.from_json(head["table"])
        if row["table"] not in (None, [spec.schema_name, spec.name]):
            raise StagedObjectError(
                f"{key}: its directory names another table than the frame at byte {row['position']}"
            )
        if table is not None and (spec.schema_name, spec.name) != table:
            return None
        data = reader.read_all()
    if data.num_rows != row["rows"]:
        raise StagedObjectError(f"{key}: {data.num_rows} rows where {row['rows']} were written")
    return StagedFrame(
        head["pipeline_id"],
        head["team"],
        head["event_name"],
        head["pipeline_version"],
        spec,
        data.replace_schema_metadata(None),
    )
