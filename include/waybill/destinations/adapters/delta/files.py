"""The data files of a Delta table: read one by one, and written anew with what changed.

Only of plain tables, whose files hold all that their rows are: no partitions, column mapping,
deletion vectors or change feed. A merge of delta-rs takes whole tables through memory; this takes
the files with changed keys alone, batch by batch.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from waybill.destinations.per_table.files import complete, packed
from waybill.destinations.per_table.table import Bounds

_FILE_BYTES = 48 * 1024**2
"""Of rows in memory: a data file holds no more."""
_BATCH_ROWS = 131_072
_WRITERS = 2
_MOST_COLUMNS_KNOWN = 32
"""Of more columns files do not know the least and greatest values, as is usual."""
_PLAIN_FEATURES = frozenset({"appendOnly", "invariants", "checkConstraints"})
_PLAIN_READER, _PLAIN_WRITER, _BY_FEATURES = 1, 3, 7


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """One data file of a snapshot."""

    path: str
    size: int


def is_plain(table: DeltaTable) -> bool:
    """Say whether the table's files hold all that its rows are."""
    protocol, metadata = table.protocol(), table.metadata()
    features = set(protocol.writer_features or ())
    known = protocol.min_writer_version <= _PLAIN_WRITER or (
        protocol.min_writer_version == _BY_FEATURES and features <= _PLAIN_FEATURES
    )
    changes = metadata.configuration.get("delta.enableChangeDataFeed", "false").lower()
    plain = protocol.min_reader_version == _PLAIN_READER and not metadata.partition_columns
    return known and plain and changes != "true"


def files_within(table: DeltaTable, bounds: Bounds) -> list[DeltaFile]:
    """Return the files that may hold rows within the bounds."""
    actions = pa.table(table.get_add_actions(flatten=True))
    kept = pa.array([True] * actions.num_rows, pa.bool_())
    for name, (low, high) in bounds.items():
        least, greatest = f"min.{name}", f"max.{name}"
        if least in actions.column_names and greatest in actions.column_names:
            below = pc.fill_null(pc.greater(actions[least], high), fill_value=False)
            above = pc.fill_null(pc.less(actions[greatest], low), fill_value=False)
            kept = pc.and_(kept, pc.invert(pc.or_(below, above)))
    chosen = actions.filter(kept)
    sizes = chosen["size_bytes"].to_pylist()
    return [DeltaFile(*item) for item in zip(chosen["path"].to_pylist(), sizes, strict=True)]


class DeltaFiles:
    """Reads and writes the files of one table."""

    def __init__(self, table: DeltaTable) -> None:
        self._files = fs.PyFileSystem(DeltaStorageHandler.from_table(table._table))  # noqa: SLF001

    def read(self, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield a file's rows with these columns; those that it does not have are null."""
        with self._files.open_input_file(path) as opened:
            file = pq.ParquetFile(opened)
            own = [name for name in schema.names if name in file.schema_arrow.names]
            batches = file.iter_batches(_BATCH_ROWS, columns=own)
            for batch in batches:
                yield from complete(pa.Table.from_batches([batch]), schema).to_batches()

    def write(self, tables: Iterable[pa.Table]) -> list[AddAction]:
        """Write rows into new files; returns what a commit says of them."""
        actions: list[AddAction] = []
        waiting: deque[Future[AddAction]] = deque()
        with ThreadPoolExecutor(_WRITERS) as pool:
            for rows in packed(tables, _FILE_BYTES):
                waiting.append(pool.submit(self._written, rows))
                if len(waiting) >= _WRITERS:
                    actions.append(waiting.popleft().result())
            actions += [future.result() for future in waiting]
        return actions

    def _written(self, rows: pa.Table) -> AddAction:
        path = f"part-{uuid.uuid4()}.snappy.parquet"
        metadata: list[pq.FileMetaData] = []
        with self._files.open_output_stream(path) as opened:
            pq.write_table(
                rows,
                opened,
                compression="snappy",
                use_dictionary=_repeating(rows.schema),
                metadata_collector=metadata,
            )
            size = opened.tell()
        return AddAction(
            path=path,
            size=size,
            partition_values={},
            modification_time=time.time_ns() // 1_000_000,
            data_change=True,
            stats=orjson.dumps(_stats(rows, metadata[0])).decode(),
        )


def removed(files: Sequence[DeltaFile]) -> list[RemoveAction]:
    """Return what a commit says of files that were written anew."""
    now = time.time_ns() // 1_000_000
    return [RemoveAction(file.path, True, now, file.size, {}) for file in files]  # noqa: FBT003


def _stats(rows: pa.Table, written: pq.FileMetaData) -> dict[str, Any]:
    """Return what readers skip files by, as Parquet's writer found it."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index, item in enumerate(list(rows.schema)[:_MOST_COLUMNS_KNOWN]):
        nulls[item.name] = rows[item.name].null_count
        word = next((spell for holds, spell in _SPELLINGS if holds(item.type)), None)
        statistics = [
            written.row_group(i).column(index).statistics for i in range(written.num_row_groups)
        ]
        if word is None or any(s is None for s in statistics):
            continue
        ends = [s for s in statistics if s.has_min_max]
        if ends and len(ends) == sum(s.num_values > 0 for s in statistics):
            least[item.name] = word(min(s.min_raw for s in ends))
            greatest[item.name] = word(max(s.max_raw for s in ends))
    return {
        "numRecords": rows.num_rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
    }


def _repeating(schema: pa.Schema) -> list[str]:
    """Return the columns whose values may repeat enough for a dictionary: texts, but for ids."""
    return [f.name for f in schema if pa.types.is_string(f.type) and f.name != "_waybill_id"]


def _text(raw: bytes) -> str:
    return raw.decode()


def _day(raw: int) -> str:
    return str(pa.scalar(raw, pa.int32()).cast(pa.date32()).cast(pa.string()))


def _millisecond(raw: int) -> str:
    """Return a time as Delta's statistics spell it: by the millisecond before."""
    moment = pa.scalar(raw // 1_000, pa.int64()).cast(pa.timestamp("ms"))
    return f"{moment.cast(pa.string())}Z".replace(" ", "T")


_SPELLINGS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
    (pa.types.is_integer, int),
    (pa.types.is_string, _text),
    (pa.types.is_date, _day),
    (pa.types.is_timestamp, _millisecond),
)
"""Types whose least and greatest values files know, and how those are spelt."""
